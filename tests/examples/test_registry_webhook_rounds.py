"""In which order the guard of the registry audits aliases, by a clock that stands still unless it is told to go on."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

GUARD = Path(__file__).parents[2] / "example_projects" / "registry_webhook" / "guard.py"


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("REGISTRY_WEBHOOK_SECRET", "0123456789abcdef")
    spec = importlib.util.spec_from_file_location("registry_webhook_guard", GUARD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rounds(guard: Any, clock: Clock) -> Any:
    return guard.Rounds(clock)


def test_forty_aliases_of_another_model_delay_ours_by_one_audit(rounds: Any, clock: Clock) -> None:
    for number in range(40):
        rounds.hear("theirs", f"alias_{number}")
    for _ in range(100):  # none of which can be restored, so that each is tried again
        first = rounds.take()
        assert rounds.take() is None, "two audits of one model at once"
        clock.now += 1
        rounds.done(first, "invalid")
    first = rounds.take()
    rounds.hear("ours", "champion")
    assert rounds.take() == ("ours", "champion"), "while theirs is still being audited"
    rounds.done(first, "invalid")
    rounds.done(("ours", "champion"), "settled")
    rounds.hear("ours", "champion")
    assert [rounds.take()[0] for _ in range(2)].count("ours") == 1, "ours was audited last, and waits for one audit of theirs"


def test_models_take_turns(rounds: Any) -> None:
    for model, count in (("one", 20), ("two", 5), ("three", 5)):
        for number in range(count):
            rounds.hear(model, f"alias_{number}")
    order = []
    for _ in range(15):
        key = rounds.take()
        order.append(key[0])
        rounds.done(key, "settled")
    assert Counter(order) == {"one": 5, "two": 5, "three": 5}


def test_an_alias_is_tried_again_after_ever_longer_waits_and_then_left(guard: Any, rounds: Any, clock: Clock) -> None:
    rounds.hear("ours", "champion")
    at = []
    for second in range(1000):
        clock.now = second
        if (key := rounds.take()) is not None:
            at.append(second)
            rounds.done(key, "invalid")
    assert at == [0, 2, 12, 72, 372]
    assert len(rounds) == 0
    assert guard.WAITS_S == (0, 2, 10, 60, 300)


def test_an_alias_that_cannot_be_audited_is_never_given_up(rounds: Any, clock: Clock) -> None:
    rounds.hear("ours", "champion")
    for _ in range(50):
        rounds.done(rounds.take(), "unknown")
        assert rounds.take() is None
        clock.now += 300
    assert rounds.take() == ("ours", "champion")


def test_an_alias_that_is_moved_while_it_is_audited_is_audited_again(rounds: Any) -> None:
    rounds.hear("ours", "champion")
    key = rounds.take()
    for _ in range(5):
        rounds.hear("ours", "champion")
    assert rounds.take() is None
    rounds.done(key, "settled")
    assert rounds.take() == key
    rounds.done(key, "settled")
    assert rounds.take() is None


def test_what_waits_is_bounded_and_nothing_is_forgotten(guard: Any, rounds: Any) -> None:
    for number in range(guard.MOST_WAITING + 500):
        rounds.hear("theirs", f"alias_{number}")
    rounds.hear("ours", "champion")
    assert len(rounds) == guard.MOST_WAITING + 1
    taken = [rounds.take(), rounds.take()]
    assert guard.EVERYTHING in taken, "which audits ours, too"
