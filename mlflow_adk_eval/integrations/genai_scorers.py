"""Criteria as scorers of ``mlflow.genai``.

MLflow calls a scorer with a row, or with the traces of a session, from threads of its own. `genai_rows` makes a case and a conversation of
that, `Scoring` judges it, and the result becomes an assessment as in the traces of `evaluate`. The scorers of one config share one `Scoring`,
also after they were copied; one that comes from another process, or from MLflow's store, makes its own.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import mlflow
from mlflow.entities import Feedback, Trace
from mlflow.genai.scorers.base import Scorer, ScorerKind, SerializedScorer
from pydantic import Field, PrivateAttr

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.errors import AdkEvalError, UsageError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.integrations.genai_rows import row_of_record, row_of_session
from mlflow_adk_eval.integrations.scoring import explained, scoring
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.setup import JudgeArgs
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored, reaches, reason_of, status_of
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.results.votes import ItemResult, item_results, votes_by_turn
from mlflow_adk_eval.tables.records import EXPECTATIONS
from mlflow_adk_eval.tracking.storable import assessment_name, storable_text
from mlflow_adk_eval.tracking.trace_records import Assessed, assessment_of
from mlflow_adk_eval.tracking.traces import feedback_of

if TYPE_CHECKING:
    from mlflow_adk_eval.integrations.scoring import Scoring
    from mlflow_adk_eval.tables.rows import Row

WORKERS = "MLFLOW_GENAI_EVAL_MAX_WORKERS"
_POOL = "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE"
_MOST, _LARGE_POOL = 6, 60
"""As many workers as lose nothing with MLflow's own pool, and as large a pool as its default number of workers needs."""


def sqlite_warning() -> str:
    """Return what to say before evaluating on the store that MLflow is set to, or ``""`` where nothing will be lost."""
    if not mlflow.get_tracking_uri().startswith("sqlite") or _at_most(WORKERS, _MOST) or _at_least(_POOL, _LARGE_POOL):
        return ""
    return (
        "mlflow.genai.evaluate loses rows on a SQLite tracking URI at its default number of workers: traces and assessments that find "
        f"no free connection are dropped with no more than a warning. Set {WORKERS}=4 in the environment before evaluating, or use an "
        "MLflow server (`mlflow server`, then its http:// address as the tracking URI)."
    )


def _at_most(name: str, limit: int) -> bool:
    value = os.environ.get(name, "")
    return value.isdigit() and 0 < int(value) <= limit


def _at_least(name: str, limit: int) -> bool:
    value = os.environ.get(name, "")
    return value.isdigit() and int(value) >= limit


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
        self._scoring: Scoring | None = scoring(config, **judging)
        self._warned = False

    @property
    def scoring(self) -> Scoring:
        """The criteria, made ready anew in a process that got them from another one."""
        with self._lock:
            if self._scoring is None:
                self._scoring = scoring(self.config, **self.judging)
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
        judge = self.judging.get("judge")
        panel = judge if isinstance(judge, list | tuple) else [judge or ""]
        if not all(isinstance(one, str) for one in panel):
            raise UsageError(f"a scorer whose judge is a {type(judge).__name__} cannot be stored: name a model as its judge instead")
        kept = {name: _plain(value) for name, value in self.judging.items() if value is not None and name != "judge_hosts"}
        return {"config": self.config.to_json(), **kept}

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


def _feedback_of(result: CriterionResult) -> Feedback:
    """Return the score with its reasons, or, where there is none, an error: never a zero in its place."""
    secrets, overall = secrets_of(), result.overall
    reason = explained(result) if isinstance(overall, Scored) else reason_of(overall)
    outcome = (result.score, status_of(overall), storable_text(reason, secrets))
    return feedback_of(assessment_of(result, outcome, result.votes, _findings(result), secrets))


def _unreadable(criterion: str, error: Exception) -> Feedback:
    """Return that a row does not say what the criterion could judge."""
    message = storable_text(str(error), secrets_of())
    metadata = {"status": status_of(Errored(message))}
    return feedback_of(Assessed(name=assessment_name(criterion), code="ERROR", error=message, metadata=metadata))


