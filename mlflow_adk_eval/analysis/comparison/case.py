"""A case in both runs: whether its verdict flipped, and why.

`case_change` is made of the verdicts of all runs of the case on both sides, and of two of these runs that show best what changed. For each
deciding criterion whose score is another, `causes` finds reasons turn by turn; the turn that did most for the change comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, Literal

from mlflow_adk_eval.analysis.comparison.causes import Cause, ChangedCell, causes_of, shortened
from mlflow_adk_eval.analysis.comparison.runs import Sides
from mlflow_adk_eval.analysis.comparison.turns import CellChange, TurnChange, outcomes_differ, turn_changes
from mlflow_adk_eval.results.outcomes import CaseResult, Outcome, Scored, Verdict
from mlflow_adk_eval.results.stored import Stored
from mlflow_adk_eval.results.table import turns_of

CasePair = tuple[CaseResult, CaseResult]
"""A run of the case on each side."""
Flip = Literal["worse", "better", "undecided", "flaky", "none"]
"""What became of a case's verdict: *worse* and *better* where every run of it passed on one side and failed on the other,
*undecided* where evidence was lost or gained, *flaky* where the runs of one side disagree and not as those of the other; or *none*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionChange:
    """A criterion whose case score is not what it was."""

    criterion: str
    before: Outcome | None
    """``None``: the criterion was no part of the run."""
    after: Outcome | None
    passed_before: bool | None
    passed_after: bool | None
    threshold_before: float | None
    threshold_after: float | None
    greater_is_better: bool
    causes: tuple[Cause, ...]
    """By turn, the most telling one first."""

    @property
    def crossed(self) -> bool:
        """Whether it stands in the way of one run only: what is no part of a run does not."""
        before = True if self.before is None else self.passed_before
        return before is not (True if self.after is None else self.passed_after)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChange:
    """A case that both runs have."""

    eval_id: str
    flip: Flip
    before: tuple[Verdict, ...]
    """By run."""
    after: tuple[Verdict, ...]
    runs: tuple[int, int]
    """The indexes of the runs of the case that stand for the others: where verdicts differ, two that do."""
    criteria: tuple[CriterionChange, ...]
    """Those that decide and whose score changed; those that crossed their threshold first."""
    causes: tuple[Cause, ...]
    """Further causes: that the agent did not finish, or finished again."""
    turns: Sequence[TurnChange]
    """Every turn of the two runs that stand for the others; of runs that are stored, read when somebody looks at them."""

    @property
    def changed(self) -> bool:
        """Whether the verdict or a deciding score is not what it was."""
        return self.flip != "none" or bool(self.criteria) or bool(self.causes)

    @property
    def same(self) -> bool:
        """Whether both runs did, said and scored the same."""
        return not self.changed and all(turn.same for turn in self.turns)

    def all_causes(self) -> Iterator[tuple[str, Cause]]:
        """Yield every cause once, with its criterion, empty for those of the case; of a flip only from criteria that crossed, if any did."""
        crossed = [change for change in self.criteria if change.crossed]
        found = [("", cause) for cause in self.causes]
        found += [(change.criterion, cause) for change in crossed or self.criteria for cause in change.causes]
        seen: set[Cause] = set()
        for criterion, cause in found:
            if cause not in seen:
                seen.add(cause)
                yield criterion, cause


def case_change(sides: Sides, eval_id: str) -> CaseChange:
    """Return what became of a case that both sides have results of."""
    before, after = (_one(side.verdicts(eval_id)) for side in sides)
    flip = flip_of(before, after)
    pair = _pair([*sides[0].cases[eval_id].values()], [*sides[1].cases[eval_id].values()], flip)
    runs = _one((pair[0].run_index, pair[1].run_index))
    turns = _turns(sides, pair, runs)
    return CaseChange(
        eval_id=eval_id,
        flip=flip,
        before=before,
        after=after,
        runs=runs,
        criteria=tuple(sorted(_criteria(sides, pair, turns), key=lambda change: not change.crossed)),
        causes=tuple(_errors(pair, turns)),
        turns=turns,
    )


