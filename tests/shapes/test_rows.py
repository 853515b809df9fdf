from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mlflow_adk_eval.config.spec import Need
from mlflow_adk_eval.criteria.transcript import content_material, tool_material
from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.material import Material
from mlflow_adk_eval.evalset.models import EvalCase, FunctionCall, Invocation, SessionInput
from mlflow_adk_eval.shapes.answers import is_missing
from mlflow_adk_eval.shapes.records import cells_of
from mlflow_adk_eval.shapes.rows import CELLS, Row, row_of
from tests.kit import message, turn_json

SWITCH = {"name": "switch", "args": {"room": "hall"}}
HEAT = {"name": "heat", "args": {"to": 21}}
TURN = turn_json("light on", "it is on", SWITCH)
CASE = {"eval_id": "lights", "conversation": [TURN], "session_input": {"app_name": "house", "user_id": "u"}}
SESSION = {"app_name": "house", "user_id": "me", "state": {"owner": "x"}}

RESPONSE = "targets"


def lacks(row: Row) -> set[Need]:
    """What is unknown of a row."""
    return {entry.what for entry in row.conversation.unknown}


def calls(turn: Invocation) -> list[tuple[str | None, Any]]:
    return [(call.name, call.args) for call in turn.tool_calls]


def said(row: Row) -> list[str]:
    return [turn.final_text for turn in row.conversation.actual]


def wanted(row: Row) -> list[str]:
    return [turn.final_text for turn in row.case.conversation or ()]


class TestPredictions:
    @pytest.mark.parametrize(
        ("cell", "texts"),
        [
            ("it is on", ["it is on"]),
            ("", [""]),
            (TURN, ["it is on"]),
            ([TURN, "bye"], ["it is on", "bye"]),
            ((TURN,), ["it is on"]),
            (np.array(["a", "b"], dtype=object), ["a", "b"]),
            (np.str_("a"), ["a"]),
            (Invocation.model_validate(TURN), ["it is on"]),
            ({"final_response": "it is on"}, ["it is on"]),
            ('["a", "b"]', ['["a", "b"]']),
            ([], []),
            ([None], [""]),
        ],
        ids=repr,
    )
    def test_say_what_the_agent_answered(self, cell: Any, texts: list[str]) -> None:
        assert said(row_of({"predictions": cell})) == texts

    @pytest.mark.parametrize("cells", [{}, {"predictions": None}, {"predictions": float("nan")}, {"predictions": pd.NA}], ids=repr)
    def test_are_the_one_cell_that_there_must_be(self, cells: dict[str, Any]) -> None:
        with pytest.raises(EvalSetError, match=r"row 7: 1 problem.*\n  \$\.predictions: found nothing; wanted the agent's turns"):
            row_of(cells, "row 7")

    def test_get_the_user_s_words_of_the_case(self) -> None:
        row = row_of({"predictions": ["a", "b"], "inputs": ["one", "two"]})
        assert [turn.user_text for turn in row.conversation.actual] == ["one", "two"]

    def test_keep_the_user_s_words_of_their_own(self) -> None:
        assert row_of({"predictions": TURN, "inputs": "something else"}).conversation.actual[0].user_text == "light on"


class TestTargets:
    @pytest.mark.parametrize(
        ("cell", "texts"),
        [("it is on", ["it is on"]), (TURN, ["it is on"]), ([TURN, "bye"], ["it is on", "bye"]), (CASE, ["it is on"]), ("", [""])],
        ids=repr,
    )
    def test_say_what_it_should_have_answered(self, cell: Any, texts: list[str]) -> None:
        assert wanted(row_of({"predictions": "x", "targets": cell})) == texts

    @pytest.mark.parametrize(("turns", "expected"), [("a", 1), (["a", "b", "c"], 3), ([], 0)], ids=repr)
    def test_may_be_missing(self, turns: Any, expected: int) -> None:
        row = row_of({"predictions": turns})
        assert wanted(row) == [""] * expected
        assert "expected_response" in lacks(row)

    def test_may_be_a_case_with_all_it_holds(self) -> None:
        assert row_of({"predictions": TURN, "targets": CASE}).case == EvalCase.model_validate(CASE)

    def test_may_be_a_case_that_is_an_object(self) -> None:
        case = EvalCase.model_validate(CASE)
        assert row_of({"predictions": TURN, "targets": case}).case is case

    def test_a_case_without_a_name_is_called_as_the_row_is(self) -> None:
        assert row_of({"predictions": "x", "targets": {"conversation": [TURN]}}, "row 3").case.eval_id == "row 3"
        assert row_of({"predictions": "x", "targets": {"conversation": [TURN]}, "eval_id": "mine"}, "row 3").case.eval_id == "mine"

    def test_may_be_a_scenario(self) -> None:
        target = {"conversation_scenario": {"starting_prompt": "hi", "conversation_plan": "ask"}}
        assert row_of({"predictions": ["a", "b"], "targets": target}).case.conversation is None

    def test_of_another_length_are_kept_as_they_are(self) -> None:
        row = row_of({"predictions": ["a"], "targets": ["a", "b"]})
        assert (len(row.conversation.actual), len(row.case.conversation or ())) == (1, 2)


