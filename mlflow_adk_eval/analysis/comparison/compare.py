"""Two runs on the same cases: which cases flipped, why, and how far the means lie apart.

`compared` is the whole comparison. It asks what the runs themselves differ in (`runs`), how far their means lie apart (`delta`), and what
became of each case (`case_change`), with the causes of each change (`causes`) found turn by turn (`turns`). Pure: it reads nothing and writes
nothing. Pages are made of a `Comparison`; `Comparison.to_json` has the same for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from itertools import accumulate, product
from operator import and_
from typing import Any, Literal, TypeVar

from mlflow_adk_eval.analysis.comparison.causes import Cause, ChangedCell, causes_of, shortened
from mlflow_adk_eval.analysis.comparison.delta import Delta, deltas_of
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun, Difference, JudgeCost, Pairing, Sides, differences_of, pairing_of
from mlflow_adk_eval.analysis.comparison.turns import CellChange, ComparedTurn, TurnChange, outcomes_differ, turn_changes
from mlflow_adk_eval.results.outcomes import CaseResult, LazySequence, Outcome, Scored, Stored, Verdict

T = TypeVar("T")

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
    causes: Sequence[Cause]
    """By turn, the most telling one first; found when somebody looks at them, as that takes all turns of the case."""

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
    causes: Sequence[Cause]
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
        causes = [("", cause) for cause in self.causes]
        causes += [(change.criterion, cause) for change in crossed or self.criteria for cause in change.causes]
        seen: set[Cause] = set()
        for criterion, cause in causes:
            if cause not in seen:
                seen.add(cause)
                yield criterion, cause


Read = Callable[[str, tuple[int, int]], tuple[CasePair, Sequence[TurnChange]]]
"""Returns two runs of a case, one of each side, with their turns."""


def case_change(sides: Sides, eval_id: str, read: Read) -> CaseChange:
    """Return what became of a case that both sides have results of."""
    before, after = (_one(side.verdicts(eval_id)) for side in sides)
    flip = flip_of(before, after)
    pair = _pair([*sides[0].cases[eval_id].values()], [*sides[1].cases[eval_id].values()], flip)
    runs = _one((pair[0].run_index, pair[1].run_index))
    causes = cache(lambda: _causes(sides, *read(eval_id, runs)))
    stopped = bool(pair[0].error) != bool(pair[1].error)
    return CaseChange(
        eval_id=eval_id,
        flip=flip,
        before=before,
        after=after,
        runs=runs,
        criteria=tuple(sorted(_criteria(pair, lambda name: causes()[name]), key=lambda change: not change.crossed)),
        causes=Stored(1, lambda: causes()[""]) if stopped else (),
        turns=_Found(lambda: read(eval_id, runs)[1]),
    )


@lru_cache(maxsize=1_000)
def _one(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same tuple for all that are equal, as most cases have those of many others."""
    return values


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


class _Found(LazySequence[T]):
    """What is found when somebody looks for it."""

    def __init__(self, find: Callable[[], Sequence[T]]) -> None:
        self._find = find

    def at(self, place: int) -> T:
        return self._find()[place]

    def __iter__(self) -> Iterator[T]:
        return iter(self._find())

    def __len__(self) -> int:
        return len(self._find())


def _criteria(pair: CasePair, find: Callable[[str], Sequence[Cause]]) -> Iterator[CriterionChange]:
    """Yield the deciding criteria whose result changed; `find`: returns the causes of one."""
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
            causes=_Found(partial(find, name)),
        )
        if change.crossed or (was and now and outcomes_differ(change.before, change.after)):
            yield change


def _causes(sides: Sides, pair: CasePair, turns: Sequence[TurnChange]) -> Mapping[str, Sequence[Cause]]:
    """Return the causes by criterion, and under ``""`` that the agent did not finish, or finished again."""
    errors = [f"the agent did not finish: {shortened(case.error)}" if case.error else "" for case in pair]
    where = next((turn.index for turn in turns if any(side and side.error for side in (turn.before, turn.after))), None)
    causes: dict[str, Sequence[Cause]] = {"": (Cause(kind="error", turn=where, before=errors[0], after=errors[1]),)}
    alike = [*accumulate((turn.same_behaviour for turn in turns), and_, initial=True)]
    for change in _criteria(pair, causes.__getitem__):
        before, after = ("" if value is None else f"{value:g}" for value in (change.threshold_before, change.threshold_after))
        found = [Cause(kind="threshold", before=before, after=after)] if before != after else []
        cells = [(turn, cell) for turn in turns for cell in turn.cells if cell.criterion == change.criterion and cell.differs]
        for turn, cell in sorted(cells, key=lambda one: _weight(one[1], change)):
            found += causes_of(ChangedCell(sides=sides, pair=pair, turn=turn, cell=cell, alike_until=alike[turn.index]))
        causes[change.criterion] = found
    return causes


def _weight(cell: CellChange, change: CriterionChange) -> float:
    """Return how much a turn did for the change of the case score, the most first: negative where it went the same way."""
    if not isinstance(cell.before, Scored) or not isinstance(cell.after, Scored):
        return -2.0
    moved = cell.after.score - cell.before.score
    before, after = (outcome.score if isinstance(outcome, Scored) else 0.0 for outcome in (change.before, change.after))
    whole = after - before
    return -abs(moved) if moved * whole >= 0 else abs(moved)


