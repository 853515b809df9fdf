"""Whether a judge changed: found where it did, named once, and hardly ever found where it did not."""

from __future__ import annotations

import random

import pytest

from mlflow_adk_eval.analysis.drift import Anchored, anchors_to_find, changes_of


def history(seed: int, shifts: dict[int, float], runs: int = 30, anchors: int = 15) -> list[tuple[str, list[Anchored]]]:
    """Return the anchors of a judge on answers of its first three runs and of two since each change; `shifts`: since which run by how much."""
    rng, found = random.Random(seed), list[tuple[str, list[Anchored]]]()
    answers = [0, 1, 2, *(place for shift in shifts for place in (shift, shift + 1))]
    for run in range(runs):
        anchored: list[Anchored] = []
        for _ in range(anchors if run else 0):
            passes = rng.betavariate(4, 1)
            of = rng.choice([place for place in answers if place < run])
            before, now = (passes + max((at, size) for at, size in {-1: 0.0, **shifts}.items() if at <= place)[1] for place in (of, run))
            anchored.append((f"r{of}", (rng.random() < now) - sum(rng.random() < before for _ in range(5)) / 5))
        found.append((f"r{run}", anchored))
    return found


def test_a_change_is_found_with_its_size_its_direction_and_its_run() -> None:
    found = [changes_of(history(seed, {10: -0.3})) for seed in range(10)]
    assert all(len(changes) == 1 for changes, _ in found)
    changes = [change for (change,), _ in found]
    assert all(change.direction == "stricter" and change.low < -0.3 < change.high < 0 for change in changes)
    assert sum(change.since_run in ("r9", "r10", "r11") for change in changes) >= 8
    assert all({"r10", change.since_run} <= {*change.unsure} for change in changes)
    assert sum(len(change.unsure) <= 4 for change in changes) >= 8


def test_after_a_change_answers_from_before_it_say_nothing_of_another() -> None:
    (first, second), rest = changes_of(history(1, {9: -0.4, 25: 0.0}, runs=50))
    assert (first.direction, second.direction) == ("stricter", "more lenient")
    assert int(first.since_run[1:]) in range(8, 11)
    assert int(second.since_run[1:]) in range(24, 27)
    assert first.high < 0 < second.low
    assert rest, "answers since then are counted"


def test_a_judge_that_is_the_same_is_hardly_ever_said_to_have_changed() -> None:
    assert sum(bool(changes_of(history(seed, {}))[0]) for seed in range(60)) <= 4


def test_without_anchors_nothing_is_said() -> None:
    assert changes_of([]) == ([], [])
    assert changes_of([("a", []), ("b", [("", 0.0)])]) == ([], [0.0])
    assert changes_of([("a", [("a", 1.0), ("b", 1.0)]), ("b", [])]) == ([], []), "no answer is judged again before it was judged"


def test_a_change_in_the_first_run_has_nothing_before_it() -> None:
    (found,), _ = changes_of([(run, [("", 0.5)] * 40) for run in ("a", "b")])
    assert (found.since_run, found.direction) == ("a", "more lenient")
    assert found.low < 0.5 < found.high


@pytest.mark.parametrize(("differences", "least", "most"), [([0.0] * 20, 150, 400), ([1.0, -1.0] * 10, 1_000, 20_000)])
def test_how_many_anchors_a_change_takes_depends_on_how_unsure_the_judge_is(differences: list[float], least: int, most: int) -> None:
    needed = anchors_to_find(differences, 3)
    assert needed is not None
    assert least < needed < most
    assert anchors_to_find(differences, 3, size=0.0) is None
