"""The pass rate that people would give a run's cells, from all verdicts of its judge and the labels of some of these cells.

Prediction-powered inference (PPI++, Angelopoulos, Duchi and Zrnic 2023) is the mean of the labels, moved by λ times the difference between the
judge's pass rate on all cells and that on the labelled ones. Where a verdict is pass or fail, the best λ is the share of passes that people
confirm less the share of failures that they overrule, and the estimate is the sum of both shares, each times the share of such verdicts. So nothing
has to be tuned, and each share has an interval that holds with few labels.

Unlike Rogan and Gladen's, it takes nothing over from other answers: the labelled cells must be a random sample of those of each verdict.
"""

from __future__ import annotations

import math

from mlflow_adk_eval.analysis.calibration.judge_error import FEWEST, Corrected, JudgeRates

_IMAGINED = 0.5
"""How many labelled cells of each verdict are imagined to have come out in the worst way: one of both together."""
_REACH, _STEP, _EACH = 8.0, 0.05, 4
"""Of the normal quantiles at which a share is looked up, and how many of them make one step of the trapezoidal rule."""
_CLOSE, _TINY = 1e-6, 1e-12


def people_rate(passed: int, judged: int, rates: JudgeRates, confidence: float = 0.95, *, design_effect: float = 1.0) -> Corrected | str:
    """Return the pass rate that people would give cells of which they labelled a random sample; a text says why there is none.

    Args:
        passed: how many of all cells the judge passed.
        judged: how many it judged, the labelled ones among them.
        rates: what people say of the labelled ones. They may have been sampled by verdict.
        confidence: how often the interval is to cover the truth, between 0 and 1.
        design_effect: that of the judged cells; see `judge_error.design_effect`.
    """
    if rates.labelled < FEWEST:
        return f"too few labels: {rates.labelled} of the {FEWEST} needed"
    size, error = judged / design_effect, (1 - confidence) / 2
    share = passed / judged
    both, first, neither, second = rates.counts
    confirmed = both / (both + first) if both + first else 1.0
    overruled = second / (neither + second) if neither + second else 0.0
    of_passed = (rates.true_passes + rates.false_passes) / rates.judge_pass_effect
    of_failed = (rates.true_failures + rates.false_failures) / rates.judge_failure_effect
    value = share * confirmed + (1 - share) * overruled
    pair = (share * size, (1 - share) * size)
    low = _least((of_passed * confirmed, of_passed * (1 - confirmed)), (of_failed * overruled, of_failed * (1 - overruled)), pair, error)
    high = 1 - _least(
        (of_passed * (1 - confirmed), of_passed * confirmed), (of_failed * (1 - overruled), of_failed * overruled), pair, error
    )
    return Corrected(value=value, low=min(low, value), high=max(high, value))


_Counts = tuple[float, float]
"""For and against."""


def _least(one: _Counts, other: _Counts, verdicts: _Counts, error: float) -> float:
    """Return what a rate is at least, with a chance of `error` to be wrong.

    The confidence distributions of three shares are put together as if they were posteriors (Fay, Proschan and Brittain 2015): those of the
    labels lean to the worst, as Clopper and Pearson's do, and that of the verdicts is Jeffreys'.

    Args:
        one: the labels of the cells with one verdict, for and against what the rate counts.
        other: those of the cells with the other verdict.
        verdicts: how many cells have the one verdict, and the other.
        error: the chance.
    """
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where it is asked for
    from scipy.special import betaincinv, ndtr  # noqa: PLC0415 - as above

    def spread(counts: _Counts, cells: float) -> float:
        yes, no = counts[0], counts[1] + _IMAGINED
        return cells * math.sqrt(yes * no / (yes + no + 1)) / (yes + no)

    # The share that matters the more has to be the one whose chances are looked up, as the other one is nearly a step.
    if spread(one, verdicts[0]) < spread(other, verdicts[1]):
        one, other, verdicts = other, one, (verdicts[1], verdicts[0])
    if not one[0]:
        return 0.0
    normal = np.arange(-_REACH, _REACH + _STEP, _STEP)
    nodes = normal[::_EACH]
    quantiles = betaincinv(one[0], one[1] + _IMAGINED, ndtr(normal))
    of_one = betaincinv(verdicts[0] + 0.5, verdicts[1] + 0.5, ndtr(nodes))[:, None]
    rest = (1 - of_one) * (betaincinv(other[0], other[1] + _IMAGINED, ndtr(nodes)) if other[0] else 0 * nodes)
    weights = np.exp(-(nodes**2) / 2)
    weights = np.outer(weights, weights) / weights.sum() ** 2
    low, high = 0.0, 1.0
    while high - low > _CLOSE:
        middle = (low + high) / 2
        at = (middle - rest) / np.maximum(of_one, _TINY)
        chance = np.where(at < 0, 0.0, ndtr(np.interp(at, quantiles, normal)))
        low, high = (middle, high) if float((weights * chance).sum()) < error else (low, middle)
    return low
