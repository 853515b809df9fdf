from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.files import dump, dumps, parse_eval_set
from mlflow_adk_eval.evalset.models import EvalSet, IntermediateData, Invocation, InvocationEvents, UserPersona
from mlflow_adk_eval.evalset.parse import unknown_keys
from tests.strategies import CARRIED, QUICK, USER_DATA, eval_sets, respelt

TURN = {"user_content": {"parts": [{"text": "hi"}]}}


def parse(value: Any) -> EvalSet:
    return parse_eval_set(json.dumps(value).encode(), "set.json", stem="set")


def set_of(*turns: Any, **case: Any) -> dict[str, Any]:
    return {"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation": list(turns)} | case]}


def turn_of(eval_set: EvalSet, index: int = 0) -> Invocation:
    conversation = eval_set.eval_cases[0].conversation
    assert conversation is not None
    return conversation[index]


@QUICK
@given(eval_sets())
def test_what_is_read_is_written_back_key_by_key(value: Any) -> None:
    assert dump(parse(value)) == value


@QUICK
@given(eval_sets(allow_nan=True))
def test_what_is_written_reads_as_the_same_models(value: Any) -> None:
    once = dumps(parse(value))
    assert dumps(parse_eval_set(once.encode(), "again.json", stem="set")) == once


@QUICK
@given(eval_sets(), st.integers(0, 2**32))
def test_both_spellings_read_the_same_at_every_level(value: Any, seed: int) -> None:
    assert parse(respelt(value, seed, keep=USER_DATA | CARRIED)) == parse(value)


@pytest.mark.parametrize("absent", [None, {"b": None}, [None, {"c": None}], {"deep": [{"x": {"y": None}}]}])
def test_null_inside_user_data_is_not_an_absent_key(absent: Any) -> None:
    args = {"a": absent}
    value = set_of(
        TURN | {"intermediate_data": {"tool_uses": [{"name": "f", "args": args}], "tool_responses": [{"name": "f", "response": args}]}},
        session_input={"app_name": "a", "user_id": "u", "state": args},
        final_session_state=args,
    )
    assert json.loads(dumps(parse(value))) == value


def test_null_as_the_value_of_a_field_is_the_same_as_absence() -> None:
    part = dict.fromkeys(("video_metadata", "thought", "inline_data", "function_call"))
    turn = {"user_content": {"parts": [{"text": "hi"} | part], "role": None}, "final_response": None, "intermediate_data": None}
    assert dump(parse(set_of(turn))) == set_of(TURN)
    assert turn_of(parse(set_of(turn))).user_content.parts == turn_of(parse(set_of(TURN))).user_content.parts


def test_nan_and_infinity_in_arguments_survive() -> None:
    text = json.dumps(set_of(TURN | {"intermediate_data": {"tool_uses": [{"name": "f", "args": {"n": math.nan, "i": [-math.inf]}}]}}))
    again = parse_eval_set(dumps(parse_eval_set(text.encode(), "x", stem="x")).encode(), "x", stem="x")
    args = turn_of(again).tool_calls[0].args
    assert args is not None
    assert math.isnan(args["n"])
    assert args["i"] == [-math.inf]


def test_numbers_keep_their_type() -> None:
    args = {"int": 1, "float": 1.0, "true": True, "big": 10**300, "text": "1"}
    read = turn_of(parse(set_of(TURN | {"intermediate_data": {"tool_uses": [{"name": "f", "args": args}]}}))).tool_calls[0].args
    assert read is not None
    assert [(type(value), value) for value in read.values()] == [(type(value), value) for value in args.values()]


def test_a_half_surrogate_pair_from_a_tool_does_not_prevent_writing() -> None:
    turn = Invocation.model_validate(TURN | {"intermediate_data": {"tool_uses": [{"name": "f", "args": {"file": "a\udce9b"}}]}})
    assert json.loads(dumps(turn))["intermediate_data"]["tool_uses"][0]["args"] == {"file": "a?b"}


LEVELS = {
    "set": lambda extra: set_of(TURN) | extra,
    "case": lambda extra: set_of(TURN, **extra),
    "session input": lambda extra: set_of(TURN, session_input={"app_name": "a", "user_id": "u"} | extra),
    "invocation": lambda extra: set_of(TURN | extra),
    "content": lambda extra: set_of({"user_content": {"role": "user"} | extra}),
    "part": lambda extra: set_of({"user_content": {"parts": [{"text": "hi"} | extra]}}),
    "intermediate data": lambda extra: set_of(TURN | {"intermediate_data": {"tool_uses": []} | extra}),
    "tool use": lambda extra: set_of(TURN | {"intermediate_data": {"tool_uses": [{"name": "f"} | extra]}}),
    "tool response": lambda extra: set_of(TURN | {"intermediate_data": {"tool_responses": [{"name": "f"} | extra]}}),
    "intermediate response": lambda extra: set_of(
        TURN | {"intermediate_data": {"intermediate_responses": [["a", [{"text": "t"} | extra]]]}}
    ),
    "invocation events": lambda extra: set_of(TURN | {"intermediate_data": {"invocation_events": []} | extra}),
    "event": lambda extra: set_of(TURN | {"intermediate_data": {"invocation_events": [{"author": "a"} | extra]}}),
    "rubric": lambda extra: set_of(TURN, rubrics=[{"rubric_id": "r", "rubric_content": {"text_property": "t"}} | extra]),
    "rubric content": lambda extra: set_of(TURN, rubrics=[{"rubric_id": "r", "rubric_content": {"text_property": "t"} | extra}]),
    "app details": lambda extra: set_of(TURN | {"app_details": {"agent_details": {}} | extra}),
    "agent details": lambda extra: set_of(TURN | {"app_details": {"agent_details": {"a": {"name": "a"} | extra}}}),
    "scenario": lambda extra: scenario({"conversation_plan": "p"} | extra),
    "persona": lambda extra: scenario({"conversation_plan": "p", "user_persona": {"id": "i", "description": "d", "behaviors": []} | extra}),
}


