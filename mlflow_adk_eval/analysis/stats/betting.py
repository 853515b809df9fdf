"""Tests that may be looked at after every case: bets against a mean, whose winnings are the evidence.

Whoever bets on each value, before it is seen, at the odds of a hypothesis wins nothing on average if the hypothesis is true. So that a stake
ever grows twentyfold has a chance of at most 1 in 20 (Ville's inequality), however often one looks and whenever one stops. The bets are those of
Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting": close to the best ones if the mean is the planned one.

The values count in the order in which they came. Who chooses the order by what is in them makes the test worthless.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_MOST = 0.75
"""The share of the stake that the worst value may take: more would win faster near a ceiling, and lose all by one case."""
_BEFORE = 10.0
"""As how many values the planned spread counts."""


def log_wealth(values: Sequence[float], mean: float, *, worst: float, planned: float | None = None, spread: float = 0.25) -> list[float]:
    """Return the logarithm of the stake after each value, betting against that the mean is at most `mean`.

    It reaches ``log(1 / error)`` at any time with a chance of at most `error` if that is true.

    Args:
        values: in the order in which they came, none below `worst`.
        mean: the hypothesis.
        worst: the least value that there may be, below `mean`.
        planned: the mean to bet on, known before the values were; ``None``: what the values so far came to.
        spread: the variance to expect, known before the values were.
    """
    most, wealth, found = _MOST / (mean - worst), 0.0, list[float]()
    total, squares = _BEFORE * mean, _BEFORE * spread
    for count, value in enumerate(values):
        guess = total / (_BEFORE + count) if planned is None else planned
        edge = guess - mean
        bet = min(max(edge / (squares / (_BEFORE + count) + edge * edge), 0.0), most)
        wealth += math.log1p(bet * (value - mean))
        found.append(wealth)
        total += value
        squares += (value - guess) ** 2
    return found


def log_evidence(groups: Sequence[Sequence[float]], *, planned: float, spread: float = 0.05) -> list[float]:
    """Return the logarithm of the evidence after each group of values that their mean is not 0, or is not 0 any more.

    It reaches ``log(1 / error)`` at any time with a chance of at most `error` if each value has the mean 0, whatever came before it. The stake is
    divided over upwards and downwards, and over the group from which on the mean is another.

    Args:
        groups: the values from -1 to 1 of each group, in the order in which they came.
        planned: the size of a change to bet on, above 0.
        spread: the variance to expect.
    """
    logs = [-math.inf] * len(groups)
    rest = 1.0  # of the stake: what has not begun to bet
    for start in range(len(groups)):
        share = 1 / ((start + 1) * (start + 2))
        rest -= share
        for sign in (1, -1):
            values = [sign * value for group in groups[start:] for value in group]
            wealth, end = [0.0, *log_wealth(values, 0.0, worst=-1.0, planned=planned, spread=spread)], 0
            for at in range(start, len(groups)):
                end += len(groups[at])
                logs[at] = _log_sum(logs[at], math.log(share / 2) + wealth[end])
        logs[start] = _log_sum(logs[start], math.log(rest))
    return logs


def _log_sum(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return high + math.log1p(math.exp(low - high))
