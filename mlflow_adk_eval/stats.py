"""Intervals for what was measured on a sample of cases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_RESAMPLES = 2000
_CELLS_AT_ONCE = 4_000_000
"""Resampled values held in memory at the same time: 32 MB."""
_SEED = 0
_LEAST_SCALE = 1e-6
_FEWEST = 2


def mean_interval(values_by_case: Mapping[str, Sequence[float]], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the confidence interval of the mean of all values, with the case as the unit that was sampled.

    Repeated runs of a case tell nothing about other cases, so cases are resampled, not values. Where each case is all 0 or
    all 1 the interval is Wilson's, which stays honest at 0 % and 100 %; else it is the bias-corrected and accelerated
    bootstrap with a fixed seed.

    Args:
        values_by_case: the values of each case, one per run.
        confidence: how often the interval is to cover the true mean, between 0 and 1.

    Returns:
        The bounds; ``None`` where cases do not say how much cases differ: fewer than two, or all with one value.
    """
    groups = [values for values in values_by_case.values() if values]
    if len(groups) < _FEWEST:
        return None
    if {value for values in groups for value in values} <= {0, 1} and all(len(set(values)) == 1 for values in groups):
        return wilson_interval(sum(values[0] == 1 for values in groups), len(groups), confidence)
    return _bootstrap_interval(groups, confidence)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion.

    >>> low, high = wilson_interval(9, 10)
    >>> round(low, 4), round(high, 4)
    (0.5958, 0.9821)
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == trials else (centre + spread) / scale
    return low, high


def _bootstrap_interval(groups: Sequence[Sequence[float]], confidence: float) -> tuple[float, float] | None:
    import numpy as np  # noqa: PLC0415 - scipy has this too, but its import takes more than a second

    sums = np.array([math.fsum(values) for values in groups])
    counts = np.array([len(values) for values in groups])
    if np.ptp(sums / counts) == 0:
        return None
    found = sums.sum() / counts.sum()
    means = np.sort(_resampled_means(sums, counts))
    left_out = (sums.sum() - sums) / (counts.sum() - counts)
    low, high = _accelerated_levels(means, left_out, found, (1 - confidence) / 2)
    bounds = np.quantile(means, [low, high])
    return float(bounds[0]), float(bounds[1])


def _resampled_means(sums: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - as above

    rng = np.random.default_rng(_SEED)
    rows = max(1, _CELLS_AT_ONCE // len(sums))
    parts = []
    for start in range(0, _RESAMPLES, rows):
        drawn = rng.integers(0, len(sums), (min(rows, _RESAMPLES - start), len(sums)))
        parts.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    return np.concatenate(parts)


def _accelerated_levels(means: np.ndarray[Any, Any], left_out: np.ndarray[Any, Any], found: float, tail: float) -> tuple[float, float]:
    """Return at which shares of the resampled means the bounds lie (Efron 1987)."""
    normal = NormalDist()
    below = ((means < found).mean() + (means <= found).mean()) / 2
    bias = normal.inv_cdf(min(max(float(below), 1 / (2 * len(means))), 1 - 1 / (2 * len(means))))
    deviations = left_out.mean() - left_out
    spread = float((deviations**2).sum())
    acceleration = float((deviations**3).sum()) / (6 * spread**1.5) if spread else 0.0

    def level(z: float) -> float:
        shifted = bias + z
        return normal.cdf(bias + shifted / max(1 - acceleration * shifted, _LEAST_SCALE))

    return level(normal.inv_cdf(tail)), level(normal.inv_cdf(1 - tail))