def _findings(result: CriterionResult) -> Sequence[ItemResult]:
    cells = ((cell_at(result, index), votes) for index, votes in sorted(votes_by_turn(result.votes).items()))
    return [finding for cell, votes in cells if cell is not None for finding in item_results(cell, votes)]


_ROW = "(*, inputs=None, outputs=None, expectations=None, trace=None)"
_SESSION = "(*, session, expectations=None)"


class CriterionScorer(Scorer):  # type: ignore[misc]  # MLflow is not typed
    """One criterion as a scorer."""

    criterion: str
    """Its name in the config, which MLflow might not take as that of an assessment."""
    settings: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Its settings, as in a config."""
    timeout: int | float | None = 0
    """No limit: judges have their own per request, per outage and by budget. A scorer that MLflow gives up on would go on
    working, and paying, in the background, and under a provider's rate limit any row may have to wait for its turn."""
    _shared: Shared | None = PrivateAttr(default=None)

    def _feedback(self, read: Callable[[], Row]) -> Feedback | None:
        shared = self.shared
        shared.warn(stacklevel=3)
        try:
            row = read()
        except AdkEvalError as error:
            return _unreadable(self.criterion, error)
        if not shared.scoring.concerns(row.case, self.criterion):
            return None
        return _feedback_of(shared.scoring.result(row, self.criterion))

    def sharing(self, shared: Shared) -> Self:
        """Return itself, with what it shares with the other scorers of its config."""
        self._shared = shared
        return self

    @property
    def shared(self) -> Shared:
        """What it shares with the other scorers of its config."""
        if self._shared is None:
            raise UsageError(f"{type(self).__name__} is not made by hand: use scorers.from_config or scorers.{self.criterion}")
        return self._shared

    @property
    def pass_if(self) -> Callable[[Any], bool]:
        """Whether a value reaches the threshold; the strictest one, where cases have thresholds of their own."""
        config = self.shared.config
        groups = (config.criteria, *config.case_criteria.values())
        thresholds = [criteria[self.criterion].threshold for criteria in groups if self.criterion in criteria]
        higher = config.greater_is_better(self.criterion)
        return partial(_reaches, threshold=max(thresholds) if higher else min(thresholds), greater_is_better=higher)

    @property
    def kind(self) -> ScorerKind:
        """What MLflow may do with it: as much as with a decorated function, which is what it is stored as."""
        return ScorerKind.DECORATOR

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return the scorer as MLflow stores it: as the source of a function that makes it anew and calls it.

        Raises:
            UsageError: if its judge cannot be named.
        """
        given = json.dumps(self.shared.to_json(), ensure_ascii=False)
        signature = _SESSION if self.is_session_level_scorer else _ROW
        names = ("session", "expectations") if self.is_session_level_scorer else ("inputs", "outputs", "expectations", "trace")
        arguments = ", ".join(f"{name}={name}" for name in names)
        call = f"stored({self.criterion!r}, {given!r}, session_level={self.is_session_level_scorer})"
        return asdict(
            SerializedScorer(
                name=self.name,
                description=self.description,
                aggregations=[one for one in self.aggregations or () if isinstance(one, str)] or None,
                is_session_level_scorer=self.is_session_level_scorer,
                timeout=self.timeout,
                call_source=f"from mlflow_adk_eval.scorers import stored\n\nreturn {call}({arguments})",
                call_signature=signature,
                original_func_name=self.criterion if self.criterion.isidentifier() else "criterion",
            )
        )

    def _check_has_source_code(self) -> None:
        """Pass the check with which MLflow 3.18 refuses functions whose source cannot be read: `model_dump` writes one."""


class RowScorer(CriterionScorer):
    """One criterion, asked of each row."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow passes the arguments that are named
        self,
        *,
        inputs: Any = None,
        outputs: Any = None,
        expectations: dict[str, Any] | None = None,
        trace: Trace | None = None,
    ) -> Feedback | None:
        """Return what the criterion makes of a row; ``None`` where the config does not ask for it in this case."""
        return self._feedback(lambda: row_of_record(inputs, outputs, expectations, trace))


