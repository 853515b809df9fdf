"""What an agent was told, knew, did and said: the steps of a turn, and texts of them for judges.

`steps` reads either shape of ADK's data, recorded events or lists written by hand, into one list of `Step`. All texts for judges are made of
those. Texts of several authors stand in JSON lines, one per step: what one of them wrote cannot pass for a line of another.

Each text is a `Material`: it comes with the media that it leaves out, wherever in the steps they stood.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from pydantic import BaseModel

from mlflow_adk_eval.evalset.material import Material, joined, unshown_in
from mlflow_adk_eval.evalset.media import Media, media_in, media_of_part, readable, text_of_file
from mlflow_adk_eval.evalset.models import (
    AppDetails,
    Content,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvents,
    Json,
    Part,
    carried,
)

DECLARATIONS = ("function_declarations", "functionDeclarations")
_FOR_DISPLAY = {"search_entry_point", "searchEntryPoint"}
"""Grounding metadata that are HTML for a page, not evidence."""


StepKind = Literal["text", "call", "response", "media"]

_CODE = "code_execution"
_LOADS_ARTIFACTS = "load_artifacts"
"""The tool of google-adk that shows its model files of the session. No event has them; its call names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened between the user's message and the final response. Thoughts are none: nobody was told them."""

    kind: StepKind
    author: str = ""
    """The agent; empty where the data do not say."""
    name: str = ""
    """The tool, or the type of the media."""
    payload: Any = None
    """The text, the arguments of the call, or what the tool returned; of media a `Media`, or the text of a text file."""
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
        case IntermediateData(tool_uses=calls, tool_responses=responses, intermediate_responses=messages):
            texts = [step for author, parts in messages for step in steps_of(Content(parts=parts), author)]
            numbered = _numbered([*texts, *map(_call, calls), *map(_response, responses)])
            return tuple(sorted(numbered, key=lambda step: 0 if step.kind in ("text", "media") else step.call or math.inf))
        case None:
            return ()


def steps_of(content: Content | None, author: str = "") -> Iterator[Step]:
    """Yield the steps in one message; text parts that follow one another are one text, joined as ADK joins them."""
    parts = [part for part in (content.parts if content else None) or () if not part.thought]
    for are_texts, group in groupby(parts, key=lambda part: bool(part.words)):
        if not are_texts:
            yield from (replace(step, author=author) for part in group for step in _deeds(part))
            continue
        together = list(group)
        yield Step(kind="text", author=author, payload="\n".join([part.words for part in together]))
        for part in together:  # a part may have media beside its text
            yield from (replace(step, author=author) for step in _media(part))


def _deeds(part: Part) -> Iterator[Step]:
    """Yield what a part does other than say something."""
    if part.function_call:
        yield _call(part.function_call)
    if part.function_response:
        yield _response(part.function_response)
    if code := part.executable_code:
        yield Step(kind="call", name=_CODE, payload=code, id=str(carried(code, "id") or ""))
    if result := part.code_execution_result:
        yield Step(kind="response", name=_CODE, payload=result, id=str(carried(result, "id") or ""))
    kinds: tuple[tuple[StepKind, Any, str], ...] = (("call", part.tool_call, "args"), ("response", part.tool_response, "response"))
    for kind, value, field in kinds:
        if value:
            name = str(carried(value, "tool_type") or carried(value, "toolType") or "tool")
            yield Step(kind=kind, name=name, payload=carried(value, field), id=str(carried(value, "id") or ""))
    yield from _media(part)


def _media(part: Part) -> Iterator[Step]:
    """Yield the media that a part is; a text file with its text."""
    for media, held in media_of_part(part):
        text = text_of_file(held)
        name = media.mime_type or "media"
        yield Step(kind="media", name=name, payload=media) if text is None else Step(kind="media", name=str(media), payload=text)


def _call(call: FunctionCall) -> Step:
    return Step(kind="call", name=call.name or "", payload=call.args or {}, id=call.id or "")


def _response(response: FunctionResponse) -> Step:
    payload = {"response": response.response, "parts": response.parts} if response.parts else response.response
    return Step(kind="response", name=response.name or "", payload=payload, id=response.id or "")