def scenario(fields: Any) -> dict[str, Any]:
    return {"eval_set_id": "s", "eval_cases": [{"eval_id": "c", "conversation_scenario": {"starting_prompt": "hi"} | fields}]}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("extra", [{"": None, "nested": [{"a b": [1.5, None]}]}, [], 0, False, "天気"])
def test_unknown_fields_are_kept_and_written_back_at_every_level(level: str, extra: Any) -> None:
    value = LEVELS[level]({"zz_ours": extra, "zzTheirs": [extra]})
    assert dump(parse(value)) == value


SLIPS = {
    "set": ("descripton", "description"), "case": ("sesion_input", "session_input"), "session input": ("stat", "state"),
    "invocation": ("finalRespons", "final_response"), "content": ("prts", "parts"), "part": ("functon_call", "function_call"),
    "intermediate data": ("toolResponce", "tool_responses"), "tool use": ("arg", "args"), "tool response": ("responce", "response"),
    "intermediate response": ("thougt", "thought"), "event": ("contents", "content"), "rubric": ("descripton", "description"),
    "agent details": ("instruction", "instructions"), "scenario": ("user_person", "user_persona"),
}  # fmt: skip


@pytest.mark.parametrize(("level", "key", "field"), [(level, *slip) for level, slip in SLIPS.items()])
def test_a_key_that_is_nearly_an_absent_field_is_a_slip_of_the_pen(level: str, key: str, field: str) -> None:
    with pytest.raises(EvalSetError) as caught:
        parse(LEVELS[level]({key: {}}))
    (problem,) = caught.value.problems
    assert problem.path.endswith(f".{key}")
    assert problem.hint == f"Did you mean {field!r}?"


def test_a_key_that_is_nearly_a_field_which_is_there_too_is_kept() -> None:
    value = set_of(TURN | {"final_response": {}, "final_responses": ["ours"]})
    assert dump(parse(value)) == value


def test_fields_of_adk_that_are_only_carried_along_are_no_slips() -> None:
    part = {"text": "t", "thought_signature": "c2ln", "inline_data": {"mime_type": "a/b", "data": "aGk="}, "video_metadata": {"fps": 1.0}}
    call = {"name": "f", "partial_args": [{"json_path": "$.a"}], "will_continue": True}
    value = set_of({"user_content": {"parts": [part]}, "intermediate_data": {"tool_uses": [call]}})
    assert dump(parse(value)) == value


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ({}, IntermediateData),
        ({"tool_uses": []}, IntermediateData),
        ({"toolUses": []}, IntermediateData),
        ({"invocation_events": []}, InvocationEvents),
        ({"invocationEvents": [{"author": "a"}]}, InvocationEvents),
        ({"invocation_events": [], "theirs": 1}, InvocationEvents),
        ({"theirs": 1}, IntermediateData),
        (None, type(None)),
    ],
)
def test_the_keys_decide_the_shape_of_intermediate_data(data: Any, shape: type) -> None:
    assert type(turn_of(parse(set_of(TURN | {"intermediate_data": data}))).intermediate_data) is shape


def test_empty_events_stay_events() -> None:
    """ADK writes them as ``{}``, which it reads as the other shape."""
    eval_set = parse(set_of(TURN | {"intermediate_data": {"invocation_events": []}}))
    again = parse_eval_set(dumps(eval_set).encode(), "x", stem="x")
    assert isinstance(turn_of(again).intermediate_data, InvocationEvents)
    assert again == eval_set


def test_both_shapes_at_once_are_refused() -> None:
    with pytest.raises(EvalSetError, match="a field of InvocationEvents mixed with fields of another shape") as caught:
        parse(set_of(TURN | {"intermediate_data": {"invocation_events": [], "toolUses": [], "tool_responses": []}}))
    assert [problem.path for problem in caught.value.problems] == ["$.eval_cases[0].conversation[0].intermediate_data.invocation_events"]