FLIPS: tuple[Flip, ...] = ("worse", "better", "undecided", "flaky")
"""In the order in which pages list them."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What changed from one run to another."""

    before: ComparedRun
    after: ComparedRun
    confidence: float
    differences: tuple[Difference, ...]
    """What the runs themselves differ in."""
    pairing: Pairing
    deltas: tuple[Delta, ...]
    """The case pass rate, the criteria that decide, then those that are information."""
    cases: tuple[CaseChange, ...]
    """Every case that both runs have, in the order of the second run."""

    def __repr__(self) -> str:
        """Return the counts; the whole comparison may be a gigabyte."""
        counts = ", ".join(f"{flip} {count}" for flip, count in self.counts.items())
        return f"<Comparison of {len(self.cases)} cases: {counts}>"

    @property
    def judging(self) -> tuple[JudgeCost, JudgeCost]:
        """What the judges of each run took; counted when somebody asks, as that takes all votes."""
        return self.before.judge_cost(), self.after.judge_cost()

    @property
    def counts(self) -> dict[Flip, int]:
        """How many cases flipped, by how."""
        counts = Counter(case.flip for case in self.cases)
        return {flip: counts[flip] for flip in FLIPS}

    @property
    def flipped(self) -> tuple[CaseChange, ...]:
        """The cases whose verdict flipped: for the worse first, then for the better, undecided and flaky ones."""
        return tuple(case for flip in FLIPS for case in self.cases if case.flip == flip)

    @property
    def shifted(self) -> tuple[CaseChange, ...]:
        """The cases that kept their verdict with other scores."""
        return tuple(case for case in self.cases if case.flip == "none" and case.changed)

    def delta(self, name: str) -> Delta | None:
        """Return the delta of a criterion, or of ``case_pass_rate``; ``None`` where there is none."""
        return next((delta for delta in self.deltas if delta.name == name), None)

    def to_json(self, *, every: bool = False) -> dict[str, Any]:
        """Return the comparison as JSON values; `every`: with the cases that did not flip."""
        sides = [
            {"name": side.name, "run_id": side.run_id or None, "facts": dict(side.facts), "warnings": list(side.warnings)}
            for side in (self.before, self.after)
        ]
        unpaired = {name: list(getattr(self.pairing, name)) for name in ("only_before", "only_after", "altered")}
        return {
            "before": sides[0],
            "after": sides[1],
            "confidence": self.confidence,
            "differences": [asdict(difference) for difference in self.differences],
            "cases": {"compared": len(self.cases), **self.counts, "shifted": len(self.shifted), **unpaired},
            "deltas": [asdict(delta) | {"clear": delta.clear(self.confidence)} for delta in self.deltas],
            "judging": {name: asdict(cost) for name, cost in zip(("before", "after"), self.judging, strict=True)},
            "changes": [_case(case) for case in (self.cases if every else self.flipped)],
        }


def compared(before: ComparedRun, after: ComparedRun, *, confidence: float = 0.95) -> Comparison:
    """Return what changed from one run to another.

    Args:
        before: the run to compare with.
        after: the run in question.
        confidence: the confidence level of each interval bound; 1 − confidence is the false-alarm rate. Between 0.5 and 1.
    """
    sides = (before, after)
    pairing = pairing_of(sides)

    @lru_cache(maxsize=1)  # those of the last case, as those of all may be a gigabyte
    def read(eval_id: str, runs: tuple[int, int]) -> tuple[CasePair, Sequence[TurnChange]]:
        pair = before.cases[eval_id][runs[0]], after.cases[eval_id][runs[1]]
        return pair, turn_changes(pair)

    return Comparison(
        before=before,
        after=after,
        confidence=confidence,
        differences=tuple(differences_of(sides)),
        pairing=pairing,
        deltas=deltas_of(sides, pairing.paired, confidence),
        cases=tuple(case_change(sides, eval_id, read) for eval_id in pairing.paired),
    )


def _case(case: CaseChange) -> dict[str, Any]:
    criteria: list[dict[str, Any]] = []
    for change in case.criteria:
        before, after = (outcome.score if isinstance(outcome, Scored) else None for outcome in (change.before, change.after))
        names = ("passed_before", "passed_after", "threshold_before", "threshold_after", "crossed")
        values = {name: getattr(change, name) for name in names}
        causes = [_cause(cause) for cause in change.causes]
        criteria.append({"criterion": change.criterion, "before": before, "after": after, **values, "causes": causes})
    return {
        "eval_id": case.eval_id,
        "flip": case.flip,
        **{name: list(getattr(case, name)) for name in ("before", "after", "runs")},
        "causes": [_cause(cause) for cause in case.causes],
        "criteria": criteria,
        "turns": [
            {
                "index": turn.index,
                "before": turn.before and _record(turn.before),
                "after": turn.after and _record(turn.after),
                "expected_response": turn.expected_response or None,
            }
            for turn in case.turns
            if not turn.same
        ],
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {name: value for name, value in asdict(cause).items() if value not in (None, "")} | {"sentence": cause.sentence}


def _record(record: ComparedTurn) -> dict[str, Any]:
    calls = [{"name": call.name, "args": call.args or {}} for call in record.calls]
    return {"user": record.user, "response": record.response, "calls": calls, "error": record.error or None}
