"""What judges voted on in a cell, item by item."""

from __future__ import annotations

from dataclasses import replace

from mlflow_adk_eval.results.outcomes import Errored, Scored
from mlflow_adk_eval.results.table import item_results, votes_by_turn
from tests.tracking.judged import DOWN, HALF, LOST, LOST_RUBRIC, LOST_RUBRIC_VOTES, LOST_VOTES, MATCH_VOTES, RUBRIC_VOTES, SPLIT, TRIVIAL


def test_a_cell_about_one_thing_has_one_finding() -> None:
    (found,) = item_results(SPLIT, votes_by_turn(MATCH_VOTES)[0])
    assert (found.id, found.counts, found.dissent, found.split, found.settled) == (
        None,
        "valid 2, invalid 1",
        ("invalid: no room",),
        True,
        True,
    )


def test_each_rubric_has_a_finding_in_their_order() -> None:
    short, polite = item_results(HALF, RUBRIC_VOTES)
    assert (short.id, short.score, short.rationale, short.counts, short.split) == ("short", 1.0, "five words", "yes 2", False)
    assert (polite.id, polite.score, polite.counts, polite.dissent) == ("polite", 0.0, "no 2, yes 1", ("yes: it says please",))


def test_an_answer_that_no_judge_saw_has_findings_without_votes() -> None:
    assert [(found.id, found.score, dict(found.tally), found.settled) for found in item_results(TRIVIAL, ())] == [
        ("short", 0.0, {}, True),
        ("polite", 0.0, {}, True),
    ]


def test_without_a_verdict_the_votes_that_were_cast_are_still_there() -> None:
    (found,) = item_results(LOST, LOST_VOTES)
    assert (found.counts, found.errors, found.settled, found.split) == ("valid 1", (DOWN,), False, False)
    assert [(one.id, one.counts, one.score) for one in item_results(LOST_RUBRIC, LOST_RUBRIC_VOTES)] == [
        ("short", "yes 2", None),
        ("polite", "no 1", None),
    ]
    (split,) = item_results(LOST, [*LOST_VOTES, replace(LOST_VOTES[0], verdict="invalid")])
    assert split.split


def test_findings_may_stand_anywhere_in_the_details() -> None:
    sentence = {"id": "final #1", "verdict": "supported", "score": 1.0, "rationale": "as the tool says", "votes": {"supported": 3}}
    steps = Scored(1.0, "", {"steps": [{"step": "final", "score": 1.0, "sentences": [sentence]}]})
    assert [(found.id, found.score) for found in item_results(steps, ())] == [("final #1", 1.0)]
    ended = Scored(1.0, "", {"verdict": "valid", "votes": {"valid": 3}, "stop_signal": {"votes": {"valid": 2}}})
    votes = [MATCH_VOTES[0], replace(MATCH_VOTES[0], rubric_id="stop_signal", verdict="invalid")]
    assert [(found.id, found.counts) for found in item_results(ended, votes)] == [(None, "valid 1"), ("stop_signal", "invalid 1")]
    service = Scored(0.5, "", {"rubrics": [{"id": "r", "text": "t", "verdict": "yes", "rationale": "so"}], "confidence": 0.9})
    assert [(found.id, found.rationale) for found in item_results(service, ())] == [("r", "so")]


def test_details_without_findings_are_no_findings() -> None:
    assert item_results(Scored(1.0, "", {"prompt_tokens": 3, "nested": [{"votes": 2}]}), ()) == ()
    assert item_results(Errored("no turn"), ()) == ()


def test_a_vote_on_what_the_details_leave_out_is_settled_by_the_score() -> None:
    (found,) = item_results(Scored(4.0, "clear"), [replace(MATCH_VOTES[0], verdict="4")])
    assert (found.counts, found.settled) == ("4 1", True)
    signal = replace(MATCH_VOTES[0], rubric_id="stop_signal", verdict=None, error=DOWN)
    message, end = item_results(Scored(0.0, "rude", {"votes": {"invalid": 1}}), [replace(MATCH_VOTES[0], verdict="invalid"), signal])
    assert (message.settled, end.settled, end.errors) == (True, False, (DOWN,))