class TestToolCalls:
    @pytest.mark.parametrize("cell", ["tool_calls", "expected_tool_calls"])
    @pytest.mark.parametrize(
        "value",
        [
            [SWITCH, HEAT],
            (SWITCH, HEAT),
            json.dumps([SWITCH, HEAT]),
            np.array([SWITCH, HEAT], dtype=object),
            [FunctionCall(name="switch", args={"room": "hall"}), HEAT],
            [{"name": "switch", "arguments": '{"room": "hall"}'}, {"name": "heat", "args": None, "arguments": {"to": 21}, "id": "7"}],
            [{"name": "switch", "args": {"room": np.str_("hall")}}, {"name": "heat", "args": {"to": np.int64(21)}}],
        ],
        ids=repr,
    )
    def test_are_read_in_every_form(self, cell: str, value: Any) -> None:
        row = row_of({"predictions": "done", "targets": "done", cell: value})
        turn = row.conversation.actual[0] if cell == "tool_calls" else (row.case.conversation or ())[0]
        assert calls(turn) == [("switch", {"room": "hall"}), ("heat", {"to": 21})]
        assert type((turn.tool_calls[1].args or {})["to"]) is int

    @pytest.mark.parametrize("value", [[], "[]", np.array([])], ids=repr)
    def test_may_be_none_at_all(self, value: Any) -> None:
        row = row_of({"predictions": "done", "tool_calls": value})
        assert calls(row.conversation.actual[0]) == []
        assert "calls" not in lacks(row)

    def test_without_arguments_have_none(self) -> None:
        assert calls(row_of({"predictions": "x", "tool_calls": [{"name": "ping"}]}).conversation.actual[0]) == [("ping", {})]

    def test_may_tell_what_the_tools_answered(self) -> None:
        told = [{**SWITCH, "response": {"ok": True}}, {**HEAT, "id": "7", "response": "21"}, {"name": "ping", "response": None}]
        answers = row_of({"predictions": "x", "tool_calls": told}).conversation.actual[0].tool_responses
        assert [(answer.id, answer.name, answer.response) for answer in answers] == [
            ("call_1", "switch", {"ok": True}),
            ("7", "heat", {"result": "21"}),
        ]

    @pytest.mark.parametrize("cell", ["tool_calls", "expected_tool_calls"])
    def test_take_the_place_of_those_in_an_invocation(self, cell: str) -> None:
        row = row_of({"predictions": TURN, "targets": TURN, cell: [HEAT]})
        actual, expected = row.conversation.actual[0], (row.case.conversation or ())[0]
        assert calls(actual if cell == "tool_calls" else expected) == [("heat", {"to": 21})]
        assert calls(expected if cell == "tool_calls" else actual) == [("switch", {"room": "hall"})]

    @pytest.mark.parametrize(
        "cells",
        [
            {"predictions": ["a", "b"], "tool_calls": [SWITCH]},
            {"predictions": "a", "targets": ["a", "b"], "expected_tool_calls": [SWITCH]},
            {"predictions": ["a", "b"], "expected_tool_calls": [SWITCH]},
            {"predictions": TURN, "targets": CASE, "expected_tool_calls": [SWITCH]},
            {"predictions": TURN, "targets": EvalCase.model_validate(CASE), "expected_tool_calls": []},
        ],
    )
    def test_of_a_cell_cannot_belong_to_a_conversation(self, cells: dict[str, Any]) -> None:
        with pytest.raises(EvalSetError, match="already contains the tool calls"):
            row_of(cells)


