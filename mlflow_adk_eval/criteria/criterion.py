"""What a criterion is, and the one place where it is called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mlflow_adk_eval.config.spec import ExpectingSettings
from mlflow_adk_eval.errors import foreign_code
from mlflow_adk_eval.evalset.conversation import Ending, Injection, InnerCall
from mlflow_adk_eval.evalset.models import OPEN, ConversationScenario, EvalCase, Invocation
from mlflow_adk_eval.evalset.observation import SHOWN_BY_ITSELF, Need, Unknown, is_void, unseen
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.outcomes import TOLERANCE, CriterionResult, Errored, Judged, Outcome, Scored, Skipped, Vote, case_outcome

Cells = tuple[Outcome | None, ...]
_SCENARIO = Skipped("the case is a scenario and has no reference conversation")
NO_ANSWER = Errored("the agent did not answer: it produced no text, no media and no tool call")
NO_REFERENCE = Errored("the reference of this turn has no final response to compare with")
_OPEN = f"nobody has written what is expected; write it, and remove the tag {OPEN!r} of the case"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One eval case after the agent ran: all that a criterion may look at."""

    case: EvalCase
    run_index: int = 0
    actual: tuple[Invocation, ...]
    session_state: Mapping[str, Any] | None = None
    """The state after the last turn; ``None`` where the agent does not report it."""
    injections: tuple[Injection, ...] = ()
    """The tool calls that something else than the tool answered or delayed."""
    error: str = ""
    """Why the conversation is not what the case asks for; empty where it is."""
    unfinished: bool = False
    """Whether the last actual turn is the one in which the agent failed."""
    baseline: tuple[Invocation, ...] | None = None
    """What the baseline did in the same case, for criteria that choose between the two; ``None`` where there is none."""
    ending: Ending | None = None
    """Why a simulated user ended the conversation; ``None`` where that is not known."""
    inner_calls: tuple[InnerCall, ...] | None = None
    """The tool calls of agents that are tools; ``None`` where they are not known."""
    unknown: tuple[Unknown, ...] = ()
    """What the source of the conversation does not know of it."""
    blind: Mapping[int, Errored | Skipped] = field(default_factory=dict[int, Errored | Skipped])
    """The turns of which the criterion that judges now needs something unknown, each with that reason."""

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

    @property
    def turns(self) -> int:
        """How many turns were planned or happened; at least one, so that each criterion has a cell."""
        return max(len(self.actual), len(self.expected or ()), 1)


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
    judged: bool = False
    """Whether a judge is asked, which takes time but no work of this process."""
    needs: tuple[Need, ...] = ()
    """What it cannot judge without. A turn of which some of it is unknown has no score."""
    whole: bool = False
    """Whether it judges the case as a whole, and so needs it of every turn."""
    worst_of_nothing: float | None = None
    """The only score that a turn may have in which the agent did nothing; ``None``: any, as from a metric of the user's own."""


def judge_pairs(
    run: CaseRun,
    judge: Callable[[Invocation, Invocation], Outcome | None],
    settings: ExpectingSettings | None = None,
) -> Judged:
    """Judge each turn against its reference; a turn that is missing on either side is an error of that turn.

    Args:
        run: the case.
        judge: judges a turn beside its reference.
        settings: what may leave out turns of the case; ``None``: none is left out.
    """
    expected, actual = run.case.conversation, run.actual
    if expected is None:
        return Judged((_SCENARIO,) * run.turns)
    if OPEN in run.case.tags:  # no expected call is not the same as an expected absence of calls
        return failed(run, _OPEN)
    cells = [judge(got, want) for got, want in zip(actual, expected, strict=False)]
    if settings and settings.only_where_expected:
        cells = [cell if settings.scores_turn(run.case, index) else None for index, cell in enumerate(cells)]
    if len(actual) == len(expected):
        return Judged(tuple(cells))
    extra = Errored(f"no expected turn: the reference has {len(expected)} of {len(actual)} turns")
    return Judged((*cells, *missing_turns(run), *(extra,) * (len(actual) - len(expected))))


def missing_turns(run: CaseRun) -> tuple[Errored, ...]:
    """Return an error for each turn that the reference has and the agent has not."""
    expected = len(run.case.conversation or ())
    if expected <= len(run.actual):
        return ()
    error = Errored(f"no actual turn: the agent has {len(run.actual)} of {expected} turns")
    return (error,) * (expected - len(run.actual))


