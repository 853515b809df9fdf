"""How far the means of two runs lie apart, over the cases that both have, and what luck alone would do.

There is one `Delta` for the share of cases that passed and one for each criterion. The mean is over case means, so repeated runs of a case
count once, and so do cases of one content. Test, interval and confidence are those of the gate's ``max_drop``, so that the same two runs have
the same numbers there: one-sided, in the direction seen, and each end of the interval holds with the confidence. The paired test knows higher as
better, so values of criteria where lower is better are negated on the way in and their results on the way out. P-values are adjusted by
Holm's method, since ten criteria give chance ten opportunities; the gate adjusts for the rules of its policy, which may be fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.analysis.comparison.runs import ComparedRun, Sides
from mlflow_adk_eval.analysis.stats.paired import Values, compare_paired, holm
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.results.outcomes import TOLERANCE, grouped, mean
from mlflow_adk_eval.results.report import scaled, scores_by_case

CASE_RATE = "case_pass_rate"
"""What the share of case runs that passed is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """One number in both runs: of a criterion, the mean of the case scores over the cases that have one in both."""

    name: str
    decides: bool
    greater_is_better: bool
    cases: int = 0
    """Those with a value in both runs; the numbers below are of these."""
    only_before: int = 0
    """Cases with a value in the first run only."""
    only_after: int = 0
    neither: int = 0
    """Cases that have the criterion and no value in either run."""
    partial: int = 0
    """Cases in which some of the repeated runs have no value."""
    before: float | None = None
    after: float | None = None
    difference: float | None = None
    """After less before."""
    low: float | None = None
    """The interval of the difference, each end of which holds with the confidence."""
    high: float | None = None
    better: int = 0
    worse: int = 0
    unchanged: int = 0
    p_value: float | None = None
    """The chance of a change as large as this, in the direction seen, if nothing were behind it."""
    p_adjusted: float | None = None
    """By Holm's method over the tests of its kind: the criteria that decide, or those that are information."""
    tests: int = 1
    """How many tests that were."""
    test: str = ""
    """``mcnemar`` or ``permutation``."""

    @property
    def lacking(self) -> int:
        """The cases that the numbers are not about, since a value is missing."""
        return self.only_before + self.only_after + self.neither

    def clear(self, confidence: float) -> bool:
        """Whether luck alone is no likely explanation of the difference, given how many tests there were."""
        return self.p_adjusted is not None and self.p_adjusted <= 1 - confidence + TOLERANCE

    def clear_alone(self, confidence: float) -> bool:
        """Whether that would be so if it were the only test; its interval is then on one side of zero."""
        return self.p_value is not None and self.p_value <= 1 - confidence + TOLERANCE

    @property
    def improved(self) -> bool | None:
        """Whether the difference is for the better; ``None`` where there is none."""
        return (self.difference > 0) is self.greater_is_better if self.difference else None


def deltas_of(sides: Sides, eval_ids: Sequence[str], confidence: float) -> tuple[Delta, ...]:
    """Return the share of passed case runs, then every criterion in the order of the second run, for the cases `eval_ids`."""
    names = dict.fromkeys([*sides[1].criteria, *sides[0].criteria])
    deltas = [_of_criterion(name, sides, eval_ids, confidence) for name in names]
    before, after = (
        scores_by_case((name, [float(verdict == "passed") for verdict in side.verdicts(name)]) for name in eval_ids) for side in sides
    )
    empty = Delta(name=CASE_RATE, decides=True, greater_is_better=True)
    rated = _filled(empty, *_pooled(sides, before, after), confidence, (0.0, 1.0))
    deciding = [one for one in deltas if one.decides and one.cases + one.lacking]
    informing = [one for one in deltas if not one.decides and one.cases]
    return (replace(rated, p_adjusted=rated.p_value), *_adjusted(deciding), *_adjusted(informing))


def _adjusted(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Yield deltas with p-values that allow for how many of them were tested."""
    p_values = holm([delta.p_value for delta in deltas if delta.p_value is not None])
    adjusted = iter(p_values)
    for delta in deltas:
        yield delta if delta.p_value is None else replace(delta, p_adjusted=next(adjusted), tests=len(p_values))


def _pooled(sides: Sides, before: Values, after: Values) -> tuple[Values, Values]:
    """Return the values with those of cases of one content together, as the gate counts them."""
    copies = sides[1].copies
    if not copies:
        return before, after
    groups = grouped((copies.get(eval_id, eval_id), eval_id) for eval_id in before.keys() & after.keys())
    pooled = ({name: [mean(side[eval_id]) for eval_id in sorted(ids)] for name, ids in groups.items()} for side in (before, after))
    return next(pooled), next(pooled)


def _of_criterion(name: str, sides: Sides, eval_ids: Sequence[str], confidence: float) -> Delta:
    seen = [_Seen(side, name, eval_ids) for side in sides]
    first, second = (side.valued for side in seen)
    counted = Delta(
        name=name,
        decides=any(side.decides for side in seen),
        greater_is_better=next((side.greater_is_better for side in seen if side.greater_is_better is not None), True),
        only_before=len(first - second),
        only_after=len(second - first),
        neither=len((seen[0].unscored | seen[1].unscored) - first - second),
        partial=len(seen[0].short | seen[1].short),
    )
    config = sides[1].config
    known = name in CRITERIA or name in (config.custom_metrics or {})  # else only the other run has this metric
    bounds = config.bounds(name) if known and all(map(math.isfinite, config.bounds(name))) else None
    return _filled(counted, *_pooled(sides, seen[0].scores, seen[1].scores), confidence, bounds)


class _Seen:
    """What one side has of a criterion, without the results themselves, which are many."""

    def __init__(self, side: ComparedRun, name: str, eval_ids: Iterable[str]) -> None:
        self.decides = False
        self.greater_is_better: bool | None = None
        self.valued, self.unscored, self.short = set[str](), set[str](), set[str]()
        """The cases with a score, those that have the criterion and no score, and those of which some runs have none."""
        self.scores = scores_by_case(self._read(side, name, eval_ids))

    def _read(self, side: ComparedRun, name: str, eval_ids: Iterable[str]) -> Iterator[tuple[str, list[float]]]:
        for eval_id in eval_ids:
            results = [result for case in side.cases[eval_id].values() if (result := case.result(name)) is not None]
            known = [result.score for result in results if result.score is not None]
            self.decides = self.decides or any(result.decides for result in results)
            if results and self.greater_is_better is None:
                self.greater_is_better = results[0].greater_is_better
            if known:
                self.valued.add(eval_id)
                yield eval_id, known
            elif results:
                self.unscored.add(eval_id)
            if known and len(known) < len(results):
                self.short.add(eval_id)


def _filled(delta: Delta, before: Values, after: Values, confidence: float, bounds: tuple[float, float] | None) -> Delta:
    """Return a delta with its numbers. The test takes a higher value for the better one, so signs are turned where it is not."""
    sign = 1 if delta.greater_is_better else -1
    if not delta.greater_is_better:
        before, after = (scaled(side, lambda value: -value) for side in (before, after))
        bounds = bounds and (-bounds[1], -bounds[0])
    paired = compare_paired(before, after, confidence=2 * confidence - 1, bounds=bounds)
    if paired is None:
        return delta
    low, high = sorted((sign * paired.low, sign * paired.high))
    means = {name: sign * getattr(paired, name) for name in ("before", "after", "difference")}
    counts: dict[str, Any] = {name: getattr(paired, name) for name in ("cases", "better", "worse", "unchanged", "test")}
    return replace(delta, **means, **counts, low=low, high=high, p_value=min(paired.p_worse, paired.p_better))
