"""What two runs did, said and scored on the same turn of a case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from mlflow_adk_eval.analysis.comparison.calls import CallChange, call_changes, calls_of
from mlflow_adk_eval.analysis.comparison.side import Row, Side
from mlflow_adk_eval.evalset import FunctionCall
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored
from mlflow_adk_eval.results.table import cell_at

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
class Done:
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
    before: Done | None
    """``None``: the run has no such turn."""
    after: Done | None
    expected_response: str
    """Empty where none is given."""
    calls: tuple[CallChange, ...]
    cells: tuple[CellChange, ...]

    @property
    def same_response(self) -> bool:
        """Whether both runs said the same."""
        return (self.before.response if self.before else None) == (self.after.response if self.after else None)

    @property
    def same_calls(self) -> bool:
        """Whether both runs called the same tools with the same arguments in the same order."""
        return all(call.kind == "same" for call in self.calls)

    @property
    def same_deeds(self) -> bool:
        """Whether both runs heard, did and said the same."""
        heard = (self.before.user if self.before else None) == (self.after.user if self.after else None)
        failed = (self.before.error if self.before else "") == (self.after.error if self.after else "")
        return heard and failed and self.same_response and self.same_calls

    @property
    def same(self) -> bool:
        """Whether nothing at all differs, information set aside."""
        return self.same_deeds and not any(cell.differs for cell in self.cells if cell.decides)


def outcomes_differ(before: Outcome | None, after: Outcome | None) -> bool:
    """Whether two outcomes are not the same score, or are not of the same kind.

    >>> outcomes_differ(Scored(0.1 + 0.2), Scored(0.3)), outcomes_differ(Scored(1.0), None)
    (False, True)
    """
    if isinstance(before, Scored) and isinstance(after, Scored):
        return abs(before.score - after.score) > _LEAST_CHANGE
    return type(before) is not type(after)


def turn_changes(sides: tuple[Side, Side], pair: tuple[CaseResult, CaseResult]) -> tuple[TurnChange, ...]:
    """Return every turn of a case run of each side, by index."""
    before, after = ([*side.rows.get((case.eval_id, case.run_index), ())] for side, case in zip(sides, pair, strict=True))
    return tuple(_turn(index, left, right, pair) for index, (left, right) in enumerate(zip_longest(before, after)))


def _turn(index: int, before: Row | None, after: Row | None, pair: tuple[CaseResult, CaseResult]) -> TurnChange:
    rows = [row for row in (after, before) if row is not None]
    expected = next((calls_of(row["expected_tool_calls"]) for row in rows if row["expected_tool_calls"] is not None), None)
    left, right = (_done(row) for row in (before, after))
    return TurnChange(
        index=index,
        before=left,
        after=right,
        expected_response=next((text for row in rows if (text := _text(row["expected_response"]))), ""),
        calls=call_changes(left.calls if left else (), right.calls if right else (), expected),
        cells=tuple(_cells(index, *(case.results for case in pair))),
    )


def _done(row: Row | None) -> Done | None:
    if row is None:
        return None
    said = row["actual_response"]
    return Done(
        user=_text(row["user"]),
        response=None if said is None else _text(said),
        calls=tuple(calls_of(row["actual_tool_calls"])),
        error=_text(row["agent_error"]),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _cells(index: int, before: Sequence[CriterionResult], after: Sequence[CriterionResult]) -> Iterator[CellChange]:
    """Yield each criterion that has a cell in one of the runs; those of the second run first."""
    left, right = ({result.criterion: result for result in results} for results in (before, after))
    for name in dict.fromkeys([*right, *left]):
        was, now = left.get(name), right.get(name)
        known = [result for result in (now, was) if result is not None]
        old, new = (cell_at(result, index) if result else None for result in (was, now))
        if old is not None or new is not None:
            yield CellChange(
                criterion=name,
                before=old,
                after=new,
                reached_before=was.reached(old) if was else None,
                reached_after=now.reached(new) if now else None,
                decides=any(result.decides for result in known),
                compared=len(known) == len((was, now)),
            )