class SessionScorer(CriterionScorer):
    """One criterion, asked of each session: of the traces that are the turns of one conversation."""

    _settled: bool = PrivateAttr(default=False)
    """Whether it scored a session, or said that it did not."""

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow passes the arguments that are named
        self, *, session: list[Trace], expectations: dict[str, Any] | None = None
    ) -> Feedback | None:
        """Return what the criterion makes of a session."""
        self._settled = True
        return self._feedback(lambda: row_of_session(session, expectations))

    @property
    def is_session_level_scorer(self) -> bool:
        """Whether MLflow calls it with sessions."""
        return True

    @property
    def pass_if(self) -> Callable[[Any], bool]:
        """Whether a value reaches the threshold. MLflow asks for it when all is scored, so that nothing scored shows here."""
        if not self._settled:
            self._settled = True
            message = f"{self.name} has scored no session: no trace had a session id (trace metadata mlflow.trace.session)"
            warnings.warn(message, UserWarning, stacklevel=2)
        return super().pass_if


class ExpectationScorer(Scorer):  # type: ignore[misc]  # MLflow is not typed
    """The companion of an expectation: it scores nothing, and accepts whatever is expected.

    MLflow's `EvaluationResult.passed` takes every expectation for a score, and one that is neither true nor "yes" for a failure.
    """

    timeout: int | float | None = 0

    def __call__(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - MLflow passes the arguments that are named
        """Score nothing."""

    @property
    def pass_if(self) -> Callable[[Any], bool]:
        """Accept any value."""
        return _anything


def _anything(_: Any) -> bool:
    return True


def _reaches(value: Any, *, threshold: float, greater_is_better: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return reaches(float(value), threshold, greater_is_better=greater_is_better)


def scorers_of(config: EvalConfig, judging: JudgeArgs, *, session_level: bool = False) -> list[Scorer]:
    """Return a scorer for each criterion of a config, in its order.

    Raises:
        JudgeError: if a judge cannot be had.
    """
    shared = Shared(config, judging)
    shared.warn(stacklevel=4)
    return [_scorer(shared, name, session_level=session_level) for name in shared.scoring.criteria]


def _scorer(shared: Shared, criterion: str, *, session_level: bool) -> Scorer:
    settings = next(group[criterion] for group in _groups(shared.config) if criterion in group)
    chosen = SessionScorer if session_level else RowScorer
    scorer = chosen(name=assessment_name(criterion), criterion=criterion, settings=settings.model_dump(mode="json", exclude_none=True))
    return scorer.sharing(shared)


def _groups(config: EvalConfig) -> tuple[Mapping[str, Any], ...]:
    return (config.criteria, *config.case_criteria.values())


def expectation_scorers(*names: str) -> list[Scorer]:
    """Return a companion for each expectation; without names, for each that criteria read."""
    return [ExpectationScorer(name=name) for name in names or EXPECTATIONS]


@cache
def stored(criterion: str, given: str, *, session_level: bool = False) -> Scorer:
    """Return the scorer that a stored one stands for: the same one for each row.

    Args:
        criterion: its name in the config.
        given: config and judging, as JSON text.
        session_level: whether it is called with sessions.
    """
    loaded: Json = json.loads(given)
    options = loaded.pop("judge_options", None)
    loaded.pop("judge_hosts", None)  # whoever may write a scorer cannot allow its endpoints
    config = parse_config(loaded.pop("config"), f"the stored scorer {criterion}")
    judging = cast("JudgeArgs", loaded | ({"judge_options": JudgeOptions(**options)} if options else {}))
    scorers = scorers_of(config, judging, session_level=session_level)
    return next(one for one in scorers if isinstance(one, CriterionScorer) and one.criterion == criterion)
