"""How many cases a comparison needs, beside statsmodels, by its laws, and by drawing samples."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.stats.paired import compare_paired
from mlflow_adk_eval.analysis.stats.power import cases_needed, detectable_drop, detectable_rate_drop, fewest_cases, rate_cases_needed
from tests.profiles import examples

TERMS = {"confidence": 0.95, "power": 0.8}
CONFIDENCES = st.sampled_from([0.8, 0.9, 0.95, 0.99])
POWERS = st.sampled_from([0.6, 0.8, 0.95])


@pytest.mark.parametrize("confidence", [0.5, 0.75, 0.8, 0.9, 0.95, 0.96875, 0.99, 0.999])
def test_the_fewest_cases_are_those_with_which_all_that_got_worse_are_significant(confidence: float) -> None:
    def p_worse(cases: int) -> float:
        names = [str(index) for index in range(cases)]
        found = compare_paired({name: [1] for name in names}, {name: [0] for name in names})
        return found.p_worse if found else 1.0

    fewest = fewest_cases(confidence)
    assert p_worse(fewest) <= 1 - confidence + 1e-12
    assert p_worse(fewest - 1) > 1 - confidence + 1e-12


@given(effect=st.floats(0.05, 0.7), confidence=CONFIDENCES, power=POWERS)
@examples(30)
def test_with_many_cases_they_are_those_of_the_paired_t_test(effect: float, confidence: float, power: float) -> None:
    from statsmodels.stats.power import TTestPower

    ours = cases_needed(1.0, effect, confidence=confidence, power=power)
    expected = TTestPower().solve_power(effect_size=effect, alpha=1 - confidence, power=power, alternative="larger")
    if ours > 12:
        assert ours == pytest.approx(math.ceil(expected), abs=1)
    else:
        assert ours >= math.ceil(expected) - 1


@given(spread=st.floats(0.01, 1), drop=st.floats(0.01, 0.5), more=st.floats(1, 3), confidence=CONFIDENCES, power=POWERS)
@examples(60)
def test_a_larger_drop_and_a_smaller_spread_take_no_more_cases(
    spread: float, drop: float, more: float, confidence: float, power: float
) -> None:
    needed = cases_needed(spread, drop, confidence=confidence, power=power)
    assert needed >= fewest_cases(confidence)
    assert cases_needed(spread, drop * more, confidence=confidence, power=power) <= needed
    assert cases_needed(spread * more, drop, confidence=confidence, power=power) >= needed
    assert cases_needed(spread, drop, confidence=confidence, power=min(power * more, 0.99)) >= needed


@given(spread=st.floats(0.01, 1), drop=st.floats(0.01, 0.5), confidence=CONFIDENCES, power=POWERS)
@examples(60)
def test_what_is_detectable_with_the_cases_needed_is_the_drop_or_less(spread: float, drop: float, confidence: float, power: float) -> None:
    needed = cases_needed(spread, drop, confidence=confidence, power=power)
    assert detectable_drop(spread, needed, confidence=confidence, power=power) <= drop * (1 + 1e-6)
    assert detectable_drop(spread, needed - 1, confidence=confidence, power=power) > drop * (1 - 1e-6)


@given(discordant=st.floats(0.02, 0.6), drop=st.floats(0.03, 0.5), confidence=CONFIDENCES, power=POWERS)
@examples(30)
def test_the_same_of_pass_rates(discordant: float, drop: float, confidence: float, power: float) -> None:
    needed = rate_cases_needed(discordant, drop, confidence=confidence, power=power)
    assert needed >= fewest_cases(confidence)
    assert detectable_rate_drop(discordant, needed, confidence=confidence, power=power) <= drop * (1 + 1e-6)
    assert rate_cases_needed(discordant, min(1.0, drop * 2), confidence=confidence, power=power) <= needed
    assert detectable_rate_drop(discordant, 4 * needed, confidence=confidence, power=power) < drop


@pytest.mark.parametrize(("discordant", "drop", "cases"), [(0.2, 0.1, 150), (0.3, 0.1, 230), (0.1, 0.1, 67), (0.4, 0.2, 80)])
def test_the_power_of_mcnemars_test_is_the_sum_over_all_tables(discordant: float, drop: float, cases: int) -> None:
    from scipy.stats import binom, binomtest

    share = (discordant + drop) / 2 / discordant
    power = sum(
        binom.pmf(count, cases, discordant)
        * sum(
            binom.pmf(worse, count, share)
            for worse in range(count + 1)
            if count and binomtest(worse, count, alternative="greater").pvalue <= 0.05
        )
        for count in range(int(binom.ppf(1e-7, cases, discordant)), int(binom.ppf(1 - 1e-7, cases, discordant)) + 1)
    )
    assert detectable_rate_drop(discordant, cases, confidence=0.95, power=float(power)) == pytest.approx(drop, rel=1e-3)
    assert abs(rate_cases_needed(discordant, drop, confidence=0.95, power=float(power)) - cases) <= 3


def test_too_few_cases_detect_nothing() -> None:
    assert detectable_drop(0.1, 4, **TERMS) == math.inf
    assert detectable_rate_drop(0.1, 4, **TERMS) == math.inf
    assert detectable_rate_drop(0.0, 5, **TERMS) < 1
    assert detectable_drop(0.1, 5, **TERMS) < 0.5


def test_without_spread_the_fewest_cases_are_enough() -> None:
    assert cases_needed(0.0, 0.01, **TERMS) == 5
    assert detectable_drop(0.0, 5, **TERMS) == 0


def test_tiny_drops_take_millions_of_cases_and_no_time() -> None:
    assert cases_needed(0.5, 0.0005, **TERMS) == pytest.approx(6_182_557, rel=1e-3)
    assert rate_cases_needed(0.2, 0.002, **TERMS) == pytest.approx(309_000, rel=0.01)
