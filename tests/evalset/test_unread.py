"""An expectation that nothing reads is an error that names its place, at any level and in any format; other unknown keys stay."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.files import load_eval_set, parse_eval_set
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.evalset.rows import open_cases
from mlflow_adk_eval.evalset.unread import place_of
from mlflow_adk_eval.tracking.dataset_records import Stored, cases_of

Json = dict[str, Any]
USER = {"parts": [{"text": "Where is parcel 7?"}]}
CALL = {"name": "find_parcel", "args": {"number": 7}}
EVENT = {"author": "agent", "content": {"parts": [{"text": "a"}]}}
SET: Json = {
    "eval_set_id": "desk",
    "eval_cases": [
        {
            "eval_id": "a",
            "session_input": {"app_name": "desk", "user_id": "u"},
            "conversation": [
                {"user_content": USER, "final_response": {"parts": [{"text": "x"}]}, "intermediate_data": {"tool_uses": [CALL]}},
                {"user_content": USER, "intermediate_data": {"invocation_events": [EVENT]}},
            ],
        },
        {"eval_id": "b", "conversation_scenario": {"starting_prompt": "p", "conversation_plan": "q"}},
    ],
}
CASE = ("eval_cases", 0)
TURN = (*CASE, "conversation", 0)
STEPS = (*TURN, "intermediate_data")
EVENTS = (*CASE, "conversation", 1, "intermediate_data")
LEVELS: dict[str, tuple[Any, ...]] = {
    "set": (),
    "case": CASE,
    "session": (*CASE, "session_input"),
    "turn": TURN,
    "steps": STEPS,
    "call": (*STEPS, "tool_uses", 0),
    "events": EVENTS,
    "event": (*EVENTS, "invocation_events", 0),
    "message": (*TURN, "final_response"),
    "part": (*TURN, "final_response", "parts", 0),
    "case with a scenario": ("eval_cases", 1),
    "scenario": ("eval_cases", 1, "conversation_scenario"),
}
NAMES = (
    "expected_tool_use", "expectedToolUse", "EXPECTED_KEYWORDS", "expected", "expects", "Expectations", "reference",
    "references", "reference_answer", "referenceTrajectory", "golden", "goldenAnswer", "ideal_response", "ideal", "ground_truth",
    "groundTruth", "GroundTruth", "assert", "asserts", "assertions", "target", "targets", "target_response", "must_contain",
    "should_call", "correct_answer", "desired-output", "gold", "truth", "answer_expected", "expected tool use",
)  # fmt: skip
KEPT = ("note", "comment", "tags", "latency", "trace_id", "difficulty", "_expected_tool_use", "$golden", "idea", "inspect", "unexpected")


def written(steps: tuple[Any, ...], key: str, value: Any = "x") -> Json:
    """Return the set with one more key."""
    changed = deepcopy(SET)
    holder: Any = changed
    for step in steps:
        holder = holder[step]
    holder[key] = value
    return changed


def read(value: Any) -> EvalSet:
    return parse_eval_set(json.dumps(value).encode(), "set.json", stem="set")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_an_expectation_is_an_error_at_every_level(level: str, name: str) -> None:
    with pytest.raises(EvalSetError) as refused:
        read(written(LEVELS[level], name, ["x"]))
    (problem,) = refused.value.problems
    assert name in problem.path
    assert problem.hint.startswith("Did you mean '")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KEPT)
def test_any_other_unknown_key_stays(level: str, name: str) -> None:
    value = written(LEVELS[level], name, ["x"])
    assert read(value).model_dump(mode="json", exclude_unset=True, exclude_none=True) == value


@pytest.mark.parametrize("level", LEVELS)
def test_null_says_nothing(level: str) -> None:
    read(written(LEVELS[level], "expected_tool_use", None))


@pytest.mark.parametrize(
    ("level", "key", "place"),
    [
        ("turn", "expected_tool_use", "'intermediate_data.tool_uses'"),
        ("turn", "tool_uses", "'intermediate_data.tool_uses'"),
        ("turn", "reference", "'final_response'"),
        ("turn", "query", "'user_content'"),
        ("turn", "expected_intermediate_agent_responses", "'intermediate_data.intermediate_responses'"),
        ("turn", "final_session_state", "'final_session_state' of the case"),
        ("case", "expected_tool_use", "'conversation[].intermediate_data.tool_uses'"),
        ("case", "final_response", "'conversation[].final_response'"),
        ("case", "initial_session", "'session_input'"),
        ("case", "expected_state", "'final_session_state'"),
        ("set", "rubrics", "'eval_cases[].rubrics'"),
        ("set", "reference", "'eval_cases[].conversation[].final_response'"),
        ("steps", "tool_calls", "'tool_uses'"),
        ("call", "tool_input", "'args'"),
        ("call", "arguments", "'args'"),
        ("message", "text", "'parts[].text'"),
        ("scenario", "final_response", "'rubrics' or 'final_session_state' of the case, since"),
        ("scenario", "rubrics", "'rubrics' of the case"),
        ("case with a scenario", "golden_answer", "'rubrics' or 'final_session_state' of the case, since"),
    ],
)
def test_the_place_where_it_belongs_is_named(level: str, key: str, place: str) -> None:
    with pytest.raises(EvalSetError) as refused:
        read(written(LEVELS[level], key, ["x"]))
    assert [problem.hint for problem in refused.value.problems if place in problem.hint]


def test_a_legacy_turn_is_held_to_its_own_names() -> None:
    with pytest.raises(EvalSetError) as refused:
        read([{"query": "q", "expected_keywords": ["x"], "final_response": {}, "golden_tools": [], "note": 1}])
    hints = {problem.path: problem.hint for problem in refused.value.problems}
    assert hints["$[0].final_response"] == "Did you mean 'reference'?"
    assert hints["$[0].golden_tools"] == "Did you mean 'expected_tool_use'?"
    assert "`migrate`" in hints["$[0].expected_keywords"]
    assert "$[0].note" not in hints


def test_lines_tables_and_objects_are_held_to_the_same(tmp_path: Path) -> None:
    case = written(TURN, "expected_tool_use", [])["eval_cases"][0]
    (tmp_path / "rows.jsonl").write_text(json.dumps(case) + "\n")
    enveloped = {"eval_id": "a", "case": SET["eval_cases"][0], "run_index": 0, "recorded": [], "expected_answer": "x"}
    (tmp_path / "row.jsonl").write_text(json.dumps(enveloped) + "\n")
    texts = {"eval_id": ["a"], "conversation": [json.dumps(case["conversation"])]}
    parquet.write_table(pa.table(texts), tmp_path / "cells.parquet")
    parquet.write_table(pa.table({"eval_id": ["a"], "conversation": ["[]"], "golden_answer": ["x"]}), tmp_path / "columns.parquet")
    for name, path in {
        "rows.jsonl": "line 1: $.conversation[0].expected_tool_use",
        "row.jsonl": "line 1: $.expected_answer",
        "cells.parquet": "row 1: $.conversation[0].expected_tool_use",
        "columns.parquet": "columns.golden_answer",
    }.items():
        with pytest.raises(EvalSetError) as refused:
            list(open_cases(tmp_path / name).batches())
        assert [problem.path for problem in refused.value.problems] == [path]
        with pytest.raises(EvalSetError):
            load_eval_set(tmp_path / name)
    with pytest.raises(EvalSetError, match=r"\$\.eval_cases\[0\]\.conversation\[0\]\.expected_tool_use: found a key that nothing reads"):
        load_inputs(EvalSet.model_validate(written(TURN, "expected_tool_use", [])))


def test_a_record_of_mlflow_keeps_what_mlflow_reads() -> None:
    """MLflow's own scorers read ``expected_facts`` and ``guidelines``."""
    known = {"expected_facts": ["x"], "guidelines": ["y"], "expected_response": "z", "_expected_mood": "w"}
    (case,) = cases_of([Stored(record_id="d-1", inputs={"q": "hi"}, expectations=known)], "dataset")
    assert case.conversation
    assert case.conversation[0].final_text == "z"
    with pytest.raises(EvalSetError) as refused:
        cases_of([Stored(record_id="d-1", inputs={"q": "hi"}, expectations={"expected_tool_use": [], "reference": "x"})], "dataset")
    hints = {problem.path: problem.hint for problem in refused.value.problems}
    assert hints == {
        "record d-1, $.expectations.expected_tool_use": "Did you mean 'expected_tool_calls'?",
        "record d-1, $.expectations.reference": "Did you mean 'expected_response'?",
    }


def test_a_slip_of_the_pen_is_still_one() -> None:
    with pytest.raises(EvalSetError, match=r"Did you mean 'final_session_state'\?"):
        read(written(CASE, "final_session_states", {}))
    assert place_of("final_respons", "turn") == ""