class TestLacks:
    @pytest.mark.parametrize(
        ("cells", "lacking"),
        [
            ({"predictions": "a"}, {"expected_response", "expected_calls", "calls"}),
            ({"predictions": "a", "targets": "a"}, {"expected_calls", "calls"}),
            ({"predictions": "a", "tool_calls": []}, {"expected_response", "expected_calls"}),
            ({"predictions": "a", "expected_tool_calls": [], "tool_calls": []}, {"expected_response"}),
            ({"predictions": TURN, "targets": TURN}, set()),
            ({"predictions": [TURN], "targets": [TURN]}, set()),
            ({"predictions": TURN, "targets": CASE}, set()),
            ({"predictions": TURN, "targets": EvalCase.model_validate(CASE)}, set()),
            ({"predictions": TURN, "targets": "a"}, {"expected_calls"}),
            ({"predictions": ["a", "b"], "targets": ["a", "b"]}, {"expected_calls", "calls"}),
            ({"predictions": [TURN, "b"], "targets": ["a", TURN]}, {"expected_calls", "calls"}),
            ({"predictions": TURN, "targets": float("nan"), "expected_tool_calls": None}, {"expected_response", "expected_calls"}),
        ],
    )
    def test_are_what_nobody_said(self, cells: dict[str, Any], lacking: set[str]) -> None:
        assert lacks(row_of(cells)) == lacking


class TestInputs:
    @pytest.mark.parametrize(
        ("inputs", "texts"),
        [
            ("hello", ["hello"]),
            (["hello"], ["hello"]),
            (np.array(["hello"]), ["hello"]),
            ({"question": "hello"}, ['{"question": "hello"}']),
            (None, [""]),
            (7, ["7"]),
        ],
        ids=repr,
    )
    def test_are_what_the_user_said(self, inputs: Any, texts: list[str]) -> None:
        assert [turn.user_text for turn in row_of({"predictions": "x", "inputs": inputs}).case.conversation or ()] == texts

    def test_give_way_to_what_the_targets_say(self) -> None:
        row = row_of({"predictions": "x", "inputs": "other words", "targets": TURN})
        assert [turn.user_text for turn in row.case.conversation or ()] == ["light on"]

    def test_are_as_many_as_there_are_turns(self) -> None:
        with pytest.raises(EvalSetError, match=r"\$\.inputs: found 2 texts; wanted as many as the 3 turns"):
            row_of({"predictions": ["a", "b", "c"], "inputs": ["a", "b"]})


class TestRubrics:
    def test_as_texts_are_for_every_criterion_that_judges_by_them(self) -> None:
        rubrics = row_of({"predictions": "x", "rubrics": ["polite", "short"]}).case.rubrics or ()
        assert {(rubric.rubric_id, rubric.rubric_content.text_property) for rubric in rubrics} == {
            ("rubric_1", "polite"),
            ("rubric_2", "short"),
        }
        assert {rubric.type for rubric in rubrics} == {"FINAL_RESPONSE_QUALITY", "TOOL_USE_QUALITY", "TRAJECTORY_QUALITY"}

    @pytest.mark.parametrize("form", [list, tuple, json.dumps, np.array])
    def test_keep_their_type(self, form: Callable[[Any], Any]) -> None:
        given = [{"rubric_id": "p", "rubric_content": {"text_property": "polite"}, "type": "TOOL_USE_QUALITY"}]
        (rubric,) = row_of({"predictions": "x", "rubrics": form(given)}).case.rubrics or ()
        assert (rubric.rubric_id, rubric.type) == ("p", "TOOL_USE_QUALITY")

    def test_join_those_of_the_case(self) -> None:
        own = {"rubric_id": "own", "rubric_content": {"text_property": "polite"}, "type": "TOOL_USE_QUALITY"}
        row = row_of({"predictions": "x", "targets": {**CASE, "rubrics": [own]}, "rubrics": ["short"]})
        assert [rubric.rubric_id for rubric in row.case.rubrics or ()] == ["own", "rubric_1", "rubric_1", "rubric_1"]


