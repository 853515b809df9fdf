"""Whether intervals cover what is true, tests raise false alarms, and power analyses come true: samples of cases, drawn again and again.

Each cell of a table has luck of its own, seeded by its name, so that it is the same whoever measures it, and when.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from populations import Pairs, Population

from mlflow_adk_eval.analysis.stats.intervals import mean_interval, proportion_interval
from mlflow_adk_eval.analysis.stats.paired import compare_paired, holm
from mlflow_adk_eval.analysis.stats.power import cases_needed, rate_cases_needed
from mlflow_adk_eval.gating.rules.limits import drop_verdict

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
RATES = np.round(np.arange(0.5, 0.9801, 0.005), 3)
"""The pass rates at which proportions are looked at."""


class Cell(NamedTuple):
    """One measurement."""

    of: Callable[..., Any]
    subject: Any
    cases: int
    repetitions: int


def luck_of(*words: object) -> Generator:
    """Return random numbers that are the same for the same words.

    Raises:
        ValueError: for an object that is written with its place in memory, which is another one in each process.
    """
    if " at 0x" in repr(words):
        raise ValueError(f"{words} has no lasting text")
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8]))


def by_case(runs: Any) -> dict[str, list[float]]:
    return {str(index): values for index, values in enumerate(runs.tolist())}


def covered(population: Population, cases: int, repetitions: int) -> float:
    """Return how often the interval of the mean covers it; a sample that gives no interval covers nothing."""
    luck, hits = luck_of("mean", population.name, cases), 0
    for _ in range(repetitions):
        found = mean_interval(by_case(population.draw(luck, cases)), CONFIDENCE, proportion=population.proportion)
        hits += found is not None and found[0] <= population.mean <= found[1]
    return hits / repetitions


def covered_by_student(population: Population, cases: int, repetitions: int) -> float:
    from scipy.stats import t

    luck = luck_of("student", population.name, cases)
    samples = np.stack([population.draw(luck, cases).mean(axis=1) for _ in range(repetitions)])
    reach = t.ppf((1 + CONFIDENCE) / 2, cases - 1) * samples.std(axis=1, ddof=1) / np.sqrt(cases)
    return float((np.abs(samples.mean(axis=1) - population.mean) <= reach).mean())


def covered_by_bootstrap(population: Population, cases: int, repetitions: int) -> float:
    """Return how often the bias-corrected and accelerated bootstrap covers the mean; it has no interval for equal values."""
    from scipy.stats import bootstrap

    luck, hits = luck_of("bootstrap", population.name, cases), 0
    for _ in range(repetitions):
        sample = population.draw(luck, cases).mean(axis=1)
        if np.ptp(sample) > 0:
            found = bootstrap((sample,), np.mean, n_resamples=1000, confidence_level=CONFIDENCE, method="BCa", rng=luck).confidence_interval
            hits += found.low <= population.mean <= found.high
    return hits / repetitions


def covered_rates(method: str, cases: int) -> list[float]:
    """Return how often the interval of a pass rate covers it, for each of `RATES`: the sum of chances, with no luck in it."""
    from scipy.stats import binom

    counts = np.arange(cases + 1)
    bounds = np.array([proportion_interval(int(count), cases, CONFIDENCE, method=method) for count in counts])  # type: ignore[arg-type]
    return [float(binom.pmf(counts, cases, rate)[(bounds[:, 0] <= rate) & (rate <= bounds[:, 1])].sum()) for rate in RATES]


def covered_difference(pairs: Pairs, cases: int, repetitions: int) -> float:
    """Return how often the interval of the difference covers it."""
    luck, hits = luck_of("difference", pairs.name, cases), 0
    for _ in range(repetitions):
        found = compare_paired(*map(by_case, pairs.draw(luck, cases)), confidence=CONFIDENCE)
        hits += found is not None and found.low <= pairs.difference <= found.high
    return hits / repetitions


def alarms(pairs: Pairs, cases: int, repetitions: int) -> float:
    """Return how often the later version is found to be worse."""
    luck = luck_of("alarms", pairs.name, cases)
    return sum(_p_worse(pairs, luck, cases) <= ALPHA for _ in range(repetitions)) / repetitions


def alarms_of_several(several: Sequence[Pairs], cases: int, repetitions: int) -> float:
    """Return how often at least one of several comparisons raises an alarm by Holm's method."""
    luck = luck_of("several", cases)
    return sum(min(holm([_p_worse(pairs, luck, cases) for pairs in several])) <= ALPHA for _ in range(repetitions)) / repetitions


class Rule(NamedTuple):
    """What the gate is asked about two versions: whether the later is worse by more than `max_drop`."""

    pairs: Pairs
    max_drop: float


def verdicts(rule: Rule, cases: int, repetitions: int) -> tuple[float, ...]:
    """Return how often the gate says *passed*, *undecided* and *failed*."""
    luck, said = luck_of("gate", rule.pairs.name, rule.max_drop, cases), Counter[str]()
    for _ in range(repetitions):
        found = compare_paired(*map(by_case, rule.pairs.draw(luck, cases)), confidence=2 * CONFIDENCE - 1)
        assert found
        said[drop_verdict(found, max_drop=rule.max_drop, confidence=CONFIDENCE, p_adjusted=found.p_worse)] += 1
    return tuple(said[verdict] / repetitions for verdict in ("passed", "undecided", "failed"))


def _p_worse(pairs: Pairs, luck: Generator, cases: int) -> float:
    found = compare_paired(*map(by_case, pairs.draw(luck, cases)), confidence=CONFIDENCE)
    assert found
    return found.p_worse


class Planned(NamedTuple):
    """What is to be noticed, and what `power` says that it takes."""

    pairs: Pairs
    power: float
    discordant: bool
    """Whether each case passes or fails."""

    @property
    def cases(self) -> int:
        before, after = self.pairs.draw(luck_of("plan", self.pairs.name), 200_000)
        gains = after.mean(axis=1) - before.mean(axis=1)
        terms = {"confidence": CONFIDENCE, "power": self.power}
        if self.discordant:
            return rate_cases_needed(float((gains != 0).mean()), -self.pairs.difference, **terms)
        return cases_needed(float(gains.std(ddof=1)), -self.pairs.difference, **terms)


_waiting: list[Cell] = []
"""What the processes are to measure, which inherit it: populations are functions, which cannot be sent."""


def measured(cells: Sequence[Cell], workers: int) -> dict[Cell, Any]:
    """Return what each cell comes to."""
    _waiting[:] = sorted(cells, key=lambda cell: -cell.cases)
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        return dict(zip(_waiting, pool.map(_found, range(len(_waiting))), strict=True))


def _found(index: int) -> Any:
    cell = _waiting[index]
    return cell.of(cell.subject, cell.cases, cell.repetitions)
