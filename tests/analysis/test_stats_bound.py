"""The bound of a mean against its closed forms, against drawn weights, and by laws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtr, bdtrc

from mlflow_adk_eval.analysis.stats.bound import chance_of, mean_at_least

SCORES = st.lists(st.sampled_from([-1.0, -0.5, -0.125, 0.0, 0.25, 1.0]), min_size=1, max_size=40)


def chance_at_most(values: Sequence[float], limit: float, *, worst: float) -> float:
    return chance_of(np.append(values, worst), np.ones(len(values) + 1), limit)


@pytest.mark.parametrize("cases", [1, 2, 5, 20, 59, 200, 1000, 4000])
@pytest.mark.parametrize("drop", [0.3, 0.05, 0.001])
def test_cases_that_are_all_alike_exclude_a_drop_as_their_number_says(cases: int, drop: float) -> None:
    expected = (1 - drop) ** cases
    assert chance_at_most([0.0] * cases, -drop, worst=-1.0) == pytest.approx(expected, rel=1e-9, abs=1e-280)
    assert mean_at_least([0.0] * cases, 0.95, worst=-1.0) == pytest.approx(0.05 ** (1 / cases) - 1, rel=1e-6)


@pytest.mark.parametrize("cases", [1, 5, 20, 200, 3000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("limit", [0.05, 0.4, 0.9])
def test_passes_and_failures_have_clopper_and_pearsons_bound(cases: int, share: float, limit: float) -> None:
    passed = round(cases * share)
    expected = float(bdtrc(passed - 1, cases, limit)) if passed else 1.0
    found = chance_at_most([1.0] * passed + [0.0] * (cases - passed), limit, worst=0.0)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(("cases", "drop"), [(200, 0.05), (1000, 0.02), (1000, 0.05), (2000, 0.01)])
def test_about_as_many_losses_as_allowed_exclude_no_drop(cases: int, drop: float) -> None:
    counts = range(round(cases * drop) - 5, round(cases * drop) + 5)
    for gains in (0, 2):
        found = [chance_at_most([-1.0] * lost + [1.0] * gains + [0.0] * (cases - lost - gains), -drop, worst=-1.0) for lost in counts]
        assert found == sorted(found)
        exact = [float(bdtr(lost, cases, drop)) for lost in counts]
        assert (
            found == pytest.approx(exact, rel=1e-6) if not gains else all(0 < one < other for one, other in zip(found, exact, strict=True))
        )


@pytest.mark.parametrize("cases", [3, 10, 50])
def test_the_chance_is_that_of_means_with_drawn_weights(cases: int) -> None:
    luck = np.random.default_rng(cases)
    values = luck.choice([-1, -0.5, 0, 0, 0, 0.25, 1], size=cases)
    means = luck.dirichlet(np.ones(cases + 1), size=100_000) @ np.append(values, -1)
    for limit in (-0.4, -0.2, 0.0, 0.1):
        assert chance_at_most(values.tolist(), limit, worst=-1.0) == pytest.approx((means <= limit).mean(), abs=0.006)


@settings(max_examples=60, deadline=None)
@given(SCORES, st.floats(0.51, 0.9999))
def test_bound_and_chance_agree(values: list[float], confidence: float) -> None:
    bound = mean_at_least(values, confidence, worst=-1.0)
    assert -1.0 <= bound <= sum(values) / len(values)
    if bound > -1.0:
        assert chance_at_most(values, bound, worst=-1.0) == pytest.approx(1 - confidence, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(SCORES, st.floats(-0.99, 0.99), st.integers(0, 39), st.floats(0.0, 1.0))
def test_a_better_case_or_a_lower_limit_is_never_worse(values: list[float], limit: float, at: int, gain: float) -> None:
    chance = chance_at_most(values, limit, worst=-1.0)
    better = [*values]
    better[at % len(values)] += gain
    assert 0.0 <= chance <= 1.0
    assert chance_at_most(better, limit, worst=-1.0) <= chance + 1e-9
    assert chance_at_most(values, limit - 0.01, worst=-1.0) <= chance + 1e-9
    assert chance_at_most(values[::-1], limit, worst=-1.0) == pytest.approx(chance, rel=1e-9, abs=1e-15)


def test_many_cases_come_close_to_students_interval() -> None:
    values = np.random.default_rng(7).normal(0.0, 0.2, 4000).clip(-1, 1)
    student = float(values.mean()) - 1.645 * float(values.std()) / math.sqrt(len(values))
    assert mean_at_least(values.tolist(), 0.95, worst=-1.0) == pytest.approx(student, abs=3e-4)


def test_what_lies_beyond_all_values_is_certain() -> None:
    assert chance_at_most([0.2, 0.4], 0.5, worst=0.0) == 1.0
    assert chance_at_most([0.2, 0.4], -0.1, worst=0.0) == 0.0
    assert mean_at_least([0.0, 0.0], 0.95, worst=0.0) == 0.0
