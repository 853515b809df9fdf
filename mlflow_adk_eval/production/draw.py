"""Which conversations are scored, and what the scores of those say of all.

Three quarters of a sample are drawn at random, each conversation with the same chance; tests that look again and again count these. The last quarter
goes to conversations that deserve a look, stratum by stratum. Within a stratum each conversation has the same chance, so a share of all
conversations is the mean of its strata's shares, each weighted by how many conversations the stratum has: nothing that is drawn more often counts
more for it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from mlflow_adk_eval.analysis.stats.intervals import wilson_interval
from mlflow_adk_eval.production.traffic import Seen, strata_of

AT_RANDOM = 0.75
"""The share of a sample that is drawn at random from all conversations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Conversations of one kind."""

    name: str
    conversations: int
    """How many there are."""
    drawn: int
    """How many of them were drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The share of all conversations that reached a threshold, estimated from those that were drawn."""

    criterion: str
    """Empty: all criteria."""
    value: float | None
    """``None`` where no conversation was evaluated."""
    low: float | None
    high: float | None
    """The ends of the 95 % interval."""
    evaluated: int
    missing: int
    """The drawn conversations without a result, of which the share says nothing."""

    def against(self, level: float) -> str:
        """Return ``passed`` or ``failed``; ``undecided`` where the conversations without a result could turn it."""
        if self.value is None:
            return "undecided"
        known = self.evaluated / (self.evaluated + self.missing)
        worst, best = self.value * known, self.value * known + 1 - known
        return "passed" if worst >= level else "failed" if best < level else "undecided"


@dataclass(frozen=True, slots=True)
class Draw:
    """The conversations that were drawn, by their time."""

    drawn: Sequence[tuple[Seen, str]]
    """Each with the name of its stratum."""
    strata: tuple[Stratum, ...]
    at_random: frozenset[str]
    """The names of those drawn at random."""


def draw(conversations: Iterable[Seen], sample: int | None, seed: str) -> Draw:
    """Draw a sample.

    Args:
        conversations: what there is.
        sample: how many to draw; ``None``: all.
        seed: what the draw follows from. Who knows it can make ids that are never drawn.
    """

    def ordered(some: Iterable[Seen]) -> list[Seen]:
        return sorted(some, key=lambda one: hashlib.sha256(f"{seed}/{one.name}".encode()).digest())

    strata = {name: ordered(some) for name, some in strata_of(conversations).items()}
    every = ordered(chain.from_iterable(strata.values()))
    size = len(every) if sample is None else min(sample, len(every))
    randomly = every if size == len(every) else every[: math.ceil(size * AT_RANDOM)]
    chosen = {one.name for one in randomly}
    at_random = frozenset(chosen)
    worth_a_look = [[one for one in some if one.name not in at_random] for name, some in strata.items() if name != "rest"]
    queue = chain((one for one in chain.from_iterable(zip_longest(*worth_a_look)) if one), every)
    while len(chosen) < size:
        chosen.add(next(queue).name)
    drawn = [(one, name) for name, some in strata.items() for one in some if one.name in chosen]
    counted = tuple(
        Stratum(name=name, conversations=len(some), drawn=sum(one.name in chosen for one in some)) for name, some in strata.items()
    )
    return Draw(sorted(drawn, key=lambda entry: (entry[0].ended_ms, entry[0].name)), counted, at_random)


def rate_of(criterion: str, strata: Sequence[Stratum], passed: Mapping[str, Sequence[bool]], missing: int) -> Rate:
    """Return the share of all conversations that passed.

    A stratum of which nothing was evaluated counts like the others. The interval is Wilson's for as many conversations as would make a share as
    certain as this one; a stratum's own share is taken half a conversation away from 0 and 1, as few conversations say little of how they differ.

    Args:
        criterion: whose; empty: of all.
        strata: what there is, and what was drawn.
        passed: by stratum, whether each conversation that was evaluated passed.
        missing: how many were drawn and have no result.
    """
    known = [(stratum.conversations, passed[stratum.name]) for stratum in strata if passed.get(stratum.name)]
    total, evaluated = sum(weight for weight, _ in known), sum(len(some) for _, some in known)
    if not evaluated:
        return Rate(criterion=criterion, value=None, low=None, high=None, evaluated=0, missing=missing)
    value = math.fsum(weight / total * sum(some) / len(some) for weight, some in known)
    smoothed = [(weight / total, (sum(some) + 0.5) / (len(some) + 1), len(some)) for weight, some in known]
    variance = math.fsum(share**2 * rate * (1 - rate) / count for share, rate, count in smoothed)
    middle = math.fsum(share * rate for share, rate, _ in smoothed)
    low, high = wilson_interval(value, min(middle * (1 - middle) / variance, evaluated))
    return Rate(criterion=criterion, value=value, low=low, high=high, evaluated=evaluated, missing=missing)
