"""Bets are fair under the hypothesis however often one looks, and win where the mean is another."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.stats.betting import log_evidence, log_wealth

TWENTYFOLD = math.log(20)


@pytest.mark.parametrize("planned", [0.0, None])
@pytest.mark.parametrize("outcomes", [{-1.0: 0.05, 0.0: 0.95}, {-1.0: 0.3, 0.0: 0.45, 1.0: 0.25}, {-0.05: 1.0}])
def test_the_stake_is_fair_on_average_whatever_came_before(outcomes: dict[float, float], planned: float | None) -> None:
    # All ways that five cases may come, with their chances: the mean of the stake must be what it was at the start.
    assert sum(value * chance for value, chance in outcomes.items()) == pytest.approx(-0.05)
    for length in range(1, 6):
        stakes = (
            math.prod(map(outcomes.__getitem__, way)) * math.exp(log_wealth(way, -0.05, worst=-1.0, planned=planned, spread=0.1)[-1])
            for way in itertools.product(outcomes, repeat=length)
        )
        assert sum(stakes) == pytest.approx(1.0)


def test_looking_after_every_case_finds_a_drop_that_is_none_in_one_of_twenty_at_most() -> None:
    luck, found = np.random.default_rng(5), 0
    for _ in range(300):
        values = luck.choice([-1.0, 0.0, 1.0], size=400, p=[0.15, 0.75, 0.1])
        found += max(log_wealth(values.tolist(), -0.05, worst=-1.0, planned=0.0, spread=0.25)) >= TWENTYFOLD
    assert found <= 0.05 * 300 + 2.5 * math.sqrt(300 * 0.05 * 0.95)


def test_it_wins_where_the_mean_is_the_planned_one() -> None:
    luck = np.random.default_rng(6)
    ends = [
        log_wealth(luck.choice([-1.0, 0.0, 1.0], size=1500, p=[0.1, 0.8, 0.1]).tolist(), -0.05, worst=-1.0, planned=0.0) for _ in range(20)
    ]
    assert sum(max(end) >= TWENTYFOLD for end in ends) >= 19
    assert log_wealth([0.0] * 100, -0.05, worst=-1.0, planned=0.0)[-1] > TWENTYFOLD


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.5, 1.0]), min_size=1, max_size=30), st.floats(-1.0, 1.0))
def test_a_bet_depends_on_the_past_only_and_never_loses_everything(values: list[float], more: float) -> None:
    before = log_wealth(values, -0.1, worst=-1.0)
    assert log_wealth([*values, more], -0.1, worst=-1.0)[: len(values)] == before
    assert all(map(math.isfinite, before))


@pytest.mark.parametrize("outcomes", [{-1.0: 0.05, 0.0: 0.9, 1.0: 0.05}, {-0.2: 0.8, 0.8: 0.2}])
def test_evidence_of_a_change_is_fair_on_average(outcomes: dict[float, float]) -> None:
    for sizes in ((1,), (2, 1), (1, 1, 2)):
        mean = 0.0
        for way in itertools.product(outcomes, repeat=sum(sizes)):
            left = iter(way)
            groups = [list(itertools.islice(left, size)) for size in sizes]
            mean += math.prod(map(outcomes.__getitem__, way)) * math.exp(log_evidence(groups, planned=0.05)[-1])
        assert mean == pytest.approx(1.0)


def test_a_change_is_found_and_its_direction_does_not_matter() -> None:
    quiet, changed = [[0.0] * 9 + [0.2]] * 5, [[0.0] * 8 + [1.0, 0.2]] * 12
    up, down = (log_evidence([[sign * value for value in group] for group in [*quiet, *changed]], planned=0.05) for sign in (1, -1))
    assert up == pytest.approx(down)
    assert max(up[:5]) < TWENTYFOLD <= up[-1]
    assert log_evidence([], planned=0.05) == []
    assert log_evidence([[], []], planned=0.05) == pytest.approx([0.0, 0.0])