class TestSession:
    @pytest.mark.parametrize("given", [SESSION, json.dumps(SESSION), SessionInput.model_validate(SESSION)], ids=repr)
    def test_starts_as_its_cell_says(self, given: Any) -> None:
        assert row_of({"predictions": "x", "session_input": given}).case.session_input == SessionInput.model_validate(SESSION)

    @pytest.mark.parametrize("given", [{"n": 1}, '{"n": 1}', {"n": np.int64(1)}], ids=repr)
    def test_ends_in_a_state_that_may_be_expected(self, given: Any) -> None:
        row = row_of({"predictions": "x", "session_state": given, "expected_session_state": given})
        assert row.conversation.session_state == row.case.final_session_state == {"n": 1}

    def test_the_expected_state_beside_a_case_is_what_counts(self) -> None:
        row = row_of({"predictions": "x", "targets": {**CASE, "final_session_state": {"n": 1}}, "expected_session_state": {"n": 2}})
        assert row.case.final_session_state == {"n": 2}

    @pytest.mark.parametrize(
        "cells", [{}, {"session_state": None, "expected_session_state": float("nan")}, {"session_state": "null"}], ids=repr
    )
    def test_may_say_nothing_of_its_state(self, cells: dict[str, Any]) -> None:
        row = row_of({"predictions": "x", **cells})
        assert (row.conversation.session_state, row.case.final_session_state) == (None, None)


class TestHowItWent:
    def test_the_case_is_called_by_its_cell_or_as_the_row_is(self) -> None:
        assert row_of({"predictions": "x", "eval_id": np.int64(7)}).case.eval_id == "7"
        assert row_of({"predictions": "x"}, "row 2").case.eval_id == "row 2"

    @pytest.mark.parametrize(("given", "found"), [(2, 2), (2.0, 2), (np.int64(2), 2), (None, 0), (float("nan"), 0)], ids=repr)
    def test_the_run_is_a_whole_number_whatever_a_table_makes_of_it(self, given: Any, found: int) -> None:
        assert row_of({"predictions": "x", "run_index": given}).run_index == found

    @pytest.mark.parametrize(
        ("given", "found"), [(True, True), (np.array([True])[0], True), (1.0, True), (0.0, False), (None, False)], ids=repr
    )
    def test_unfinished_is_a_truth_value_whatever_a_table_makes_of_it(self, given: Any, found: bool) -> None:
        played = row_of({"predictions": "x", "error": "boom", "unfinished": given}).conversation
        assert (played.unfinished, played.error) == (found, "boom")

    def test_a_turn_that_is_unfinished_is_an_error_even_if_nobody_says_why(self) -> None:
        assert row_of({"predictions": "x", "unfinished": True}).conversation.error == "its last turn is unfinished"

    @pytest.mark.parametrize("given", [None, float("nan"), pd.NA, ""], ids=repr)
    def test_no_error_is_none(self, given: Any) -> None:
        assert row_of({"predictions": "x", "error": given}).conversation.error == ""


BAD: list[tuple[str, Any, str]] = [
    ("predictions", 42, r"row 5, predictions: .*\n  \$: found 42; wanted a text, an Invocation or a dict of one"),
    ("predictions", {"final_respons": "x"}, r"\$\.final_respons: .*Did you mean 'final_response'"),
    ("predictions", [{"user_content": 3}], r"row 5, predictions: .*\n  \$\.user_content: found 3; wanted an object"),
    ("predictions", Decimal("NaN"), r"\$\.predictions: found nothing; wanted the agent's turns"),
    ("targets", 42, r"row 5, targets: .*\n  \$: found 42; wanted a text, an Invocation or a dict of one"),
    ("targets", {"conversation": "hello"}, r"row 5, targets: .*\n  \$\.conversation: found 'hello'; wanted a list"),
    ("rubrics", "be polite", r"\$\.rubrics: found a text that is not JSON .*; wanted rubrics for the judge"),
    ("rubrics", {"rubric_id": "p"}, r"\$\.rubrics: found an object with rubric_id; wanted rubrics for"),
    ("rubrics", [7], r"row 5, rubrics: .*\n  \$\[0\]: found 7; wanted an object"),
    ("session_input", {"user_id": "u"}, r"row 5, session_input: .*\n  \$\.app_name: found nothing"),
    ("session_input", [1], r"\$\.session_input: found a list of 1; wanted the session"),
    ("session_state", [1], r"\$\.session_state: found a list of 1; wanted the session state"),
    ("session_state", "on", r"\$\.session_state: found a text that is not JSON"),
    ("expected_session_state", 3, r"\$\.expected_session_state: found 3; wanted the expected session state after the last turn"),
    ("run_index", -1, r"\$\.run_index: found -1; wanted which run"),
    ("run_index", 1.5, r"\$\.run_index: found 1\.5; wanted which run"),
    ("run_index", float("inf"), r"\$\.run_index: found Infinity; wanted which run"),
    ("run_index", "one", r"\$\.run_index: found 'one'; wanted which run"),
    ("error", 7, r"\$\.error: found 7; wanted a text"),
    ("unfinished", "false", r"\$\.unfinished: found 'false'; wanted whether"),
    ("unfinished", 2, r"\$\.unfinished: found 2; wanted whether"),
    ("unknown", "calls", r"\$\.unknown: found a text that is not JSON .*; wanted what nobody could see"),
    ("unknown", [{"what": "state", "why": 3}], r"row 5, unknown: .*\n  \$\[0\]\.why: found 3"),
]


