from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.criteria.final_response import NAME, FinalResponseMatch
from mlflow_adk_eval.evalset.models import Content, Invocation
from mlflow_adk_eval.judge.prompt import load_prompt
from mlflow_adk_eval.results.outcomes import CriterionResult, Errored, Scored, Skipped
from tests.criteria.judged_kit import Bench, judged
from tests.kit import call, event, recorded, run_of, turn


def result(bench: Bench, actual: list[Invocation], expected: list[Invocation] | None, **more: Any) -> CriterionResult:
    settings = {key: more.pop(key) for key in ("include_intermediate_responses_in_final",) if key in more}
    return judged(FinalResponseMatch, NAME, bench, run_of(actual, expected, **more), **settings)


def test_the_score_is_the_share_of_valid_turns() -> None:
    bench = Bench(lambda question, _vote: {None: "invalid" if "wrong" in question.blocks[-1].text else "valid"})
    found = result(bench, [turn("42"), turn("wrong"), turn("43"), turn("wrong")], [turn("42")] * 4)
    assert [cell.score for cell in found.per_invocation if isinstance(cell, Scored)] == [1.0, 0.0, 1.0, 0.0]
    assert found.score == 0.5


def test_the_majority_decides_and_ties_lose() -> None:
    bench = Bench(lambda _question, vote: {None: ["valid", "invalid"][vote % 2]}, num_samples=4)
    (cell,) = result(bench, [turn("42")], [turn("42")]).per_invocation
    assert isinstance(cell, Scored)
    assert (cell.score, cell.details["verdict"], cell.details["votes"]) == (0.0, "invalid", {"valid": 2, "invalid": 2})
    assert cell.rationale == "invalid 2:2: It is invalid."


def test_the_judge_sees_the_response_last() -> None:
    bench = Bench("valid")
    result(bench, [turn("forty-two", user="what is it?")], [turn("42", user="what is it?")])
    assert bench.blocks == [{"user_message": "what is it?", "reference": "42", "response": "forty-two"}]
    assert list(bench.blocks[0])[-1] == "response"
    assert {question.prompt.name for question in bench.asked} == {NAME}


def test_the_judge_sees_what_the_user_really_said() -> None:
    """Quirk Q48: ADK shows the expected message, and "None" for one without text."""
    bench = Bench("valid")
    silent = turn("42").model_copy(update={"user_content": Content()})
    result(bench, [turn("42", user="really"), silent, silent], [turn("42", user="planned"), turn("42", user="planned"), silent])
    assert [blocks["user_message"] for blocks in bench.blocks] == ["really", "planned", "(no text)"]


@pytest.mark.parametrize("answer", [None, "", " \n", ":", "Thought process:", "Solution", "解"])
def test_an_answer_without_content_is_invalid_without_a_call(answer: str | None) -> None:
    bench = Bench("valid")
    found = result(bench, [turn(answer)], [turn("42")])
    assert (found.score, bench.asked, found.votes) == (0.0, [], ())
    assert isinstance(found.overall, Scored)


def test_an_answer_that_the_reference_gives_too_is_put_to_the_judge() -> None:
    bench = Bench("valid")
    assert result(bench, [turn("Solution")], [turn("solution")]).score == 1.0
    assert bench.asked


@pytest.mark.parametrize("reference", [None, "", "  "])
def test_without_a_reference_there_is_no_verdict(reference: str | None) -> None:
    bench = Bench("valid")
    found = result(bench, [turn("42"), turn("42")], [turn(reference), turn("42")])
    assert isinstance(found.per_invocation[0], Errored)
    assert "no final response" in found.per_invocation[0].error
    assert isinstance(found.per_invocation[1], Scored)
    assert isinstance(found.overall, Errored)
    assert len(bench.questions) == 1


def test_what_was_said_on_the_way_belongs_to_the_answer_if_the_config_says_so() -> None:
    said = recorded("done", event(call("f"), text="on it"))
    for included, text in ((False, "done"), (True, "on it\ndone")):
        bench = Bench("valid")
        result(bench, [said], [said], include_intermediate_responses_in_final=included)
        assert bench.blocks == [{"user_message": "hi", "reference": text, "response": text}]


def test_thoughts_are_no_answer() -> None:
    bench = Bench("valid")
    thought = Content.model_validate({"parts": [{"text": "the answer is 42", "thought": True}]})
    assert result(bench, [turn("x").model_copy(update={"final_response": thought})], [turn("42")]).score == 0.0
    assert bench.asked == []


def test_one_failed_vote_does_not_void_the_others() -> None:
    """Quirk Q1: in ADK it does."""
    bench = Bench(lambda _question, vote: {None: None if vote == 1 else "valid"}, early_stop=False)
    found = result(bench, [turn("42")], [turn("42")])
    assert found.score == 1.0
    assert [vote.verdict for vote in found.votes] == ["valid", None, "valid", "valid", "valid", "valid"]


def test_a_turn_without_verdict_does_not_leave_the_mean() -> None:
    """Quirk Q3: in ADK it does, so that the case passes on the rest."""
    bench = Bench(lambda question, _vote: {None: None if question.blocks[-1].text == "lost" else "valid"})
    found = result(bench, [turn("42"), turn("lost")], [turn("42")] * 2)
    assert isinstance(found.overall, Errored)
    assert "invocation 2 of 2" in found.overall.error
    assert "the judge left it out" in found.overall.error


def test_a_scenario_has_nothing_to_compare_with() -> None:
    bench = Bench("valid")
    found = result(bench, [turn("42")], None)
    assert isinstance(found.overall, Skipped)
    assert bench.asked == []


def test_missing_turns_are_errors_and_the_others_are_judged() -> None:
    bench = Bench("valid")
    found = result(bench, [turn("42")], [turn("42")] * 2)
    assert [type(cell) for cell in found.per_invocation] == [Scored, Errored]
    found = result(bench, [turn("42")] * 2, [turn("42")])
    assert [type(cell) for cell in found.per_invocation] == [Scored, Errored]


def test_votes_are_recorded_with_their_turn() -> None:
    found = result(Bench("valid"), [turn("42")] * 2, [turn("42")] * 2, run_index=3)
    assert [(vote.invocation_index, vote.vote_index, vote.run_index, vote.criterion, vote.rubric_id) for vote in found.votes] == [
        (turn_index, vote, 3, NAME, None) for turn_index in (0, 1) for vote in (0, 1, 2)
    ]


def test_the_prompt_names_each_block() -> None:
    bench = Bench("valid")
    result(bench, [turn("42")], [turn("42")])
    instructions = load_prompt(NAME).text
    assert all(f"`{name}`" in instructions for name in bench.blocks[0])
    assert all(f"`{label}`" in instructions for label in bench.asked[0].label_values)
