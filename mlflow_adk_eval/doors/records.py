"""Eval cases as records of ``mlflow.genai``: inputs, outputs and expectations; and the cells that such a record holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlflow_adk_eval.agents import Played
from mlflow_adk_eval.doors.rows import is_missing
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import Content, EvalCase, dump
from mlflow_adk_eval.evalset.models import Json

CASE = "eval_case"
"""The expectation that holds a whole case."""

_USER = ("messages", "input", "query", "question", "prompt", "user_message", "message", "request", "text", "content")
_ANSWER = ("response", "output", "answer", "text", "content", "result")
_EXPECTED = {
    "expected_response": "targets",
    "expected_conversation": "targets",
    CASE: "targets",
    "expected_tool_calls": "expected_tool_calls",
    "expected_session_state": "expected_session_state",
    "rubrics": "rubrics",
}
"""Expectations and the cells that they are; of several for one cell, the later here counts."""
_ASKED = ("eval_id", "session_input")
_DONE = ("tool_calls", "session_state", "run_index", "error", "unfinished")
_INVOCATION = {"final_response", "finalResponse", "intermediate_data", "intermediateData", "user_content", "userContent"}


def record_of(case: EvalCase) -> dict[str, Any]:
    """Return a case as a record: what the user says as inputs, the whole case as an expectation.

    The last turn's answer is an expectation of its own, since MLflow's pages show that one beside the agent's.
    """
    asked: Json = {"eval_id": case.eval_id}
    if case.conversation is None:
        asked["conversation_scenario"] = dump(case.conversation_scenario) if case.conversation_scenario else {}
    else:
        asked["messages"] = [_message(turn.user_content) for turn in case.conversation]
    if case.session_input:
        asked["session_input"] = dump(case.session_input)
    last = case.conversation[-1].final_text if case.conversation else ""
    expected = {"expected_response": last} if last else {}
    return {"inputs": asked, "expectations": {**expected, CASE: dump(case)}}


def _message(content: Content) -> Any:
    """Return a message as its text, if that is all there is to it."""
    parts = content.parts or ()
    return (
        parts[0].text
        if len(parts) == 1 and dump(content).keys() <= {"parts", "role"} and dump(parts[0]).keys() == {"text"}
        else dump(content)
    )


def outputs_of(played: Played) -> dict[str, Any]:
    """Return what an agent did as the outputs of a record; first, for people, its last answer."""
    told: Json = {"response": played.actual[-1].final_text if played.actual else ""}
    told["conversation"] = [dump(turn) for turn in played.actual]
    if played.session_state is not None:
        told["session_state"] = dict(played.session_state)
    if played.error:
        told |= {"error": played.error, "unfinished": played.unfinished}
    return told


def cells_of(inputs: Any, outputs: Any, expectations: Mapping[str, Any] | None = None, *, source: str = "row") -> dict[str, Any]:
    """Return the cells that a record's inputs, outputs and expectations hold.

    Raises:
        EvalSetError: if the outputs are nothing that an agent did.
    """
    asked = inputs if isinstance(inputs, Mapping) else {}
    expected = {name: value for name, value in (expectations or {}).items() if not is_missing(value)}
    cells = {"inputs": _said(inputs), **_done(outputs, source)}
    cells |= {name: asked[name] for name in _ASKED if name in asked}
    cells |= {cell: expected[name] for name, cell in _EXPECTED.items() if name in expected}
    if isinstance(cells.get("targets"), Mapping | EvalCase):
        cells.pop("expected_tool_calls", None)  # the case says it all
    return cells


def _said(inputs: Any) -> Any:
    """Return what the user said: the text among the inputs, or all of them."""
    if not isinstance(inputs, Mapping):
        return inputs
    for name in _USER:
        if name in inputs:
            value = inputs[name]
            return _texts(value) if isinstance(value, list | tuple) else value
    texts = [value for name, value in inputs.items() if isinstance(value, str) and name != "eval_id"]
    return texts[0] if len(texts) == 1 else json.dumps(dict(inputs), ensure_ascii=False, default=str)


def _texts(messages: Any) -> list[Any]:
    """Return what the user said in a list of messages, in which others may speak too."""
    said = [one for one in messages if not (isinstance(one, Mapping) and one.get("role") not in {None, "user"})]
    return [one["content"] if isinstance(one, Mapping) and "content" in one else _text(one) for one in said]


def _text(message: Any) -> Any:
    return Content.model_validate(message).text if isinstance(message, Mapping) and "parts" in message else message


def _done(outputs: Any, source: str) -> dict[str, Any]:
    if not isinstance(outputs, Mapping):
        return {"predictions": outputs}
    beside = {name: outputs[name] for name in _DONE if name in outputs}
    if "conversation" in outputs:
        return {"predictions": outputs["conversation"], **beside}
    if _INVOCATION & set(outputs):
        return {"predictions": {key: value for key, value in outputs.items() if key not in beside}, **beside}
    for name in _ANSWER:
        if isinstance(outputs.get(name), str):
            return {"predictions": outputs[name], **beside}
    wanted = f"a text, an invocation in ADK's format, or an object with a conversation or one of {', '.join(_ANSWER)}"
    raise EvalSetError(source, [Problem("$.outputs", shown(outputs), wanted)])
