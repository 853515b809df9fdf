"""Comparing two runs case by case, beside scipy and statsmodels, and by its laws."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.stats.paired import Paired, compare_paired, holm
from tests.profiles import examples

Runs = Mapping[str, Sequence[float]]
PASSES = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=60)
SCORES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=30)
THIRDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30).map(
    lambda pairs: [(before / 3, after / 3) for before, after in pairs]
)
PAIRS = st.one_of(PASSES, SCORES, THIRDS)


def compared(pairs: Sequence[tuple[float, float]], **options: float) -> Paired:
    found = compare_paired(
        {str(index): [before] for index, (before, _) in enumerate(pairs)},
        {str(index): [after] for index, (_, after) in enumerate(pairs)},
        **options,  # type: ignore[arg-type]
    )
    assert found is not None
    return found


def test_the_numbers_of_an_example() -> None:
    found = compared([(1, 1)] * 12 + [(1, 0)] * 7 + [(0, 1)])
    assert (found.cases, found.better, found.worse, found.unchanged) == (20, 1, 7, 12)
    assert (found.before, found.after, found.test) == (0.95, 0.65, "mcnemar")
    assert found.difference == pytest.approx(-0.3)
    assert found.p_worse == pytest.approx(9 / 256)
    assert found.p_value == pytest.approx(18 / 256)
    assert found.p_better == pytest.approx(255 / 256)
    assert found.low < -0.5 < found.difference < found.high < 0.05


def test_only_cases_of_both_runs_count_and_runs_of_a_case_are_one_observation() -> None:
    before: Runs = {"a": [1, 0], "b": [1, 1, 1], "gone": [1], "empty": []}
    after: Runs = {"b": [0, 1], "a": [0.5], "new": [0], "empty": [1]}
    found = compare_paired(before, after)
    assert found
    assert (found.cases, found.worse, found.unchanged, found.difference) == (2, 1, 1, -0.25)
    assert found.test == "permutation"
    assert compare_paired({"a": [1]}, {"b": [1]}) is None


@given(PASSES)
def test_passes_are_compared_by_mcnemars_exact_test(pairs: list[tuple[float, float]]) -> None:
    from scipy.stats import binomtest
    from statsmodels.stats.contingency_tables import mcnemar

    found = compared(pairs)
    table = [[sum(pair == (x, y) for pair in pairs) for y in (1, 0)] for x in (1, 0)]
    assert found.test == "mcnemar"
    assert found.p_value == pytest.approx(mcnemar(table, exact=True).pvalue)
    if found.better + found.worse:
        expected = binomtest(found.worse, found.better + found.worse, alternative="greater").pvalue
        assert found.p_worse == pytest.approx(expected)


def test_both_chances_are_those_of_scipys_binomial_distribution_to_the_last_digit() -> None:
    from scipy.stats import binom

    for changed in range(1, 40):
        for worse in range(changed + 1):
            found = compared([(1, 0)] * worse + [(0, 1)] * (changed - worse))
            assert found.p_worse == float(binom.sf(worse - 1, changed, 0.5))
            assert found.p_better == float(binom.sf(changed - worse - 1, changed, 0.5))
            assert found.p_better == pytest.approx(float(binom.cdf(worse, changed, 0.5)), rel=1e-14)


@given(st.lists(st.integers(-3000, 3000), min_size=2, max_size=9))
@example([2000, -1000, -1000])
@examples(30)
def test_few_scores_are_compared_by_all_permutations(differences: list[int]) -> None:
    import numpy as np
    from scipy.stats import permutation_test

    # Our differences are of thirds of thousandths, scipy's are whole, so that its sums are alike where ours are but for rounding.
    found = compared([(1 / 3, 1 / 3 + difference / 9000) for difference in differences])
    changed = [difference for difference in differences if difference]
    assume(len(changed) > 1)
    for alternative, ours in (("less", found.p_worse), ("greater", found.p_better)):
        theirs = permutation_test((np.array(changed),), np.sum, permutation_type="samples", n_resamples=np.inf, alternative=alternative)
        assert ours == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.1])
def test_many_scores_are_compared_by_a_sample_of_the_permutations(shift: float) -> None:
    import numpy as np
    from scipy.stats import ttest_rel

    before, luck = np.random.default_rng(3).beta(8, 2, (2, 200))
    after = 0.5 * before + 0.5 * luck - shift
    found = compared(list(zip(before.tolist(), after.tolist(), strict=True)))
    assert found.p_worse == pytest.approx(ttest_rel(after, before, alternative="less").pvalue, abs=0.02)
    assert found.spread == pytest.approx((after - before).std(ddof=1))


@given(PAIRS)
@example([(0.1, 0.4)] * 17 + [(0.4, 0.2)] * 3)
@examples(80)
def test_swapping_the_runs_swaps_better_and_worse(pairs: list[tuple[float, float]]) -> None:
    found, swapped = compared(pairs), compared([(after, before) for before, after in pairs])
    assert (found.p_worse, found.p_better, found.better) == pytest.approx((swapped.p_better, swapped.p_worse, swapped.worse))
    assert (found.difference, found.low, found.high) == pytest.approx((-swapped.difference, -swapped.high, -swapped.low))
    assert found.p_value == pytest.approx(swapped.p_value)


@given(PAIRS, st.randoms(use_true_random=False))
@example([(0.1, 0.4)] * 17 + [(0.4, 0.2)] * 3 + [(0.3, 0.9)], __import__("random").Random(1))
@examples(60)
def test_the_order_of_the_cases_does_not_matter(pairs: list[tuple[float, float]], luck: object) -> None:
    shuffled = list(pairs)
    luck.shuffle(shuffled)  # type: ignore[attr-defined]
    assert compared(shuffled) == compared(pairs)


@given(PAIRS, st.sampled_from([0.8, 0.95, 0.99]))
@examples(80)
def test_numbers_are_finite_and_in_range(pairs: list[tuple[float, float]], confidence: float) -> None:
    found = compared(pairs, confidence=confidence)
    assert -1 <= found.low <= found.difference + 1e-12
    assert found.difference - 1e-12 <= found.high <= 1
    assert all(0 < p <= 1 for p in (found.p_value, found.p_worse, found.p_better))
    assert found.better + found.worse + found.unchanged == found.cases
    assert 0 <= found.spread < math.inf
    wider = compared(pairs, confidence=0.999)
    assert wider.low <= found.low <= found.high <= wider.high


@given(PAIRS, st.integers(0, 59))
@examples(60)
def test_a_case_that_gets_worse_makes_worse_likelier(pairs: list[tuple[float, float]], index: int) -> None:
    index %= len(pairs)
    lower = [*pairs[:index], (pairs[index][0], 0.0), *pairs[index + 1 :]]
    assume(compared(lower).test == compared(pairs).test)
    assert compared(lower).difference <= compared(pairs).difference
    # With the same size of the difference, as where a pass turns into a failure, the sample of the permutations is the same.
    if compared(pairs).test == "mcnemar":
        assert compared(lower).p_worse <= compared(pairs).p_worse + 1e-12


def test_no_difference_is_no_proof_that_there_is_none() -> None:
    found = compared([(0.8, 0.8)] * 10)
    assert (found.p_value, found.p_worse, found.p_better, found.spread) == (1, 1, 1, 0)
    assert 0.2 < found.high == -found.low < 0.35  # the rule of three says 0.3
    assert compared([(0.8, 0.8)] * 100).high < 0.04
    one = compared([(0.5, 0.4)])
    assert one.low == pytest.approx(-0.1 * 0.025 - 0.975)  # one case and one imagined one, with weights that add up to 1
    assert one.high == pytest.approx(-0.1 * 0.025 + 0.975)


def test_where_cases_pass_or_fail_the_interval_is_close_to_that_of_bonett_and_price() -> None:
    # From the manual of R's statpsych: ci.prop.ps(.05, 12, 4, 26, 6)
    found = compared([(1, 0)] * 4 + [(0, 1)] * 26 + [(1, 1)] * 6 + [(0, 0)] * 12)
    assert (found.low, found.high) == pytest.approx((0.2548, 0.6252), abs=0.022)
    assert found.low < 0.2548
    assert found.high > 0.6252


def test_differences_that_are_all_alike_leave_room_for_others() -> None:
    found = compared([(0.5, 0.4)] * 6)
    assert found.low < -0.15 < found.difference < -0.05 < found.high


def test_rounding_is_no_difference_and_makes_none() -> None:
    assert compared([(0.3, 0.1 + 0.2)] * 5 + [(1.0, 1.0 - 1e-12)]).unchanged == 6
    # In thirds many permutations come to the very sum that was found; each counts.
    found = compared([(1 / 3, 0.0), (0.0, 1 / 3), (2 / 3, 1 / 3), (1 / 3, 2 / 3)])
    assert (found.p_worse, found.p_better) == (11 / 16, 11 / 16)


def test_without_bounds_the_range_of_what_was_seen_is_the_width() -> None:
    tokens = {str(index): [value] for index, value in enumerate((100.0, 300.0, 200.0, 250.0, 150.0))}
    found = compare_paired(tokens, tokens, bounds=None)
    bounded = compare_paired(tokens, tokens, bounds=(0, 200))
    assert found
    assert found.high == -found.low > 10
    assert bounded
    assert bounded.high == found.high
    assert compare_paired({"a": [7.0]}, {"a": [7.0]}, bounds=None)


def test_huge_values_are_no_exception() -> None:
    values = {str(index): [value] for index, value in enumerate((1e300, -1e300, 3.0, 5e299))}
    halved = {case: [value / 2 for value in runs] for case, runs in values.items()}
    found = compare_paired(values, halved, bounds=None)
    assert found
    assert all(map(math.isfinite, (found.low, found.high, found.spread, found.p_worse)))
    assert found.low < found.difference < 0 < found.high


def test_ten_thousand_cases_take_a_moment() -> None:
    pairs = [((index * 37 % 1000) / 1000, (index * 91 % 1000) / 1000) for index in range(10_000)]
    began = time.process_time()  # what others do meanwhile does not count
    found = compared(pairs)
    assert time.process_time() - began < 5
    assert 0.05 < found.p_value <= 1


@given(st.lists(st.floats(0, 1), max_size=12))
@examples(30)
def test_holm_is_statsmodels(p_values: list[float]) -> None:
    from statsmodels.stats.multitest import multipletests

    expected = multipletests(p_values, method="holm")[1].tolist() if p_values else []
    assert list(holm(p_values)) == pytest.approx(expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_holms_laws(p_values: list[float], luck: object) -> None:
    adjusted = holm(p_values)
    assert all(p <= found <= 1 for p, found in zip(p_values, adjusted, strict=True))
    assert min(adjusted) == pytest.approx(min(1.0, min(p_values) * len(p_values)))
    order = list(range(len(p_values)))
    luck.shuffle(order)  # type: ignore[attr-defined]
    assert holm([p_values[index] for index in order]) == pytest.approx([adjusted[index] for index in order])
    assert all(found <= more + 1e-15 for found, more in zip(adjusted, holm([*p_values, 1.0]), strict=False))


@given(
    differences=st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.0, 0.1, 1.0]), min_size=1, max_size=25),
    confidence=st.sampled_from([0.8, 0.9, 0.95, 0.99]),
    whole=st.booleans(),
)
@example(
    differences=[-0.25] * 6, confidence=0.9, whole=False
)  # all of six cases are worse, but a case that gains all there is may not have been seen
@example(differences=[-1.0] * 4 + [0.0] * 7, confidence=0.9, whole=True)
@example(differences=[-1.0] * 14 + [1.0] * 6, confidence=0.9, whole=True)
def test_the_interval_is_on_one_side_of_zero_only_where_the_test_says_so(differences: list[float], confidence: float, whole: bool) -> None:
    steps = [float(round(difference)) for difference in differences] if whole else differences
    before = {str(index): [0.0 if step > 0 else 1.0] for index, step in enumerate(steps)}
    after = {str(index): [before[str(index)][0] + step] for index, step in enumerate(steps)}
    found = compare_paired(before, after, confidence=confidence)
    assert found is not None
    level = (1 - confidence) / 2 + 1e-9
    assert found.p_worse <= level or found.high >= 0
    assert found.p_better <= level or found.low <= 0
    if found.test == "mcnemar":  # then it is the same test
        assert (found.high < 0, found.low > 0) == (found.p_worse <= level, found.p_better <= level)
    assert found.low <= found.difference <= found.high
