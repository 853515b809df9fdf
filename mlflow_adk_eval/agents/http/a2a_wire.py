"""The A2A protocol on the wire, in its two dialects: that of version 1, and that of version 0.3, the older one.

`message` and `request` build requests in the dialect of an `Interface`; `answer_of` reads a `Message` or a `Task` of either; `events_of` turns
what is new in one into the events of a turn. ADK's servers report each event of a turn, with its author and tokens, as an artifact if
the extension `ADK_EVENTS` is asked for. The models read only what is used and take whatever else comes, as servers take liberties: states
that the protocol does not know, messages without ids. docs/development/design.md says why this is not left to the client of a2a-sdk.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.agents.http.http_agent import HttpRequest
from mlflow_adk_eval.agents.turns import TurnEvent, is_busy
from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset.models import Content, Json
from mlflow_adk_eval.evalset.models import Part as TurnPart

Action = Literal["send", "get", "cancel"]

_METHODS: dict[str, dict[Action, str]] = {
    "0": {"send": "message/send", "get": "tasks/get", "cancel": "tasks/cancel"},
    "1": {"send": "SendMessage", "get": "GetTask", "cancel": "CancelTask"},
}
ADK_EVENTS = "https://google.github.io/adk-docs/a2a/a2a-extension/"
"""The extension by which ADK's servers report each event of a turn. Others ignore what they do not know."""


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class File(_Wire):
    """A file, in the older dialect."""

    bytes: str | None = None
    uri: str | None = None
    mime_type: str | None = None


class MessagePart(_Wire):
    """A part of a message, in either dialect."""

    text: str | None = None
    data: Any = None
    file: File | None = None
    raw: str | None = None
    url: str | None = None
    media_type: str | None = None
    metadata: Json | None = None


class Message(_Wire):
    """A message of the user or the agent."""

    message_id: str = ""
    context_id: str | None = None
    role: str = "agent"
    parts: tuple[MessagePart, ...] | None = None


class Status(_Wire):
    """How a task is going."""

    state: str
    message: Message | None = None


class Artifact(_Wire):
    """A result of a task."""

    artifact_id: str = ""
    parts: tuple[MessagePart, ...] | None = None
    metadata: Json | None = None


class Task(_Wire):
    """What an agent does about a message."""

    id: str
    context_id: str | None = None
    status: Status
    artifacts: tuple[Artifact, ...] | None = None
    history: tuple[Message, ...] | None = None

    @property
    def state(self) -> str:
        """The state in the spelling of the older dialect: ``input-required``."""
        return self.status.state.lower().removeprefix("task_state_").replace("_", "-")


class Interface(_Wire):
    """Where and how messages are sent to an agent, as its card says."""

    url: str
    protocol_binding: str = "JSONRPC"
    protocol_version: str = "0.3"
    tenant: str | None = None


class _Additional(_Wire):
    url: str
    transport: str = ""


class Card(_Wire):
    """What an agent says of itself, in either dialect."""

    name: str = ""
    version: Any = None
    supported_interfaces: tuple[Interface, ...] | None = None
    url: str | None = None
    preferred_transport: str | None = None
    additional_interfaces: tuple[_Additional, ...] | None = None

    @property
    def interfaces(self) -> list[Interface]:
        """Where and how messages may be sent."""
        older = [Interface(url=self.url, protocol_binding=self.preferred_transport or "JSONRPC")] if self.url else []
        older += [Interface(url=one.url, protocol_binding=one.transport) for one in self.additional_interfaces or ()]
        return [*(self.supported_interfaces or ()), *older]

    @property
    def interface(self) -> Interface | None:
        """The first one that speaks JSON-RPC in a dialect that is known."""
        known = (one for one in self.interfaces if one.protocol_binding.upper() == "JSONRPC" and one.protocol_version[:1] in _METHODS)
        return next(known, None)


def card_of(given: Any) -> Card | None:
    """Return an agent card; ``None``: `given` is none."""
    try:
        card = Card.model_validate(given)
    except ValidationError:
        return None
    return card if card.interfaces else None


def request(action: Action, interface: Interface, params: Json, *, harmless: bool = True) -> HttpRequest:
    """Return a call in the dialect of `interface`. Its headers tell the agent the dialect, and that events of ADK are welcome."""
    version = interface.protocol_version
    headers = {"A2A-Version": ".".join(version.split(".")[:2]), "A2A-Extensions": ADK_EVENTS}
    if version.startswith("0"):
        headers = {"X-A2A-Extensions": ADK_EVENTS}
    tenant = {"tenant": interface.tenant} if interface.tenant else {}
    method = _METHODS[version[:1]][action]
    body = {"jsonrpc": "2.0", "id": uuid.uuid4().hex, "method": method, "params": {**params, **tenant}}
    return HttpRequest(url=interface.url, body=body, headers=headers, harmless=harmless)


def message(user: Content, interface: Interface, *, context_id: str | None, task_id: str | None) -> Json:
    """Return the parameters that send the agent a message.

    Args:
        user: the message.
        interface: where it goes.
        context_id: the conversation; ``None``: a new one.
        task_id: the task that waits for it, if one does.

    Raises:
        AgentError: if a part of it cannot be sent.
    """
    older = interface.protocol_version.startswith("0")
    parts = [_part(part, older=older) for part in user.parts or ()]
    content: Json = {"messageId": uuid.uuid4().hex, "role": "user" if older else "ROLE_USER", "parts": parts}
    content |= {name: value for name, value in (("contextId", context_id), ("taskId", task_id)) if value}
    return {"message": {"kind": "message", **content}, "configuration": {"blocking": True}} if older else {"message": content}


