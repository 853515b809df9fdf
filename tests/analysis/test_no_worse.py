"""How often a version that is worse by just what is allowed passes ``max_drop``, computed over all outcomes, and how often an unchanged one does."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy.special import bdtr

from mlflow_adk_eval.analysis.stats.paired import compare_paired
from mlflow_adk_eval.analysis.stats.power import cases_to_exclude
from mlflow_adk_eval.gating.rules.limits import drop_verdict

CONFIDENCE = 0.95
BY_RATE = {f"pass or fail at {rate:g}": (rate, rate * rate) for rate in (0.8, 0.95, 0.99)}
BY_CASE = {f"Beta({a}, 1)": (a / (a + 1), a / (a + 2)) for a in (4, 20)}
POPULATIONS = BY_RATE | BY_CASE
"""The mean of a case's chance to pass, and that of its square."""


@cache
def passes(worse: int, better: int, cases: int, max_drop: float) -> bool:
    before = {str(case): [float(case >= better)] for case in range(cases)}
    after = {str(case): [float(case < cases - worse)] for case in range(cases)}
    found = compare_paired(before, after, confidence=2 * CONFIDENCE - 1)
    assert found is not None
    return drop_verdict(found, max_drop=max_drop, confidence=CONFIDENCE, p_adjusted=found.p_worse) == "passed"


def chance_to_pass(worse: float, better: float, cases: int, max_drop: float) -> float:
    """Return the chance that a version passes of which each case gets worse, or better, with some chance: a sum over all outcomes."""
    total, allowed = 0.0, -1
    for gains in range(cases + 1):
        chance = math.comb(cases, gains) * better**gains * (1 - better) ** (cases - gains)
        while allowed < cases - gains and passes(allowed + 1, gains, cases, max_drop):
            allowed += 1
        if allowed >= 0:
            total += chance * float(bdtr(min(allowed, cases - gains), cases - gains, worse / (1 - better)))
        if gains > cases * better and chance < 1e-9:
            break
    return total


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize(("cases", "drop"), [(20, 0.05), (20, 0.25), (50, 0.05), (50, 0.1), (200, 0.05)])
def test_of_versions_that_are_worse_by_all_that_is_allowed_at_most_one_in_twenty_passes(population: str, cases: int, drop: float) -> None:
    rate, square = POPULATIONS[population]
    worse, better = rate * (1 + drop) - square, rate * (1 + drop) - square - drop
    luckily = chance_to_pass(worse, better, cases, drop)
    once = chance_to_pass(drop, 0.0, cases, drop)  # where a case that passed before fails, and none the other way round
    assert max(luckily, once) <= 1 - CONFIDENCE
    assert (once > 0) == ((1 - drop) ** cases <= 1 - CONFIDENCE)


def test_scores_with_a_rare_loss_that_was_not_seen_do_not_pass_either() -> None:
    luck, passed, cases, samples = np.random.default_rng(11), 0, 60, 150
    for _ in range(samples):
        before = luck.beta(60, 2, cases)
        after = np.where(luck.random(cases) < 0.06, 0.0, np.clip(before + luck.normal(0.008, 0.01, cases), 0, 1))
        sides = ({str(case): [float(value)] for case, value in enumerate(side)} for side in (before, after))
        found = compare_paired(*sides, confidence=2 * CONFIDENCE - 1)
        assert found is not None
        passed += drop_verdict(found, max_drop=0.05, confidence=CONFIDENCE, p_adjusted=found.p_worse) == "passed"
    assert passed / samples <= 1 - CONFIDENCE


@pytest.mark.parametrize(("max_drop", "cases"), [(0.25, 11), (0.1, 29), (0.05, 59), (0.02, 149)])
def test_a_version_whose_cases_are_all_alike_passes_from_as_many_as_it_takes(max_drop: float, cases: int) -> None:
    assert cases == math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - max_drop))
    assert cases == cases_to_exclude(max_drop, 0.0, width=1.0, confidence=CONFIDENCE, power=0.8)
    assert passes(0, 0, cases, max_drop)
    assert not passes(0, 0, cases - 1, max_drop)


@pytest.mark.parametrize(("cases", "missed"), [(5, 0.59), (10, 0.35), (20, 0.12), (30, 0.04)])
def test_that_no_case_did_worse_is_often_luck(cases: int, missed: float) -> None:
    assert 0.9**cases == pytest.approx(missed, abs=0.005)
    assert passes(0, 0, cases, 0.1) == (missed <= 1 - CONFIDENCE)


@pytest.mark.parametrize(("changing", "drop"), [(0.02, 0.05), (0.1, 0.05), (0.2, 0.1)])
@pytest.mark.parametrize("power", [0.8, 0.95])
def test_with_the_planned_cases_an_unchanged_version_passes_as_often_as_planned(changing: float, drop: float, power: float) -> None:
    cases = cases_to_exclude(drop, math.sqrt(changing), width=1.0, confidence=CONFIDENCE, power=power)
    assert chance_to_pass(changing / 2, changing / 2, cases, drop) == pytest.approx(power, abs=0.04)
