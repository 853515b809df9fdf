"""The A2A protocol on the wire, in the two dialects that are spoken: that of version 1, and the older one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset import Content
from mlflow_adk_eval.evalset import Part as SaidPart
from mlflow_adk_eval.evalset.models import Json

Action = Literal["send", "get", "cancel"]

_METHODS: dict[str, dict[Action, str]] = {
    "0": {"send": "message/send", "get": "tasks/get", "cancel": "tasks/cancel"},
    "1": {"send": "SendMessage", "get": "GetTask", "cancel": "CancelTask"},
}
ADK_EVENTS = "https://google.github.io/adk-docs/a2a/a2a-extension/"
"""The extension by which ADK's servers tell each event of a turn, with its author and tokens. Others ignore what they do not know."""


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class File(_Wire):
    """A file, in the older dialect."""

    bytes: str | None = None
    uri: str | None = None
    mime_type: str | None = None


class Part(_Wire):
    """A part of a message, in either dialect."""

    text: str | None = None
    data: Any = None
    file: File | None = None
    raw: str | None = None
    url: str | None = None
    media_type: str | None = None
    metadata: Json | None = None


class Message(_Wire):
    """What somebody says."""

    message_id: str = ""
    context_id: str | None = None
    role: str = "agent"
    parts: tuple[Part, ...] | None = None


class Status(_Wire):
    """How a task is going."""

    state: str
    message: Message | None = None


class Artifact(_Wire):
    """A result of a task."""

    artifact_id: str = ""
    parts: tuple[Part, ...] | None = None
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
    """Where and how an agent is spoken with, as its card says."""

    url: str
    protocol_binding: str = "JSONRPC"
    protocol_version: str = "0.3"
    tenant: str | None = None


class _Additional(_Wire):
    url: str
    transport: str = ""


class _Card(_Wire):
    name: str = ""
    supported_interfaces: tuple[Interface, ...] | None = None
    url: str | None = None
    preferred_transport: str | None = None
    additional_interfaces: tuple[_Additional, ...] | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """What an agent says of itself."""

    name: str
    interfaces: tuple[Interface, ...]

    def interface(self) -> Interface | None:
        """Return the first one that speaks JSON-RPC in a dialect that is known."""
        known = (one for one in self.interfaces if one.protocol_binding.upper() == "JSONRPC" and one.protocol_version[:1] in _METHODS)
        return next(known, None)


def card_of(said: Any) -> Card | None:
    """Return an agent card; ``None``: it is none."""
    try:
        card = _Card.model_validate(said)
    except ValidationError:
        return None
    older = [Interface(url=card.url, protocol_binding=card.preferred_transport or "JSONRPC")] if card.url else []
    older += [Interface(url=one.url, protocol_binding=one.transport) for one in card.additional_interfaces or ()]
    found = (*(card.supported_interfaces or ()), *older)
    return Card(card.name, found) if found else None


def call(action: Action, interface: Interface, params: Json) -> Json:
    """Return a call in the dialect of `interface`."""
    tenant = {"tenant": interface.tenant} if interface.tenant else {}
    return {
        "jsonrpc": "2.0",
        "id": uuid.uuid4().hex,
        "method": _METHODS[interface.protocol_version[:1]][action],
        "params": {**params, **tenant},
    }


def headers(interface: Interface) -> dict[str, str]:
    """Return what tells the agent the dialect, and that events of ADK are welcome."""
    if interface.protocol_version.startswith("0"):
        return {"X-A2A-Extensions": ADK_EVENTS}
    return {"A2A-Version": ".".join(interface.protocol_version.split(".")[:2]), "A2A-Extensions": ADK_EVENTS}


def message(user: Content, interface: Interface, *, context_id: str | None, task_id: str | None) -> Json:
    """Return the parameters that say something to the agent.

    Args:
        user: what to say.
        interface: how the agent is spoken with.
        context_id: the conversation; ``None``: a new one.
        task_id: the task that waits for it, if one does.

    Raises:
        AgentError: if a part of it cannot be said.
    """
    older = interface.protocol_version.startswith("0")
    parts = [_older_part(part) if older else _part(part) for part in user.parts or ()]
    said: Json = {"messageId": uuid.uuid4().hex, "role": "user" if older else "ROLE_USER", "parts": parts}
    said |= {name: value for name, value in (("contextId", context_id), ("taskId", task_id)) if value}
    return {"message": {"kind": "message", **said}, "configuration": {"blocking": True}} if older else {"message": said}


def _part(part: SaidPart) -> Json:
    if part.text is not None:
        return {"text": part.text}
    match part.inline_data, part.file_data:
        case {"data": data, **more}, _:
            return {"raw": data, "mediaType": more.get("mime_type") or more.get("mimeType") or ""}
        case _, {"file_uri": uri, **more} | {"fileUri": uri, **more}:
            return {"url": uri, "mediaType": more.get("mime_type") or more.get("mimeType") or ""}
        case _:
            raise AgentError("the user's message has a part that is neither text nor a file, which A2A does not take here")


def _older_part(part: SaidPart) -> Json:
    newer = _part(part)
    if "text" in newer:
        return {"kind": "text", **newer}
    named = {"bytes": newer["raw"]} if "raw" in newer else {"uri": newer["url"]}
    return {"kind": "file", "file": {**named, "mimeType": newer["mediaType"]}}


def answer_of(result: Any) -> Message | Task | None:
    """Return what came back for a message or a question about a task; ``None``: neither a message nor a task."""
    if not isinstance(result, dict):
        return None
    inner = result.get("task") or result.get("message") or result
    kind = Task if isinstance(inner, dict) and "status" in inner else Message
    try:
        found = kind.model_validate(inner)
    except ValidationError:
        return None
    return found if isinstance(found, Task) or found.parts is not None else None
