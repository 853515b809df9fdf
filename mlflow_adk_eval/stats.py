"""Intervals for what was measured on a sample of cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_RESAMPLES = 2000
_CELLS_AT_ONCE = 4_000_000
"""Resampled values held in memory at the same time: 32 MB."""
_SEED = 0
_ALIKE = 1e-12
"""Means that differ by less are one value: the bootstrap would divide by the square of what is nothing but rounding."""
_FEWEST = 2

Interval = tuple[float, float]


def mean_interval(values_by_case: Mapping[str, Sequence[float]], confidence: float = 0.95, *, proportion: bool = True) -> Interval | None:
    """Return the confidence interval of the mean of all values, with the case as the unit that was sampled.

    Repeated runs of a case tell nothing about other cases, so cases are resampled, not values. Where each case is all 0 or
    all 1 the interval is Wilson's, which stays honest at 0 % and 100 %; else it is the bias-corrected and accelerated
    bootstrap with a fixed seed.

    Args:
        values_by_case: the values of each case, one per run.
        confidence: how often the interval is to cover the true mean, between 0 and 1.
        proportion: whether values of 0 and 1 mean *no* and *yes*; not so for counts and durations.

    Returns:
        The bounds; ``None`` where cases do not say how much cases differ: fewer than two, or all with one value.
    """
    groups = [values for values in values_by_case.values() if values]
    if len(groups) < _FEWEST:
        return None
    if proportion and {value for values in groups for value in values} <= {0, 1} and all(len(set(values)) == 1 for values in groups):
        return wilson_interval(sum(values[0] == 1 for values in groups), len(groups), confidence)
    return _bootstrap_interval(groups, confidence)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion.

    >>> low, high = wilson_interval(9, 10)
    >>> round(low, 4), round(high, 4)
    (0.5958, 0.9821)
    """
    from scipy.stats import binomtest  # noqa: PLC0415 - a second of import, needed only where something is logged

    found = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def _bootstrap_interval(groups: Sequence[Sequence[float]], confidence: float) -> Interval | None:
    import numpy as np  # noqa: PLC0415 - as above
    from scipy.stats import bootstrap  # noqa: PLC0415

    sums = np.array([math.fsum(values) for values in groups])
    counts = np.array([len(values) for values in groups])
    if np.ptp(sums / counts) < _ALIKE:
        return None

    def mean_of(sums: Any, counts: Any, axis: int = -1) -> Any:
        return sums.sum(axis=axis) / counts.sum(axis=axis)

    found = bootstrap(
        (sums, counts),
        mean_of,
        paired=True,
        vectorized=True,
        confidence_level=confidence,
        n_resamples=_RESAMPLES,
        batch=max(1, _CELLS_AT_ONCE // len(groups)),
        method="BCa",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
