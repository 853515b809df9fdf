"""Intervals for what was measured on a sample of cases.

The case is the unit that was sampled: repeated runs of one case say nothing about other cases. `mean_interval` chooses the method by what
the values are; proportions have Wilson's score interval, which stays honest at 0 % and 100 %, and `proportion_interval` offers the exact
one. All were checked by simulation, see docs/explanation/statistics.md. Beside them stand the chances of the binomial distribution, by scipy's special
functions, since importing scipy.stats takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal

_ALIKE = 1e-12
"""Means that differ by less are one value: the difference is nothing but rounding."""

Interval = tuple[float, float]


def mean_interval(values_by_case: Mapping[str, Sequence[float]], confidence: float = 0.95, *, proportion: bool = True) -> Interval | None:
    """Return the confidence interval of the mean of all values, with the case as the unit that was sampled.

    Repeated runs of a case tell nothing about other cases, so what counts is how far cases differ. Where each case is all 0 or
    all 1 the interval is Wilson's, which stays honest at 0 % and 100 %. Other values from 0 to 1 have Wilson's, too, for as many
    cases as would make a proportion as certain as this mean. What has no such range has Student's, on the scale of logarithms for
    quantities.

    Args:
        values_by_case: the values of each case, one per run.
        confidence: how often the interval is to cover the true mean, between 0 and 1.
        proportion: whether values of 0 and 1 mean *no* and *yes*; not so for counts and durations.

    Returns:
        The bounds; ``None`` where cases do not say how much cases differ: fewer than two, or all with one value.
    """
    groups = [values for values in values_by_case.values() if values]
    if len(groups) <= 1:
        return None
    if proportion and all(values[0] in (0, 1) and min(values) == max(values) for values in groups):
        return wilson_interval(sum(values[0] == 1 for values in groups) / len(groups), len(groups), confidence)
    means = [math.fsum(values) / len(values) for values in groups]
    if max(means) - min(means) < _ALIKE:
        return None
    low, high = _interval(groups, confidence, proportion=proportion)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def wilson_interval(share: float, size: float, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion in a sample whose effective size need not be a whole number.

    >>> [round(bound, 4) for bound in wilson_interval(0.9, 10)]
    [0.5958, 0.9821]
    """
    return score_interval(share, size, NormalDist().inv_cdf((1 + confidence) / 2))


def proportion_interval(
    successes: int, trials: int, confidence: float = 0.95, *, method: Literal["wilson", "exact"] = "wilson"
) -> Interval:
    """Return the interval of a proportion: Wilson's, which is right on average, or Clopper and Pearson's, which is never too short.

    >>> [round(bound, 4) for bound in proportion_interval(9, 10, method="exact")]
    [0.555, 0.9975]
    """
    if method == "wilson":
        return wilson_interval(successes / trials, trials, confidence)
    from scipy.special import betaincinv  # noqa: PLC0415 - some time to import, needed only where it is asked for

    tail = (1 - confidence) / 2
    low = float(betaincinv(successes, trials - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - tail)) if successes < trials else 1.0
    return low, high


def score_interval(share: float, size: float, quantile: float) -> Interval:
    """Return Wilson's score interval of a share in a sample whose effective size need not be a whole number.

    Args:
        share: the share, from 0 to 1.
        size: the effective size of the sample.
        quantile: of the distribution of the share, in standard errors, such as 1.96.
    """
    square = quantile * quantile / size
    middle = share + square / 2
    reach = math.sqrt(square * share * (1 - share) + square * square / 4)
    # At 0 % and 100 % the sums would come to the bound itself, but for rounding.
    low = 0.0 if share == 0 else max((middle - reach) / (1 + square), 0.0)
    high = 1.0 if share == 1 else min((middle + reach) / (1 + square), 1.0)
    return min(low, share), max(high, share)


def binomial_tail(k: Any, n: Any, p: Any) -> Any:
    """Return the chance of at least `k` of `n`, of numbers or arrays of them: what ``scipy.stats.binom.sf(k - 1, n, p)`` is, to the last digit."""
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where runs are compared or planned
    from scipy.special import betainc  # noqa: PLC0415 - as above

    inside = np.clip(k, 1, np.maximum(n, 1))  # where it is none of the two certainties, and beta functions are defined
    return np.where(np.less(k, 1), 1.0, np.where(np.greater(k, n), 0.0, betainc(inside, np.maximum(n, 1) - inside + 1, p)))


def binomial_chance(k: Any, n: Any, p: Any) -> Any:
    """Return the chance of exactly `k` of `n`, for k from 0 to n: what ``scipy.stats.binom.pmf`` is, to nine digits for n up to 100,000."""
    import numpy as np  # noqa: PLC0415 - as above
    from scipy.special import gammaln, xlog1py, xlogy  # noqa: PLC0415 - as above

    ways = gammaln(n + 1) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1)
    return np.exp(np.minimum(ways + xlogy(k, p) + xlog1py(np.subtract(n, k), np.negative(p)), 0))


def _interval(groups: Sequence[Sequence[float]], confidence: float, *, proportion: bool) -> Interval:
    """Return the interval of the mean of values that differ between cases."""
    from scipy.special import stdtrit  # noqa: PLC0415 - as above

    count, cases = sum(map(len, groups)), len(groups)
    middle = math.fsum(map(math.fsum, groups)) / count
    residuals = [math.fsum(values) - middle * len(values) for values in groups]
    # What the mean has because other cases might have been taken.
    variance = sum(residual * residual for residual in residuals) / (count * count) * cases / (cases - 1)
    quantile = float(stdtrit(cases - 1, (1 + confidence) / 2))
    least, most = min(map(min, groups)), max(map(max, groups))
    if proportion and least >= 0 and most <= 1:
        # Where all but next to nothing is at a bound, the mean is rounded to it, and no number of cases would follow.
        return score_interval(middle, max(middle * (1 - middle) / variance, 1.0), quantile)
    reach = quantile * math.sqrt(variance)
    if proportion or least < 0:
        return middle - reach, middle + reach
    factor = math.exp(min(reach / middle, -math.log(_ALIKE)))
    return middle / factor, middle * factor
