"""A judge's error in numbers: against hand-worked and published references, by laws, and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mlflow_adk_eval.analysis.calibration.judge_error import (
    Corrected,
    JudgeRates,
    corrected_rate,
    design_effect,
    kappa,
    kappa_interval,
    krippendorff_alpha,
    pair_agreement,
)
from mlflow_adk_eval.analysis.stats.intervals import wilson_interval
from tests.benchmarks.test_benchmarks import module as module  # noqa: PLC0414 - a fixture

counts = st.integers(0, 200)
tables = st.builds(JudgeRates, true_passes=counts, false_passes=counts, true_failures=counts, false_failures=counts)


def rates(true_passes: int, false_passes: int, true_failures: int, false_failures: int, **effects: float) -> JudgeRates:
    return JudgeRates(
        true_passes=true_passes, false_passes=false_passes, true_failures=true_failures, false_failures=false_failures, **effects
    )


# Agreement


@given(tables)
def test_kappa_is_that_of_scikit_learn(table: JudgeRates) -> None:
    from sklearn.metrics import cohen_kappa_score

    judge = [1] * (table.true_passes + table.false_passes) + [0] * (table.true_failures + table.false_failures)
    people = [1] * table.true_passes + [0] * (table.false_passes + table.true_failures) + [1] * table.false_failures
    assume(len({*judge, *people}) == 2)
    assert table.kappa == pytest.approx(cohen_kappa_score(judge, people), abs=1e-12)


def test_there_is_no_kappa_where_chance_would_agree_on_everything() -> None:
    assert rates(9, 0, 0, 0).kappa is None
    assert rates(9, 0, 0, 0).measure("kappa") == (None, None)
    assert rates(0, 0, 0, 0).kappa is None


def test_the_interval_of_kappa_does_not_shrink_to_a_point_where_all_agree() -> None:
    low, high = kappa_interval(10, 0, 10, 0)
    assert 0.5 < low < 0.9
    assert high == kappa(10, 0, 10, 0) == 1


def test_the_interval_of_kappa_is_that_of_the_delta_method_where_there_is_plenty() -> None:
    both, first, neither, second = 4000, 1000, 3500, 500
    # Fleiss, Cohen and Everitt (1969), by hand for these four counts
    total = both + first + neither + second
    p = [[both / total, first / total], [second / total, neither / total]]
    rows, columns = [sum(row) for row in p], [p[0][0] + p[1][0], p[0][1] + p[1][1]]
    observed, chance = p[0][0] + p[1][1], rows[0] * columns[0] + rows[1] * columns[1]
    value = (observed - chance) / (1 - chance)
    diagonal = sum(p[i][i] * (1 - (rows[i] + columns[i]) * (1 - value)) ** 2 for i in (0, 1))
    beside = (1 - value) ** 2 * sum(p[i][j] * (columns[i] + rows[j]) ** 2 for i, j in ((0, 1), (1, 0)))
    spread = math.sqrt((diagonal + beside - (value - chance * (1 - value)) ** 2) / total) / (1 - chance)
    assert kappa_interval(both, first, neither, second) == pytest.approx((value - 1.96 * spread, value + 1.96 * spread), abs=2e-3)


def test_alpha_is_that_of_krippendorffs_own_example() -> None:
    # "Computing Krippendorff's Alpha-Reliability" (2011), A: two observers, ten articles, yes or no: 0.095
    meg, owen = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    units = [(bool(one), bool(other)) for one, other in zip(meg, owen, strict=True)]
    assert krippendorff_alpha(units) == pytest.approx(0.095, abs=5e-4)
    assert pair_agreement(units) == 0.6


def test_alpha_takes_any_number_of_labellers_and_leaves_out_those_who_are_alone() -> None:
    # by hand: the values of units with a pair are 4 yes and 3 no; disagreement 2·(2·1)/(3−1)/7 observed, 2·4·3/(7·6) expected
    units = [[True, True, False], [True, True], [False, False], [True]]
    assert krippendorff_alpha(units) == pytest.approx(1 - (2 / 7) / (4 / 7))
    assert krippendorff_alpha([[True], [False]]) is None
    assert krippendorff_alpha([[True, True]]) is None
    assert pair_agreement([[True], [False]]) is None


# Shares and their intervals


@given(st.integers(0, 300), st.integers(1, 300), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_of_a_share_is_wilsons(successes: int, more: int, confidence: float) -> None:
    trials = successes + more - 1 or 1
    successes = min(successes, trials)
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes / trials, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_shares_are_of_what_people_say() -> None:
    found = rates(45, 5, 25, 5)
    assert (found.sensitivity, found.specificity, found.agreement) == (0.9, 25 / 30, 70 / 80)
    assert found.measure("sensitivity")[1] == pytest.approx(wilson_interval(0.9, 50))
    assert rates(0, 5, 5, 0).sensitivity is None
    assert rates(0, 5, 5, 0).measure("sensitivity") == (None, None)


def test_turns_of_a_case_that_are_alike_widen_the_interval() -> None:
    apart, together = rates(45, 5, 25, 5), rates(45, 5, 25, 5, pass_effect=2.0)
    assert together.measure("sensitivity")[1] == pytest.approx(wilson_interval(0.9, 25))
    low, high = together.measure("sensitivity")[1] or (0, 0)
    narrow = apart.measure("sensitivity")[1] or (0, 0)
    assert low < narrow[0] < narrow[1] < high


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=30))
def test_a_design_effect_is_at_least_1_and_at_most_the_largest_group_at_its_worst(groups: list[list[bool]]) -> None:
    effect = design_effect(groups)
    assert effect >= 1
    if all(len(group) == 1 for group in groups):
        assert effect == 1
    if len({value for group in groups for value in group}) == 1:
        assert effect == pytest.approx(sum(len(group) ** 2 for group in groups) / sum(map(len, groups)))


def test_groups_that_are_all_alike_count_as_one_value_each() -> None:
    # 20 groups of four equal values: the variance of the share is that of 20 values (19 degrees of freedom)
    assert design_effect([[number % 2 == 0] * 4 for number in range(20)]) == pytest.approx(4 * 20 / 19)


# How many labels more


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from([1.0, 1.7, 3.0]))
def test_as_many_more_labels_as_wanted_are_enough_and_one_less_is_not(right: int, wrong: int, effect: float) -> None:
    found = rates(right, 0, 0, wrong, pass_effect=effect)
    more, share = found.passes_wanted(), (right + 1) / (right + wrong + 2)

    def width(labels: int) -> float:
        low, high = wilson_interval(share, (right + wrong + labels) / effect)
        return high - low

    assert width(more) <= 0.2
    assert not more or width(more - 1) > 0.2


def test_without_any_label_the_worst_is_assumed() -> None:
    assert rates(0, 0, 0, 0).failures_wanted() == 93  # Wilson at one half: 93 of 0.1 to either side


# The corrected rate


def test_the_corrected_rate_is_that_of_lang_and_reiczigel() -> None:
    # By hand with z = 1.959964: 80 of 100 passed, sensitivity 45/50, specificity 25/30.
    found = corrected_rate(80, 100, rates(45, 5, 25, 5))
    z2 = 3.841458820694124
    n, p = 100 + z2, (80 + z2 / 2) / (100 + z2)
    se, sp = 46 / 52, 26 / 32
    j = se + sp - 1
    t = (p + sp - 1) / j
    shift = 2 * z2 * (t * se * (1 - se) / 52 - (1 - t) * sp * (1 - sp) / 32)
    spread = math.sqrt(z2 * (p * (1 - p) / n + t * t * se * (1 - se) / 52 + (1 - t) ** 2 * sp * (1 - sp) / 32)) / j
    assert isinstance(found, Corrected)
    assert found.value == pytest.approx((0.8 + 25 / 30 - 1) / (0.9 + 25 / 30 - 1))
    assert (found.low, found.high) == pytest.approx((t + shift - spread, min(1.0, t + shift + spread)))


@given(st.integers(0, 100), st.integers(5, 300), st.integers(5, 300))
def test_a_perfect_judges_rate_stays_what_it_is(passed: int, passes: int, failures: int) -> None:
    found = corrected_rate(passed, 100, rates(passes, 0, failures, 0))
    assert isinstance(found, Corrected)
    assert found.value == pytest.approx(passed / 100)


@given(tables, st.integers(0, 100))
def test_pass_and_fail_are_symmetric(table: JudgeRates, passed: int) -> None:
    mirrored = rates(table.true_failures, table.false_failures, table.true_passes, table.false_passes)
    found, other = corrected_rate(passed, 100, table), corrected_rate(100 - passed, 100, mirrored)
    assert isinstance(found, Corrected) == isinstance(other, Corrected)
    if isinstance(found, Corrected) and isinstance(other, Corrected):
        assert (1 - found.value, 1 - found.high, 1 - found.low) == pytest.approx((other.value, other.low, other.high), abs=1e-9)


@given(tables, st.integers(0, 100))
def test_what_is_given_is_an_interval_around_the_value_within_0_and_1(table: JudgeRates, passed: int) -> None:
    found = corrected_rate(passed, 100, table)
    if isinstance(found, Corrected):
        assert 0 <= found.low <= found.value <= found.high <= 1
    else:
        assert found


def test_all_labels_on_all_judged_cells_give_the_rate_that_people_give() -> None:
    table = rates(60, 8, 20, 12)
    found = corrected_rate(68, 100, table)
    assert isinstance(found, Corrected)
    assert found.value == pytest.approx(72 / 100)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (rates(4, 0, 9, 0), "too few labels: 4 of the 5 needed that people pass"),
        (rates(9, 2, 2, 0), "too few labels: 4 of the 5 needed that people fail"),
        (rates(0, 0, 0, 0), "too few labels: 0 of the 5 needed that people pass and 0 of the 5 needed that people fail"),
        (rates(10, 10, 10, 10), "the judge is no better than chance: sensitivity plus specificity is 1.00, and guessing reaches 1"),
        (rates(2, 18, 2, 18), "the judge is no better than chance: sensitivity plus specificity is 0.20, and guessing reaches 1"),
        (rates(7, 3, 4, 3), "the judge may be no better than chance: sensitivity plus specificity is 1.27, with a lower bound of 0.83"),
    ],
)
def test_where_there_is_no_corrected_rate_a_sentence_says_why(table: JudgeRates, why: str) -> None:
    assert corrected_rate(50, 100, table) == why


def test_nothing_judged_has_no_rate() -> None:
    assert corrected_rate(0, 0, rates(50, 5, 50, 5)) == "nothing was judged"


def test_what_is_not_known_of_the_judge_and_of_the_agent_both_widen_the_interval() -> None:
    def width(found: Corrected | str) -> float:
        assert isinstance(found, Corrected)
        return found.high - found.low

    few, many = rates(45, 10, 40, 5), rates(450, 100, 400, 50)
    assert width(corrected_rate(60, 100, few)) > width(corrected_rate(60, 100, many)) > width(corrected_rate(600, 1000, many))
    assert width(corrected_rate(600, 1000, many, design_effect=3.0)) > width(corrected_rate(600, 1000, many))
    assert width(corrected_rate(60, 100, many, 0.99)) > width(corrected_rate(60, 100, many, 0.95))


# Coverage, of which benchmarks/calibration.py has the whole table


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "alike"), [(1, 0.0), (3, 0.3)])
def test_the_interval_covers_the_truth_as_often_as_it_says(module: Callable[[str], ModuleType], turns: int, alike: float) -> None:
    simulation = module("calibration")
    truth = simulation.Truth(rate=0.7, sensitivity=0.75, specificity=0.9, labelled=100, judged=100, turns=turns, alike=alike)
    found = simulation.shares(simulation.hits(truth, 400))
    assert found["corrected"] >= 0.91  # of 400 draws at 95 %: four standard errors below
    assert found["sensitivity"] >= 0.9
    assert found["specificity"] >= 0.9
    assert found["not corrected"] < 0.85  # the judge passes too little: its own interval is about something else


@pytest.mark.slow
def test_the_benchmarks_table_has_a_row_for_each_size(module: Callable[[str], ModuleType]) -> None:
    simulation = module("calibration")
    found = {truth: simulation.hits(truth, 3) for truth in simulation.grid()}
    assert len(simulation.table(found).splitlines()) == 2 + len(simulation.SIZES) * len(simulation.TURNS)
    assert "combinations" in simulation.summary(found)


def test_kappa_without_chance_is_kappa_of_shares_too() -> None:
    assert kappa(0.4, 0.1, 0.3, 0.2) == pytest.approx(kappa(40, 10, 30, 20) or 0)
