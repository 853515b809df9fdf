"""Two runs on the same cases: which cases flipped, why, and how far the means lie apart. Pure: it reads nothing and writes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.analysis.comparison.case import CaseChange, Flip, case_change
from mlflow_adk_eval.analysis.comparison.delta import Delta, deltas_of
from mlflow_adk_eval.analysis.comparison.differences import Difference, Pairing, differences_of, pairing_of
from mlflow_adk_eval.analysis.comparison.side import JudgeCost, Side, judge_cost, side_of

__all__ = [
    "CaseChange",
    "Comparison",
    "Delta",
    "Difference",
    "Flip",
    "JudgeCost",
    "Pairing",
    "Side",
    "compared",
    "side_of",
]

FLIPS: tuple[Flip, ...] = ("worse", "better", "undecided", "flaky")
"""In the order in which they are told."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """What changed from one run to another."""

    before: Side
    after: Side
    confidence: float
    differences: tuple[Difference, ...]
    """What the runs themselves differ in."""
    pairing: Pairing
    deltas: tuple[Delta, ...]
    """The case pass rate, the criteria that decide, then those that are information."""
    judging: tuple[JudgeCost, JudgeCost]
    cases: tuple[CaseChange, ...]
    """Every case that both runs have, in the order of the second run."""

    def __repr__(self) -> str:
        """Return the counts; the whole comparison may be a gigabyte."""
        counts = ", ".join(f"{flip} {count}" for flip, count in self.counts.items())
        return f"<Comparison of {len(self.cases)} cases: {counts}>"

    @property
    def counts(self) -> dict[Flip, int]:
        """How many cases flipped, by how."""
        found = Counter(case.flip for case in self.cases)
        return {flip: found[flip] for flip in FLIPS}

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
        from mlflow_adk_eval.analysis.comparison.as_json import comparison_json  # noqa: PLC0415 - it is made of comparisons

        return comparison_json(self, every=every)


def compared(before: Side, after: Side, *, confidence: float = 0.95) -> Comparison:
    """Return what changed from one run to another.

    Args:
        before: the run to compare with.
        after: the run in question.
        confidence: how often the intervals are to cover the true difference, between 0 and 1.
    """
    sides = (before, after)
    pairing = pairing_of(sides)
    return Comparison(
        before=before,
        after=after,
        confidence=confidence,
        differences=differences_of(sides),
        pairing=pairing,
        deltas=deltas_of(sides, pairing.paired, confidence),
        judging=(judge_cost(before), judge_cost(after)),
        cases=tuple(case_change(sides, eval_id) for eval_id in pairing.paired),
    )
