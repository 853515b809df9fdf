from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mlflow_adk_eval.stats import mean_interval, wilson_interval


def cases(*values: float) -> dict[str, list[float]]:
    return {f"case_{index}": [value] for index, value in enumerate(values)}


@pytest.mark.parametrize("values", [{}, cases(0.4), {"a": [0.1, 0.9, 0.5]}, {"a": [], "b": [0.5]}])
def test_fewer_than_two_cases_give_no_interval(values: dict[str, list[float]]) -> None:
    assert mean_interval(values) is None


def test_equal_scores_that_are_no_proportion_give_no_interval() -> None:
    assert mean_interval(cases(0.7, 0.7, 0.7, 0.7)) is None


@given(trials=st.integers(1, 200), data=st.data(), confidence=st.sampled_from([0.8, 0.9, 0.95, 0.99]))
@settings(deadline=None)
def test_wilson_is_scipys(trials: int, data: st.DataObject, confidence: float) -> None:
    from scipy.stats import binomtest

    successes = data.draw(st.integers(0, trials))
    expected = binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert wilson_interval(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_flawless_run_of_five_cases_does_not_prove_perfection() -> None:
    low, high = mean_interval(cases(1, 1, 1, 1, 1)) or (1, 1)
    assert low == pytest.approx(0.5655, abs=1e-3)
    assert high == 1.0


def test_repeated_runs_of_agreeing_cases_count_as_one_observation_each() -> None:
    once = mean_interval({"a": [1], "b": [0], "c": [1]})
    assert mean_interval({"a": [1] * 50, "b": [0] * 50, "c": [1] * 50}) == once


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [15, 60, 300])
def test_the_bootstrap_is_scipys_up_to_the_resampling(seed: int, size: int) -> None:
    import numpy as np
    from scipy.stats import bootstrap

    values = np.random.default_rng(seed).beta(5, 1, size)
    ours = mean_interval(cases(*values.tolist()))
    reference = bootstrap((values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(seed)).confidence_interval
    width = reference.high - reference.low
    assert ours == pytest.approx((reference.low, reference.high), abs=0.12 * width)


def test_cases_are_resampled_and_not_values() -> None:
    runs = {f"case_{index}": [index / 10] * 40 for index in range(10)}
    few = mean_interval({eval_id: values[:1] for eval_id, values in runs.items()})
    assert mean_interval(runs) == pytest.approx(few)


@example([[0.0], [2.2250738585e-313]])
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=2, max_size=20))
@settings(deadline=None, max_examples=40)
def test_the_interval_holds_its_mean_and_stays_in_range(runs: list[list[float]]) -> None:
    interval = mean_interval({str(index): values for index, values in enumerate(runs)})
    if interval is not None:
        low, high = interval
        assert min(map(min, runs)) - 1e-9 <= low <= high <= max(map(max, runs)) + 1e-9 or set(sum(runs, [])) <= {0, 1}  # noqa: RUF017


def test_the_same_scores_give_the_same_interval() -> None:
    values = cases(0.2, 0.5, 0.9, 0.4, 0.8)
    assert mean_interval(values) == mean_interval(dict(values))


def test_many_cases_fit_in_memory() -> None:
    low, high = mean_interval(cases(*[(index * 37 % 100) / 100 for index in range(30_000)])) or (0, 0)
    assert 0.49 < low < 0.495 < high < 0.5


def test_a_count_that_is_zero_everywhere_is_no_proportion() -> None:
    assert mean_interval(cases(0, 0, 0, 0), proportion=False) is None
