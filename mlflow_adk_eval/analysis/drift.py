"""Whether a judge changed: one test over all runs so far, which stays valid however often it is looked at.

A run judges some answers again that the same judge judged before (`runs.anchors`). A difference is the new score minus the mean of the earlier
ones, from −1 to 1. While the judge is the same, differences are 0 on average, and bets against that gain nothing (`stats.betting`).
`changes_of` finds each change: after one, only answers count that were first judged after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, groupby, islice
from operator import itemgetter
from statistics import fmean

from mlflow_adk_eval.analysis.stats.betting import log_evidence, log_wealth

ALPHA = 0.05
"""The chance at most, over all looks together, that a judge is said to have changed that is the same."""
PLANNED = 0.05
"""The size of a change that is bet on; others are found as well, larger ones sooner."""
_STEPS, _MOST = 20, 20_000
_UNSURE = 4.6
"""A place of a change is ruled out where it is less likely than the likeliest by more than a factor of 100, the exponential of this."""

Anchored = tuple[str, float]
"""The run whose answer was judged again, and the difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A change of a judge."""

    size: float
    """The mean difference since the change; above 0: the judge became more lenient."""
    low: float
    high: float
    """The ends of the interval of `size`, at 1 − `ALPHA`, which takes the estimated place of the change for the true one."""
    since_run: str
    """The first run after the change, as far as can be estimated."""
    unsure: tuple[str, ...] = ()
    """The runs from the first with which it may have come to the last."""

    @property
    def direction(self) -> str:
        """The change in words."""
        return "more lenient" if self.size > 0 else "stricter"


def changes_of(runs: Sequence[tuple[str, Sequence[Anchored]]]) -> tuple[list[Drift], list[float]]:
    """Return every change of a judge, and the differences since the last one that say whether there is another.

    The stake of `log_evidence` grows to 1 / `ALPHA` with a chance of at most `ALPHA`, ever, while the judge is the same (Ville). When it has, the
    change is placed where two means, 0 before it and another one since, are most likely. Then a new epoch begins. As an answer from before the
    change differs in any case, an epoch counts only answers that were first judged in it.

    Args:
        runs: all runs of the judge in their order, also those without differences. A run that is not among them was before all of them.
    """
    places = {run_id: place for place, (run_id, _) in enumerate(runs)}
    found = [(place, places.get(of, -1), gap) for place, (_, some) in enumerate(runs) for of, gap in some if places.get(of, -1) < place]
    starts, epoch, unsure = [-1], found, list[range]()
    while True:
        epoch = [one for one in epoch if one[1] >= starts[-1] and one[0] > starts[-1]]
        groups = [(place, list(some)) for place, some in groupby(epoch, itemgetter(0))]
        gains = log_evidence([[gap for *_, gap in some] for _, some in groups], planned=PLANNED)
        crossed = next((place for (place, _), gain in zip(groups, gains, strict=True) if gain >= math.log(1 / ALPHA)), None)
        if crossed is None:
            break
        likelihood = {
            place: math.fsum(some) ** 2 / len(some) for place, _ in groups if place <= crossed and (some := _across(epoch, place))
        }
        starts.append(max(likelihood, key=likelihood.__getitem__))
        least = likelihood[starts[-1]] - 2 * _UNSURE * fmean(gap * gap for *_, gap in epoch)
        likely = [place for place, one in likelihood.items() if one >= least]
        unsure.append(range(1 + max((place for place, _ in groups if place < likely[0]), default=-1), likely[-1] + 1))
    changes: list[Drift] = []
    for start, since, end, places_of in zip(starts, starts[1:], [*starts[2:], len(runs)], unsure, strict=False):
        values = _across([one for one in found if one[1] >= start and one[0] < end], since)
        size, low, high = math.fsum(values) / len(values), -_end([-value for value in values]), _end(values)
        changes.append(Drift(size=size, low=low, high=high, since_run=runs[since][0], unsure=tuple(runs[place][0] for place in places_of)))
    return changes, [gap for *_, gap in epoch]


def _across(found: Sequence[tuple[int, int, float]], since: int) -> list[float]:
    """Return the differences of answers that were judged before a run and again since."""
    return [gap for place, of, gap in found if of < since <= place]


def _end(values: Sequence[float]) -> float:
    """Return the upper end of the interval of a mean: the last one that bets do not refute."""
    inside, outside = math.fsum(values) / len(values), 1.0
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        against = log_wealth([-value for value in values], -middle, worst=-1.0)[-1]
        inside, outside = (inside, middle) if against >= math.log(2 / ALPHA) else (middle, outside)
    return outside


def anchors_to_find(differences: Sequence[float], runs: int, *, size: float = PLANNED) -> int | None:
    """Return after about how many anchors a change by `size` that begins now is found; ``None``: after more than can be said.

    Single votes flip then, and the judge goes on as in the `differences` of so many `runs`.
    """
    wanted = math.log(1 / ALPHA) + math.log(2 * (runs + 1) * (runs + 2))  # as of the stake only a share is left for a change that late
    flipped, owed = list[float](), 0.0
    for value in islice(cycle(differences or (0.0,)), _MOST):
        flip = min(math.floor(owed := owed + size), 1 - value)
        owed -= flip
        flipped.append(value + flip)
    gains = log_wealth(flipped, 0.0, worst=-1.0, planned=PLANNED, spread=0.05)
    return next((count for count, gain in enumerate(gains, 1) if gain >= wanted), None)
