"""Intervals of the pass rate that people would give, from all verdicts of a judge and a few labels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from simulation import luck_of

from mlflow_adk_eval.analysis.calibration.judge_error import JudgeRates, corrected_rate


class Labelled(NamedTuple):
    """A judge's answers, of which people labelled a random sample."""

    rate: float
    """The share that people would pass."""
    right: tuple[float, float]
    """The judge's sensitivity and specificity."""
    labels: int
    judged: int


@lru_cache(None)
def _intervals(counts: tuple[int, int, int, int], passed: int, judged: int) -> tuple[Any, Any]:
    from mlflow_adk_eval.analysis.calibration.prediction_powered import people_rate

    names = ("true_passes", "false_passes", "true_failures", "false_failures")
    rates = JudgeRates(**dict(zip(names, counts, strict=True)))
    return people_rate(passed, judged, rates), corrected_rate(passed, judged, rates)


def covered(of: Labelled, cases: int, draws: int) -> dict[str, float]:
    """Return how often each interval is there and covers the rate, and how wide they are on average where both are there."""
    luck = luck_of("labels", of)
    there, hits, both, widths = np.zeros(2), np.zeros(2), 0, np.zeros(2)
    for _ in range(draws):
        good = luck.random(cases) < of.rate
        passed = luck.random(cases) < np.where(good, of.right[0], 1 - of.right[1])
        some, said = good[: of.labels], passed[: of.labels]
        counts = tuple(int(one.sum()) for one in (some & said, ~some & said, ~some & ~said, some & ~said))
        found = _intervals(counts, int(passed.sum()), cases)  # type: ignore[arg-type]
        known = [not isinstance(one, str) for one in found]
        there += known
        hits += [yes and one.low <= of.rate <= one.high for one, yes in zip(found, known, strict=True)]
        if all(known):
            both += 1
            widths += [one.high - one.low for one in found]
    names = ("ours", "other")
    return {
        **{f"{name} there": float(some) / draws for name, some in zip(names, there, strict=True)},
        **{f"{name} covers": float(some) for name, some in zip(names, hits / np.maximum(there, 1), strict=True)},
        **{f"{name} width": float(some) for name, some in zip(names, widths / max(both, 1), strict=True)},
        "both": both,
    }
