"""Eval cases as records of mlflow.genai, and what rows of such records say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, Invocation
from mlflow_adk_eval.shapes.records import (
    EXPECTATIONS,
    case_of,
    cells_of,
    has_answer,
    has_tools,
    outputs_of,
    record_of,
    with_turns,
)
from mlflow_adk_eval.shapes.rows import row_of
from tests.strategies import eval_cases
from tests.tracking.small import rooms, turn

LIGHT = rooms().eval_cases[0]
CASES = eval_cases().map(lambda case: EvalCase.model_validate({"eval_id": "c", **case}))


def said(case: EvalCase) -> list[str]:
    return [one.user_content.text for one in case.conversation or ()]


def test_a_record_holds_what_is_said_the_last_answer_and_the_whole_case() -> None:
    record = record_of(LIGHT)
    assert record["inputs"] == {
        "eval_id": "light",
        "messages": [{"role": "user", "content": "light on"}, {"role": "user", "content": "thanks"}],
    }
    assert record["expectations"]["expected_response"] == "you are welcome"
    assert EvalCase.model_validate(record["expectations"]["eval_case"]) == LIGHT


@given(CASES)
def test_a_case_survives_being_a_record(case: EvalCase) -> None:
    record = record_of(case)
    played = Conversation(actual=case.conversation or (), session_state={"turns": 1}, error="it broke", unfinished=True)
    row = row_of(cells_of(record["inputs"], outputs_of(played), record["expectations"]))
    assert row.case == case
    assert (row.conversation.actual, row.conversation.session_state, row.conversation.error) == (played.actual, {"turns": 1}, "it broke")


@given(CASES)
def test_what_an_agent_is_asked_is_what_the_case_says(case: EvalCase) -> None:
    asked = case_of(record_of(case)["inputs"])
    parts = [[one.user_content.parts or () for one in either.conversation or ()] for either in (asked, case)]
    assert parts[0] == parts[1]
    assert (asked.eval_id, asked.session_input, asked.conversation_scenario) == (
        case.eval_id,
        case.session_input,
        case.conversation_scenario,
    )


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ({"query": "hello"}, ["hello"]),
        ({"eval_id": "e", "anything": "hello"}, ["hello"]),
        ({"messages": ["one", "two"]}, ["one", "two"]),
        ({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]}, ["hello"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}, ["hello"]),
        ({"messages": [{"parts": [{"text": "hello"}]}]}, ["hello"]),
        ({"city": "Paris", "day": "today"}, ['{"city": "Paris", "day": "today"}']),
    ],
)
def test_the_user_text_is_found_in_whatever_the_inputs_call_it(inputs: dict[str, Any], texts: list[str]) -> None:
    assert said(case_of(inputs)) == texts
    cells = cells_of(inputs, {"conversation": [turn("", "x")] * len(texts)})
    assert cells["inputs"] == (texts if "messages" in inputs else texts[0])


def test_one_answer_is_to_the_last_message_of_a_chat() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "light on"}]
    row = row_of(cells_of({"messages": chat}, "the light is on", {"expected_response": "the light is on"}))
    assert said(row.case) == ["light on"]
    assert [one.user_text for one in row.conversation.actual] == ["light on"]


def test_a_later_expectation_about_the_same_counts_and_a_case_says_it_all() -> None:
    expectations = {
        "eval_case": record_of(LIGHT)["expectations"]["eval_case"],
        "expected_response": "x",
        "expected_tool_calls": [{"name": "y"}],
    }
    cells = cells_of({"query": "q"}, "a", expectations)
    assert cells["targets"] == expectations["eval_case"]
    assert "expected_tool_calls" not in cells
    assert {"expected_response", "eval_case", "expected_tool_calls"} < set(EXPECTATIONS)


def test_outputs_that_nothing_did_are_refused() -> None:
    with pytest.raises(EvalSetError, match=r"my row: 1 problem.*\n.*outputs: found an object with score; wanted a text"):
        cells_of({"query": "q"}, {"score": 1}, source="my row")


@pytest.mark.parametrize(
    ("outputs", "tells", "answers"),
    [
        ("the light is on", False, True),
        ({"response": "the light is on"}, False, True),
        ({"final_response": {"parts": [{"text": "the light is on"}]}}, False, True),
        ({"response": "the light is on", "tool_calls": []}, True, True),
        ({"conversation": []}, True, False),
        ({"intermediate_data": {}}, True, False),
        (None, False, False),
        ("", False, False),
    ],
)
def test_whether_outputs_tell_of_tools_and_hold_an_answer(outputs: Any, tells: bool, answers: bool) -> None:
    assert (has_tools(outputs), has_answer(outputs)) == (tells, answers)


def test_an_answer_takes_the_place_of_the_one_in_the_last_turn_only() -> None:
    turns = [Invocation.model_validate(turn("a", "one", ("switch", {"to": 1}))), Invocation.model_validate(turn("b", "two"))]
    told = with_turns({"response": "three", "session_state": {"n": 1}}, turns)
    assert [one.final_text for one in told["conversation"]] == ["one", "three"]
    assert told["conversation"][0] is turns[0]
    assert told["session_state"] == {"n": 1}
    assert [one.final_text for one in with_turns(None, turns)["conversation"]] == ["one", "two"]
    assert with_turns("three", ()) == {"conversation": []}


def test_a_scenario_is_asked_for_as_one() -> None:
    scenario = {"starting_prompt": "hi", "conversation_plan": "get the light on"}
    case = EvalCase.model_validate({"eval_id": "s", "conversation_scenario": scenario})
    assert case_of(record_of(case)["inputs"]) == case