def whole_case(run: CaseRun, outcome: Outcome, votes: tuple[Vote, ...] = ()) -> Judged:
    """Return a judgement of the case as a whole, which is recorded at its last turn."""
    return Judged((*(None,) * (run.turns - 1), outcome), votes=votes)


def failed(run: CaseRun, error: str) -> Judged:
    """Return a judgement in which every turn of the case ended in `error`."""
    return Judged((Errored(error),) * run.turns)


async def apply(planned: Planned, run: CaseRun) -> CriterionResult:
    """Judge one case by one criterion, turning whatever it raises into an error of every cell."""
    blind = blind_turns(planned, run)
    if blind and len(blind) == len(run.actual):
        first = next(iter(blind.values()))
        unseen_case = whole_case(run, first) if planned.whole else Judged((*blind.values(), *missing_turns(run)))
        return result_of(planned, run, unseen_case)
    if blind:
        run = replace(run, blind=blind)
    try:
        with foreign_code("it"):
            judged = planned.criterion(run)
            if inspect.isawaitable(judged):
                judged = await judged
    except Exception as error:  # noqa: BLE001 - a criterion may be the user's own code: anything can go wrong
        judged = failed(run, redacted(f"{planned.name} raised {type(error).__name__}: {error}", secrets_of()))
    return result_of(planned, run, judged, blind)


def blind_turns(planned: Planned, run: CaseRun) -> dict[int, Errored | Skipped]:
    """Return the turns of which something that a criterion needs is unknown, each with an outcome that says so.

    Where the criterion judges the case as a whole, what is unknown of one turn is missing for all of them.
    """
    blind: dict[int, Errored | Skipped] = {}
    if not run.unknown and SHOWN_BY_ITSELF.isdisjoint(planned.needs):
        return blind  # as for most criteria of most cases
    for turn in range(len(run.actual)):
        why = unseen(run, turn, planned.needs)
        if why:
            blind[turn] = Skipped(why) if planned.threshold is None else Errored(why)
    if blind and planned.whole:
        first = next(iter(blind.values()))
        return dict.fromkeys(range(len(run.actual)), first)
    return blind


def result_of(
    planned: Planned,
    run: CaseRun,
    judged: Judged,
    blind: Mapping[int, Errored | Skipped] | None = None,
) -> CriterionResult:
    """Return a judgement with the plan's threshold.

    The case has a score only if every planned cell has one. It is the mean of the cells unless the judgement has its own.

    Args:
        planned: the criterion, with its threshold.
        run: the case.
        judged: what the criterion made of it.
        blind: the turns of which something is unknown that the criterion needs, each with the outcome that says so.
    """
    cells = judged.per_invocation
    if blind:
        cells = tuple(blind.get(index, cell) if cell else None for index, cell in enumerate(cells))
    if planned.worst_of_nothing is not None and planned.threshold is not None:
        cells = _of_something(planned, run, cells, planned.worst_of_nothing)
    if run.error:  # of each turn that the agent did not finish, it was the agent's error
        finished, error = len(run.actual) - run.unfinished, Errored(f"the agent did not finish: {run.error}")
        cells = tuple(cell if index < finished or cell is None else error for index, cell in enumerate(cells))
    overall = case_outcome(cells)
    if isinstance(overall, Scored) and judged.overall is not None:
        overall = judged.overall
        cells = cells if isinstance(overall, Scored) else (*cells[:-1], overall)
    return CriterionResult(
        criterion=planned.name,
        threshold=planned.threshold,
        greater_is_better=planned.greater_is_better,
        overall=overall,
        per_invocation=cells,
        votes=judged.votes,
    )


def _of_something(planned: Planned, run: CaseRun, cells: Cells, worst: float) -> Cells:
    """Return the cells, but no better score than the worst of a turn in which the agent did nothing."""
    kept = list(cells)
    for index, cell in enumerate(cells):
        is_good = isinstance(cell, Scored) and abs(cell.score - worst) > TOLERANCE
        if is_good and _did_nothing(planned, run, index):
            kept[index] = NO_ANSWER
    return tuple(kept)


def _did_nothing(planned: Planned, run: CaseRun, index: int) -> bool:
    if planned.whole:
        return bool(run.actual) and all(map(is_void, run.actual))
    return index < len(run.actual) and is_void(run.actual[index])
