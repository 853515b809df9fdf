"""Just the fields of ADK's files that scoring reads, as msgspec structs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field, json


class Call(Struct):
    """A tool call; two are equal if name and arguments are."""

    name: str
    args: dict[str, Any]


class Part(Struct):
    """A part of a message."""

    text: str | None = None
    function_call: Call | None = None


class Content(Struct):
    """A message."""

    parts: list[Part]


class Event(Struct):
    """An intermediate message."""

    content: Content


class Intermediate(Struct):
    """What happened between question and answer, in either of ADK's shapes."""

    tool_uses: list[Call] = field(default_factory=list)
    invocation_events: list[Event] = field(default_factory=list)


class Invocation(Struct):
    """A turn."""

    user_content: Content
    final_response: Content
    intermediate_data: Intermediate


class Case(Struct):
    """A case of the eval set."""

    eval_id: str
    conversation: list[Invocation]


class EvalSet(Struct):
    """The eval set."""

    eval_cases: list[Case]


class Recorded(Struct):
    """What the agent did in a case."""

    eval_id: str
    invocations: list[Invocation]


def decode(eval_set: bytes, actual: bytes) -> tuple[list[Case], dict[str, list[Invocation]]]:
    """Return the cases and the recorded invocations by eval id."""
    recorded = json.decode(actual, type=list[Recorded])
    return json.decode(eval_set, type=EvalSet).eval_cases, {case.eval_id: case.invocations for case in recorded}


def text(content: Content) -> str:
    """Return the text of a message."""
    return "\n".join([part.text for part in content.parts if part.text])


def calls(invocation: Invocation) -> list[Call]:
    """Return the tool calls of a turn."""
    data = invocation.intermediate_data
    return data.tool_uses or [part.function_call for event in data.invocation_events for part in event.content.parts if part.function_call]
