"""What Vertex AI's evaluation service is shown, in its JSON. The shape is that of the requests which ADK makes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mlflow_adk_eval.criteria.transcript import Step, json_text, steps
from mlflow_adk_eval.evalset import Content, IntermediateData, Invocation, Part
from mlflow_adk_eval.evalset.models import Json

_AGENT = "agent"
"""Who speaks where the data do not name an agent."""
_KINDS = ("function_call", "function_response", "text", "inline_data", "file_data", "executable_code", "code_execution_result")
"""What a part can be for the service. It has one of them."""
_MEDIA = {"inline_data", "file_data"}
_DECLARATIONS = ("function_declarations", "functionDeclarations")


def exchange(user: str, agent: str) -> Json:
    """Return one message of a user and an agent's answer."""
    said = [{"author": "user", "content": _says(user)}, {"author": "model", "content": _says(agent)}]
    return {
        "prompt": {"contents": {"contents": [_says(user)]}},
        "response": {"contents": {"contents": [_says(agent)]}},
        "agent_eval_data": {"turns": [_turn(0, said)]},
    }


def conversation(turns: Sequence[Invocation]) -> Json:
    """Return a conversation, with what its agents were told, did and had for tools."""
    told = [_turn(index, list(_events(turn))) for index, turn in enumerate(turns)]
    return {"prompt": {"contents": {"contents": []}}, "agent_eval_data": {"agents": _agents(turns), "turns": told}}


def _says(text: str) -> Json:
    return {"parts": [{"text": text}]}


def _turn(index: int, events: list[Json]) -> Json:
    return {"turn_index": index, "turn_id": f"turn_{index}", "events": events}


def _events(turn: Invocation) -> Iterator[Json]:
    yield {"author": "user", "content": _content(turn.user_content, "user")}
    if isinstance(turn.intermediate_data, IntermediateData):
        yield from (_event(step) for step in steps(turn) if step.kind != "media")
    yield from ({"author": event.author, "content": _content(event.content, "model")} for event in turn.events if event.content)
    yield {"author": _AGENT, **({"content": _content(turn.final_response, "model")} if turn.final_response else {})}


def _event(step: Step) -> Json:
    """Return a step of a turn that was written by hand."""
    numbered = {"id": step.id} if step.id else {}
    match step.kind:
        case "call":
            part: Json = {"function_call": {**numbered, "name": step.name, "args": _struct(step.payload)}}
        case "response":
            part = {"function_response": {**numbered, "name": step.name, "response": _struct(step.payload)}}
        case _:
            part = {"text": step.payload}
    role = "user" if step.kind == "response" else "model"
    return {"author": step.author or _AGENT, "content": {"role": role, "parts": [part]}}


def _content(content: Content, role: str) -> Json:
    parts = (_part(part) for part in content.parts or ())
    return {"role": content.role or role, "parts": [part for part in parts if part]}


def _part(part: Part) -> Json | None:
    """Return a part as the service knows it; ``None`` for one that it does not know."""
    kind = next((name for name in _KINDS if getattr(part, name)), None)
    if kind is None:
        return None
    value = getattr(part, kind)
    match kind:
        case "function_call":
            value = {"name": value.name or "", "args": _struct(value.args)} | ({"id": value.id} if value.id else {})
        case "function_response":
            value = {"name": value.name or "", "response": _struct(value.response)} | ({"id": value.id} if value.id else {})
        case _ if kind in _MEDIA:
            value = {name: text for name, text in dict(value).items() if isinstance(text, str)}
        case _:
            value = _plain(value)
    return {kind: value, **({"thought": True} if part.thought else {})}


def _agents(turns: Sequence[Invocation]) -> Json:
    """Return each agent as it was when it is first recorded."""
    agents: Json = {}
    for turn in turns:
        for name, details in (turn.app_details.agent_details if turn.app_details else {}).items():
            tools = [tool for found in details.tool_declarations if (tool := _tool(found))]
            agents.setdefault(name, {"agent_id": details.name, "instruction": details.instructions, "tools": tools})
    return agents


def _tool(declaration: Any) -> Json | None:
    """Return a tool, also where a function is declared without one around it; ``None`` for what is not an object."""
    plain = _plain(declaration)
    if not isinstance(plain, dict):
        return None
    bare = "name" in plain and not any(name in plain for name in _DECLARATIONS)
    return {"function_declarations": [plain]} if bare else plain


def _struct(value: Any) -> Json:
    """Return a JSON object, which is all that arguments and answers of a tool can be for the service."""
    plain = _plain({} if value is None else value)
    return plain if isinstance(plain, dict) else {"result": plain}


def _plain(value: Any) -> Any:
    """Return what JSON makes of a value of any kind."""
    return json.loads(json_text(value))
