"""What an agent did in a turn, step by step, from either shape of ADK's data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from mlflow_adk_eval.evalset import Content, FunctionCall, FunctionResponse, IntermediateData, Invocation, InvocationEvents, Part

StepKind = Literal["text", "call", "response", "media"]

_CODE = "code_execution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened between the user's message and the final response. Thoughts are none: nobody was told them."""

    kind: StepKind
    author: str = ""
    """The agent; empty where the data do not say."""
    name: str = ""
    """The tool, or the type of the media."""
    payload: Any = None
    """The text, the arguments of the call, or what the tool returned."""
    id: str = ""
    """Of the call, as the model numbered it; empty where it did not."""
    call: int | None = None
    """The number of the call in this turn, from 1; a response has that of its call, or ``None`` where there is no such call."""


def steps(invocation: Invocation) -> tuple[Step, ...]:
    """Return what happened in a turn before the final response, in order.

    Data written by hand do not say how texts and calls alternated: the texts come first, then each call with its responses.
    """
    match invocation.intermediate_data:
        case InvocationEvents(invocation_events=events):
            return _numbered([step for event in events for step in steps_of(event.content, event.author)])
        case IntermediateData(tool_uses=calls, tool_responses=responses, intermediate_responses=said):
            texts = [step for author, parts in said for step in steps_of(Content(parts=parts), author)]
            return tuple(sorted(_numbered([*texts, *map(_call, calls), *map(_response, responses)]), key=_beside_its_call))
        case None:
            return ()


def steps_of(content: Content | None, author: str = "") -> Iterator[Step]:
    """Yield the steps in one message; text parts that follow one another are one text, joined as ADK joins them."""
    parts = [part for part in (content.parts if content else None) or () if not part.thought]
    for are_texts, group in groupby(parts, key=lambda part: bool(_text(part))):
        if are_texts:
            yield Step(kind="text", author=author, payload="\n".join(map(_text, group)))
        else:
            yield from (replace(step, author=author) for part in group for step in _deeds(part))


def _text(part: Part) -> str:
    spoken = part.text or _get(part.audio_transcription, "text")
    return spoken if isinstance(spoken, str) else ""


def _deeds(part: Part) -> Iterator[Step]:
    """Yield what a part does other than say something."""
    if part.function_call:
        yield _call(part.function_call)
    if part.function_response:
        yield _response(part.function_response)
    if part.executable_code:
        yield Step(kind="call", name=_CODE, payload=part.executable_code, id=_id(part.executable_code))
    if part.code_execution_result:
        yield Step(kind="response", name=_CODE, payload=part.code_execution_result, id=_id(part.code_execution_result))
    if part.tool_call:
        yield Step(kind="call", name=_tool_type(part.tool_call), payload=_get(part.tool_call, "args"), id=_id(part.tool_call))
    if part.tool_response:
        yield Step(
            kind="response", name=_tool_type(part.tool_response), payload=_get(part.tool_response, "response"), id=_id(part.tool_response)
        )
    for media in (part.inline_data, part.file_data):
        if media:
            yield Step(kind="media", name=str(_get(media, "mime_type") or _get(media, "mimeType") or "media"))


def _call(call: FunctionCall) -> Step:
    return Step(kind="call", name=call.name or "", payload=call.args or {}, id=call.id or "")


def _response(response: FunctionResponse) -> Step:
    payload = {"response": response.response, "parts": response.parts} if response.parts else response.response
    return Step(kind="response", name=response.name or "", payload=payload, id=response.id or "")


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _id(value: Any) -> str:
    return str(_get(value, "id") or "")


def _tool_type(value: Any) -> str:
    return str(_get(value, "tool_type") or _get(value, "toolType") or "tool")


def _beside_its_call(step: Step) -> tuple[int, int]:
    if step.kind in ("text", "media"):
        return 0, 0
    return (2, 0) if step.call is None else (1, step.call)


def _numbered(found: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with the numbers of their calls."""
    numbers = {at: number for number, at in enumerate((at for at, step in enumerate(found) if step.kind == "call"), 1)}
    pairs = _pairs(found, tuple(numbers))
    return tuple(
        replace(step, call=numbers.get(pairs.get(at, at))) if step.kind in ("call", "response") else step for at, step in enumerate(found)
    )


def _pairs(found: Sequence[Step], calls: Sequence[int]) -> dict[int, int]:
    """Return the place of the call that each response answers, by the response's place.

    A response answers the call of its id. One without an id, or to a call without, answers the first call of its tool that
    nothing else answers. A second response of an id belongs to the same call, as with tools that report their progress.
    """
    pairs: dict[int, int] = {}
    for matches, once in ((_same_id, True), (_same_tool, True), (_same_id, False)):
        taken = set(pairs.values()) if once else set[int]()
        for at, response in enumerate(found):
            if response.kind == "response" and at not in pairs:
                call = next((place for place in calls if place < at and place not in taken and matches(found[place], response)), None)
                if call is not None:
                    pairs[at] = call
                    taken |= {call} if once else set()
    return pairs


_Matches = Callable[[Step, Step], bool]


def _same_id(call: Step, response: Step) -> bool:
    return bool(call.id) and call.id == response.id


def _same_tool(call: Step, response: Step) -> bool:
    return not (call.id and response.id) and (not response.name or call.name == response.name)
