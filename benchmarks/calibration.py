"""How often the intervals of a calibration cover the truth, by simulation: `python benchmarks/calibration.py [--draws N]`.

A truth is chosen (the share that deserves to pass, the judge's sensitivity and specificity, how alike the turns of a case
are), labelled cases and judged cases are drawn, and each interval at 95 % is held against the truth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from mlflow_adk_eval.analysis.calibration.judge_error import (
    Corrected,
    JudgeRates,
    corrected_rate,
    design_effect,
    kappa,
)
from mlflow_adk_eval.analysis.stats.intervals import wilson_interval

JUDGES = ((0.95, 0.9), (0.9, 0.7), (0.8, 0.8), (0.98, 0.98))
"""Sensitivity and specificity."""
RATES = (0.5, 0.7, 0.85)
"""The share that deserves to pass."""
SIZES = ((30, 60), (100, 100), (200, 400))
"""Labelled and judged cases."""
TURNS = ((1, 0.0), (3, 0.0), (3, 0.3), (5, 0.6))
"""Turns of each case, and how alike they are: 0 not at all, 1 all the same."""
DRAWS = 1000
KAPPA_EVERY = 5
LEAST = 0.92
"""The least coverage, over draws enough to tell, with which the command succeeds."""
INTERVALS = ("corrected", "not corrected", "sensitivity", "specificity", "kappa")

Truths = NDArray[np.bool_]
"""By case and turn."""


@dataclass(frozen=True)
class Truth:
    """What is to be found out, and from how much."""

    rate: float
    sensitivity: float
    specificity: float
    labelled: int
    judged: int
    turns: int
    alike: float

    @property
    def kappa(self) -> float:
        """What Cohen's κ would be with endless labels."""
        both, neither = self.rate * self.sensitivity, (1 - self.rate) * self.specificity
        return kappa(both, 1 - self.rate - neither, neither, self.rate - both) or 0.0


Hits = dict[str, bool]
"""Of one draw: whether each interval covers the truth; without those that are not given."""


def grid() -> Iterator[Truth]:
    """Yield the truths that are tried."""
    for (labelled, judged), (turns, alike), (sensitivity, specificity), rate in product(SIZES, TURNS, JUDGES, RATES):
        yield Truth(rate, sensitivity, specificity, labelled, judged, turns, alike)


def hits(truth: Truth, draws: int, seed: int = 0) -> list[Hits]:
    """Return which intervals cover a truth, draw by draw."""
    rng = default_rng(seed)
    return [_drawn(truth, rng, with_kappa=number % KAPPA_EVERY == 0) for number in range(draws)]


def _drawn(truth: Truth, rng: Generator, *, with_kappa: bool) -> Hits:
    rates, judged = _rates(*_cells(truth, truth.labelled, rng)), _cells(truth, truth.judged, rng)[1]
    effect = design_effect(judged.tolist())
    corrected = corrected_rate(int(judged.sum()), judged.size, rates, design_effect=effect)
    told = {
        "sensitivity": (rates.measure("sensitivity")[1], truth.sensitivity),
        "specificity": (rates.measure("specificity")[1], truth.specificity),
        "kappa": (rates.measure("kappa")[1] if with_kappa else None, truth.kappa),
    }
    if isinstance(corrected, Corrected):
        told["corrected"] = ((corrected.low, corrected.high), truth.rate)
        told["not corrected"] = (wilson_interval(float(judged.mean()), judged.size / effect), truth.rate)
    return {name: interval[0] <= value <= interval[1] for name, (interval, value) in told.items() if interval is not None}


def _cells(truth: Truth, cases: int, rng: Generator) -> tuple[Truths, Truths]:
    """Return what cells deserve and what the judge says of them, by case: the turns of one share what makes them good and hard."""
    deserved = rng.random((cases, truth.turns)) < _by_case(truth.rate, truth, cases, rng)
    passes = rng.random((cases, truth.turns)) < _by_case(truth.sensitivity, truth, cases, rng)
    fails = rng.random((cases, truth.turns)) < _by_case(truth.specificity, truth, cases, rng)
    return deserved, np.where(deserved, passes, ~fails)


def _by_case(share: float, truth: Truth, cases: int, rng: Generator) -> NDArray[np.float64]:
    if not truth.alike:
        return np.full((cases, 1), share)
    rest = 1 / truth.alike - 1
    return rng.beta(share * rest, (1 - share) * rest, (cases, 1))


def _rates(deserved: Truths, passed: Truths) -> JudgeRates:
    right = deserved == passed
    return JudgeRates(
        true_passes=int((deserved & passed).sum()),
        false_failures=int((deserved & ~passed).sum()),
        true_failures=int((~deserved & ~passed).sum()),
        false_passes=int((~deserved & passed).sum()),
        pass_effect=_effect(right, deserved),
        failure_effect=_effect(right, ~deserved),
        overall_effect=_effect(right, np.ones_like(right)),
    )


def _effect(right: Truths, chosen: Truths) -> float:
    groups = [case[kept].tolist() for case, kept in zip(right, chosen, strict=True) if kept.any()]
    return design_effect(groups) if groups else 1.0


def shares(found: Sequence[Hits]) -> dict[str, float]:
    """Return how often each interval covers the truth, where it is given."""
    return {name: mean(one[name] for one in found if name in one) for name in INTERVALS if any(name in one for one in found)}


def table(found: Mapping[Truth, Sequence[Hits]]) -> str:
    """Return the coverage by size and by how alike turns are, as Markdown."""
    lines = ["| labelled / judged cases | turns, alike | " + " | ".join(INTERVALS) + " |", "|---" * (2 + len(INTERVALS)) + "|"]
    for (labelled, judged), (turns, alike) in product(SIZES, TURNS):
        here = [
            shares(one)
            for truth, one in found.items()
            if (truth.labelled, truth.judged, truth.turns, truth.alike) == (labelled, judged, turns, alike)
        ]
        ranges = [[one[name] for one in here if name in one] for name in INTERVALS]
        cells = [f"{mean(values):.1%} ({min(values):.1%}–{max(values):.1%})" if values else "–" for values in ranges]
        lines.append(f"| {labelled} / {judged} | {turns}, {alike:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(found: Mapping[Truth, Sequence[Hits]]) -> str:
    """Return how many of the combinations are covered as often as they should be."""
    covered = [one["corrected"] for hit in found.values() if "corrected" in (one := shares(hit))]
    within = sum(0.93 <= share <= 0.97 for share in covered)
    below = sum(share < 0.93 for share in covered)
    return (
        f"corrected: {mean(covered):.1%} on average; {within} of {len(covered)} combinations between 93 % and 97 %,"
        f" {below} below (lowest {min(covered):.1%}), {len(covered) - within - below} above (highest {max(covered):.1%})"
    )


def main(argv: Sequence[str]) -> int:
    """Print the coverage; fail if that of the corrected rate is too low anywhere."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/calibration.py", description="How often the intervals of a calibration cover the truth."
    )
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"how often each truth is drawn from (default: {DRAWS})")
    draws = parser.parse_args(argv).draws
    found = {truth: hits(truth, draws, seed) for seed, truth in enumerate(grid())}
    print(table(found), summary(found), sep="\n\n")
    return 1 if any(shares(one).get("corrected", 1.0) < LEAST for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
