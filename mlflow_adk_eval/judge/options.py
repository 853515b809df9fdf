"""How judges are asked, and how much they may be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel, ValidationError

from mlflow_adk_eval.errors import Problem, UsageError, shown
from mlflow_adk_eval.evalset.parse import problems_of
from mlflow_adk_eval.evalset.schema import unknown_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    """How the requests to a judge are made."""

    max_concurrency: int = 64
    """The most requests in flight to one judge; below that, as many as it can take."""
    timeout_s: float = 120.0
    """How long one request may take, in seconds."""
    attempts: int = 8
    """How often a request is sent while the judge is unavailable."""
    outage_s: float = 60.0
    """After so many seconds in which nothing but failures came back, a judge is given up for the rest of the run."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(self, whole={"max_concurrency", "attempts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much may be spent on judges in one run. Once it is spent, what is not decided stays undecided."""

    max_calls: int | None = None
    max_tokens: int | None = None
    """Input and output together. A request that is under way when the limit is reached is still paid for."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _check(self, whole={"max_calls", "max_tokens"})


def _check(settings: JudgeOptions | Budget, whole: set[str]) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is None and field.default is None:
            continue
        kinds = int if field.name in whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            wanted = "a whole number of at least 1" if field.name in whole else "a number of seconds above 0"
            raise UsageError(f"{field.name}={shown(value)}: wanted {wanted}")


def problems_of_settings(model: type[BaseModel], settings: Mapping[str, Any]) -> list[Problem]:
    """Return what keeps `settings` from being a `model`: unknown keys and values of another kind."""
    value = dict(settings)
    try:
        model.model_validate(value, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = problems_of(model, value, details, [key for key in unknown_keys(model, value) if key.amiss], at="$")
        return found or [Problem("$", details[0]["msg"], f"settings of {model.__name__}")]
    return []
