"""What a message or a task of A2A tells of a turn, as its pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from mlflow_adk_eval.agents.http.a2a_wire import Artifact, Message, Task
from mlflow_adk_eval.agents.http.a2a_wire import Part as WirePart
from mlflow_adk_eval.agents.turn_log import Piece
from mlflow_adk_eval.evalset import Content, Part
from mlflow_adk_eval.evalset.models import Json

T = TypeVar("T", Message, Artifact)

WORKING = frozenset({"submitted", "working"})
_DONE = frozenset({"completed", "input-required"})
_TYPED = ("function_call", "function_response", "code_execution_result", "executable_code")
"""What ADK's servers wrap as data, by the name that they give it."""


def pieces_of(told: Message | Task, author: str, seen: set[str]) -> list[Piece]:
    """Return what is new in an answer, in order, the final response last.

    Args:
        told: the answer.
        author: the agent's name.
        seen: what earlier answers of the same task told; what this one tells is added.
    """
    if isinstance(told, Message):
        return _result(told.parts, author)
    on_the_way = [_said(one, author) for one in _new((one for one in told.history or () if _is_agents(one)), seen)]
    new = _new(told.artifacts or (), seen)
    if any(_is_event(one) for one in new):
        return [*on_the_way, *(_event(one, author) for one in new)]
    status = told.status.message
    final = _result([part for one in new for part in one.parts or ()], author)
    if not final and status and told.state in _DONE:
        _new([status], seen)
        final = _result(status.parts, author)
    if not final:
        return [*on_the_way[:-1], *(_final(piece) for piece in on_the_way[-1:])] if told.state in _DONE else on_the_way
    repeated = on_the_way and on_the_way[-1].content == final[0].content
    return [*(on_the_way[:-1] if repeated else on_the_way), *final]


def error_of(told: Message | Task) -> str:
    """Return why an answer is none; empty where it is one."""
    if isinstance(told, Message) or told.state in _DONE:
        return ""
    words = told.status.message and _content(told.status.message.parts)
    reason = f": {words.text}" if words and words.text else ""
    match told.state:
        case "failed" | "rejected" | "canceled":
            return f"the agent's task was {told.state}{reason}" if told.state != "failed" else f"the agent's task failed{reason}"
        case "auth-required":
            return f"the agent's task wants credentials{reason}"
        case state:
            return f"the agent's task is in state {state!r}{reason}"


def _is_agents(one: Message) -> bool:
    return one.role.lower().removeprefix("role_") == "agent"


def _new(told: Iterable[T], seen: set[str]) -> list[T]:
    """Return what was not told before.

    An id alone does not tell, as some agents use one for an artifact that they change; without ids, equal things are several.
    """
    before = frozenset(seen)
    new: list[T] = []
    for one in told:
        key = one.model_dump_json(include={"message_id", "artifact_id", "parts"})
        has_id = bool(one.message_id if isinstance(one, Message) else one.artifact_id)
        if key not in (seen if has_id else before):
            new.append(one)
        seen.add(key)
    return new


def _is_event(artifact: Artifact) -> bool:
    return "adk_event_id" in (artifact.metadata or {})


def _event(artifact: Artifact, author: str) -> Piece:
    """Return an event as ADK tells it."""
    about = artifact.metadata or {}
    content = _content(artifact.parts)
    usage = about.get("adk_usage_metadata")
    return Piece(
        author=str(about.get("adk_author") or author),
        content=content,
        final=not _is_busy(content),
        usage_metadata=usage if isinstance(usage, dict) else None,
    )


def _said(one: Message, author: str) -> Piece:
    return Piece(author=author, content=_content(one.parts), kind="text")


def _final(piece: Piece) -> Piece:
    return replace(piece, final=not _is_busy(piece.content))


def _result(parts: Iterable[WirePart] | None, author: str) -> list[Piece]:
    content = _content(parts)
    return [Piece(author=author, content=content, kind="text", final=True)] if content else []


def _is_busy(content: Content | None) -> bool:
    return any(part.function_call or part.function_response for part in (content and content.parts) or ())


def _content(parts: Iterable[WirePart] | None) -> Content | None:
    found = tuple(part for one in parts or () if (part := _part(one)))
    answers = bool(found) and all(part.function_response for part in found)
    return Content(role="user" if answers else "model", parts=found) if found else None


def _part(one: WirePart) -> Part | None:
    """Return a part; data of other kinds than ADK's own is its JSON."""
    about = one.metadata or {}
    if one.text is not None:
        return Part(text=one.text, thought=True if about.get("adk_thought") else None)
    if one.data is not None:
        return _typed(about.get("adk_type"), one.data) or Part(text=json.dumps(one.data, ensure_ascii=False))
    raw = one.raw or (one.file and one.file.bytes)
    uri = one.url or (one.file and one.file.uri)
    mime = {"mime_type": kind} if (kind := one.media_type or (one.file and one.file.mime_type)) else {}
    if raw:
        return Part(inline_data={"data": raw, **mime})
    return Part(file_data={"file_uri": uri, **mime}) if uri else None


def _typed(kind: Any, data: Any) -> Part | None:
    """Return a tool call, its answer and the like, if that is what ADK says it is."""
    if kind not in _TYPED:
        return None
    wrapped: Json = {kind: data}
    try:
        return Part.model_validate(wrapped)
    except ValidationError:
        return None
