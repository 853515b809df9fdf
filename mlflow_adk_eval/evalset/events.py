"""From the events of a turn, in the shape of ADK's objects, to the events and the answer of an `Invocation`.

An event is anything with ``author``, ``content`` and ``is_final_response()``. The answer is what a workflow gives out as a whole, if the root
of the turn is one, else by ADK's own rule the last final event with text. The other events are kept as recorded events, without those that
only concern the framework's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from mlflow_adk_eval.evalset.models import Content, InvocationEvent, Json, Part, carried


def plain(value: Any) -> Any:
    """Return `value` as JSON values in ADK's spelling; what JSON does not know, such as an object in a tool's answer, as its text."""
    return to_jsonable_python(value, exclude_none=True, by_alias=False, serialize_unknown=True)


def model_call(author: str, response: Any) -> InvocationEvent:
    """Return that a model was called, and what that cost, without what it said: for calls that no event reports."""
    return InvocationEvent(author=author, **_costs(response))


def model_error(author: str, event: Any) -> InvocationEvent | None:
    """Return the error that an event tells of, without what the model said; ``None``: it is none."""
    error = _error(event)
    return InvocationEvent(author=author, **error) if error else None


def split_answer(events: Sequence[Any]) -> tuple[Content | None, tuple[InvocationEvent, ...]]:
    """Return the final response, and the events that led to it, those that are finished among them as they are."""
    answering = _answering(events)
    output = output_of(answering) if answering is not None else None
    before: list[InvocationEvent] = []
    for event in events:
        if isinstance(event, InvocationEvent):
            before.append(event)
            continue
        recorded = _recorded(event, is_answer=event is answering, has_output=output is not None)
        if recorded is not None:
            before.append(recorded)
    if answering is None:
        return None, tuple(before)
    return output or Content.model_validate(plain(answering.content)), tuple(before)


def _answering(events: Sequence[Any]) -> Any:
    """Return the event that has the answer of the turn; ``None``: it has none."""
    final, given_out = None, None
    for event in events:
        if isinstance(event, InvocationEvent):
            continue
        if _is_output_of_root(event):
            given_out = event
        if not (event.content and event.content.parts and event.is_final_response()):
            continue
        if final is None or _has_any(event, _TEXTS) or not _has_any(final, _TEXTS):
            final = event  # the last one, but one with text is not replaced by one without
    return final if given_out is None else given_out


def _recorded(event: Any, *, is_answer: bool, has_output: bool) -> InvocationEvent | None:
    """Return an event as it is kept; ``None``: it concerns the framework's own state.

    Args:
        event: the event.
        is_answer: whether it has the turn's answer.
        has_output: whether the answer is what it gives out, and not what it says.
    """
    about: Json = {**_costs(event), **_error(event)}
    has_material = _has_any(event, _MATERIAL)
    if event.grounding_metadata is not None:
        about["grounding_metadata"] = plain(event.grounding_metadata)
    if not (has_material or about or is_answer):
        return None
    if is_answer and _error(event):
        about["with_answer"] = True
    content = event.content if has_material else None
    if is_answer and not has_output and not _has_any(event, _DONE):
        content = None  # its text is the invocation's `final_response`
    return InvocationEvent(
        author=event.author,
        content=Content.model_validate(plain(content)) if content else None,
        **about,
    )


_TEXTS = ("text", "audio_transcription")
_DONE = ("function_call", "function_response")
_MATERIAL = (*_TEXTS, *_DONE, "inline_data", "file_data", "executable_code", "code_execution_result")
"""What may be in a part that is worth keeping; the rest says how a part is to be read."""


def _has_any(event: Any, names: Sequence[str]) -> bool:
    parts = (event.content.parts if event.content else None) or ()
    return any(getattr(part, name, None) for part in parts for name in names)


_USAGE = ("usage_metadata", "model_version")
_ERRORS = ("error_code", "error_message")
_DONE_WELL = frozenset({"STOP", "FINISH_REASON_UNSPECIFIED"})


def _costs(response: Any) -> Json:
    """Return what a model's answer says of itself: its tokens and its version."""
    return _facts(response, _USAGE)


def _error(response: Any) -> Json:
    """Return why a model said nothing, or no more. ADK leaves that to the reason of the end where there is a beginning of an answer."""
    facts = _facts(response, _ERRORS)
    ended = plain(getattr(response, "finish_reason", None))
    if not facts and isinstance(ended, str) and ended not in _DONE_WELL:
        return {"error_code": ended}
    return facts


def _facts(response: Any, names: Iterable[str]) -> Json:
    known = {name: getattr(response, name, None) for name in names}
    return {name: plain(value) for name, value in known.items() if value is not None}


def _is_output_of_root(event: Any) -> bool:
    """Whether an event has what the root of the turn gives out, as workflows of ADK 2 have it."""
    node = getattr(event, "node_info", None)
    is_said = carried(node, "message_as_output") and event.content
    if getattr(event, "output", None) is None and not is_said:
        return False
    paths: Any = carried(node, "output_for") or [carried(node, "path")]
    return any(isinstance(path, str) and path and "/" not in path for path in paths)


def output_of(event: Any) -> Content | None:
    """Return what a node of a workflow gives out, as a message: text as it is, any other value as JSON; ``None``: what it says.

    A model's answer that was read by a schema is both, and then what the model said is the answer.
    """
    output = getattr(event, "output", None)
    if output is None:
        return None
    value = plain(output)
    if isinstance(value, Mapping) and "parts" in value and value.keys() <= Content.model_fields.keys():
        return Content.model_validate(value)
    said = Content.model_validate(plain(event.content)).text if event.content else ""
    if said and value in (said, _decoded(said)):
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Content(role="model", parts=(Part(text=text),))


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
