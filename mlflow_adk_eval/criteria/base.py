"""What a criterion is, and the one place where it is called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlflow_adk_eval.config import CriterionSettings
from mlflow_adk_eval.evalset import ConversationScenario, EvalCase, Invocation
from mlflow_adk_eval.outcome import CriterionResult, Errored, Judged, Outcome, Scored, Skipped, case_outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One eval case after the agent ran: all that a criterion may look at."""

    case: EvalCase
    run_index: int = 0
    actual: tuple[Invocation, ...]
    session_state: Mapping[str, Any] | None = None
    """The state after the last turn; ``None`` where the agent does not report it."""
    error: str = ""
    """Why the agent did not finish the case; empty where it did."""

    @property
    def eval_id(self) -> str:
        """The id of the case."""
        return self.case.eval_id

    @property
    def expected(self) -> tuple[Invocation, ...] | None:
        """The reference conversation; ``None`` for a scenario."""
        return self.case.conversation

    @property
    def scenario(self) -> ConversationScenario | None:
        """The plan of the simulated user; ``None`` for a written conversation."""
        return self.case.conversation_scenario


class Criterion(Protocol):
    """Frozen settings and how to judge a case by them."""

    def __call__(self, run: CaseRun, /) -> Judged | Awaitable[Judged]:
        """Judge one case. May raise: the caller records it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A criterion in the plan of an evaluation."""

    name: str
    criterion: Criterion
    threshold: float | None
    """``None``: measured as information."""
    greater_is_better: bool = True


Factory = Callable[[Any], Criterion]
REGISTRY: dict[str, Factory] = {}
"""Criteria by name: from settings to something that judges. The package's only mutable module state."""


def register(name: str) -> Callable[[Factory], Factory]:
    """Return a decorator that makes a class known as the criterion `name`."""

    def add(factory: Factory) -> Factory:
        REGISTRY[name] = factory
        return factory

    return add


def judge_pairs(run: CaseRun, judge: Callable[[Invocation, Invocation], Outcome]) -> Judged:
    """Judge each turn against its reference; a turn that is missing on either side is an error of that turn."""
    expected, actual = run.expected, run.actual
    if expected is None:
        reason = "the case is a scenario and has no reference conversation"
        return Judged(tuple(Skipped(reason) for _ in actual) or (Skipped(reason),))
    cells: list[Outcome] = [judge(got, want) for got, want in zip(actual, expected, strict=False)]
    cells += [Errored(f"no actual invocation: the agent has {len(actual)} of {len(expected)} turns")] * (len(expected) - len(actual))
    cells += [Errored(f"no expected invocation: the reference has {len(expected)} of {len(actual)} turns")] * (len(actual) - len(expected))
    return Judged(tuple(cells))


def whole_case(run: CaseRun, outcome: Outcome) -> Judged:
    """Return a judgement of the case as a whole, which is recorded at its last turn."""
    turns = max(len(run.actual), len(run.expected or ()), 1)
    return Judged((*[None] * (turns - 1), outcome))


async def apply(planned: Planned, run: CaseRun) -> CriterionResult:
    """Judge one case by one criterion, turning whatever it raises into an error of every cell."""
    try:
        judged = planned.criterion(run)
        if inspect.isawaitable(judged):
            judged = await judged
    except Exception as error:  # noqa: BLE001 - a criterion may be the user's own code: anything can go wrong
        judged = failed(run, f"{planned.name} raised {type(error).__name__}: {error}")
    return result_of(planned, run, judged)


def failed(run: CaseRun, error: str) -> Judged:
    """Return a judgement in which every turn of the case ended in `error`."""
    turns = max(len(run.actual), len(run.expected or ()), 1)
    return Judged((Errored(error),) * turns)


def result_of(planned: Planned, run: CaseRun, judged: Judged) -> CriterionResult:
    """Return a judgement with the plan's threshold. The case score is the mean of the cells unless the judgement has its own."""
    if run.error:
        judged = _after_agent_error(run, judged)
    overall = judged.overall if judged.overall is not None else case_outcome(judged.per_invocation)
    return CriterionResult(
        criterion=planned.name,
        threshold=planned.threshold,
        greater_is_better=planned.greater_is_better,
        overall=overall,
        per_invocation=judged.per_invocation,
        votes=judged.votes,
    )


def _after_agent_error(run: CaseRun, judged: Judged) -> Judged:
    """Say of each turn that the agent did not reach that it was the agent's error."""
    reached = len(run.actual)
    error = Errored(f"the agent did not finish: {run.error}")
    cells = tuple(cell if index < reached or cell is None else error for index, cell in enumerate(judged.per_invocation))
    overall = error if any(cell is error for cell in cells) or not reached else judged.overall
    return Judged(cells, overall=overall, votes=judged.votes)


def means(cells: Sequence[Outcome | None]) -> Iterable[float]:
    """Yield the scores among `cells`."""
    return (cell.score for cell in cells if isinstance(cell, Scored))


@dataclass(frozen=True, slots=True)
class FromSettings:
    """The base of criteria that are nothing but their settings."""

    settings: Any = field(default_factory=lambda: CriterionSettings(threshold=0.0))
