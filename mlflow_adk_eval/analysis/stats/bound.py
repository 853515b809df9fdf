"""A lower bound of a mean that holds with few cases and near a ceiling, where Student's interval believes what it has not seen.

The mean of the cases is drawn with random weights (Dirichlet), as in the Bayesian bootstrap, together with one imagined case that came to the
worst value that there is. The bound is a quantile of such means (Gaffke 2005; Learned-Miller and Thomas 2020, "A new confidence interval for the
mean of a bounded random variable"). Where each case passes or fails it is Clopper and Pearson's, and with many cases it is close to Student's.
That it holds for every bounded distribution is proved for special cases and otherwise a conjecture without a known exception.

The quantile is computed and not drawn, so that it is right for the small errors that are spent over attempts, too: the weighted mean is below a
limit just where a sum of exponential variables is negative, whose chance is an integral over its moment-generating function.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

_DIGITS = 12
"""Values that are alike to so many decimals are one."""
_MOST = 256
"""Of more distinct values, each counts in part as the next lower and the next higher one of so many: the mean stays, the spread hardly grows."""
_NEAR = 0.1
"""How close to the saddle point the path of the integral has to go: anywhere between the poles is right, and there it is shortest."""
_STEP, _END = 0.15, 12.5
"""Of the trapezoidal rule, on the scale of the integrand's width; its error is below 1e-12."""
_GROWN = 1e-6
"""How much the logarithm of an integrand that falls may grow from point to point: by rounding alone."""
_LEAN = 0.7
"""How far the path of the integral leans, as a slope: below 1, so that it falls for what is nearly normal, too."""
_LOOKS = 60
_CLOSE, _FAR = 1e-10, -50.0


def mean_at_least(values: Sequence[float], confidence: float, *, worst: float) -> float:
    """Return what the true mean is at least, with some confidence.

    Args:
        values: one for each case, none below `worst`.
        confidence: how often that is to be right, between 0.5 and 1.
        worst: the least value that a case may have.

    >>> round(mean_at_least([0.0] * 20, 0.95, worst=-1.0), 4), round(0.05 ** (1 / 20) - 1, 4)
    (-0.1391, -0.1391)
    """
    found, counts = _counted(values, worst)
    low, high, target = float(worst), float(found.max()), math.log1p(-confidence)
    span, side, of_low, of_high = high - low, 0, _FAR, -target
    # The secant of the logarithm of the chance, with the end that stays halved (Illinois).
    for _ in range(_LOOKS):
        middle = min(max((low * of_high - high * of_low) / (of_high - of_low), low + _CLOSE * span), high - _CLOSE * span)
        value = max(math.log(max(chance_of(found, counts, middle), 1e-300)) - target, _FAR)
        if abs(value) < _CLOSE or high - low <= 3 * _CLOSE * span:
            return middle
        if value < 0:
            low, of_low, of_high, side = middle, value, of_high / 2 if side < 0 else of_high, -1
        else:
            high, of_high, of_low, side = middle, value, of_low / 2 if side > 0 else of_low, 1
    return low


def chance_of(values: Any, counts: Any, limit: float) -> float:
    """Return the chance that the mean with random weights is at most a limit.

    Args:
        values: an array of distinct values, the imagined case's among them.
        counts: how many cases have each; parts of cases are possible.
        limit: the mean in question.
    """
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where runs are compared

    apart = values - limit
    if apart.max() <= 0:
        return 1.0
    if apart.min() >= 0:
        return 0.0
    # With exponential weights, the mean is at most the limit where the sum of `apart` is at most 0. That chance is the integral of the sum's
    # moment-generating function over -s, along any line between its first negative pole, where 1 = s * apart, and 0.
    likely = float(counts @ apart) < 0
    apart = (-apart if likely else apart) / np.abs(apart).max()
    at, curve, inverse = 1 / apart.min() / 2, 1.0, apart
    for _ in range(_LOOKS):
        inverse = apart / (1 - at * apart)
        slope, curve = float(counts @ inverse) - 1 / at, float(counts @ inverse**2) + 1 / at**2
        if (decrement := abs(slope) / curve**0.5) < _NEAR:
            break
        at -= slope / curve / (1 + decrement)
    # It leans to the poles of one side, as a hyperbola, and so turns little. Where the integrand would grow on that side, it leans to the other, and
    # where it would grow there as well, it stays upright, on which it falls for sure.
    bend = float(counts @ inverse**3) / (3 * curve)
    points = np.arange(0.0, _END, _STEP)
    up, width = np.sinh(points) / curve**0.5, np.cosh(points) / curve**0.5
    radius = _LEAN / (2 * abs(bend) + 1e-300)
    reach = np.hypot(up, radius)
    first = math.copysign(_LEAN, bend)
    for lean in (first, -first, 0.0):
        line = at + 1j * up + lean * (reach - radius)
        logs = -(counts * np.log(1 - np.outer(line, apart))).sum(axis=1) - np.log(-line)  # `@` would start threads for it
        if np.diff(logs.real).max() < _GROWN:
            break
    heights = (np.exp(logs) * (1 - 1j * lean * up / reach)).real * width
    chance = float(min(max((heights.sum() - heights[0] / 2) * _STEP / np.pi, 0.0), 1.0))
    return 1 - chance if likely else chance


def _counted(values: Sequence[float], worst: float) -> tuple[Any, Any]:
    """Return the distinct values with how many cases have each, the imagined one among them."""
    import numpy as np  # noqa: PLC0415 - as above

    counts = Counter(round(value, _DIGITS) for value in values)
    found = np.array(sorted(counts), dtype=float)
    times = np.array([counts[value] for value in found.tolist()], dtype=float)
    if len(found) > _MOST:
        grid = np.linspace(found.min(), found.max(), _MOST)
        at = np.interp(found, grid, np.arange(_MOST))
        part = at % 1
        lower, upper = np.floor(at).astype(int), np.ceil(at).astype(int)
        found, times = grid, np.bincount(lower, times * (1 - part), _MOST) + np.bincount(upper, times * part, _MOST)
    return np.append(found, worst), np.append(times, 1.0)
