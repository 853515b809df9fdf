"""How many cases a paired comparison needs, what it can find with those there are, and how far cases will differ.

Planning goes in two steps. `spread_of` estimates how far the cases of two versions of an agent will differ, from the best that is known: an
earlier run, repeated runs, or the scores of one run. `cases_needed` and `detectable_drop` (means), `rate_cases_needed` and
`detectable_rate_drop` (pass rates) turn that into numbers of cases and into the smallest drop that will be noticed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from mlflow_adk_eval.analysis.stats.betting import log_wealth
from mlflow_adk_eval.analysis.stats.bound import chance_of
from mlflow_adk_eval.analysis.stats.intervals import binomial_chance, binomial_tail, wilson_interval
from mlflow_adk_eval.analysis.stats.paired import Paired, Values, compare_paired
from mlflow_adk_eval.results.outcomes import TOLERANCE, mean
from mlflow_adk_eval.results.repeats import variance
from mlflow_adk_eval.results.sequence import FIRST_ROUND, ROUNDS_GROW

_MOST_CASES = 10_000_000
"""Where the search for a number of cases ends."""
_ROUNDING = 1e-12
_MANY = 40
"""With so many cases there is a p-value as close to any number as a float comes."""
_CERTAIN = 9.0
"""Standard errors beyond the critical value from which on a drop is noticed for certain."""
_TAIL = 1e-10
"""How much of a distribution may be left out of a sum over it."""
_STEPS = 60
"""Halvings of the range from no drop to the largest; more do not change a float."""
_HISTORIES, _MOST_SIMULATED = 100, 20_000
"""How many runs until decided are simulated, and how many cases they have at most."""
_ALIKE = 1e-9


def fewest_cases(confidence: float) -> int:
    """Return with how many cases a one-sided paired test can be significant at all: if all of them got worse.

    >>> fewest_cases(0.95), fewest_cases(0.99)
    (5, 7)
    """
    return max(1, math.ceil(-math.log2(1 - confidence) - _ROUNDING))


def detectable_drop(spread: float, cases: int, *, confidence: float, power: float) -> float:
    """Return the drop of a mean score that a one-sided paired test finds with a chance of `power`.

    Args:
        spread: the standard deviation of the cases' differences.
        cases: how many cases there are.
        confidence: 1 − the false-alarm rate.
        power: the chance to find the drop.

    Returns:
        The drop; infinity where there are too few cases for any.
    """
    if cases < fewest_cases(confidence):
        return math.inf
    if spread == 0:
        return 0.0
    most = 1.0
    while _t_power(most, cases, confidence) < power:
        most *= 2
    return spread * _least(lambda effect: _t_power(effect, cases, confidence) >= power, most)


def cases_needed(spread: float, drop: float, *, confidence: float, power: float) -> int:
    """Return how many cases a one-sided paired test needs to find a drop of a mean score with a chance of `power`.

    Args:
        spread: the standard deviation of the cases' differences.
        drop: the drop, above 0.
        confidence: 1 − the false-alarm rate.
        power: the chance to find the drop.
    """
    fewest = fewest_cases(confidence)
    if spread == 0:
        return fewest
    return _fewest_with(lambda cases: _t_power(drop / spread, cases, confidence) >= power, fewest)


def detectable_rate_drop(discordant: float, cases: int, *, confidence: float, power: float) -> float:
    """Return the drop of a pass rate that McNemar's exact one-sided test finds with a chance of `power`.

    Args:
        discordant: the share of the cases that pass in one run and fail in the other. A drop above it takes as many.
        cases: how many cases there are.
        confidence: 1 − the false-alarm rate.
        power: the chance to find the drop.

    Returns:
        The drop; infinity where there are too few cases for any.
    """
    if _rate_power(discordant, 1.0, cases, confidence) < power:
        return math.inf
    return _least(lambda drop: _rate_power(discordant, drop, cases, confidence) >= power, 1.0)


def rate_cases_needed(discordant: float, drop: float, *, confidence: float, power: float) -> int:
    """Return how many cases McNemar's exact one-sided test needs to find a drop of a pass rate with a chance of `power`.

    Args:
        discordant: the share of the cases that pass in one run and fail in the other; at least `drop` is assumed.
        drop: the drop, above 0 and at most 1.
        confidence: 1 − the false-alarm rate.
        power: the chance to find the drop.
    """
    return _fewest_with(lambda cases: _rate_power(discordant, drop, cases, confidence) >= power, fewest_cases(confidence))


def cases_to_exclude(drop: float, spread: float, *, width: float, confidence: float, power: float) -> int:
    """Return how many cases exclude a drop with a chance of `power`, by the bound that holds whatever was not seen.

    Args:
        drop: how far below the true mean of the differences the excluded drop lies, above 0.
        spread: the standard deviation of the cases' differences; 0: all are alike.
        width: how far below the mean the worst difference lies that a case may have.
        confidence: 1 − the chance that a drop of that size is excluded.
        power: the chance that it is, if there is none.

    >>> cases_to_exclude(0.05, 0.0, width=1.0, confidence=0.95, power=0.8), math.ceil(math.log(0.05) / math.log(0.95))
    (59, 59)
    """
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where something is planned
    from scipy.special import ndtri  # noqa: PLC0415 - as above

    def excluded(cases: int) -> bool:
        found = np.array([-spread, spread, -width]) - float(ndtri(power)) * spread / math.sqrt(cases)
        return chance_of(found, np.array([cases / 2, cases / 2, 1.0]), -drop) <= 1 - confidence

    return _fewest_with(excluded, fewest_cases(confidence)) if drop < width else fewest_cases(confidence)


def cases_until_decided(drop: float, spread: float, *, width: float, passes: bool, expected: float, confidence: float) -> int | None:
    """Return how many cases `run --until-decided` takes on average to exclude a drop, if there is none; ``None``: more than can be said.

    Simulated, with the same random numbers each time, and with the bets and the rounds of such a run.

    Args:
        drop: the drop, above 0.
        spread: the standard deviation of the cases' differences.
        width: how far below 0 the worst difference lies that a case may have.
        passes: whether a case differs by all of `width` or not at all; otherwise each differs by `spread`.
        expected: twice the variance of the scores of the version compared with, by which the bets are sized.
        confidence: 1 − the chance that a drop of that size is excluded.

    >>> cases_until_decided(0.25, 0.0, width=1.0, passes=True, expected=0.0, confidence=0.95)
    20
    """
    import numpy as np  # noqa: PLC0415 - some time to import, needed only where something is planned

    luck, size = np.random.default_rng(0), width if passes else spread
    likely = min((spread / size) ** 2, 1.0) / 2 if size else 0.0
    # As `gating.rules.sequential`: the first run of all cases has half of the error.
    taken, wanted = 0, math.log(2 / (1 - confidence))
    for _ in range(_HISTORIES):
        found = luck.choice((-size, 0.0, size), size=_MOST_SIMULATED, p=(likely, 1 - 2 * likely, likely)).tolist()
        for most in (_MOST_SIMULATED // 10, _MOST_SIMULATED):
            stakes = log_wealth(found[:most], -drop, worst=-width, planned=0.0, spread=expected)
            if max(stakes) >= wanted:
                break
        ended = next((place for place, stake in enumerate(stakes, 1) if stake >= wanted), None)
        if ended is None:
            return None
        end = FIRST_ROUND
        while end < ended:
            end = math.ceil(end * ROUNDS_GROW)
        taken += end
    return math.ceil(taken / _HISTORIES)


def _least(enough: Callable[[float], bool], most: float) -> float:
    """Return the least number up to `most` that is enough, if those above it are."""
    low, high = 0.0, most
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _fewest_with(enough: Callable[[int], bool], fewest: int) -> int:
    """Return the least number from `fewest` on that is enough, if those above it are."""
    high = fewest
    while high < _MOST_CASES and not enough(high):
        fewest, high = high + 1, min(2 * high, _MOST_CASES)
    return bisect_left(range(high), True, lo=fewest, key=enough)  # noqa: FBT003 - what is looked for


def _t_power(effect: float, cases: int, confidence: float) -> float:
    """Return the power of the one-sided paired t test, which that of the permutation test comes close to."""
    from scipy.special import nctdtr, stdtrit  # noqa: PLC0415 - some time to import, needed only where something is planned

    # With few cases there are few p-values: each is a share of the ways to swap runs. The level is the largest one that is significant.
    ways = 2.0 ** min(cases, _MANY)
    level = math.floor((1 - confidence) * ways + _ROUNDING) / ways
    degrees, shift = max(cases - 1, 1), effect * math.sqrt(cases)
    critical = float(stdtrit(degrees, 1 - level))
    # Far beyond, scipy's distribution has no number.
    return 1.0 if shift > critical + _CERTAIN else 1 - float(nctdtr(degrees, shift, critical))


def _rate_power(discordant: float, drop: float, cases: int, confidence: float) -> float:
    """Return the power of McNemar's exact one-sided test over all numbers of discordant cases that there may be."""
    from scipy.special import bdtrik  # noqa: PLC0415 - as above

    share = max(discordant, drop)
    if not share:
        return 0.0
    low, high = bdtrik(_TAIL, cases, share), bdtrik(1 - _TAIL, cases, share)
    counts, critical = _critical(math.floor(low), math.ceil(high), confidence)
    return float((binomial_chance(counts, cases, share) * binomial_tail(critical, counts, (1 + drop / share) / 2)).sum())


