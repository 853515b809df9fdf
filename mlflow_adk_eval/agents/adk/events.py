"""From the events of one turn to an `Invocation`, by ADK's own rules. Knows the shape of ADK's objects, and does not import ADK.

An event is anything with ``author``, ``content`` and ``is_final_response()``: ADK's own, or a `TurnEvent` of an agent that is none of
ADK's. The last final event with text is the answer; the others become the invocation's recorded events, without those that only concern
the framework's state. What events do not say comes from a `TurnRecord`, which is filled while the turn runs: requests to models, and
how long models and tools took.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_jsonable_python

from mlflow_adk_eval.evalset import AgentDetails, AppDetails, Content, Invocation, InvocationEvent, InvocationEvents
from mlflow_adk_eval.evalset.models import Json

Interval = tuple[float, float]


def plain(value: Any) -> Any:
    """Return `value` as JSON values in ADK's spelling; what JSON does not know, such as an object in a tool's answer, as its text."""
    return to_jsonable_python(value, exclude_none=True, by_alias=False, serialize_unknown=True)


@dataclass(slots=True)
class _Call:
    """A call of a model or a tool that has begun."""

    since: float
    ended: list[Interval]
    """Where its time is counted."""
    answered: bool = False
    """Whether something has come of it, which for a model that streams need not be all."""


@dataclass(slots=True)
class TurnRecord:
    """What is measured while a turn runs, besides its events."""

    invocation_id: str = ""
    requests: dict[str, Any] = field(default_factory=dict[str, Any])
    """The first request of each agent to its model, by the agent's name."""
    model: list[Interval] = field(default_factory=list[Interval])
    tool: list[Interval] = field(default_factory=list[Interval])
    calls: dict[Any, _Call] = field(default_factory=dict[Any, _Call])
    began: float = field(default_factory=time.perf_counter)
    began_at: float = field(default_factory=time.time)

    def begin(self, key: Any, ended: list[Interval]) -> None:
        """Note that the call `key` begins, whose time is to be counted in `ended`."""
        self.calls[key] = _Call(time.perf_counter(), ended)

    def end(self, key: Any) -> None:
        """Note that the call `key` ends, or, for a model that streams, that a piece of its answer came."""
        if call := self.calls.get(key):
            now = time.perf_counter()
            call.ended.append((call.since, now))
            call.since, call.answered = now, True

    def cut_short(self) -> None:
        """Count what is still waited for, since nobody will wait any longer."""
        for key, call in self.calls.items():
            if not call.answered:
                self.end(key)


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
    """Return what happened in one turn. A turn without events is an invocation without an answer, not a missing one.

    Args:
        events: those of the agent, and finished ones that it does not report.
        user: the user's message.
        record: what was measured besides.
    """
    final_response, kept = split_answer([event for event in events if (event.author or "agent").lower() != "user"])
    model_s = union_s(record.model)
    return Invocation(
        invocation_id=record.invocation_id or (events[0].invocation_id if events else ""),
        user_content=user,
        final_response=final_response,
        intermediate_data=InvocationEvents(invocation_events=kept),
        creation_timestamp=record.began_at,
        duration=round(time.perf_counter() - record.began, 3),
        model_duration=round(model_s, 3),
        # A tool that is an agent waits for models inside its own interval; that time is the models'.
        tool_duration=round(union_s(record.model + record.tool) - model_s, 3),
        app_details=_app_details(record.requests),
    )


def model_call(author: str, response: Any) -> InvocationEvent:
    """Return that a model was called, and what that cost, without what it said: for calls that no event reports."""
    return InvocationEvent(author=author, **_costs(response))


def split_answer(events: Sequence[Any]) -> tuple[Content | None, tuple[InvocationEvent, ...]]:
    """Return the final response, and the events that led to it, those that are finished among them as they are."""
    final = _final_event(event for event in events if not isinstance(event, InvocationEvent))
    return _content(final) if final is not None else None, tuple(_kept(events, final))


def _final_event(events: Iterable[Any]) -> Any | None:
    """Return the last event with a final answer; one with text is not replaced by one without."""
    final = None
    for event in events:
        if event.content and event.content.parts and event.is_final_response() and (_has_text(event) or not _has_text(final)):
            final = event
    return final


def _has_text(event: Any | None) -> bool:
    return event is not None and any(part.text for part in event.content.parts)


def _kept(events: Iterable[Any], final: Any) -> Iterator[InvocationEvent]:
    """Yield what the events say; of the final answer only calls and results, since its text is the invocation's `final_response`."""
    for event in events:
        if isinstance(event, InvocationEvent):
            yield event
        elif _is_kept(event):
            with_content = _has_any(event, _SAID) and (event is not final or _has_any(event, _DONE))
            yield InvocationEvent(
                author=event.author,
                content=_content(event) if with_content else None,
                grounding_metadata=_optional(event.grounding_metadata),
                **_costs(event),
            )


_DONE = ("function_call", "function_response")
_SAID = ("text", *_DONE, "inline_data", "file_data", "executable_code", "code_execution_result")
"""What may be in a part that is worth keeping; the rest says how a part is to be read."""


def _is_kept(event: Any) -> bool:
    """Whether something was said, done, found or paid for; other events concern the framework's own state."""
    return event.grounding_metadata is not None or bool(_costs(event)) or _has_any(event, _SAID)


def _has_any(event: Any, names: Sequence[str]) -> bool:
    parts = (event.content.parts if event.content else None) or ()
    return any(getattr(part, name, None) for part in parts for name in names)


def _costs(response: Any) -> Json:
    """Return what a model's answer says of itself: its tokens, its version, and why it says nothing."""
    found = {name: getattr(response, name, None) for name in ("usage_metadata", "model_version", "error_code", "error_message")}
    return {name: plain(value) for name, value in found.items() if value is not None}


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
