"""From the events of a turn, in the shape of ADK's objects, to the events and the answer of an `Invocation`, by ADK's own rules.

An event is anything with ``author``, ``content`` and ``is_final_response()``. The last final event with text is the answer; the others are kept
as recorded events, without those that only concern the framework's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from mlflow_adk_eval.evalset.models import Content, InvocationEvent, Json


def plain(value: Any) -> Any:
    """Return `value` as JSON values in ADK's spelling; what JSON does not know, such as an object in a tool's answer, as its text."""
    return to_jsonable_python(value, exclude_none=True, by_alias=False, serialize_unknown=True)


def model_call(author: str, response: Any) -> InvocationEvent:
    """Return that a model was called, and what that cost, without what it said: for calls that no event reports."""
    return InvocationEvent(author=author, **_costs(response))


def split_answer(events: Sequence[Any]) -> tuple[Content | None, tuple[InvocationEvent, ...]]:
    """Return the final response, and the events that led to it, those that are finished among them as they are."""
    final = None
    for event in events:
        may_answer = not isinstance(event, InvocationEvent) and event.content and event.content.parts and event.is_final_response()
        if may_answer and (final is None or _has_any(event, _TEXTS) or not _has_any(final, _TEXTS)):
            final = event  # the last one, but one with text is not replaced by one without
    before: list[InvocationEvent] = []
    for event in events:
        if isinstance(event, InvocationEvent):
            before.append(event)
            continue
        costs, material, grounding = _costs(event), _has_any(event, _MATERIAL), event.grounding_metadata
        if not (material or costs or grounding is not None):  # it concerns the framework's own state
            continue
        # Of the final answer only calls and results, since its text is the invocation's `final_response`.
        content = event.content if material and (event is not final or _has_any(event, _DONE)) else None
        said = Content.model_validate(plain(content)) if content else None
        sources = None if grounding is None else plain(grounding)
        before.append(InvocationEvent(author=event.author, content=said, grounding_metadata=sources, **costs))
    return Content.model_validate(plain(final.content)) if final is not None else None, tuple(before)


_TEXTS = ("text",)
_DONE = ("function_call", "function_response")
_MATERIAL = (*_TEXTS, *_DONE, "inline_data", "file_data", "executable_code", "code_execution_result")
"""What may be in a part that is worth keeping; the rest says how a part is to be read."""


def _has_any(event: Any, names: Sequence[str]) -> bool:
    parts = (event.content.parts if event.content else None) or ()
    return any(getattr(part, name, None) for part in parts for name in names)


def _costs(response: Any) -> Json:
    """Return what a model's answer says of itself: its tokens, its version, and why it says nothing."""
    facts = {name: getattr(response, name, None) for name in ("usage_metadata", "model_version", "error_code", "error_message")}
    return {name: plain(value) for name, value in facts.items() if value is not None}
