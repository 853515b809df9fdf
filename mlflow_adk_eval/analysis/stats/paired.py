"""Two runs on the same cases: what has changed, and whether luck alone would explain it.

The same cases are compared with themselves, which takes far fewer of them than two separate samples. Where each case passes or fails, the
test is McNemar's; for other scores the runs are swapped within cases in all ways, or in many drawn ones. The interval of the difference
counts with what was not seen: it holds however rare and large the changes of single cases are. Where each case passes or fails, it lies
on one side of zero just where the test says so; for other scores the test sees a change sooner. See docs/explanation/statistics.md.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import sub
from typing import Any, Literal

from mlflow_adk_eval.analysis.stats.bound import mean_at_least
from mlflow_adk_eval.analysis.stats.intervals import binomial_tail
from mlflow_adk_eval.results.outcomes import TOLERANCE, mean

_EXACT = 16
"""Up to so many cases that differ, all 65,536 ways to swap their runs are tried."""
_DRAWS = 9_999
"""Ways that are drawn where there are more, each with its mirror image."""
_AT_ONCE = 12
"""Cases of which one of all 4,096 ways is drawn at a time."""
_SEED = 0


Values = Mapping[str, Sequence[float]]
"""The values of each case, one per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """How the same cases did in two runs; a difference is after minus before, of case means."""

    cases: int
    """Those that have values in both."""
    better: int
    worse: int
    unchanged: int
    before: float
    """The mean over the cases."""
    after: float
    difference: float
    low: float
    """Where the interval of the difference begins. It is above 0 only where `p_better` is at most the half of one less the confidence."""
    high: float
    """Where it ends; below 0 only where that is so of `p_worse`."""
    width: float
    """The largest difference that a case may have."""
    p_value: float
    """The chance of a difference as large as this, up or down, if the runs were alike."""
    p_worse: float
    """The chance of a drop as large as this if *after* were at least as good."""
    p_better: float
    """The chance of a gain as large as this if *before* were at least as good."""
    test: Literal["mcnemar", "permutation"]
    """McNemar's exact test where each case passes or fails, else the permutation of the runs within the cases."""
    spread: float
    """The standard deviation of the cases' differences; 0 where they are alike."""


def compare_paired(
    before: Values,
    after: Values,
    *,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = (0.0, 1.0),
) -> Paired | None:
    """Return how the cases that both runs have did; ``None`` if there are none.

    Args:
        before: the values of each case, one per run, where higher is better.
        after: the same of the other run.
        confidence: how often the interval is to cover the true difference, between 0 and 1.
        bounds: the least and the largest value that there may be; ``None``: there are none.
    """
    earlier, later = array("d"), array("d")  # lists of numbers take five times as much memory
    for _, early, late in in_both(before, after):
        if early and late:
            earlier.append(mean(early))
            later.append(mean(late))
    if not later:
        return None
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where runs are compared

    differences = array("d", map(sub, later, earlier))
    gains = array("d", (difference for difference in differences if abs(difference) > TOLERANCE))
    binary = all(value in (0, 1) for value in chain(earlier, later))
    worse = sum(gain < 0 for gain in gains)
    better = len(gains) - worse
    if binary:  # McNemar's test: the chances of at least as many, if each were a fair coin's
        p_worse, p_better = (float(binomial_tail(count, len(gains), 0.5)) for count in (worse, better))
    else:
        p_worse, p_better = _permuted(gains)
    difference = math.fsum(gains) / len(later)
    least, most = bounds or (-math.inf, math.inf)
    if not (math.isfinite(least) and math.isfinite(most)):  # then it is the range of what was seen
        least, most = min(chain(earlier, later)), max(chain(earlier, later))
    width = max(most - least or abs(most), *map(abs, differences))
    level, scale = (1 + confidence) / 2, width or 1.0
    spread = scale * float(np.std(np.sort(differences) / scale, ddof=1)) if len(later) > 1 else 0.0
    low, high = (sign * mean_at_least([sign * value / scale for value in differences], level, worst=-width / scale) for sign in (1, -1))
    # For one comparison of scores in thirty the interval would exclude zero although the test shows nothing.
    if p_better > 1 - level + TOLERANCE:
        low = min(low, 0.0)
    if p_worse > 1 - level + TOLERANCE:
        high = max(high, 0.0)
    return Paired(
        cases=len(later),
        better=better,
        worse=worse,
        unchanged=len(later) - len(gains),
        before=math.fsum(earlier) / len(earlier),
        after=math.fsum(later) / len(later),
        difference=difference,
        low=scale * min(low, difference / scale),
        high=scale * max(high, difference / scale),
        width=width,
        p_value=min(1.0, 2 * min(p_worse, p_better)),
        p_worse=p_worse,
        p_better=p_better,
        test="mcnemar" if binary else "permutation",
        spread=spread if spread > TOLERANCE else 0.0,
    )


def in_both(before: Values, after: Values) -> Iterator[tuple[str, Sequence[float], Sequence[float]]]:
    """Yield the cases that both have, in the order of `after`, with the values of each.

    Where both have the same order, as two runs on one eval set do, no case is looked up, so that columns need no index.
    """
    earlier, passed = iter(before.items()), dict[str, Sequence[float]]()
    for case, values in after.items():
        while case not in passed and (found := next(earlier, None)) is not None:
            passed[found[0]] = found[1]
        if case in passed:
            yield case, passed.pop(case), values


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for that several tests were made, by Holm's method, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    (0.03, 0.06, 0.06)
    """
    adjusted, highest = dict.fromkeys(range(len(p_values)), 0.0), 0.0
    for rank, index in enumerate(sorted(adjusted, key=p_values.__getitem__)):
        highest = max(highest, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = highest
    return tuple(adjusted.values())


def _permuted(gains: Sequence[float]) -> tuple[float, float]:
    """Return the shares of the ways to swap the runs within the cases that come to a sum as low, and as high."""
    import numpy as np  # noqa: PLC0415 - as above

    total, sizes = math.fsum(gains), np.sort(np.abs(np.array(gains, dtype=float)))
    if len(sizes) <= _EXACT:
        sums = _all_sums(sizes)
    else:
        luck, drawn = np.random.default_rng(_SEED), np.zeros(_DRAWS)
        for start in range(0, len(sizes), _AT_ONCE):
            ways = _all_sums(sizes[start : start + _AT_ONCE])
            drawn += ways[luck.integers(0, len(ways), _DRAWS, dtype=np.uint16)]
        sums = np.concatenate([drawn, -drawn, [total, -total]])
    slack = TOLERANCE * (sizes[-1] if len(sizes) else 1.0)
    return float((sums <= total + slack).mean()), float((sums >= total - slack).mean())


def _all_sums(sizes: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - as above

    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums + size, sums - size])
    return sums
