"""What the scorers of one config have in common, and what can be written down of it."""

from __future__ import annotations

import threading
import warnings
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.integrations.functions import JudgeArgs
from mlflow_adk_eval.tracking.scorer_sqlite import sqlite_warning

if TYPE_CHECKING:
    from mlflow_adk_eval.integrations.scoring import Scoring


class Shared:
    """What the scorers of one config share: its judges with their limits, and what was already judged."""

    def __init__(self, config: EvalConfig, judging: JudgeArgs) -> None:
        """Make the judges ready.

        Raises:
            JudgeError: if a judge cannot be had.
        """
        self.config = config
        self.judging = judging
        self._lock = threading.Lock()
        self._scoring: Scoring | None = judging.scoring(config)
        self._warned = False

    @property
    def scoring(self) -> Scoring:
        """The criteria, made ready anew in a process that got them from another one."""
        with self._lock:
            if self._scoring is None:
                self._scoring = self.judging.scoring(self.config)
            return self._scoring

    def warn(self, *, stacklevel: int) -> None:
        """Warn once if rows will be lost."""
        message = "" if self._warned else sqlite_warning()
        if message:
            self._warned = True
            warnings.warn(message, UserWarning, stacklevel=stacklevel + 1)

    def to_json(self) -> Json:
        """Return config and judging as JSON values.

        Raises:
            UsageError: if the judge is an object, which no JSON text can hold.
        """
        judge = self.judging.judge
        if judge is not None and not isinstance(judge, str):
            raise UsageError(f"a scorer whose judge is a {type(judge).__name__} cannot be stored: name a model as its judge instead")
        given = {field.name: getattr(self.judging, field.name) for field in fields(self.judging)}
        return {"config": self.config.to_json(), **{name: _plain(value) for name, value in given.items() if value is not None}}

    def __getstate__(self) -> Json:
        return {"config": self.config, "judging": self.judging}

    def __setstate__(self, state: Json) -> None:
        self.__dict__.update(state, _lock=threading.Lock(), _scoring=None, _warned=False)

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: the copy of a scorer asks the same judges within the same limits."""
        return self


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
