"""Alarms stay valid however often one looks, find drops, and do not take a judge's change for the agent's."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.stats.betting import log_wealth
from mlflow_adk_eval.production.alarms import ALPHA, CHANGES, HIGHEST, LOWEST, Drawn, Watched

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GOOD, BAD = [Drawn(400, 20, 1)], [Drawn(400, 20, 10)]


def watched(level: float = 0.9, **more: Any) -> Watched:
    return Watched(criterion="", level=level, **{"judged": False, **more})


def after(looks: Sequence[Sequence[Drawn]], one: Watched) -> Watched:
    for look in looks:
        one = one.after(look)
    return one


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import watching

    return watching


def expected_growth(one: Watched, strata: Sequence[tuple[int, int, float]]) -> float:
    """By how much the stake grows on average in one look, over all numbers of failures that there can be."""

    def averaged(rest: Sequence[tuple[int, int, float]], look: list[Drawn]) -> float:
        if not rest:
            return one.after(look).stakes[0]
        found, drawn, rate = rest[0]
        chances = [math.comb(drawn, failed) * rate**failed * (1 - rate) ** (drawn - failed) for failed in range(drawn + 1)]
        return sum(chance * averaged(rest[1:], [*look, Drawn(found, drawn, failed)]) for failed, chance in enumerate(chances))

    return averaged(strata, []) / (50 / (50 * 51))  # what is staked in the first look


@given(
    st.sampled_from([0.5, 0.9, 0.95, HIGHEST]),
    st.lists(st.tuples(st.integers(1, 500), st.integers(0, 4), st.floats(0, 1)), min_size=1, max_size=3),
)
def test_the_stake_does_not_grow_on_average_where_the_level_is_met(level: float, strata: list[tuple[int, int, float]]) -> None:
    found = sum(count for count, *_ in strata)
    failing = sum(count * rate for count, _, rate in strata) / found
    scale = min(1.0, (1 - level) / failing) if failing else 1.0  # so that exactly, or more than, the level passes
    met = [(count, drawn, rate * scale) for count, drawn, rate in strata]
    if any(drawn for _, drawn, _ in met):
        assert expected_growth(watched(level), met) <= 1 + 1e-9


def test_false_alarms_are_rare_and_drops_are_found(simulated: Any) -> None:
    false = simulated.watches(simulated.Week(level=0.9), 150)
    assert sum(cause == "agent" for cause, _ in false) <= 0.05 * 150
    for at in (1, 50):
        found = simulated.watches(simulated.Week(level=0.9, drop=0.1, change_at=at, looks=at + 60), 60)
        places = sorted(place - at + 1 for cause, place in found if cause and place >= at)
        assert len(places) >= 55
        assert places[len(places) // 2] * simulated.DRAWN <= 200


def test_a_judge_that_became_stricter_is_not_an_agent_that_became_worse(simulated: Any) -> None:
    week = simulated.Week(level=0.9, stricter=0.1, change_at=20, judged=True, looks=60)
    causes = [cause for cause, _ in simulated.watches(week, 15)]
    assert "agent" not in causes
    assert causes.count("judge") >= 10
    same = simulated.watches(simulated.Week(level=0.9, drop=0.15, change_at=20, judged=True, looks=80), 15)
    assert [cause for cause, _ in same].count("agent") >= 12
    assert "judge" not in [cause for cause, _ in same]


def test_a_drop_of_half_is_found_in_two_looks_and_nothing_is_tested_while_its_alarm_is_open() -> None:
    one = after([GOOD, BAD, BAD], watched())
    assert one.suspected(1)
    assert not one.suspected(10**6)
    accused = replace(one, cause="agent")
    assert accused.after(BAD) == accused
    assert not accused.suspected(1)
    assert accused.reset() == watched()


def test_failures_in_a_stratum_count_by_how_many_conversations_it_stands_for() -> None:
    few, many = [Drawn(20, 5, 5), Drawn(380, 15, 0)], [Drawn(20, 5, 0), Drawn(380, 15, 5)]
    assert watched().after(few).stakes < watched().after(many).stakes
    unseen = [Drawn(200, 0, 0), Drawn(200, 20, 4)]
    assert watched().after(unseen).stakes < watched().after([Drawn(400, 20, 4)]).stakes, "what was not drawn is taken to pass"
    assert watched().after([Drawn(400, 0, 0)]) == watched(), "a look that drew nothing says nothing"


def test_nobody_is_accused_before_earlier_conversations_were_judged_again() -> None:
    one = after([GOOD, BAD, BAD, BAD], watched(judged=True))
    assert one.suspected(1)
    assert not one.worth_asking(1, 0)
    assert one.worth_asking(1, 200)
    assert one.judged_again(1, [0.0] * 200).cause == "agent"
    changed = one.judged_again(1, [-1.0] * 80 + [0.0] * 120)
    assert (changed.cause, changed.asked, changed.tried, changed.judged_before) == ("judge", 1, 1, 200)
    unknown = one.judged_again(1, [-1.0, 1.0, -1.0] * 3)
    assert unknown.cause is None
    assert unknown.suspected(1)
    assert not unknown.worth_asking(1, 9), "the same answers would say as little again"


def test_the_first_answers_may_use_half_of_the_error_and_all_of_them_never_more_than_all() -> None:
    least = [ALPHA / ((asked + 1) * (asked + 2)) for asked in range(1000)]
    assert least[0] == ALPHA / 2
    assert sum(least) < ALPHA
    just = next(count for count in range(1, 500) if log_wealth([1.0] * count, 0.0, worst=-1.0, spread=0.05)[-1] >= math.log(1 / least[0]))
    one = replace(after([GOOD, BAD], watched(judged=True)), stakes=(1.0,) * len(CHANGES))
    assert one.judged_again(1, [-1.0] * just).cause == "judge"
    assert one.judged_again(1, [-1.0] * (just - 1)).cause is None


@pytest.mark.parametrize(
    "broken",
    [
        {"stakes": (0.0,)},
        {"stakes": (math.nan,)},
        {"stakes": (1.0, 1.0)},
        {"level": LOWEST / 2},
        {"level": 1.0},
        {"looks": -1},
        {"again": (math.inf,) * len(CHANGES)},
    ],
)
def test_numbers_of_which_nothing_follows_are_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no evidence about all criteria"):
        watched(**broken)


def test_a_stake_stays_a_number() -> None:
    rng = random.Random(1)
    one = after([[Drawn(400, 200, 200 - rng.randrange(3))] for _ in range(40)], watched(judged=True))
    assert all(math.isfinite(stake) and stake > 0 for stake in one.stakes)
    low = after([GOOD, BAD], watched(0.3, judged=True))
    assert low.stakes[-1] == pytest.approx(50 / (50 * 51) + 50 / (51 * 52)), "no share is lower than none, so nothing is bet on it"
