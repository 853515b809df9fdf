"""How far the means of two runs lie apart, over the cases that both have, and what luck alone would do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_adk_eval.analysis.comparison.side import Side
from mlflow_adk_eval.analysis.stats import Paired, compare_paired, holm
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult

CASE_RATE = "case_pass_rate"
"""What the share of case runs that passed is called."""

Values = dict[str, list[float]]
"""By case, one for each run that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """One number in both runs: of a criterion, the mean of the case scores over the cases that have one in both."""

    name: str
    decides: bool
    greater_is_better: bool
    cases: int
    """Those with a value in both runs; the numbers below are of these."""
    only_before: int
    """Cases with a value in the first run only."""
    only_after: int
    neither: int
    """Cases that have the criterion and no value in either run."""
    partial: int
    """Cases in which some of the repeated runs have no value."""
    before: float | None = None
    after: float | None = None
    difference: float | None = None
    """After less before."""
    low: float | None = None
    """The confidence interval of the difference."""
    high: float | None = None
    better: int = 0
    worse: int = 0
    unchanged: int = 0
    p_value: float | None = None
    """Two-sided, as it is."""
    p_adjusted: float | None = None
    """By Holm's method over the tests of its kind: the criteria that decide, or those that are information."""
    test: str = ""
    """``mcnemar`` or ``permutation``."""

    @property
    def lacking(self) -> int:
        """The cases that the numbers are not about, since a value is missing."""
        return self.only_before + self.only_after + self.neither

    def clear(self, confidence: float) -> bool:
        """Whether luck alone is no likely explanation of the difference, given how many tests there were."""
        return self.p_adjusted is not None and self.p_adjusted <= 1 - confidence

    @property
    def improved(self) -> bool | None:
        """Whether the difference is for the better; ``None`` where there is none."""
        return (self.difference > 0) is self.greater_is_better if self.difference else None


def deltas_of(sides: tuple[Side, Side], eval_ids: Sequence[str], confidence: float) -> tuple[Delta, ...]:
    """Return the share of passed case runs, then every criterion in the order of the second run, for the cases `eval_ids`."""
    names = dict.fromkeys([*sides[1].criteria, *sides[0].criteria])
    found = [_of_criterion(name, sides, eval_ids, confidence) for name in names]
    rated = _pass_rate(sides, eval_ids, confidence)
    deciding, informing = ([one for one in found if one.decides is decides and one.cases + one.lacking] for decides in (True, False))
    return (replace(rated, p_adjusted=rated.p_value), *_adjusted(deciding), *_adjusted([one for one in informing if one.cases]))


def _adjusted(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Yield deltas with p-values that allow for how many of them were tested."""
    adjusted = iter(holm([delta.p_value for delta in deltas if delta.p_value is not None]))
    for delta in deltas:
        yield delta if delta.p_value is None else replace(delta, p_adjusted=next(adjusted))


def _pass_rate(sides: tuple[Side, Side], eval_ids: Sequence[str], confidence: float) -> Delta:
    before, after = ({name: [float(verdict == "passed") for verdict in side.verdicts(name)] for name in eval_ids} for side in sides)
    blank = Delta(name=CASE_RATE, decides=True, greater_is_better=True, cases=0, only_before=0, only_after=0, neither=0, partial=0)
    return _filled(blank, before, after, confidence, (0.0, 1.0))


def _of_criterion(name: str, sides: tuple[Side, Side], eval_ids: Sequence[str], confidence: float) -> Delta:
    results = [{eval_id: _results(side.cases[eval_id], name) for eval_id in eval_ids} for side in sides]
    values = [{eval_id: known for eval_id, found in side.items() if (known := _known(found))} for side in results]
    planned = {eval_id for side in results for eval_id, found in side.items() if found}
    every = [result for side in results for found in side.values() for result in found]
    short = (eval_id for side in results for eval_id, found in side.items() if len(_known(found)) not in (0, len(found)))
    return _filled(
        Delta(
            name=name,
            decides=any(result.decides for result in every),
            greater_is_better=every[0].greater_is_better if every else True,
            cases=0,
            only_before=len(values[0].keys() - values[1]),
            only_after=len(values[1].keys() - values[0]),
            neither=len(planned - values[0].keys() - values[1].keys()),
            partial=len(set(short)),
        ),
        values[0],
        values[1],
        confidence,
        _bounds(sides[1].config, name),
    )


def _results(runs: Mapping[int, CaseResult], name: str) -> list[CriterionResult]:
    return [result for case in runs.values() for result in case.results if result.criterion == name]


def _known(results: Sequence[CriterionResult]) -> list[float]:
    return [result.score for result in results if result.score is not None]


def _bounds(config: EvalConfig, name: str) -> tuple[float, float] | None:
    """Return between what the scores of a criterion lie; ``None`` where there is no end to them."""
    if name not in CRITERIA and name not in (config.custom_metrics or {}):  # only the other run has this metric
        return None
    found = config.bounds(name)
    return found if all(map(math.isfinite, found)) else None


def _filled(delta: Delta, before: Values, after: Values, confidence: float, bounds: tuple[float, float] | None) -> Delta:
    """Return a delta with its numbers. The test takes a higher value for the better one, so signs are turned where it is not."""
    if delta.greater_is_better:
        found = compare_paired(before, after, confidence=confidence, bounds=bounds)
    else:
        turned = ({name: [-value for value in values] for name, values in side.items()} for side in (before, after))
        found = compare_paired(*turned, confidence=confidence, bounds=bounds and (-bounds[1], -bounds[0]))
    return delta if found is None else _with(delta, found)


def _with(delta: Delta, found: Paired) -> Delta:
    sign = 1 if delta.greater_is_better else -1
    low, high = sorted((sign * found.low, sign * found.high))
    return replace(
        delta,
        cases=found.cases,
        before=sign * found.before,
        after=sign * found.after,
        difference=sign * found.difference,
        low=low,
        high=high,
        better=found.better,
        worse=found.worse,
        unchanged=found.unchanged,
        p_value=found.p_value,
        test=found.test,
    )
