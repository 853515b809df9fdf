"""One turn of a case in both runs: what was said, which tools were called, and what each criterion made of it.

`turn_changes` puts the turns of two case runs side by side. The calls of a turn are aligned twice: with
those of the other run, to see what changed, and with those of the reference, to see which run is right. So a `CallChange` says of every
call whether it stayed, changed its arguments, moved, went or came, and whether that brought the agent closer to what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mlflow_adk_eval.criteria.alignment import Step, align, call_differences, same_call
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.evalset.models import FunctionCall, Invocation
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored
from mlflow_adk_eval.results.table import as_json, cell_at
from mlflow_adk_eval.runs.stored_run import loaded

_MOST_PLACES = 20

Calls = Sequence[FunctionCall]
CallKind = Literal["same", "changed", "gone", "new", "moved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentChange:
    """One place in the arguments of a call that is not the same in both runs, each value as text."""

    path: str
    """A JSON path."""
    before: str
    after: str
    wanted: str
    """What the reference has there; empty where it has no such call, or none to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChange:
    """A call of the first run beside the one that stands for it in the second."""

    kind: CallKind
    """*gone*: only before; *new*: only after; *moved*: on this side of a call that is elsewhere on the other."""
    before: FunctionCall | None
    after: FunctionCall | None
    expected: FunctionCall | None
    """The call of the reference that this one stands for."""
    right_before: bool | None
    """Whether the first run's call is as expected; ``None`` where it has none, or nothing is expected of the turn."""
    right_after: bool | None
    arguments: tuple[ArgumentChange, ...] = ()

    @property
    def tool(self) -> str:
        """The name of the tool."""
        call = self.after or self.before
        return (call.name if call else None) or "tool"


def call_changes(before: Calls, after: Calls, expected: Calls | None) -> tuple[CallChange, ...]:
    """Return both runs' calls side by side, in their order.

    Args:
        before: the calls of the first run.
        after: the calls of the second run.
        expected: those of the reference; ``None``: there is none.
    """
    wanted_before, wanted_after = _partners(before, expected), _partners(after, expected)
    steps = align(after, before)
    moved = _moved(steps)
    return tuple(_call_change(step, wanted_before, wanted_after, moved=id(step) in moved, compared=expected is not None) for step in steps)


def _partners(calls: Calls, expected: Calls | None) -> dict[int, Step]:
    """Return for each call, by its identity, the step that pairs it with a call of the reference."""
    steps = align(calls, expected) if expected is not None else []
    return {id(step.actual): step for step in steps if step.actual is not None}


def _moved(steps: Sequence[Step]) -> set[int]:
    """Return the steps, by identity, whose call is both gone in one place and new in another."""
    gone = [(step, step.expected) for step in steps if step.kind == "missing" and step.expected]
    moved: set[int] = set()
    for step, call in ((step, step.actual) for step in steps if step.kind == "unexpected" and step.actual):
        twin = next((one for one, earlier in gone if id(one) not in moved and same_call(call, earlier)), None)
        if twin is not None:
            moved |= {id(step), id(twin)}
    return moved


_KINDS: dict[str, CallKind] = {"same": "same", "changed": "changed", "missing": "gone", "unexpected": "new"}


def _call_change(step: Step, wanted_before: dict[int, Step], wanted_after: dict[int, Step], *, moved: bool, compared: bool) -> CallChange:
    """Return a step of the alignment, in which the first run stands where a reference usually does."""
    left, right = wanted_before.get(id(step.expected)), wanted_after.get(id(step.actual))
    expected = next((partner.expected for partner in (right, left) if partner and partner.expected), None)
    kind: CallKind = "moved" if moved else _KINDS[step.kind]
    arguments: list[ArgumentChange] = []
    if kind == "changed":
        before, after, reference = (call or FunctionCall() for call in (step.expected, step.actual, expected))
        unlike = {place.path: place.expected for place in call_differences(after, reference)}
        for place in islice(call_differences(after, before), _MOST_PLACES):
            # Where the reference differs from the second run only further inside, it has nothing to show for the place as a whole.
            inside = any(path.startswith((f"{place.path}.", f"{place.path}[")) for path in unlike)
            wanted = unlike.get(place.path, "" if inside else place.actual) if expected else ""
            arguments.append(ArgumentChange(path=place.path, before=place.expected, after=place.actual, wanted=wanted))
    was, now = _right(step.expected, left, compared=compared), _right(step.actual, right, compared=compared)
    calls = {"before": step.expected, "after": step.actual, "expected": expected}
    return CallChange(kind=kind, **calls, right_before=was, right_after=now, arguments=tuple(arguments))


def _right(call: FunctionCall | None, partner: Step | None, *, compared: bool) -> bool | None:
    return None if call is None or not compared else partner is not None and partner.kind == "same"


