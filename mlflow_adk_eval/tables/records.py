"""Eval cases as records of ``mlflow.genai``: inputs, outputs and expectations; and the cells that such a record holds.

`record_of` and `outputs_of` write records; `case_of` reads what an agent is asked; `cells_of` makes of a whole record the cells that
`tables.rows.row_of` reads. Records that somebody else made may name the user's message and the answer in many ways (`_USER`, `_ANSWER`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Conversation
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation, Part, dump
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.tables.rows import is_missing

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
EXPECTATIONS = tuple(_EXPECTED)
"""The names of the expectations that criteria read."""
_ASKED = ("eval_id", "session_input")
_DONE = ("tool_calls", "session_state", "run_index", "error", "unfinished")
_STEPS = {"intermediate_data", "intermediateData"}
_FINAL = ("final_response", "finalResponse")
_INVOCATION = {*_FINAL, *_STEPS, "user_content", "userContent"}
_SCENARIO = "conversation_scenario"
_EVAL_CASE = TypeAdapter(EvalCase)


def record_of(case: EvalCase) -> dict[str, Any]:
    """Return a case as a record: what the user says as inputs, the whole case as an expectation.

    The last turn's answer is an expectation of its own, since MLflow's pages show that one beside the agent's.
    """
    asked: Json = {"eval_id": case.eval_id}
    if case.conversation is None:
        asked[_SCENARIO] = dump(case.conversation_scenario) if case.conversation_scenario else {}
    else:
        asked["messages"] = [_message(turn.user_content) for turn in case.conversation]
    if case.session_input:
        asked["session_input"] = dump(case.session_input)
    last = case.conversation[-1].final_text if case.conversation else ""
    expected = {"expected_response": last} if last else {}
    return {"inputs": asked, "expectations": {**expected, CASE: dump(case)}}


def _message(content: Content) -> Json:
    """Return a message as chats have it, which MLflow's own scorers read, if a text is all there is to it."""
    dumped = dump(content)
    plain = dumped.keys() <= {"parts", "role"} and [part.keys() for part in dumped.get("parts") or ()] == [{"text"}]
    return {"role": "user", "content": content.text} if plain else {"parts": [], **dumped}


def case_of(inputs: Mapping[str, Any]) -> EvalCase:
    """Return what a record's inputs ask an agent for: each text or message of the user as a turn, or a scenario.

    Raises:
        EvalSetError: if the inputs are not what an agent can be asked.
    """
    asked: Json = {"eval_id": str(inputs.get("eval_id", "row")), "session_input": inputs.get("session_input")}
    if _SCENARIO in inputs:
        return parse(_EVAL_CASE, asked | {_SCENARIO: inputs[_SCENARIO]}, "inputs")
    turns = [{"user_content": _content(one)} for one in _messages(_given(inputs))]
    return parse(_EVAL_CASE, asked | {"conversation": turns}, "inputs")


def _content(message: Any) -> Any:
    if isinstance(message, Mapping) and "parts" in message:
        return {"role": "user", **message}
    return {"role": "user", "parts": [{"text": _text(message)}]}


def outputs_of(conversation: Conversation) -> dict[str, Any]:
    """Return what an agent did as the outputs of a record; first, for people, its last answer."""
    outputs: Json = {"response": conversation.actual[-1].final_text if conversation.actual else ""}
    outputs["conversation"] = [dump(turn) for turn in conversation.actual]
    if conversation.session_state is not None:
        outputs["session_state"] = dict(conversation.session_state)
    if conversation.error:
        outputs |= {"error": conversation.error, "unfinished": conversation.unfinished}
    return outputs


def cells_of(inputs: Any, outputs: Any, expectations: Mapping[str, Any] | None = None, *, source: str = "row") -> dict[str, Any]:
    """Return the cells that a record's inputs, outputs and expectations hold.

    Raises:
        EvalSetError: if the outputs are nothing that an agent did.
    """
    asked = inputs if isinstance(inputs, Mapping) else {}
    expected = {name: value for name, value in (expectations or {}).items() if not is_missing(value)}
    said = _given(inputs) if isinstance(inputs, Mapping) else inputs
    texts = list(map(_text, _messages(said))) if isinstance(said, list | tuple) else said
    cells = {"inputs": texts, **_done(outputs, source)}
    cells |= {name: asked[name] for name in _ASKED if name in asked}
    cells |= {cell: expected[name] for name, cell in _EXPECTED.items() if name in expected}
    if isinstance(cells["inputs"], list) and cells["inputs"] and not isinstance(cells["predictions"], list | tuple):
        cells["inputs"] = cells["inputs"][-1]  # one answer is to the last message; the others are what went before
    if isinstance(cells.get("targets"), Mapping | EvalCase):
        cells.pop("expected_tool_calls", None)  # the case says it all
    return cells


def _given(inputs: Mapping[str, Any]) -> Any:
    """Return the text or the messages among the inputs; where none is known as such, all of them as one text."""
    for name in _USER:
        if name in inputs:
            return inputs[name]
    texts = [value for name, value in inputs.items() if isinstance(value, str) and name != "eval_id"]
    return texts[0] if len(texts) == 1 else json.dumps(dict(inputs), ensure_ascii=False, default=str)


def _messages(given: Any) -> list[Any]:
    """Return the user's messages: a text is one, and a list of messages may have others of an assistant."""
    if not isinstance(given, list | tuple):
        return [given]
    return [one for one in given if not (isinstance(one, Mapping) and one.get("role") not in {None, "user"})]


def _text(message: Any) -> str:
    """Return the text of a message as chats, as OpenAI or as ADK has it."""
    if isinstance(message, Mapping) and "parts" in message:
        return Content.model_validate(message).text
    content = message["content"] if isinstance(message, Mapping) and "content" in message else message
    if isinstance(content, list | tuple):
        return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)


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


def has_tools(outputs: Any) -> bool:
    """Whether outputs say which tools were called, so that nothing else needs to be asked."""
    return isinstance(outputs, Mapping) and bool({"conversation", "tool_calls", *_STEPS} & set(outputs))


def has_answer(outputs: Any) -> bool:
    """Whether outputs hold an answer."""
    return bool(_answer(outputs))


def with_turns(outputs: Any, turns: Sequence[Invocation]) -> dict[str, Any]:
    """Return outputs that say no more than an answer, with the turns that led to it; the answer is that of the last one."""
    beside = {name: outputs[name] for name in _DONE if name in outputs} if isinstance(outputs, Mapping) else {}
    answer = _answer(outputs)
    if answer and turns:
        said = Content(role="model", parts=(Part(text=answer),))
        turns = [*turns[:-1], turns[-1].model_copy(update={"final_response": said})]
    return {"conversation": list(turns), **beside}


def _answer(outputs: Any) -> str:
    if not isinstance(outputs, Mapping):
        return outputs if isinstance(outputs, str) else ""
    found = [outputs[name] for name in (*_FINAL, *_ANSWER) if outputs.get(name)]
    return _text(found[0]) if found else ""
