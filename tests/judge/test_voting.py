"""The arithmetic of ballots, and the promise that stopping early changes no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import median_low

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.judge.voting import VoteCollector, early_verdict, needed
from mlflow_adk_eval.results.outcomes import Errored, Scored
from tests.judge.voting_kit import CELL, Judge, decided, question, response

LABELS = ("invalid", "valid")
GRADES = {str(grade): float(grade) for grade in range(1, 6)}


def majority(votes: Sequence[int]) -> float:
    """What ADK makes of a full ballot: more for than against, and a tie loses."""
    return float(votes.count(1) > votes.count(0))


@pytest.mark.parametrize("size", [*range(1, 9), *(pytest.param(size, marks=pytest.mark.slow) for size in range(9, 12))])
def test_stopping_early_gives_the_verdict_of_the_full_ballot_for_every_sequence_of_votes(size: int) -> None:
    asked = question()

    async def main() -> None:
        for votes in product((0, 1), repeat=size):
            judge = Judge([response(LABELS[vote]) for vote in votes])
            found = await VoteCollector(ask=judge, num_samples=size).decide(asked, CELL)
            assert found.results[0].outcome.score == majority(votes)  # type: ignore[union-attr]
            assert judge.asked == list(range(fewest(votes)))

    anyio.run(main)


def fewest(votes: Sequence[int]) -> int:
    """How many votes must be known before the rest cannot matter, found by trying out every rest."""
    for count in range(len(votes) + 1):
        rests = product((0, 1), repeat=len(votes) - count)
        if len({majority((*votes[:count], *rest)) for rest in rests}) == 1:
            return count
    raise AssertionError


@pytest.mark.parametrize("size", [1, 4, 5])
def test_every_vote_is_asked_for_where_early_stopping_is_turned_off(size: int) -> None:
    for votes in product((0, 1), repeat=size):
        judge = Judge([response(LABELS[vote]) for vote in votes])
        found = decided(VoteCollector(ask=judge, num_samples=size, early_stop=False))
        assert found.results[0].outcome.score == majority(votes)  # type: ignore[union-attr]
        assert judge.asked == list(range(size))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_the_verdict_on_a_scale_is_the_lower_middle_of_all_votes(votes: list[int]) -> None:
    judge = Judge([response(str(vote)) for vote in votes])
    found = decided(VoteCollector(ask=judge, num_samples=len(votes)), question(label_values=GRADES))
    assert found.results[0].outcome.score == median_low(votes)  # type: ignore[union-attr]
    assert len(found.votes) <= len(votes)


@given(st.lists(st.sampled_from([0.0, 1.0]), max_size=11), st.integers(1, 11))
def test_no_vote_is_asked_for_that_could_not_be_needed(votes: list[float], of: int) -> None:
    so_far = votes[:of]
    more = needed(so_far, of=of, values=(0.0, 1.0))
    assert (more == 0) == (early_verdict(so_far, of=of, lowest=0.0, highest=1.0) is not None)
    for fewer in range(more):
        for rest in product((0.0, 1.0), repeat=fewer):
            assert early_verdict([*so_far, *rest], of=of, lowest=0.0, highest=1.0) is None


@given(st.lists(st.lists(st.sampled_from(["yes", "no"]), min_size=3, max_size=3), min_size=7, max_size=7), st.integers(1, 7))
def test_each_of_several_rubrics_gets_the_verdict_of_its_own_full_ballot(table: list[list[str]], size: int) -> None:
    judge = Judge([response(*row) for row in table])
    found = decided(VoteCollector(ask=judge, num_samples=size), question("a", "b", "c", label_values={"yes": 1.0, "no": 0.0}))
    for column, result in enumerate(found.results):
        assert result.outcome == Scored(result.outcome.score, result.outcome.rationale, result.outcome.details)  # type: ignore[union-attr]
        assert result.outcome.score == majority([int(row[column] == "yes") for row in table[:size]])  # type: ignore[union-attr]
    assert len(found.votes) == 3 * len(judge.asked)


def test_failed_votes_are_replaced_within_a_bound_and_void_nothing() -> None:
    judge = Judge(
        [
            response(None),
            response("valid"),
            response(None),
            response("valid"),
            response("invalid"),
            response("valid"),
            response("valid"),
            response("valid"),
        ]
    )
    found = decided(VoteCollector(ask=judge, num_samples=5))
    assert found.results[0].outcome.score == 1.0  # type: ignore[union-attr]
    assert judge.asked == [0, 1, 2, 3, 4, 5]
    assert [vote.error for vote in found.votes].count("") == 4
    assert found.results[0].outcome.details["votes"] == {"valid": 3, "invalid": 1}  # type: ignore[union-attr]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_a_judge_that_only_fails_is_asked_a_bounded_number_of_times_and_gives_no_verdict(size: int) -> None:
    judge = Judge([response(None, error="503")] * 20)
    found = decided(VoteCollector(ask=judge, num_samples=size))
    assert len(judge.asked) == size + -(-size // 2)
    assert isinstance(found.results[0].outcome, Errored)
    assert "503" in found.results[0].outcome.error
    assert f"0 of {size} votes" in found.results[0].outcome.error


@given(st.lists(st.sampled_from(["valid", "invalid", None]), min_size=8, max_size=8))
def test_missing_votes_leave_a_verdict_only_where_they_could_not_change_it(labels: list[str | None]) -> None:
    judge = Judge([response(label) for label in labels])
    found = decided(VoteCollector(ask=judge, num_samples=5))
    usable = [int(label == "valid") for label in labels if label is not None][:5]
    possible = {majority((*usable, *rest)) for rest in product((0, 1), repeat=5 - len(usable))}
    outcome = found.results[0].outcome
    if len(possible) == 1:
        assert outcome.score == possible.pop()  # type: ignore[union-attr]
    else:
        assert isinstance(outcome, Errored)


def test_nobody_is_asked_again_once_there_is_no_point() -> None:
    judge = Judge([response(None, error="the budget is spent", final=True)] * 9)
    found = decided(VoteCollector(ask=judge, num_samples=5))
    assert judge.asked == [0, 1, 2]
    assert "the budget is spent (3 times)" in found.results[0].outcome.error  # type: ignore[union-attr]


def test_the_explanation_is_the_winning_sides_and_the_dissent_is_kept() -> None:
    judge = Judge([response("invalid"), response("valid"), response("valid"), response("valid")])
    found = decided(VoteCollector(ask=judge, num_samples=5))
    outcome = found.results[0].outcome
    assert outcome == Scored(1.0, "it is valid", {"votes": {"invalid": 1, "valid": 3}, "dissent": ["invalid: it is invalid"]})
    assert found.results[0].label == "valid"


def test_what_an_answer_on_several_items_cost_is_counted_once() -> None:
    found = decided(
        VoteCollector(ask=Judge([response("yes", "no")] * 5), num_samples=5), question("a", "b", label_values={"yes": 1.0, "no": 0.0})
    )
    assert sum(vote.input_tokens or 0 for vote in found.votes) == 10 * len({vote.vote_index for vote in found.votes}) == 30
    assert {(vote.rubric_id, vote.verdict) for vote in found.votes} == {("a", "yes"), ("b", "no")}


def test_the_counted_of_a_ballot() -> None:
    counts = []
    collector = VoteCollector(
        ask=Judge([response("yes", "no"), response("yes", "yes"), response("yes", "no"), response("yes", "no")]), count=counts.append
    )
    decided(collector, question("a", "b", label_values={"yes": 1.0, "no": 0.0}))
    (counted,) = counts
    assert (counted.calls_saved, counted.votes, counted.dissenting_votes, counted.split_ballots) == (1, 8, 1, 1)