_LEAST_CHANGE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChange:
    """What a criterion made of a turn in each run."""

    criterion: str
    before: Outcome | None
    """``None``: no cell was planned."""
    after: Outcome | None
    reached_before: bool | None
    """Whether it reached the threshold; ``None`` without a score, or where the criterion does not decide."""
    reached_after: bool | None
    decides: bool
    compared: bool
    """Whether the criterion is part of both runs."""

    @property
    def differs(self) -> bool:
        """Whether a criterion of both runs has not the same score in both, or has one in one run only."""
        return self.compared and outcomes_differ(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTurn:
    """What one run did on a turn."""

    user: str
    response: str | None
    """``None``: the agent did not get here."""
    calls: tuple[FunctionCall, ...]
    error: str
    """Why the agent did not finish this turn; empty where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnChange:
    """One turn in both runs."""

    index: int
    before: ComparedTurn | None
    """``None``: the run has no such turn."""
    after: ComparedTurn | None
    expected_response: str
    """Empty where none is given."""
    calls: tuple[CallChange, ...]
    cells: tuple[CellChange, ...]

    @property
    def same_response(self) -> bool:
        """Whether both runs gave the same answer."""
        before, after = (side.response if side else None for side in (self.before, self.after))
        return before == after

    @property
    def same_behaviour(self) -> bool:
        """Whether the user said, and the agent did (the same calls in the same order) and answered, the same in both runs."""
        before, after = ((side.user, side.error) if side else (None, "") for side in (self.before, self.after))
        return before == after and self.same_response and all(call.kind == "same" for call in self.calls)

    @property
    def same(self) -> bool:
        """Whether nothing at all differs, information set aside."""
        return self.same_behaviour and not any(cell.differs for cell in self.cells if cell.decides)


def outcomes_differ(before: Outcome | None, after: Outcome | None) -> bool:
    """Whether two outcomes are not the same score, or are not of the same kind.

    >>> outcomes_differ(Scored(0.1 + 0.2), Scored(0.3)), outcomes_differ(Scored(1.0), None)
    (False, True)
    """
    if isinstance(before, Scored) and isinstance(after, Scored):
        return abs(before.score - after.score) > _LEAST_CHANGE
    return type(before) is not type(after)


def turn_changes(pair: tuple[CaseResult, CaseResult]) -> tuple[TurnChange, ...]:
    """Return every turn of a case run of each side, by index."""
    before, after = map(loaded, pair)
    return tuple(_turn(index, before, after) for index in range(max(before.rows, after.rows)))


def _turn(index: int, before: CaseResult, after: CaseResult) -> TurnChange:
    left, right = (_record(case, index) for case in (before, after))
    wanted = [case.expected[index] for case in (after, before) if case.expected and index < len(case.expected)]
    answer, cells = (
        next((turn.shown_answer for turn in wanted if turn.shown_answer), ""),
        tuple(_cells(index, before.results, after.results)),
    )
    calls = call_changes(left.calls if left else (), right.calls if right else (), _calls(wanted[0]) if wanted else None)
    return TurnChange(index=index, before=left, after=right, expected_response=answer, calls=calls, cells=cells)


def _record(case: CaseResult, index: int) -> ComparedTurn | None:
    if index >= case.rows:
        return None
    turn = TurnPair(case, index)
    error = case.error if index >= min(len(case.actual), case.rows - 1) else ""
    return ComparedTurn(user=turn.user_text, response=turn.answer if turn.actual else None, calls=_calls(turn.actual), error=error)


def _calls(invocation: Invocation | None) -> tuple[FunctionCall, ...]:
    """Return the calls of a turn as tables have them: arguments that are no JSON would not equal themselves."""
    calls = invocation.tool_calls if invocation else ()
    return tuple(FunctionCall.model_construct(name=call.name or "", args=as_json(call.args or {})) for call in calls)


def _cells(index: int, before: Sequence[CriterionResult], after: Sequence[CriterionResult]) -> Iterator[CellChange]:
    """Yield each criterion that has a cell in one of the runs; those of the second run first."""
    left, right = ({result.criterion: result for result in results} for results in (before, after))
    for name in dict.fromkeys([*right, *left]):
        was, now = left.get(name), right.get(name)
        known = [result for result in (now, was) if result is not None]
        old, new = (cell_at(result, index) if result else None for result in (was, now))
        if old is not None or new is not None:
            reached = {"reached_before": was.reached(old) if was else None, "reached_after": now.reached(new) if now else None}
            decides, compared = any(result.decides for result in known), len(known) == len((was, now))
            yield CellChange(criterion=name, before=old, after=new, **reached, decides=decides, compared=compared)