UNREADABLE: list[tuple[str, Any, str]] = [
    ("tool_calls", "switch(hall)", r"\$\.tool_calls: found a text that is not JSON .*; wanted a list of tool calls"),
    ("tool_calls", '{"name": "x"}', r"\$\.tool_calls: found an object with name; wanted a list of tool calls"),
    ("tool_calls", 3, r"\$\.tool_calls: found 3; wanted a list of tool calls"),
    ("tool_calls", [SWITCH, "heat"], r"\$\.tool_calls\[1\]: found 'heat'; wanted a tool call: \{\"name\", \"args\"\}"),
    ("tool_calls", [{"args": {}}], r"\$\.tool_calls\[0\]: found an object with args; wanted a tool call"),
    ("tool_calls", [{"name": "x", "arg": {}}], r"\$\.tool_calls\[0\]: found unknown keys arg; wanted name, args, response and id"),
    ("tool_calls", [{"name": "x", "args": [1]}], r"\$\.tool_calls\[0\]\.args: found a list of 1; wanted an object"),
    ("expected_tool_calls", [{"name": "x", "arguments": "{"}], r"\$\.expected_tool_calls\[0\]\.arguments: found a text that is not JSON"),
    ("tool_calls", [{"name": "x", "arguments": "3"}], r"\$\.tool_calls\[0\]\.arguments: found 3; wanted an object"),
    ("tool_calls", [{"name": "x", "args": float("nan")}], r"\$\.tool_calls\[0\]\.args: found NaN; wanted an object"),
    ("tool_calls", [float("nan")], r"\$\.tool_calls\[0\]: found NaN; wanted a tool call"),
    ("tool_calls", "[" * 100_000, r"\$\.tool_calls: found a text that is"),
]


@pytest.mark.parametrize(("cell", "value", "reason"), UNREADABLE, ids=[f"{cell}-{value!r:.40}" for cell, value, _ in UNREADABLE])
def test_calls_that_cannot_be_read_are_unknown_and_cost_no_more(cell: str, value: Any, reason: str) -> None:
    row = row_of({"predictions": "x", "targets": "x", "tool_calls": [], "expected_tool_calls": [], cell: value}, "row 5")
    need: Need = "calls" if cell == "tool_calls" else "expected_calls"
    (unknown,) = row.conversation.unknown
    assert unknown.what == need
    assert re.match(r"the row has tool calls that cannot be read \(" + reason, unknown.why)
    assert re.match(reason, row.unreadable)
    assert (row.conversation.actual[0].final_text, wanted(row)) == ("x", ["x"])


@pytest.mark.parametrize(("cell", "value", "message"), BAD, ids=[f"{cell}-{value!r}" for cell, value, _ in BAD])
def test_a_bad_cell_is_one_clear_error(cell: str, value: Any, message: str) -> None:
    with pytest.raises(EvalSetError, match=message) as caught:
        row_of({"predictions": "x", cell: value}, "row 5")
    assert str(caught.value).startswith("row 5")
    assert len(caught.value.problems) == 1


def test_every_cell_can_be_bad_or_takes_anything() -> None:
    """What the user says and the name of a case can be any value, as its text."""
    assert {cell for cell, _, _ in BAD + UNREADABLE} | {"inputs", "eval_id"} == set(CELLS)


@pytest.mark.parametrize("value", [None, float("nan"), np.nan, np.float32("nan"), pd.NA, pd.NaT], ids=repr)
def test_a_table_has_many_ways_to_say_nothing(value: Any) -> None:
    assert is_missing(value)
    row = row_of({"predictions": "x", **{name: value for name in CELLS if name != "predictions"}}, "row 1")
    assert row == row_of({"predictions": "x"}, "row 1")


@pytest.mark.parametrize("value", ["", 0, False, 0.0, [], {}, np.float32(1), np.array([np.nan])], ids=repr)
def test_nothing_else_is_missing(value: Any) -> None:
    assert not is_missing(value)


