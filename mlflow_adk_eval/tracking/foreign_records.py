"""Records of a dataset that others wrote, in the words of ``mlflow.genai``, as eval cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.tables.records import EXPECTATIONS
from mlflow_adk_eval.tables.rows import row_of

OTHERS = "mlflow_expectations"
"""The unknown field of a case that keeps what a record expects and ADK has no word for, such as MLflow's ``guidelines``."""

_BESIDE = {"eval_id", "session_input"}
_SIMULATED = {"goal", "persona", "simulation_guidelines"}
_SCENARIO = "conversation_scenario"
_MESSAGE = 'a text, or {"role", "content"} with a text'

_CASE = TypeAdapter(EvalCase)


def foreign_case(record_id: str, inputs: Any, expectations: Mapping[str, Any], source: str) -> EvalCase:
    """Return the case that a record without an ``eval_case`` describes; without an ``eval_id`` it is named by the record.

    Raises:
        EvalSetError: if there is anything in it that a case cannot hold.
    """
    asked = _asked(inputs, source)
    eval_id = str(asked.get("eval_id", record_id))
    expected = {name: value for name, value in expectations.items() if value is not None}
    others = {name: expected.pop(name) for name in sorted(expected.keys() - set(EXPECTATIONS))}
    beside = {"eval_id": eval_id, **({"session_input": asked["session_input"]} if "session_input" in asked else {})}
    if _SCENARIO in asked:
        case = _scenario(asked, beside, expected, source)
    else:
        turns = _turns(next(value for name, value in asked.items() if name not in _BESIDE), source)
        case = row_of({**beside, **_cells(turns, expected, source)}, source).case
    return EvalCase.model_validate({**case.model_dump(mode="json", exclude_unset=True), OTHERS: others}) if others else case


def _asked(inputs: Any, source: str) -> Json:
    """Return the inputs, of which exactly one is what the user says."""
    if not isinstance(inputs, Mapping):
        raise EvalSetError(source, [Problem("$.inputs", shown(inputs), "an object")])
    said = sorted(set(inputs) - _BESIDE)
    if _SIMULATED & set(said):
        found, wanted = f"a goal for MLflow's simulated user ({', '.join(said)})", f"a {_SCENARIO} in ADK's format"
        raise EvalSetError(source, [Problem("$.inputs", found, wanted)])
    if len(said) != 1:
        wanted = "one that is what the user says, and besides it at most eval_id and session_input"
        raise EvalSetError(source, [Problem("$.inputs", f"inputs named {', '.join(said) or 'nothing'}", wanted)])
    return dict(inputs)


def _scenario(asked: Json, beside: Json, expected: Json, source: str) -> EvalCase:
    fields = {"rubrics": "rubrics", "expected_session_state": "final_session_state"}
    if unfit := sorted(expected.keys() - fields.keys()):
        wanted = "nothing of the kind: what a simulated user will hear is not known"
        raise EvalSetError(source, [Problem(f"$.expectations.{unfit[0]}", "an expectation of a scenario", wanted)])
    renamed = {fields[name]: value for name, value in expected.items()}
    return parse(_CASE, {**beside, _SCENARIO: asked[_SCENARIO], **renamed}, source, at="$.inputs")


def _turns(said: Any, source: str) -> list[Json]:
    """Return what was said as turns; an answer in a list of messages belongs to the message before it."""
    turns: list[Json] = []
    for index, message in enumerate(said if isinstance(said, list) else [said]):
        role, content = _message(message)
        if role == "user" and content is not None:
            turns.append({"user_content": content})
        elif role == "model" and content is not None and turns and "final_response" not in turns[-1]:
            turns[-1]["final_response"] = content
        else:
            found = f"{shown(message)} of role {role!r}" if content is not None else shown(message)
            raise EvalSetError(source, [Problem(f"$.inputs, message {index + 1}", found, f"{_MESSAGE}, by user and assistant in turn")])
    if not turns:
        raise EvalSetError(source, [Problem("$.inputs", "no message", _MESSAGE)])
    return turns


def _message(message: Any) -> tuple[str, Any]:
    """Return who speaks and what: a text, a message in ADK's format, or ``None`` if it is neither."""
    match message:
        case str():
            return "user", message
        case {"parts": _}:
            return str(message.get("role") or "user"), dict(message)
        case {"role": str(role), "content": str(content)} if len(message) == 2:  # noqa: PLR2004 - nothing besides these two
            return "model" if role == "assistant" else role, content
        case _:
            return "", None


def _cells(turns: list[Json], expected: Json, source: str) -> Json:
    """Return the cells of a row whose reference the record is; the expected response is the last turn's."""
    cells: Json = {name: expected[name] for name in ("expected_tool_calls", "expected_session_state", "rubrics") if name in expected}
    cells["predictions"] = [""] * len(turns)
    if "expected_conversation" in expected:
        if "expected_response" in expected or any("final_response" in turn for turn in turns):
            raise EvalSetError(source, [Problem("$.expectations.expected_conversation", "answers beside it", "one of the two")])
        return {**cells, "targets": expected["expected_conversation"], "inputs": [turn["user_content"] for turn in turns]}
    if "expected_response" in expected:
        if "final_response" in turns[-1]:
            raise EvalSetError(source, [Problem("$.expectations.expected_response", "a second answer to the last message", "one")])
        turns[-1]["final_response"] = expected["expected_response"]
    return {**cells, "targets": turns}
