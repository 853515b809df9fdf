"""How far the cases of two versions of an agent will differ, by what is known of one or of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mlflow_adk_eval.analysis.stats import compare_paired, wilson_interval
from mlflow_adk_eval.results.outcomes import mean
from mlflow_adk_eval.results.repeats import variance

Source = Literal["baseline", "repeated runs", "unrelated scores", "interval"]
"""What a spread was learnt from: see `spread_of`."""

_PAIR = 2
_ALIKE = 1e-9

Values = Mapping[str, Sequence[float]]
"""By case, one per run."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of the differences of cases between two versions."""

    value: float | None
    """``None``: nothing is known of it."""
    source: Source | None
    told: str
    """Where it comes from, as text."""
    passes: bool
    """Whether each case is 0 or 1; the square of the value is then the share of the cases that change between them."""


def spread_of(values: Values, before: Values | None, num_runs: int, *, confidence: float) -> Spread:
    """Return how far cases will differ with `num_runs` runs each.

    The best that is known decides: how far they differ from an earlier run; else how far the runs of each case differ; else how far
    cases differ from each other, as if nothing that one version does said anything about the other, which asks for too many cases
    rather than too few.
    """
    passes = _passes(values, before, num_runs)
    sources = (
        _from_baseline(values, before, num_runs) if before else None,
        _from_repeats(values, num_runs),
        _from_cases(values, num_runs),
        _from_interval(values, confidence) if passes else None,
    )
    for source, found, told in filter(None, sources):
        if found > _ALIKE:
            return Spread(found, source, told, passes)
    return Spread(None, None, "every case has the same score, which does not say how far versions differ", passes)


_Known = tuple[Source, float, str]


def _passes(values: Values, before: Values | None, num_runs: int) -> bool:
    """Whether the means over so many runs will be 0 or 1."""
    groups = [*values.values(), *(before or {}).values()]
    alike = all(min(runs) == max(runs) for runs in groups if runs)
    return all(value in (0, 1) for runs in groups for value in runs) and (num_runs == 1 or alike)


def _from_baseline(values: Values, before: Values, num_runs: int) -> _Known | None:
    paired = compare_paired(before, values)
    if paired is None or paired.cases < _PAIR:
        return None
    # The square of the mean belongs to it: what a case that passes and then fails contributes to the share of such cases.
    square = paired.spread**2 * (paired.cases - 1) / paired.cases + paired.difference**2 if paired.test == "mcnemar" else paired.spread**2
    noises = [(noise, _fewest_runs(side)) for side in (values, before) if (noise := _noise(side)) is not None]
    target = sum(noise / num_runs for noise, _ in noises)
    square = max(square + target - sum(noise / runs for noise, runs in noises), target)
    changed = paired.better + paired.worse
    return "baseline", math.sqrt(square), f"{changed} of {paired.cases} cases differ from the baseline"


def _from_repeats(values: Values, num_runs: int) -> _Known | None:
    noise = _noise(values)
    if noise is None:
        return None
    return (
        "repeated runs",
        math.sqrt(2 * noise / num_runs),
        "how far the runs of a case differ, as those of two versions that are alike would",
    )


def _from_cases(values: Values, num_runs: int) -> _Known | None:
    means = [mean(runs) for runs in values.values() if runs]
    if len(means) < _PAIR:
        return None
    told = "the scores of two versions are taken to be unrelated; a baseline or repeated runs would show how far they go together"
    if num_runs > _fewest_runs(values):
        told += ", and what more runs bring"
    return "unrelated scores", math.sqrt(2 * variance(means)), told


def _from_interval(values: Values, confidence: float) -> _Known:
    """Return what the bound of the interval comes to, where each case passes or each fails."""
    means = [mean(runs) for runs in values.values()]
    passed = round(sum(means))
    low, high = wilson_interval(passed, len(means), confidence)
    share = low if passed else high
    every = "every case passed" if passed else "no case passed"
    return "interval", math.sqrt(2 * share * (1 - share)), f"{every}, so the pass rate is taken to be {share:.3g}, the end of its interval"


def _noise(values: Values) -> float | None:
    """Return how far the runs of a case vary, as a variance; ``None`` where no case has two."""
    repeated = [runs for runs in values.values() if len(runs) >= _PAIR]
    return mean(map(variance, repeated)) if repeated else None


def _fewest_runs(values: Values) -> int:
    return min((len(runs) for runs in values.values() if runs), default=1)