def _part(part: TurnPart, *, older: bool) -> Json:
    if part.text is not None:
        return {"kind": "text", "text": part.text} if older else {"text": part.text}
    match part.inline_data, part.file_data:
        case {"data": content, **more}, _:
            name = "bytes" if older else "raw"
        case _, {"file_uri": content, **more} | {"fileUri": content, **more}:
            name = "uri" if older else "url"
        case _:
            raise AgentError("the user's message has a part that is neither text nor a file; A2A cannot send it")
    mime = more.get("mime_type") or more.get("mimeType") or ""
    return {"kind": "file", "file": {name: content, "mimeType": mime}} if older else {name: content, "mediaType": mime}


def answer_of(result: Any) -> Message | Task | None:
    """Return what came back for a message or a question about a task; ``None``: neither a message nor a task."""
    if not isinstance(result, dict):
        return None
    inner = result.get("task") or result.get("message") or result
    kind = Task if isinstance(inner, dict) and "status" in inner else Message
    try:
        answer = kind.model_validate(inner)
    except ValidationError:
        return None
    return answer if isinstance(answer, Task) or answer.parts is not None else None


T = TypeVar("T", Message, Artifact)

WORKING = frozenset({"submitted", "working"})
_DONE = frozenset({"completed", "input-required"})
_ENDS = {"failed": "failed", "rejected": "was rejected", "canceled": "was canceled", "auth-required": "wants credentials"}
_TYPED = ("function_call", "function_response", "code_execution_result", "executable_code")
"""What ADK's servers wrap as data, by the name that they give it."""


def events_of(answer: Message | Task, author: str, seen: set[str]) -> list[TurnEvent]:
    """Return what is new in an answer, in order, the final response last.

    Args:
        answer: a message, or a task as it is now.
        author: the agent's name.
        seen: what earlier answers of the same task reported; what this one reports is added.
    """
    if isinstance(answer, Message):
        return _final(answer.parts, author)
    messages = _new((one for one in answer.history or () if one.role.lower().removeprefix("role_") == "agent"), seen)
    before = [TurnEvent(author=author, content=_content(one.parts), kind="text") for one in messages]
    new = _new(answer.artifacts or (), seen)
    if any("adk_event_id" in (one.metadata or {}) for one in new):
        return [*before, *(_event(one, author) for one in new)]
    status = answer.status.message
    final = _final([part for one in new for part in one.parts or ()], author)
    if not final and status and answer.state in _DONE:
        _new([status], seen)
        final = _final(status.parts, author)
    if not final:
        return [*before[:-1], *(replace(one, final=not is_busy(one.content)) for one in before[-1:])] if answer.state in _DONE else before
    repeated = before and before[-1].content == final[0].content
    return [*(before[:-1] if repeated else before), *final]


def error_of(answer: Message | Task) -> str:
    """Return why an answer is none; empty where it is one."""
    if isinstance(answer, Message) or answer.state in _DONE:
        return ""
    words = answer.status.message and _content(answer.status.message.parts)
    reason = f": {words.text}" if words and words.text else ""
    end = _ENDS.get(answer.state, f"is in state {answer.state!r}")
    return f"the agent's task {end}{reason}"


def _new(items: Iterable[T], seen: set[str]) -> list[T]:
    """Return the items that were not there before.

    An id alone does not tell, as some agents use one for an artifact that they change; without ids, equal items are several.
    """
    before = frozenset(seen)
    new: list[T] = []
    for item in items:
        key = item.model_dump_json(include={"message_id", "artifact_id", "parts"})
        has_id = bool(item.message_id if isinstance(item, Message) else item.artifact_id)
        if key not in (seen if has_id else before):
            new.append(item)
        seen.add(key)
    return new


def _event(artifact: Artifact, author: str) -> TurnEvent:
    """Return an event as ADK reports it."""
    about = artifact.metadata or {}
    content = _content(artifact.parts)
    error = about.get("adk_error_code")
    return TurnEvent(
        author=str(about.get("adk_author") or author),
        content=content,
        final=not is_busy(content),
        usage_metadata=_object(about.get("adk_usage_metadata")),
        grounding_metadata=_object(about.get("adk_grounding_metadata")),
        error_code=error if isinstance(error, str) else None,
    )


def _object(value: Any) -> Json | None:
    return value if isinstance(value, dict) else None


def _final(parts: Iterable[MessagePart] | None, author: str) -> list[TurnEvent]:
    """Return the answer; nothing where there are no parts."""
    content = _content(parts)
    return [TurnEvent(author=author, content=content, kind="text", final=True)] if content else []


def _content(parts: Iterable[MessagePart] | None) -> Content | None:
    known = tuple(part for one in parts or () if (part := _turn_part(one)))
    answers = all(part.function_response for part in known)
    return Content(role="user" if answers else "model", parts=known) if known else None


def _turn_part(one: MessagePart) -> TurnPart | None:
    """Return a part; data of other kinds than ADK's own is its JSON."""
    about = one.metadata or {}
    if one.text is not None:
        return TurnPart(text=one.text, thought=True if about.get("adk_thought") else None)
    if one.data is not None:
        kind = about.get("adk_type")
        if kind in _TYPED:
            with suppress(ValidationError):
                return TurnPart.model_validate({kind: one.data})
        return TurnPart(text=json.dumps(one.data, ensure_ascii=False))
    raw = one.raw or (one.file and one.file.bytes)
    uri = one.url or (one.file and one.file.uri)
    media_type = one.media_type or (one.file and one.file.mime_type)
    mime = {"mime_type": media_type} if media_type else {}
    if raw:
        return TurnPart(inline_data={"data": raw, **mime})
    return TurnPart(file_data={"file_uri": uri, **mime}) if uri else None