@lru_cache(maxsize=256)
def _critical(low: int, high: int, confidence: float) -> tuple[Any, Any]:
    """Return numbers of discordant cases, and how many of each must have got worse for a test to be significant: one more than all where none are."""
    import numpy as np  # noqa: PLC0415 - as above
    from scipy.special import bdtrik  # noqa: PLC0415 - as above

    counts, level = np.arange(low, high + 1), 1 - confidence
    critical = np.ceil(np.nan_to_num(bdtrik(confidence, counts, 0.5))) + 1
    critical = np.where(binomial_tail(critical - 1, counts, 0.5) <= level, critical - 1, critical)  # its inverse may be off by a rounding
    return counts, np.where(binomial_tail(critical, counts, 0.5) > level, critical + 1, critical)


def cases_to_decide(paired: Paired, max_drop: float, *, confidence: float, power: float) -> int | None:
    """Return how many cases would decide a comparison with a chance of `power`, if they went on as those there are.

    A drop larger than `max_drop` would have to be shown, or else excluded. ``None``: no number of cases would do.
    """
    lost = -paired.difference
    larger = lost > max_drop + TOLERANCE
    told = lost if larger else max_drop - lost
    if not told > TOLERANCE:
        return None
    if not larger:
        needed = cases_to_exclude(told, paired.spread, width=paired.width - lost, confidence=confidence, power=power)
    elif paired.test == "mcnemar":
        needed = rate_cases_needed((paired.better + paired.worse) / paired.cases, told, confidence=confidence, power=power)
    else:
        needed = cases_needed(paired.spread, told, confidence=confidence, power=power)
    return max(needed, paired.cases + 1)


