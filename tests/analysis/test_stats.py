from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.stats.intervals import mean_interval, proportion_interval, wilson_interval
from tests.profiles import examples


def cases(*values: float) -> dict[str, list[float]]:
    return {f"case_{index}": [value] for index, value in enumerate(values)}


@pytest.mark.parametrize("values", [{}, cases(0.4), {"a": [0.1, 0.9, 0.5]}, {"a": [], "b": [0.5]}])
def test_fewer_than_two_cases_give_no_interval(values: dict[str, list[float]]) -> None:
    assert mean_interval(values) is None


def test_equal_scores_that_are_no_proportion_give_no_interval() -> None:
    assert mean_interval(cases(0.7, 0.7, 0.7, 0.7)) is None


@given(trials=st.integers(1, 200), data=st.data(), confidence=st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_wilson_is_scipys(trials: int, data: st.DataObject, confidence: float) -> None:
    from scipy.stats import binomtest

    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes / trials, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_flawless_run_of_five_cases_does_not_prove_perfection() -> None:
    low, high = mean_interval(cases(1, 1, 1, 1, 1)) or (1, 1)
    assert low == pytest.approx(0.5655, abs=1e-3)
    assert high == 1.0


def test_repeated_runs_of_agreeing_cases_count_as_one_observation_each() -> None:
    once = mean_interval({"a": [1], "b": [0], "c": [1]})
    assert mean_interval({"a": [1] * 50, "b": [0] * 50, "c": [1] * 50}) == once


@given(successes=st.integers(0, 60), failures=st.integers(0, 60), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_intervals_of_proportions_are_statsmodels(successes: int, failures: int, confidence: float) -> None:
    from statsmodels.stats.proportion import proportion_confint

    trials = successes + failures
    if not trials:
        return
    for method, theirs in (("wilson", "wilson"), ("exact", "beta")):
        expected = proportion_confint(successes, trials, alpha=1 - confidence, method=theirs)
        assert proportion_interval(successes, trials, confidence, method=method) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("proportion", [True, False])
def test_without_a_range_the_interval_is_students(proportion: bool) -> None:
    from scipy.stats import t

    values = [-3.0, 4.0, 1.5, 2.0, 8.0]
    expected = t.interval(0.9, 4, sum(values) / 5, (sum((value - 2.5) ** 2 for value in values) / 4 / 5) ** 0.5)
    assert mean_interval(cases(*values), 0.9, proportion=proportion) == pytest.approx(expected)


def test_a_scale_beyond_one_has_students_interval_and_quantities_one_on_the_scale_of_logarithms() -> None:
    values = cases(100, 250, 80, 120)
    low, high = mean_interval(values) or (0, 0)
    small, large = mean_interval(values, proportion=False) or (0, 0)
    assert (low + high) / 2 == pytest.approx(137.5)
    assert low < small < 137.5 < high < large
    assert small * large == pytest.approx(137.5**2)


def test_scores_are_as_certain_as_so_many_cases_that_pass_or_fail() -> None:
    # Passes and failures in equal parts have the variance of which Wilson's interval speaks, but for n/(n-1) and Student's quantile.
    import numpy as np
    from scipy.stats import norm, t

    mixed = {**cases(*[1.0] * 200, *[0.0] * 200), "a": [0.5]}
    z, q = norm.ppf(0.975), t.ppf(0.975, 400)
    low, high = mean_interval(mixed) or (0, 0)
    plain_low, plain_high = wilson_interval(0.5, 400)
    assert (high - low) / (plain_high - plain_low) == pytest.approx(q / z, rel=5e-3)
    values = np.random.default_rng(1).beta(8, 2, 40)
    low, high = mean_interval(cases(*values.tolist())) or (0, 0)
    reach = t.ppf(0.975, 39) * values.std(ddof=1) / 40**0.5
    assert high - low == pytest.approx(2 * reach, rel=0.02)
    assert values.mean() - low > high - values.mean()  # there is more room below than above


def test_the_case_is_the_unit() -> None:
    runs = {f"case_{index}": [index / 10] * 40 for index in range(10)}
    few = mean_interval({eval_id: values[:1] for eval_id, values in runs.items()})
    assert mean_interval(runs) == pytest.approx(few)


@example([[0.0], [2.2250738585e-313]])
@example([[1.0], [1.0 - 2e-12], *([[1.0]] * 30_000)])
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=2, max_size=20))
@examples(60)
def test_the_interval_holds_its_mean_and_stays_in_range(runs: list[list[float]]) -> None:
    values = {str(index): found for index, found in enumerate(runs)}
    flat = [value for found in runs for value in found]
    middle = sum(flat) / len(flat)
    for proportion, most in ((True, 1.0), (False, float("inf"))):
        interval = mean_interval(values, proportion=proportion)
        if interval is not None:
            low, high = interval
            assert 0 <= low <= middle + 1e-9
            assert middle - 1e-9 <= high <= most


@given(st.lists(st.floats(-1e200, 1e200), min_size=2, max_size=8), st.floats(0.5, 0.999))
@examples(60)
def test_the_interval_of_anything_is_finite_or_none(values: list[float], confidence: float) -> None:
    for proportion in (True, False):
        interval = mean_interval(cases(*values), confidence, proportion=proportion)
        assert interval is None or (abs(interval[0]) < float("inf") and interval[0] <= interval[1] < float("inf"))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0.55, 0.9))
@examples(40)
def test_more_confidence_takes_a_wider_interval(values: list[float], confidence: float) -> None:
    narrow, wide = mean_interval(cases(*values), confidence), mean_interval(cases(*values), confidence + 0.09)
    assert (narrow is None) == (wide is None)
    if narrow and wide:
        assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


def test_the_same_scores_give_the_same_interval() -> None:
    values = cases(0.2, 0.5, 0.9, 0.4, 0.8)
    assert mean_interval(values) == mean_interval(dict(values))


def test_many_cases_take_milliseconds_and_no_memory() -> None:
    low, high = mean_interval(cases(*[(index * 37 % 100) / 100 for index in range(30_000)])) or (0, 0)
    assert 0.49 < low < 0.495 < high < 0.5


def test_a_count_that_is_zero_everywhere_is_no_proportion() -> None:
    assert mean_interval(cases(0, 0, 0, 0), proportion=False) is None