def _numbered(events: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with the numbers of their calls.

    A response answers the call of its id. One without an id, or to a call without, answers the first call of its tool that
    nothing else answers. A second response of an id belongs to the same call, as with tools that report their progress.
    """
    calls = [at for at, step in enumerate(events) if step.kind == "call"]
    answered: dict[int, int] = {}  # the place of its call, by the place of a response
    for by_id, once in ((True, True), (False, True), (True, False)):
        taken = set(answered.values()) if once else set[int]()
        for at, response in enumerate(events):
            if response.kind == "response" and at not in answered:
                before = (place for place in calls if place < at and place not in taken)
                call = next((place for place in before if _answers(response, events[place], by_id=by_id)), None)
                if call is not None:
                    answered[at] = call
                    taken |= {call} if once else set()
    numbers = {at: number for number, at in enumerate(calls, 1)}
    places = ((step, answered.get(at, at)) for at, step in enumerate(events))
    return tuple(replace(step, call=numbers.get(place)) if step.kind in ("call", "response") else step for step, place in places)


def _answers(response: Step, call: Step, *, by_id: bool) -> bool:
    if by_id:
        return bool(call.id) and call.id == response.id
    return not (call.id and response.id) and (not response.name or call.name == response.name)


def unshown_of(step: Step) -> tuple[Media, ...]:
    """Return the media in a step that a text of it does not show."""
    if isinstance(step.payload, Media):
        return (step.payload,)
    found = media_in(step.payload)
    if step.kind == "call" and step.name == _LOADS_ARTIFACTS and isinstance(step.payload, Mapping):
        names = step.payload.get("artifact_names")
        found += tuple(Media("", str(name)) for name in (names if isinstance(names, list | tuple) else ()))
    return found


def _unshown(taken: Iterable[Step]) -> tuple[Media, ...]:
    found: list[Media] = []
    for step in taken:
        found += unshown_of(step)
    return tuple(found)


def content_material(content: Content | None) -> Material:
    """Return what a message says, joined by newlines: its text without thoughts; media are named, and text files shown."""
    lines: list[str] = []
    taken = tuple(steps_of(content))
    for step in taken:
        if step.kind == "text":
            lines.append(step.payload)
        elif step.kind == "media":
            lines.append(f"[{step.name}]" if isinstance(step.payload, Media) else f"[{step.name}]\n{step.payload}")
    return Material("\n".join(lines), _unshown(taken))


def user_material(invocation: Invocation) -> Material:
    """Return what the user said."""
    return content_material(invocation.user_content)


def final_material(invocation: Invocation, *, include_intermediate: bool = False) -> Material:
    """Return what the agent answered; empty where it said nothing.

    Args:
        invocation: the turn.
        include_intermediate: whether what it said on the way belongs to the answer, as ADK's
            ``include_intermediate_responses_in_final`` asks. So do the media that it sent on the way, though only their names would be shown.
    """
    final = content_material(invocation.final_response)
    if not include_intermediate:
        return final
    said = [step for step in steps(invocation) if step.kind in ("text", "media")]
    texts = [step.payload for step in said if isinstance(step.payload, str)]
    return joined([Material("\n".join(texts), _unshown(said)), final])


def words_of(invocation: Invocation, *, include_intermediate: bool = False) -> str:
    """Return the words of an answer, for criteria that compare texts: media are left out.

    Args:
        invocation: the turn.
        include_intermediate: whether what it said on the way belongs to the answer.
    """
    answer = invocation.final_text
    if not include_intermediate:
        return answer
    said = [step.payload for step in steps(invocation) if step.kind == "text"]
    if answer:
        said.append(answer)
    return "\n".join(said)


def tool_material(invocation: Invocation) -> Material:
    """Return the tool calls of a turn and what the tools returned, as JSON lines; empty where no tool was called."""
    return calls_material(steps(invocation))


def calls_material(taken: Iterable[Step]) -> Material:
    """Return the calls among some steps and what they returned, as JSON lines.

    Media that the agent sent between its calls are counted as left out, since code that it ran may have made them.
    """
    deeds = [step for step in taken if step.kind != "text"]
    return Material(steps_text(step for step in deeds if step.kind != "media"), _unshown(deeds))


def steps_text(taken: Iterable[Step]) -> str:
    """Return any steps as JSON lines."""
    return "\n".join(json_text(step_record(step)) for step in taken)


def conversation_material(turns: Sequence[Invocation], kinds: Sequence[StepKind] = ("text", "call", "response", "media")) -> Material:
    """Return a conversation as JSON lines: in each turn the user's message, the agent's steps of these kinds, and its final response."""
    lines: list[str] = []
    unshown: list[Media] = []
    for number, turn in enumerate(turns, 1):
        user, final = user_material(turn), final_material(turn)
        taken = [step for step in steps(turn) if step.kind in kinds]
        records = ({"user": user.text}, *map(step_record, taken), {"final_response": final.text})
        lines += [json_text({"turn": number} | record) for record in records]
        unshown += [*user.unshown, *_unshown(taken), *final.unshown]
    return Material("\n".join(lines), tuple(unshown))


def dialogue_material(turns: Sequence[Invocation]) -> Material:
    """Return the words of a conversation as JSON lines: the user's, those on the way to each answer, and the answers."""
    return conversation_material(turns, ("text", "media"))


def step_record(step: Step) -> Json:
    """Return a step as a JSON object; what is not known is left out.

    >>> step_record(Step(kind="call", author="planner", name="f", payload={"x": 1}, call=1))
    {'agent': 'planner', 'call': 1, 'tool': 'f', 'args': {'x': 1}}
    """
    agent = {"agent": step.author} if step.author else {}
    match step.kind:
        case "text":
            return {**agent, "says": step.payload}
        case "media":
            text = {} if isinstance(step.payload, Media) else {"text": step.payload}
            return {**agent, "sends": step.name, **text}
        case "call":
            return {**agent, "call": step.call, "tool": step.name, "args": step.payload}
        case "response":
            return {**({"answers_call": step.call} if step.call else {}), "tool": step.name, "returns": step.payload}


def instructions_material(*apps: AppDetails | None) -> Material:
    """Return the instructions of all agents as JSON lines, each once; empty where none are known."""
    agents = (agent for app in apps if app for agent in app.agent_details.values())
    return _once({"agent": agent.name, "instructions": agent.instructions} for agent in agents if agent.instructions)


def tools_material(*apps: AppDetails | None) -> Material:
    """Return the tools of all agents as JSON lines, each once; empty where none are known."""
    agents = (agent for app in apps if app for agent in app.agent_details.values())
    declared = ((agent.name, one) for agent in agents for one in agent.tool_declarations)
    return _once({"agent": name, "tool": tool} for name, one in declared for tool in _functions(one))


def _functions(declaration: Any) -> Iterator[Any]:
    """Yield the functions that a declaration holds, and what it is besides, such as a built-in tool."""
    plain = _plain(declaration)
    if not isinstance(plain, dict):
        yield plain
        return
    for key in DECLARATIONS:
        functions = plain.get(key)
        yield from functions if isinstance(functions, list) else ()
    if rest := {key: value for key, value in plain.items() if key not in DECLARATIONS and value is not None}:
        yield rest


def whole_conversation(turns: Sequence[Invocation]) -> Mapping[str, Material]:
    """Return what the judges of a conversation as a whole read of it."""
    apps = [turn.app_details for turn in turns]
    return {
        "developer_instructions": instructions_material(*apps),
        "tools": tools_material(*apps),
        "conversation": conversation_material(turns),
    }


def grounding_material(invocation: Invocation) -> Material:
    """Return what the model's own searches found, as JSON lines; empty where nothing is recorded."""
    return _once(
        {"agent": event.author, "grounding": {key: value for key, value in event.grounding_metadata.items() if key not in _FOR_DISPLAY}}
        for event in invocation.events
        if event.grounding_metadata
    )


def _once(records: Iterable[Json]) -> Material:
    each = list(records)
    return Material("\n".join(dict.fromkeys(map(json_text, each))), media_in(each))


def json_text(value: Any) -> str:
    """Return compact JSON; what JSON does not know becomes its ``repr``, and media their size.

    >>> json_text({"city": "東京", "when": {1, 2}, "blob": b"123"})
    '{"city":"東京","when":"{1, 2}","blob":"<3 bytes>"}'
    """
    try:
        text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
    except RecursionError:  # a value that contains itself, which `repr` knows how to write
        text = json.dumps(repr(value), ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair, as in the name of a file, cannot be sent


def _plain(value: Any) -> Any:
    """Return `value` as what JSON knows."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return f"<{len(value)} bytes>"
        case BaseModel():
            return _plain(value.model_dump(exclude_none=True))
        case Mapping():
            return {str(key): _plain(item) for key, item in _without_bytes(value).items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return repr(value)


def _without_bytes(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return an object with the size of a file in place of its bytes, which genai's ``Blob`` has in ``data``; a text file can be read."""
    data = value.get("data")
    if not isinstance(data, str) or not ("mime_type" in value or "mimeType" in value):
        return value
    text = readable(value)
    return {**value, "data": f"<{len(data)} characters>" if text is None else text}


def knowledge(turns: Sequence[Invocation]) -> Mapping[str, Material]:
    """Return what the agent knew in the last of some turns, whatever it did in it."""
    # The agents as they were last recorded; not as they were before, since instructions may hold the state of a session.
    app = next((turn.app_details for turn in reversed(turns) if turn.app_details), None)
    return {
        "developer_instructions": instructions_material(app),
        "tools": tools_material(app),
        "earlier_turns": conversation_material(turns[:-1]),
        "grounding_metadata": joined(map(grounding_material, turns)),
        "user_message": user_material(turns[-1]),
    }


def knowledge_material(turns: Sequence[Invocation]) -> Material:
    """Return all that the agent knew when it gave the last answer, the results of its tools included, as one text."""
    materials = {**knowledge(turns), "tool_calls": tool_material(turns[-1])}
    text = "\n\n".join(f"{name}:\n{one.text}" for name, one in materials.items() if one.text)
    return Material(text, unshown_in(materials.values()))
