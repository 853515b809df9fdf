"""Two runs on the same cases: which cases flipped, why, and how far the means lie apart.

`compared` is the whole comparison. It asks what the runs themselves differ in (`runs`), how far their means lie apart (`delta`), and what
became of each case (`case`), with the causes of each change (`causes`) found turn by turn (`turns`). Pure: it reads nothing and writes
nothing. Pages are made of a `Comparison`; `Comparison.to_json` has the same for programs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from mlflow_adk_eval.analysis.comparison.case import CaseChange, CriterionChange, Flip, case_change
from mlflow_adk_eval.analysis.comparison.causes import Cause
from mlflow_adk_eval.analysis.comparison.delta import Delta, deltas_of
from mlflow_adk_eval.analysis.comparison.runs import (
    ComparedRun,
    Difference,
    JudgeCost,
    Pairing,
    compared_run,
    differences_of,
    judge_cost,
    pairing_of,
)
from mlflow_adk_eval.analysis.comparison.turns import ComparedTurn
from mlflow_adk_eval.results.outcomes import Scored

__all__ = [
    "CaseChange",
    "ComparedRun",
    "Comparison",
    "Delta",
    "Difference",
    "Flip",
    "JudgeCost",
    "Pairing",
    "compared",
    "compared_run",
]

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
        return _comparison_json(self, every=every)


def compared(before: ComparedRun, after: ComparedRun, *, confidence: float = 0.95) -> Comparison:
    """Return what changed from one run to another.

    Args:
        before: the run to compare with.
        after: the run in question.
        confidence: how often each end of an interval is to hold, and one less the chance that a change that is none is called
            one; between 0.5 and 1.
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


def _comparison_json(found: Comparison, *, every: bool) -> dict[str, Any]:
    """Return everything but the turns of cases that did not flip; `every`: those as well."""
    shown = found.cases if every else found.flipped
    unpaired = {name: list(getattr(found.pairing, name)) for name in ("only_before", "only_after", "altered")}
    return {
        "before": _side(found.before),
        "after": _side(found.after),
        "confidence": found.confidence,
        "differences": [asdict(difference) for difference in found.differences],
        "cases": {"compared": len(found.cases), **found.counts, "shifted": len(found.shifted), **unpaired},
        "deltas": [asdict(delta) | {"clear": delta.clear(found.confidence)} for delta in found.deltas],
        "judging": {name: asdict(cost) for name, cost in zip(("before", "after"), found.judging, strict=True)},
        "changes": [_case(case) for case in shown],
    }


def _side(side: ComparedRun) -> dict[str, Any]:
    return {"name": side.name, "run_id": side.run_id or None, "facts": dict(side.facts), "warnings": list(side.warnings)}


def _case(case: CaseChange) -> dict[str, Any]:
    return {
        "eval_id": case.eval_id,
        "flip": case.flip,
        **{name: list(getattr(case, name)) for name in ("before", "after", "runs")},
        "causes": [_cause(cause) for cause in case.causes],
        "criteria": [_criterion(change) for change in case.criteria],
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


def _criterion(change: CriterionChange) -> dict[str, Any]:
    names = ("passed_before", "passed_after", "threshold_before", "threshold_after", "crossed")
    before, after = (outcome.score if isinstance(outcome, Scored) else None for outcome in (change.before, change.after))
    values = {name: getattr(change, name) for name in names}
    return {"criterion": change.criterion, "before": before, "after": after, **values, "causes": list(map(_cause, change.causes))}


def _record(record: ComparedTurn) -> dict[str, Any]:
    calls = [{"name": call.name, "args": call.args or {}} for call in record.calls]
    return {"user": record.user, "response": record.response, "calls": calls, "error": record.error or None}
