"""From the events of one ADK turn to an invocation, by ADK's own rules. Knows the shape of ADK's objects, not ADK."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from mlflow_adk_eval.evalset import AgentDetails, AppDetails, Content, Invocation, InvocationEvent, InvocationEvents

Interval = tuple[float, float]


def plain(value: Any) -> Any:
    """Return `value` as JSON values in ADK's spelling; what JSON does not know, such as an object in a tool's answer, as its text."""
    return to_jsonable_python(value, exclude_none=True, by_alias=False, serialize_unknown=True)


def _open() -> dict[Any, float]:
    return {}


def _intervals() -> list[Interval]:
    return []


def _requests() -> dict[str, Any]:
    return {}


@dataclass(slots=True)
class TurnRecord:
    """What is watched while a turn runs, besides its events."""

    requests: dict[str, Any] = field(default_factory=_requests)
    """The first request of each agent to its model, by the agent's name."""
    model: list[Interval] = field(default_factory=_intervals)
    tool: list[Interval] = field(default_factory=_intervals)
    running: dict[Any, float] = field(default_factory=_open)
    """When what has not ended yet began."""
    began: float = field(default_factory=time.perf_counter)
    began_at: float = field(default_factory=time.time)

    def begin(self, key: Any) -> None:
        """Note that the call `key` begins."""
        self.running[key] = time.perf_counter()

    def end(self, key: Any, ended: list[Interval]) -> None:
        """Note in `ended` that the call `key` ends, or, for a model that streams, that a piece of its answer came."""
        now = time.perf_counter()
        if key in self.running:
            ended.append((self.running[key], now))
            self.running[key] = now


def union_s(intervals: Iterable[Interval]) -> float:
    """Return how many seconds lie in at least one interval.

    >>> union_s([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, counted_to = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, counted_to))
        counted_to = max(counted_to, end)
    return total


def turn_invocation(events: Sequence[Any], user: Content, record: TurnRecord) -> Invocation:
    """Return what happened in one turn. A turn without events is an invocation without an answer, not a missing one."""
    told = [event for event in events if (event.author or "agent").lower() != "user"]
    final = _final_event(told)
    model_s = union_s(record.model)
    return Invocation(
        invocation_id=events[0].invocation_id if events else "",
        user_content=user,
        final_response=_content(final) if final is not None else None,
        intermediate_data=InvocationEvents(invocation_events=tuple(_event(event, final) for event in told if _is_kept(event))),
        creation_timestamp=record.began_at,
        duration=round(time.perf_counter() - record.began, 3),
        model_duration=round(model_s, 3),
        # A tool that is an agent waits for models inside its own interval; that time is the models'.
        tool_duration=round(union_s(record.model + record.tool) - model_s, 3),
        app_details=_app_details(record.requests),
    )


def _final_event(events: Iterable[Any]) -> Any | None:
    """Return the last event with a final answer; one with text is not replaced by one without."""
    final = None
    for event in events:
        if event.content and event.content.parts and event.is_final_response() and (_has_text(event) or not _has_text(final)):
            final = event
    return final


def _has_text(event: Any | None) -> bool:
    return event is not None and any(part.text for part in event.content.parts)


def _is_kept(event: Any) -> bool:
    parts = (event.content.parts if event.content else None) or ()
    spoken = any(part.text or part.function_call or part.function_response or part.inline_data for part in parts)
    return spoken or event.grounding_metadata is not None


def _event(event: Any, final: Any) -> InvocationEvent:
    """Return an event; the final answer's text is left out, since it is the invocation's `final_response`."""
    with_content = event is not final or event.get_function_calls()
    return InvocationEvent(
        author=event.author,
        content=_content(event) if with_content else None,
        grounding_metadata=_optional(event.grounding_metadata),
        usage_metadata=_optional(event.usage_metadata),
        model_version=event.model_version,
    )


def _content(event: Any) -> Content | None:
    return Content.model_validate(plain(event.content)) if event.content else None


def _optional(value: Any) -> Any:
    return None if value is None else plain(value)


def _app_details(requests: Mapping[str, Any]) -> AppDetails | None:
    if not requests:
        return None
    return AppDetails(agent_details={name: _agent_details(name, request.config) for name, request in requests.items()})


def _agent_details(name: str, config: Any) -> AgentDetails:
    instruction = config.system_instruction
    return AgentDetails(
        name=name,
        instructions=instruction if isinstance(instruction, str) else Content.model_validate(plain(instruction) or {}).text,
        tool_declarations=tuple(plain(tool) for tool in config.tools or ()),
    )