def smallest_shown(paired: Paired, *, confidence: float, power: float) -> float:
    """Return the smallest drop that so many cases would show with a chance of `power`; infinity if none."""
    if paired.test == "mcnemar":
        return detectable_rate_drop((paired.better + paired.worse) / paired.cases, paired.cases, confidence=confidence, power=power)
    return detectable_drop(paired.spread, paired.cases, confidence=confidence, power=power)


Source = Literal["baseline", "repeated runs", "unrelated scores", "interval"]
"""What a spread was learnt from: see `spread_of`."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of the differences of cases between two versions."""

    value: float | None
    """``None``: nothing is known of it."""
    source: Source | None
    explanation: str
    """Where it comes from, as text."""
    passes: bool
    """Whether each case is 0 or 1; the square of the value is then the share of the cases that change between them."""


def spread_of(values: Values, before: Values | None, num_runs: int, *, confidence: float) -> Spread:
    """Return how far cases will differ with `num_runs` runs each.

    The best that is known decides: how far they differ from an earlier run; else how far the runs of each case differ; else how far
    cases differ from each other, as if nothing that one version does said anything about the other, which asks for too many cases
    rather than too few.
    """
    groups = [runs for runs in (*values.values(), *(before or {}).values()) if runs]
    alike = all(min(runs) == max(runs) for runs in groups)
    passes = all(value in (0, 1) for runs in groups for value in runs) and (num_runs == 1 or alike)
    for source, spread, explanation in _sources(values, before, num_runs, confidence, passes=passes):
        if spread > _ALIKE:
            return Spread(spread, source, explanation, passes)
    return Spread(None, None, "all cases have the same score, so the spread between versions is unknown", passes)


def _sources(
    values: Values, before: Values | None, num_runs: int, confidence: float, *, passes: bool
) -> Iterator[tuple[Source, float, str]]:
    """Yield what is known of the spread, the best first."""
    noise, means = _noise(values), [mean(runs) for runs in values.values() if runs]
    paired = compare_paired(before, values) if before else None
    if before and paired and paired.cases > 1:
        # The square of the mean belongs to it: what a case that passes and then fails contributes to the share of such cases.
        mcnemar = paired.test == "mcnemar"
        square = paired.spread**2 * (paired.cases - 1) / paired.cases + paired.difference**2 if mcnemar else paired.spread**2
        noises = [(known, _fewest_runs(side)) for side, known in ((values, noise), (before, _noise(before))) if known is not None]
        target = sum(known / num_runs for known, _ in noises)
        square = max(square + target - sum(known / runs for known, runs in noises), target)
        yield "baseline", math.sqrt(square), f"{paired.better + paired.worse} of {paired.cases} cases differ from the baseline"
    if noise is not None:
        explanation = "the difference between repeated runs of a case, as for two equally good versions"
        yield "repeated runs", math.sqrt(2 * noise / num_runs), explanation
    if len(means) > 1:
        more = ", and what more runs bring" if num_runs > _fewest_runs(values) else ""
        assumed = "assumes that the scores of two versions are unrelated; a baseline or repeated runs would show their correlation"
        yield "unrelated scores", math.sqrt(2 * variance(means)), assumed + more
    if passes:  # each case passes or each fails: the spread is what the end of the interval comes to
        passed = round(sum(means))
        low, high = wilson_interval(passed / len(means), len(means), confidence)
        share, every = (low, "every case passed") if passed else (high, "no case passed")
        explanation = f"{every}, so this assumes a pass rate of {share:.3g}, the end of its interval"
        yield "interval", math.sqrt(2 * share * (1 - share)), explanation


def _noise(values: Values) -> float | None:
    """Return how far the runs of a case vary, as a variance; ``None`` where no case has two."""
    repeated = [runs for runs in values.values() if len(runs) > 1]
    return mean(map(variance, repeated)) if repeated else None


def _fewest_runs(values: Values) -> int:
    return min((len(runs) for runs in values.values() if runs), default=1)
