"""What is read from the spans of one turn, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.adk.events import union_s
from mlflow_adk_eval.agents.traces.spans import Span
from mlflow_adk_eval.evalset import Content, Invocation, InvocationEvent
from mlflow_adk_eval.redact import redacted, secrets_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn, and whether the agent got to its end."""

    invocation: Invocation
    error: str = ""
    """Why the agent failed in it; empty where it did not."""
    agent: str = ""
    """The name of the agent; empty where the spans do not say."""


def error_of(span: Span) -> str:
    """Return why a span failed, without secrets; empty where it did not."""
    return redacted(span.error or "the span says ERROR, and no more", secrets_of()) if span.failed else ""


def spent(turn: Span, models: Iterable[Span], tools: Iterable[Span]) -> dict[str, Any]:
    """Return the seconds that a turn took, and those of models and tools; a tool that waits for a model does not count."""
    model, tool = [span.seconds for span in models], [span.seconds for span in tools]
    model_s = union_s(model)
    start, end = turn.seconds
    return {
        "creation_timestamp": start,
        "duration": round(end - start, 3),
        "model_duration": round(model_s, 3),
        "tool_duration": round(union_s(model + tool) - model_s, 3),
    }


def finished(events: Sequence[InvocationEvent]) -> tuple[Content | None, tuple[InvocationEvent, ...]]:
    """Return the final answer, and the events without it and without those in which nothing was said, found or paid for."""
    final = _final(events)
    kept = [event for event in events if _is_kept(event)]
    return final.content if final else None, tuple(
        event if event is not final and _says_something(event) else event.model_copy(update={"content": None}) for event in kept
    )


def _final(events: Iterable[InvocationEvent]) -> InvocationEvent | None:
    """Return the last event with a final answer; one with text is not replaced by one without."""
    final = None
    for event in events:
        parts = (event.content.parts if event.content else None) or ()
        waits = any(part.function_call or part.function_response for part in parts)
        if parts and not waits and (_has_text(event) or not _has_text(final)):
            final = event
    return final


def _has_text(event: InvocationEvent | None) -> bool:
    return bool(event and event.content and any(part.text for part in event.content.parts or ()))


def _is_kept(event: InvocationEvent) -> bool:
    return _says_something(event) or any(
        value is not None for value in (event.grounding_metadata, event.usage_metadata, event.model_version)
    )


def _says_something(event: InvocationEvent) -> bool:
    parts = (event.content.parts if event.content else None) or ()
    return any(part.text or part.function_call or part.function_response or part.inline_data for part in parts)
