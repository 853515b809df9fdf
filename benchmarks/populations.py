"""Cases as they might be drawn from all the cases that there are, with what is true of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

Runs = Any
"""The values of each case in a row, one per run."""


class Population(NamedTuple):
    name: str
    draw: Callable[[Generator, int], Runs]
    mean: float
    proportion: bool = True
    """Whether values lie between 0 and 1; else they are quantities."""


class Pairs(NamedTuple):
    name: str
    draw: Callable[[Generator, int], tuple[Runs, Runs]]
    """What two versions of an agent do on the same cases."""
    difference: float = 0.0


def column(values: Any) -> Runs:
    return np.asarray(values, dtype=float)[:, None]


def beta(a: float, b: float) -> Population:
    return Population(f"Beta({a}, {b})", lambda luck, n: column(luck.beta(a, b, n)), a / (a + b))


def lumps(name: str, zero: float, one: float, a: float, b: float) -> Population:
    def draw(luck: Generator, n: int) -> Runs:
        lot = luck.random(n)
        return column(np.where(lot < zero, 0.0, np.where(lot < zero + one, 1.0, luck.beta(a, b, n))))

    return Population(name, draw, one + (1 - zero - one) * a / (a + b))


def shares(name: str, values: list[float], chances: list[float]) -> Population:
    return Population(name, lambda luck, n: column(luck.choice(values, p=chances, size=n)), float(np.dot(values, chances)))


def repeated_passes(a: float, b: float) -> Population:
    def draw(luck: Generator, n: int) -> Runs:
        return (luck.random((n, 3)) < luck.beta(a, b, n)[:, None]).astype(float)

    return Population(f"3 runs, pass or fail, case's chance Beta({a}, {b})", draw, a / (a + b))


def repeated_scores(luck: Generator, n: int) -> Runs:
    return scored(luck, np.repeat(luck.beta(8, 2, n)[:, None], 3, axis=1))


def lognormal(sigma: float) -> Population:
    return Population(
        f"quantities, log-normal, σ = {sigma:g}",
        lambda luck, n: column(luck.lognormal(0, sigma, n)),
        float(np.exp(sigma**2 / 2)),
        proportion=False,
    )


POPULATIONS = (
    beta(8, 2),
    beta(2, 2),
    lumps("10 % at 0, 30 % at 1, else Beta(5, 3)", 0.1, 0.3, 5, 3),
    shares("three rubrics: 60 % at 1, 10 % at 0", [0, 1 / 3, 2 / 3, 1], [0.1, 0.1, 0.2, 0.6]),
    shares("five rubrics: 60 % at 1, 3 % at 0", [0, 0.2, 0.4, 0.6, 0.8, 1], [0.03, 0.02, 0.05, 0.1, 0.2, 0.6]),
    lumps("82 % at 1, 3 % at 0, else Beta(2, 2)", 0.03, 0.82, 2, 2),
    repeated_passes(6, 2),
    Population("3 runs, scores, case's mean Beta(8, 2)", repeated_scores, 0.8),
    Population("tool calls, Poisson(3)", lambda luck, n: column(luck.poisson(3, n)), 3.0, proportion=False),
    lognormal(0.5),
)
HARD = (
    lumps("93 % at 1, 2 % at 0, else Beta(2, 2)", 0.02, 0.93, 2, 2),
    repeated_passes(9, 1),
    lognormal(1.0),
)
"""Of which a small sample does not show what there is: all alike, or without the rare large one."""


def scored(luck: Generator, ability: Any) -> Any:
    """Return a score for each ability, which is its mean, as a judge and an agent of moderate constancy come to it."""
    return luck.beta(10 * ability, 10 * (1 - ability))


def passed(luck: Generator, ability: Any) -> Any:
    return (luck.random(ability.shape) < ability).astype(float)


def in_thirds(luck: Generator, ability: Any) -> Any:
    return luck.binomial(3, ability) / 3


def with_lumps(luck: Generator, ability: Any) -> Any:
    lot = luck.random(ability.shape)
    return np.where(lot < ability / 2, 1.0, np.where(lot > 0.95, 0.0, scored(luck, ability)))


def versions(
    name: str,
    judged: Callable[[Generator, Any], Any],
    a: float,
    b: float,
    *,
    drop: float = 0.0,
    runs: int = 1,
    difference: float | None = None,
) -> Pairs:
    """Return two versions that meet the same cases, easy ones and hard ones; the later is worse by `drop` on average."""
    factor = 1 - drop * (a + b) / a

    def draw(luck: Generator, n: int) -> tuple[Runs, Runs]:
        ability = np.clip(np.repeat(luck.beta(a, b, n)[:, None], runs, axis=1), 1e-3, 1 - 1e-3)
        return judged(luck, ability), judged(luck, ability * factor)

    return Pairs(name, draw, -drop if difference is None else difference)


def changes(name: str, better: float, worse: float) -> Pairs:
    """Return versions of which the later passes some cases more, and some less."""

    def draw(luck: Generator, n: int) -> tuple[Runs, Runs]:
        before, lot = (luck.random(n) < 0.8).astype(float), luck.random(n)
        after = np.where(lot < better, 1.0, np.where(lot < better + worse, 0.0, before))
        before = np.where(lot < better, 0.0, np.where(lot < better + worse, 1.0, before))
        return column(before), column(after)

    return Pairs(name, draw, better - worse)


def losses(luck: Generator, n: int) -> tuple[Runs, Runs]:
    after = np.where(luck.random(n) < 0.2, 1 - luck.beta(2, 2, n), 1.0)
    return column(np.ones(n)), column(after)


ALIKE = (
    versions("pass or fail, case's chance Beta(4, 1)", passed, 4, 1),
    changes("pass or fail, 20 % of the cases change", 0.1, 0.1),
    versions("scores, case's mean Beta(8, 2)", scored, 8, 2),
    versions("three rubrics, case's mean Beta(8, 2)", in_thirds, 8, 2),
    versions("scores with lumps at 0 and 1", with_lumps, 5, 3),
    versions("3 runs, pass or fail, case's chance Beta(4, 1)", passed, 4, 1, runs=3),
)
"""Versions between which nothing has changed."""
CHANGED = (
    versions("pass or fail, 10 points worse", passed, 4, 1, drop=0.1),
    versions("scores, 5 points worse", scored, 8, 2, drop=0.05),
    versions("three rubrics, 10 points worse", in_thirds, 8, 2, drop=0.1),
    versions("scores, 20 points worse", scored, 8, 2, drop=0.2),
    versions("3 runs, pass or fail, 10 points worse", passed, 4, 1, drop=0.1, runs=3),
)
SPARSE = (
    changes("pass or fail, 4 % of the cases change", 0.02, 0.02),
    changes("pass or fail, 10 % of the cases get worse", 0.0, 0.1),
    Pairs("scores, 20 % of the cases get worse", losses, -0.1),
)
"""Versions that differ in so few cases that a small sample shows hardly any."""
GATED = (
    ALIKE[0],
    versions("pass or fail, 5 points worse", passed, 4, 1, drop=0.05),
    versions("pass or fail, 15 points worse", passed, 4, 1, drop=0.15),
    SPARSE[1],
    ALIKE[2],
    CHANGED[1],
    versions("scores, 15 points worse", scored, 8, 2, drop=0.15),
)
"""What a gate that allows a drop of 5 points may meet: nothing has changed, just so much, far more."""


class Passing(NamedTuple):
    """Cases that pass with a chance of their own, once with each version; a worse version has less of a chance by the drop in each."""

    name: str
    ability: Callable[[Generator, Any], Any]
    mean: float
    square: float
    """The mean of the squared chances."""

    def changes(self, drop: float) -> tuple[float, float, float]:
        """Return how likely a case gets worse, gets better and stays as it is, where the later version is worse by so much."""
        both = self.square - drop * self.mean
        worse, better = self.mean - both, self.mean - drop - both
        return worse, better, 1 - worse - better

    @property
    def spread(self) -> float:
        """The variance of a difference that an earlier run leads to expect."""
        return 2 * self.mean * (1 - self.mean)


def _abilities(a: float, b: float) -> Passing:
    mean = a / (a + b)
    return Passing(f"Beta({a:g}, {b:g})", lambda luck, shape: luck.beta(a, b, shape), mean, mean * (a + 1) / (a + b + 1))


def _constant(rate: float) -> Passing:
    return Passing(f"pass or fail at {rate:g}", lambda _, shape: np.full(shape, rate), rate, rate**2)


PASSING = (_abilities(4, 1), _abilities(20, 1), _constant(0.8), _constant(0.95), _constant(0.99))


def beta_scores(drop: float) -> Pairs:
    """Return versions with scores whose later one is worse by exactly the drop on average."""
    return versions(f"scores, {100 * drop:g} points worse", scored, 8, 2, drop=drop)