def test_rows_of_a_parquet_file(tmp_path: Path) -> None:
    """Arrow gives lists as arrays of numpy, also inside dicts."""
    content = {"role": "user", "parts": [{"text": "hello"}]}
    frame = pd.DataFrame(
        {
            "inputs": [["one", "two"]],
            "predictions": [[{"user_content": content, "intermediate_data": {"tool_uses": [SWITCH]}}, {"user_content": content}]],
            "targets": [["yes", "no"]],
            "rubrics": [["polite"]],
        }
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    read = pd.read_parquet(tmp_path / "rows.parquet").to_dict("records")[0]
    assert isinstance(read["predictions"], np.ndarray)
    row = row_of(read)
    assert [calls(turn) for turn in row.conversation.actual] == [[("switch", {"room": "hall"})], []]
    assert [turn.user_text for turn in row.case.conversation or ()] == ["one", "two"]
    assert wanted(row) == ["yes", "no"]
    assert lacks(row) == {"expected_calls"}


def test_what_is_read_is_not_what_the_table_holds() -> None:
    cell = {"predictions": [TURN], "session_state": {"n": 1}}
    before = json.dumps(cell)
    row = row_of(cell)
    assert row.conversation.actual[0].user_content == message("user", "light on")
    assert json.dumps(cell) == before


PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="
BLOCKS: dict[str, tuple[dict[str, Any], str]] = {
    "OpenAI's image": ({"type": "image_url", "image_url": {"url": PNG}}, "a file (image/png)"),
    "an address": ({"type": "image_url", "image_url": {"url": "https://x.org/a/chart.png?key=1"}}, "chart.png (image/png)"),
    "a response's image": ({"type": "input_image", "image_url": PNG}, "a file (image/png)"),
    "audio": ({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}, "a file (audio/wav)"),
    "a file": (
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        "a.pdf (application/pdf)",
    ),
    "a response's file": ({"type": "input_file", "filename": "a.pdf", "file_data": "aGk="}, "a.pdf (application/pdf)"),
    "Anthropic's image": (
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/"}},
        "a file (image/jpeg)",
    ),
    "LangChain's audio": ({"type": "audio", "base64": "aGk=", "mime_type": "audio/mpeg"}, "a file (audio/mpeg)"),
    "something new": ({"type": "hologram", "rays": 3}, "a block of type hologram"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_media_of_a_chat_are_parts_of_its_messages(name: str) -> None:
    block, shown = BLOCKS[name]
    content = [{"type": "text", "text": "See."}, block]
    outputs = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": content}]}
    cells = cells_of({"messages": outputs["messages"][:1]}, outputs, {"expected_response": {"role": "assistant", "content": content}})
    row = row_of(cells)
    (did,), (wanted,) = row.conversation.actual, row.case.conversation or ()
    for one in (did, wanted):
        for content_of_side in (one.user_content, one.final_response):
            material = content_material(content_of_side)
            assert (content_of_side.text if content_of_side else "", [str(media) for media in material.unshown]) == ("See.", [shown])


def test_the_words_of_a_spoken_answer_are_its_text_and_nothing_of_it_is_left_out() -> None:
    spoken = {"role": "assistant", "content": None, "audio": {"id": "a", "data": "aGk=", "transcript": "Good day."}}
    (turn,) = row_of(cells_of({"q": "hi"}, spoken)).conversation.actual
    assert content_material(turn.final_response) == Material("Good day.", ())


def test_an_image_that_a_model_drew_or_a_tool_returned_stays() -> None:
    drawn = {"output": [{"type": "image_generation_call", "result": "iVBORw0KGgo="}, {"role": "assistant", "content": "Here."}]}
    (turn,) = row_of(cells_of({"q": "hi"}, drawn)).conversation.actual
    assert content_material(turn.final_response).text == "Here.\n[image/png]"
    returned = {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "plot", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
            {"role": "assistant", "content": "Here."},
        ]
    }
    (turn,) = row_of(cells_of({"q": "hi"}, returned)).conversation.actual
    assert list(map(str, tool_material(turn).unshown)) == ["a file (image/png)"]


def test_an_image_among_the_inputs_belongs_to_the_message() -> None:
    row = row_of(cells_of({"question": "What is it?", "photo": PNG}, "A cat.", {"expected_response": "A cat."}))
    material = content_material(row.conversation.actual[0].user_content)
    assert list(map(str, material.unshown)) == ["photo (image/png)"]
