"""The arithmetic of a ballot: several votes on one thing, and when the missing ones can no longer matter.

The verdict of a full ballot is the lower median of its votes. Of two labels that is the majority, where a tie loses, as in
ADK; of the grades of a scale it is the middle one. A verdict stands as soon as it is the same whatever the missing votes say.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import median_low


def settled(votes: Sequence[float], *, of: int, lowest: float, highest: float) -> float | None:
    """Return the verdict of a ballot, or ``None`` while the missing votes could change it.

    Args:
        votes: what the votes cast so far are worth.
        of: how many votes the full ballot has.
        lowest: the least that a vote can be worth.
        highest: the most.

    >>> settled([1, 1, 1], of=5, lowest=0, highest=1), settled([1, 1, 0], of=5, lowest=0, highest=1)
    (1, None)
    >>> settled([0, 1, 0, 1], of=4, lowest=0, highest=1), settled([0, 0], of=4, lowest=0, highest=1)
    (0, 0)
    """
    missing = max(of - len(votes), 0)
    least, most = median_low([*votes, *[lowest] * missing]), median_low([*votes, *[highest] * missing])
    return least if least == most else None


def needed(votes: Sequence[float], *, of: int, worths: Sequence[float]) -> int:
    """Return how many more votes it takes at least to settle a ballot; none if it is settled.

    Asking for so many at the same time wastes none: with fewer, the verdict could not stand.

    >>> needed([], of=5, worths=[0, 1]), needed([1, 1, 0], of=5, worths=[0, 1]), needed([1, 1, 1], of=5, worths=[0, 1])
    (3, 1, 0)
    """
    return _needed(tuple(votes), of, tuple(worths))


@cache  # of few votes with few labels, asked about again and again
def _needed(votes: tuple[float, ...], of: int, worths: tuple[float, ...]) -> int:
    lowest, highest = min(worths), max(worths)
    missing = max(of - len(votes), 0)
    for more in range(missing):
        if any(settled([*votes, *[worth] * more], of=of, lowest=lowest, highest=highest) is not None for worth in worths):
            return more
    return missing