def test_tool_calls_and_responses_come_from_either_shape() -> None:
    call, response = {"name": "f", "args": {"x": 1}}, {"name": "f", "response": {"y": 2}}
    by_hand = turn_of(parse(set_of(TURN | {"intermediate_data": {"tool_uses": [call], "tool_responses": [response]}})))
    events = [{"author": "a", "content": {"parts": [{"function_call": call}]}}, {"author": "a"}, {"author": "a", "content": {}}]
    events.append({"author": "a", "content": {"parts": [{"text": "…"}, {"function_response": response}]}})
    recorded = turn_of(parse(set_of(TURN | {"intermediate_data": {"invocation_events": events}})))
    assert recorded.tool_calls == by_hand.tool_calls
    assert recorded.tool_responses == by_hand.tool_responses
    silent = turn_of(parse(set_of(TURN)))
    assert (silent.tool_calls, silent.tool_responses, silent.events) == ([], [], ())
    assert len(recorded.events) == 4


def test_texts_are_joined_as_adk_joins_them_but_for_thoughts() -> None:
    parts = [{"text": "a"}, {"function_call": {"name": "f"}}, {"text": ""}, {"text": "hm", "thought": True}, {"text": "b"}]
    turn = turn_of(parse(set_of({"user_content": {"parts": parts}})))
    assert (turn.user_text, turn.final_text) == ("a\nb", "")


@pytest.mark.parametrize("persona", ["EXPERT", "NOVICE", "EVALUATOR"])
def test_a_persona_may_be_named(persona: str) -> None:
    value = scenario({"conversation_plan": "p", "user_persona": persona})
    assert dump(parse(value)) == value


def test_a_persona_may_be_spelt_out_in_either_spelling() -> None:
    behavior = {"name": "n", "description": "d", "behaviorInstructions": ["i"], "violation_rubrics": []}
    value = scenario({"conversationPlan": "p", "userPersona": {"id": "mine", "description": "d", "behaviors": [behavior]}})
    read = parse(value).eval_cases[0].conversation_scenario
    assert read is not None
    assert isinstance(read.user_persona, UserPersona)
    assert read.user_persona.behaviors[0].behavior_instructions == ("i",)


@pytest.mark.parametrize(
    ("persona", "hint"), [("novice", "Did you mean 'NOVICE'?"), ("EXPRET", "Did you mean 'EXPERT'?"), ("robot", ""), (5, "")]
)
def test_an_unknown_persona_is_one_clear_error(persona: Any, hint: str) -> None:
    with pytest.raises(EvalSetError, match="EXPERT, NOVICE, EVALUATOR") as caught:
        parse(scenario({"conversation_plan": "p", "user_persona": persona}))
    (problem,) = caught.value.problems
    assert problem.path == "$.eval_cases[0].conversation_scenario.user_persona"
    assert problem.hint == hint


@pytest.mark.parametrize("note", [{}, {"note": "an unknown field, which must not hide the error"}])
def test_a_case_is_either_written_or_a_scenario(note: Any) -> None:
    both = {"eval_id": "c", "conversation": [], "conversation_scenario": {"starting_prompt": "a", "conversation_plan": "b"}} | note
    for case, found in ((both, "both of them"), ({"eval_id": "c"} | note, "neither of them")):
        with pytest.raises(EvalSetError) as caught:
            parse({"eval_set_id": "s", "eval_cases": [case]})
        (problem,) = caught.value.problems
        assert (problem.path, problem.found) == ("$.eval_cases[0]", found)


def test_an_empty_conversation_counts_as_one() -> None:
    assert parse(set_of()).eval_cases[0].conversation == ()


def test_models_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse(set_of(TURN)).eval_set_id = "other"  # type: ignore[misc]


EXTRA_KEYS = (
    "tags",
    "note_of_mine",
    "user_contnt",
    "userContent",
    "eval_idd",
    "evalId",
    "tool_use",
    "invocationEvents",
    "rubrcs",
    "part",
    "texts",
    "roles",
    "cased",
)


def with_keys(value: Any, rng: random.Random) -> Any:
    """Return `value` with further keys in some of its objects, some of them nearly fields."""
    match value:
        case dict():
            found = {key: item if key in USER_DATA else with_keys(item, rng) for key, item in value.items()}
            return found | {rng.choice(EXTRA_KEYS): rng.choice(([], {}, "x", None, 1)) for _ in range(rng.randrange(2) * rng.randrange(2))}
        case list():
            return [with_keys(item, rng) for item in value]
        case _:
            return value


@QUICK
@given(value=eval_sets(), seed=st.integers(0, 2**32))
def test_whichever_way_unknown_keys_are_searched_the_same_are_refused(value: Any, seed: int) -> None:
    """Where nothing else is wrong, only the objects that pydantic names are searched."""
    changed = with_keys(value, random.Random(seed))
    adapter = TypeAdapter(EvalSet)
    try:
        adapter.validate_python(changed, extra="allow")
        refused = any(key.amiss for key in unknown_keys(EvalSet, changed))
    except ValidationError:
        refused = True
    try:
        parse(changed)
    except EvalSetError:
        assert refused
    else:
        assert not refused