@lru_cache(maxsize=1_000)
def _one(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same tuple for all that are equal, as most cases have those of many others."""
    return values


def _turns(sides: Sides, pair: CasePair, runs: tuple[int, int]) -> Sequence[TurnChange]:
    if all(isinstance(side.rows, dict) for side in sides):
        return turn_changes(sides, pair)
    return Stored(max(map(turns_of, pair)), partial(_read_turns, sides, pair[0].eval_id, runs))


def _read_turns(sides: Sides, eval_id: str, runs: tuple[int, int]) -> Sequence[TurnChange]:
    before, after = (side.cases[eval_id][index] for side, index in zip(sides, runs, strict=True))
    return turn_changes(sides, (before, after))


def flip_of(before: Sequence[Verdict], after: Sequence[Verdict]) -> Flip:
    """Return what became of a verdict, given that of each run.

    >>> flip_of(["passed"], ["failed"]), flip_of(["failed"] * 3, ["passed"] * 3), flip_of(["passed"], ["undecided"])
    ('worse', 'better', 'undecided')
    >>> flip_of(["passed"] * 3, ["passed", "failed", "passed"]), flip_of(["passed", "failed"], ["failed", "passed"])
    ('flaky', 'none')
    """
    left, right = ({verdict: count / len(runs) for verdict, count in Counter(runs).items()} for runs in (before, after))
    if left == right:
        return "none"
    if len(left) > 1 or len(right) > 1:
        return "flaky"
    if "undecided" in left | right:
        return "undecided"
    return "worse" if "passed" in left else "better"


def _pair(before: Sequence[CaseResult], after: Sequence[CaseResult], flip: Flip) -> CasePair:
    """Return the two runs of a case that show best what changed: with the verdicts of the flip, and the same index if possible."""
    rose = sum(case.verdict == "passed" for case in after) / len(after) > sum(case.verdict == "passed" for case in before) / len(before)
    better, worse = (1, 0) if rose else (0, 1)

    def badness(pair: CasePair) -> tuple[bool, bool, bool]:
        shown = pair[better].verdict == "passed" and pair[worse].verdict != "passed"
        return flip != "none" and not shown, flip != "none" and pair[0].verdict == pair[1].verdict, pair[0].run_index != pair[1].run_index

    return min(product(before, after), key=badness)


def _errors(pair: CasePair, turns: Sequence[TurnChange]) -> Iterator[Cause]:
    before, after = (f"the agent did not finish: {shortened(case.error)}" if case.error else "" for case in pair)
    if bool(before) != bool(after):
        where = next((turn.index for turn in turns if any(side and side.error for side in (turn.before, turn.after))), None)
        yield Cause(kind="error", turn=where, before=before, after=after)


def _criteria(sides: Sides, pair: CasePair, turns: Sequence[TurnChange]) -> Iterator[CriterionChange]:
    """Yield the deciding criteria whose result changed."""
    left, right = ({result.criterion: result for result in case.results if result.decides} for case in pair)
    for name in dict.fromkeys([*right, *left]):
        was, now = left.get(name), right.get(name)
        change = CriterionChange(
            criterion=name,
            before=was.overall if was else None,
            after=now.overall if now else None,
            passed_before=was.passed if was else None,
            passed_after=now.passed if now else None,
            threshold_before=was.threshold if was else None,
            threshold_after=now.threshold if now else None,
            greater_is_better=(now or left[name]).greater_is_better,
            causes=(),
        )
        if change.crossed or (was and now and outcomes_differ(change.before, change.after)):
            yield _explained(change, sides, pair, turns)


def _explained(change: CriterionChange, sides: Sides, pair: CasePair, turns: Sequence[TurnChange]) -> CriterionChange:
    found = list(_thresholds(change))
    cells = [(turn, cell) for turn in turns for cell in turn.cells if cell.criterion == change.criterion and cell.differs]
    for turn, cell in sorted(cells, key=lambda one: _weight(one[1], change)):
        alike = all(one.same_behaviour for one in turns[: turn.index])
        found += causes_of(ChangedCell(sides=sides, pair=pair, turn=turn, cell=cell, alike_until=alike))
    return replace(change, causes=tuple(found))


def _thresholds(change: CriterionChange) -> Iterator[Cause]:
    before, after = ("" if value is None else f"{value:g}" for value in (change.threshold_before, change.threshold_after))
    if before != after:
        yield Cause(kind="threshold", before=before, after=after)


def _weight(cell: CellChange, change: CriterionChange) -> float:
    """Return how much a turn did for the change of the case score, the most first: negative where it went the same way."""
    if not isinstance(cell.before, Scored) or not isinstance(cell.after, Scored):
        return -2.0
    moved = cell.after.score - cell.before.score
    before, after = (outcome.score if isinstance(outcome, Scored) else 0.0 for outcome in (change.before, change.after))
    whole = after - before
    return -abs(moved) if moved * whole >= 0 else abs(moved)
