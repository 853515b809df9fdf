"""The shapes in which people bring what was said, done and expected, each read in this one place.

Tables and records hold what a model, an application or a framework happened to return: texts, OpenAI's and MLflow's chats and responses, ADK's
events. `ANSWERS` names each shape of what an agent did, or should have done, and `told_of` makes turns of it; `messages_in` and `content_of` read
what the user said, `tool_uses` the calls of tools. All doors for MLflow's users come through here by way of `shapes.rows` and `shapes.records`,
and docs/reference/shapes.md shows each shape with an example. Whatever is in none of them is an error that names it: read as a turn without an answer,
it would score 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

from pydantic import BaseModel

from mlflow_adk_eval.agents.turns import TurnLog, invocation_of
from mlflow_adk_eval.errors import EvalSetError, Problem, nearest, shown
from mlflow_adk_eval.evalset.media import block_media, media_in, media_parts
from mlflow_adk_eval.evalset.models import (
    Content,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    Json,
    Model,
    Part,
    value_at,
)
from mlflow_adk_eval.evalset.parse import ALMOST_CERTAIN, RepeatedKeyError, from_lenient_json

USER = ("messages", "input", "query", "question", "prompt", "user_message", "message", "request", "text", "content")
"""What inputs may call the user's message, or messages."""
ANSWER = ("response", "output", "answer", "text", "content", "result")
"""What outputs may call the answer, in whatever shape it is."""
BESIDE = ("tool_calls", "session_state", "run_index", "error", "unfinished", "unknown")
"""What outputs may say beside what was answered."""
STEPS = {"intermediate_data", "intermediateData"}
_FINAL = {"final_response", "finalResponse"}
_INVOCATION = {*_FINAL, *STEPS, "user_content", "userContent"}
_SPEAKERS = {
    "user": ("human",),
    "assistant": ("ai", "model", "function_call", "image_generation_call"),
    "tool": ("function", "function_call_output"),
}
_ROLES = {name: speaker for speaker, others in _SPEAKERS.items() for name in (speaker, *others)}
"""Who speaks, by the role of a message, or by its type where it has none; anybody else, such as the system, is not listened to."""
_BLOCKS = {"text", "input_text", "output_text"}


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing, which tables also write as NaN.

    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, Real | Decimal) and math.isnan(value)


def is_infinite(value: Any) -> bool:
    """Whether a value is a number without end, which JSON lacks as it lacks NaN."""
    return isinstance(value, Real | Decimal) and math.isinf(value)


def is_list(value: Any) -> bool:
    """Whether a cell holds a list.

    >>> is_list(("a", "b")), is_list("ab")
    (True, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def plain(value: Any) -> Any:
    """Return a value with lists, numbers and dicts in place of numpy's, which columns of Arrow hold, and of the objects of other libraries."""
    if type(value).__module__ == "numpy":
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if type(value).__module__ == "pyspark.sql.types":  # a Row, which is a tuple
        return plain(value.asDict())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, BaseModel) and not isinstance(value, Model):
        return value.model_dump(mode="json", exclude_none=True)
    written = getattr(value, "to_dict", None)  # of MLflow's own messages and responses, which are dataclasses
    return written() if type(value).__module__.startswith("mlflow.") and callable(written) else value


def object_of(value: Any, path: str, wanted: str, source: str) -> Json | None:
    """Return an object, also where a table holds it as a text; ``None`` where there is none.

    Raises:
        EvalSetError: if it is anything else.
    """
    decoded = decoded_of(value, path, wanted, source)
    if decoded is None or isinstance(decoded, Mapping):
        return None if decoded is None else dict(decoded)
    raise EvalSetError(source, [Problem(path, shown(decoded), wanted)])


def decoded_of(value: Any, path: str, wanted: str, source: str) -> Any:
    """Return what a text of JSON says; anything else as it is.

    Raises:
        EvalSetError: if it is a text of something else.
    """
    if not isinstance(value, str):
        return value
    try:
        return from_lenient_json(value)
    except RepeatedKeyError as repeats:
        raise EvalSetError(source, repeats.problems(path)) from None
    except ValueError as error:
        raise EvalSetError(source, [Problem(path, f"a text that is not JSON ({error})", wanted)]) from None
    except RecursionError:
        raise EvalSetError(source, [Problem(path, "a text that is nested too deeply", wanted)]) from None


@dataclass(frozen=True, slots=True)
class Told:
    """What one side of a conversation is told to be."""

    turns: tuple[Invocation, ...]
    calls: bool
    """Whether it is told which tools were called: by an invocation or where any is named. An answer alone says nothing of tools."""
    is_conversation: bool = False
    """Whether they came as a list, with a turn for each message of the user; else they are the answer to the last one."""
    unreadable: str = ""
    """Why calls that are told cannot be read, so that `calls` is false; empty where they can, or where none are told."""


def told_of(value: Any, source: str, path: str = "$") -> Told:
    """Return the turns that `value` tells of: in one of the shapes of `ANSWERS`, a list of them, or an object with one as its ``conversation``.

    Args:
        value: what somebody brought.
        source: what errors call it.
        path: where it stands there.

    Raises:
        EvalSetError: if it is in none of these shapes.
    """
    value = plain(value)
    if isinstance(value, Mapping) and "conversation" in value:
        value = value["conversation"]
        one, turns = None, [_turn(turn, source) for turn in _chat_turns(value)]
    else:
        one = _one(value, source)
        turns = [] if one is None and is_list(value) else [one]
    if is_list(value) and not turns:
        turns = [_one("" if item is None else item, source) for item in value]
    read = [turn for turn in turns if turn is not None]
    if len(read) == len(turns) and (read or value == []):
        unreadable = next((turn.unreadable for turn in read if turn.unreadable), "")
        return Told(
            tuple(turn.turns[0] for turn in read),
            calls=all(turn.calls for turn in read),
            is_conversation=one is None,
            unreadable=unreadable.replace("$", path, 1),
        )
    if isinstance(value, Mapping) and any(nearest(str(key), _INVOCATION, cutoff=ALMOST_CERTAIN) for key in value):
        invocation_of(value, source)  # which names the field that is misspelt
    found = f"a list of {len(value)}, the first of which is {shown(value[0])}" if is_list(value) and value else shown(value)
    raise EvalSetError(source, [Problem(path, found, WANTED)])


def said_beside(outputs: Any) -> Json:
    """Return what outputs say beside what was answered. The calls of a message are its own: those of others are not in it."""
    given = outputs if isinstance(outputs, Mapping) else {}
    names = [name for name in BESIDE if name in given and not is_missing(given[name])]
    return {name: given[name] for name in names if name != "tool_calls" or role_of(given) is None}


def _one(value: Any, source: str) -> Told | None:
    """Return the one turn that a value tells of; ``None`` where it is in no known shape."""
    return next((told for read in ANSWERS.values() if (told := read(value, source)) is not None), None)


def _text(value: Any, source: str) -> Told | None:
    return Told((invocation_of(value, source),), calls=False) if isinstance(value, str) else None


def _invocation(value: Any, source: str) -> Told | None:
    if isinstance(value, Invocation):
        return Told((invocation_of(value, source),), calls=True)
    if not isinstance(value, Mapping) or _INVOCATION.isdisjoint(value):
        return None
    given = {key: item for key, item in value.items() if key not in BESIDE}
    for key in _FINAL & given.keys():
        if is_list(given[key]) or (isinstance(given[key], Mapping) and not given[key].keys() <= {"parts", "role"}):
            answer = _one(given[key], source)
            if answer is None:
                return None
            given[key] = answer.turns[0].final_response
    return Told((invocation_of(given, source),), calls=True)


def _events(value: Any, _source: str) -> Told | None:
    if not (is_list(value) and value and all(isinstance(event, Mapping) and "author" in event for event in value)):
        return None
    users = [event["content"] for event in value if event["author"] == "user" and event.get("content")]
    log = TurnLog(author="agent", user=Content.model_validate(users[-1]) if users else Content(role="user", parts=()))
    for event in value:
        if event["author"] != "user":
            log.add(event)
    return Told((log.finished(),), calls=True)


def _completion(value: Any, source: str) -> Told | None:
    match value:
        case {"choices": [{"message": Mapping() as message}, *_]}:
            return _turn([{"role": "assistant", **message}], source)
        case {"choices": [{"text": str() as text}, *_]}:
            return _text(text, source)
        case _:
            return None


def _chat(value: Any, source: str) -> Told | None:
    turns = _chat_turns(value["messages"] if isinstance(value, Mapping) and "messages" in value else value)
    return _turn(turns[-1], source) if turns else None


def _response(value: Any, source: str) -> Told | None:
    turns = _chat_turns(value.get("output")) if isinstance(value, Mapping) else []
    return _turn(turns[-1], source) if turns else None


def _message(value: Any, source: str) -> Told | None:
    known = isinstance(value, Mapping) and ("parts" in value or role_of(value) == "assistant")
    return _turn([{"role": "assistant", **value}], source) if known else None


def _blocks(value: Any, source: str) -> Told | None:
    blocks = is_list(value) and value and all(map(_is_block, value))
    return _turn([{"role": "assistant", "content": value}], source) if blocks else None


def _is_block(value: Any) -> bool:
    return isinstance(value, Mapping) and (value.get("type") in _BLOCKS or block_media(value) is not None)


def _named(value: Any, source: str) -> Told | None:
    if not isinstance(value, Mapping) or "role" in value:
        return None
    named = (value[name] for name in ANSWER if not is_missing(value.get(name)))
    return next((told for answer in named if (told := _one(answer, source)) is not None), None)


ANSWERS: Mapping[str, Callable[[Any, str], Told | None]] = {
    "a text": _text,
    "an Invocation or a dict of one": _invocation,
    "events of ADK": _events,
    "a chat completion (`choices`)": _completion,
    "messages of a chat (`messages`)": _chat,
    "a response (`output`)": _response,
    "one message": _message,
    "blocks of text": _blocks,
    f"an object with {', '.join(ANSWER[:-1])} or {ANSWER[-1]}": _named,
}
"""The shapes of what an agent did in a turn, or should have done; the first that fits counts."""
WANTED = f"{', '.join(list(ANSWERS)[:-1])}, {list(ANSWERS)[-1]}, or a list of these, one per turn".replace("`", "")


def role_of(message: Any) -> str | None:
    """Return who says a message: ``user``, ``assistant`` or ``tool``; ``None``: nobody, or somebody else."""
    role = (message.get("role") or message.get("type")) if isinstance(message, Mapping) else None
    return _ROLES.get(role) if isinstance(role, str) else None


def _chat_turns(messages: Any) -> list[list[Mapping[str, Any]]]:
    """Return the messages of a chat by turns, each of which begins with what the user says; none where it is no chat."""
    if not is_list(messages) or not all(isinstance(one, Mapping) and ("role" in one or "type" in one) for one in messages):
        return []
    turns: list[list[Mapping[str, Any]]] = []
    for message in messages:
        role = role_of(message)
        if role == "user" or (role and not turns):
            turns.append([])
        if role:
            turns[-1].append(message)
    return turns


def _turn(messages: Sequence[Mapping[str, Any]], source: str) -> Told | None:
    """Return the turn that messages are; ``None`` where the assistant neither says nor does anything in it."""
    user: tuple[Part, ...] = ()
    answers: list[tuple[Part, ...]] = []
    drawn: tuple[Part, ...] = ()
    calls: list[Any] = []
    for message in messages:
        role = role_of(message)
        if role == "user":
            user = parts_in(message)
        elif role == "assistant":
            own = _calls_in(message)
            calls += map(call_of, own)
            said = parts_in(message)
            if message.get("type") == "image_generation_call":  # what the user sees with the answer, whichever comes first
                drawn += said
            elif said or (text_in(message) is not None and not own):
                answers.append(said or (Part(text=""),))
        else:
            _answer_call(calls, message)
    if drawn:
        answers = [*answers[:-1], (*(answers[-1] if answers else ()), *drawn)]
    if not answers and not calls:
        return None
    steps, unreadable = read_calls(calls, source)
    on_the_way = tuple(("agent", parts) for parts in answers[:-1])
    turn = Invocation(
        user_content=Content(role="user", parts=user),
        final_response=Content(role="model", parts=answers[-1]) if answers else None,
        intermediate_data=steps.model_copy(update={"intermediate_responses": on_the_way}) if calls or on_the_way else None,
    )
    return Told((turn,), calls=bool(calls) and not unreadable, unreadable=unreadable)


def _calls_in(message: Mapping[str, Any]) -> list[Any]:
    """Return the tool calls of a message of the assistant, in whatever shape they are."""
    if message.get("type") == "function_call":
        return [message]
    given: Any = message.get("tool_calls")
    calls: list[Any] = []
    if is_list(given):
        calls += given
    elif not is_missing(given):
        calls.append(given)  # which `tool_uses` will refuse
    if "parts" in message:
        calls += [part.function_call for part in Content.model_validate(message).parts or () if part.function_call]
    return calls


def _answer_call(calls: Sequence[Any], message: Mapping[str, Any]) -> None:
    """Add what a tool returned to its call: its text, or the blocks of the message where media are among them."""
    identity = message.get("tool_call_id") or message.get("call_id")
    if not identity:
        return
    content = message.get("content", message.get("output"))
    blocks = content if is_list(content) else ()
    text = text_in(message)
    answer = message.get("output") if text is None else text
    if any(block_media(block) for block in blocks):
        answer = {"result": list(blocks)}
    for call in calls:
        if isinstance(call, dict) and call.get("id") == identity:
            call["response"] = answer


def parts_in(message: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return what a message says, as chats, as OpenAI or as ADK has it: its texts as one part, and its media.

    A block of an unknown type may be anything, so it is a file of unknown type.
    """
    if "parts" in message:
        own = Content.model_validate(message).parts or ()
        said = tuple(part for part in own if part.says_something and not (part.function_call or part.function_response))
        return said if any(part.text is None for part in said) else _text_part(message)
    media = tuple(media_parts(message))
    return (*_text_part(message), *media)


def _text_part(message: Mapping[str, Any]) -> tuple[Part, ...]:
    text = text_in(message)
    return (Part(text=text),) if text else ()


def text_in(message: Mapping[str, Any]) -> str | None:
    """Return the text of a message as chats, as OpenAI or as ADK has it; ``None`` where there is none."""
    if "parts" in message:
        return Content.model_validate(message).text or None
    content = message.get("content")
    if isinstance(content, list | tuple):
        blocks = [one if isinstance(one, str) else value_at(one, "text") or value_at(one, "refusal") for one in content]
        return "\n".join(text for text in blocks if isinstance(text, str)) or None
    content = message.get("refusal") if content is None else content
    return content if isinstance(content, str) else None


def messages_in(inputs: Any) -> Any:
    """Return the text or the messages of the user among inputs, without those of others; where none is known as such, all inputs as one text."""
    if isinstance(inputs, Mapping):
        texts = [value for name, value in inputs.items() if isinstance(value, str) and name != "eval_id"]
        whole = texts[0] if len(texts) == 1 else json.dumps(dict(inputs), ensure_ascii=False, default=str)
        inputs = next((inputs[name] for name in USER if name in inputs), whole)
    if not is_list(inputs):
        return inputs
    return [one for one in inputs if not (isinstance(one, Mapping) and ("role" in one or "type" in one)) or role_of(one) == "user"]


def beside_message(inputs: Any) -> tuple[Part, ...]:
    """Return the media among inputs that stand beside the user's message, such as an image under a name of its own."""
    if not isinstance(inputs, Mapping):
        return ()
    chosen = next((name for name in USER if name in inputs), None)
    found: list[Part] = []
    for name, value in inputs.items():
        if chosen is None or name in {chosen, "session_input", "eval_id"}:
            continue
        for media in media_in(value):
            found.append(Part(file_data={"mime_type": media.mime_type, "display_name": media.name or str(name)}))
    return tuple(found)


def content_of(message: Any) -> Content:
    """Return a message of the user, whatever it is: its text and its media, or else all of it as a text."""
    if isinstance(message, Mapping):
        parts = parts_in(message)
        if parts or text_in(message) is not None or "parts" in message:
            return Content(role="user", parts=parts)
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False, default=str)
    return Content(role="user", parts=(Part(text=text),))


def call_of(call: Any) -> Any:
    """Return a tool call of OpenAI or of LangChain in the words of `tool_uses`; any other as it is."""
    match call:
        case {"function": {"name": name, **function}}:
            call = {"id": call.get("id"), "name": name, "args": function.get("arguments"), "response": call.get("response")}
        case {"type": "function_call" | "tool_call", "name": name}:
            args = call.get("args") if call.get("arguments") is None else call["arguments"]
            call = {"id": call.get("call_id") or call.get("id"), "name": name, "args": args}
        case _:
            pass
    return call


def tool_uses(calls: Sequence[Any], source: str, name: str) -> IntermediateData:
    """Return what a list of tool calls says, with the answers of the tools where they are given.

    Args:
        calls: each a `FunctionCall`, an object with ``name``, ``args`` and perhaps ``id`` and ``response``, or as OpenAI has it.
        source: what errors call the row.
        name: where the calls are.

    Raises:
        EvalSetError: if one of them is nothing of the kind.
    """
    uses: list[FunctionCall] = []
    responses: list[FunctionResponse] = []
    for index, call in enumerate(map(call_of, calls)):
        if isinstance(call, FunctionCall):
            uses.append(call)
            continue
        here = f"$.{name}[{index}]"
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise EvalSetError(source, [Problem(here, shown(call), 'a tool call: {"name", "args"}')])
        if unknown := set(call) - {"id", "name", "args", "arguments", "response"}:
            keys = f"unknown keys {', '.join(sorted(map(str, unknown)))}"
            raise EvalSetError(source, [Problem(here, keys, "name, args, response and id")])
        key = "arguments" if call.get("args") is None else "args"
        identity = call.get("id") or f"call_{index + 1}"
        uses.append(FunctionCall(id=identity, name=call["name"], args=arguments_of(call.get(key), f"{here}.{key}", source)))
        if call.get("response") is not None:
            answer = call["response"] if isinstance(call["response"], Mapping) else {"result": call["response"]}
            responses.append(FunctionResponse(id=identity, name=call["name"], response=dict(answer)))
    return IntermediateData(tool_uses=tuple(uses), tool_responses=tuple(responses))


def arguments_of(given: Any, path: str, source: str) -> Json:
    """Return the arguments of a tool call: an object, also as a text of JSON.

    OpenAI-compatible servers write an empty text for a tool without parameters.

    Raises:
        EvalSetError: if they are anything else.

    >>> arguments_of("", "$.args", "row"), arguments_of('{"room": "hall"}', "$.args", "row")
    ({}, {'room': 'hall'})
    """
    if isinstance(given, str) and not given.strip():
        return {}
    return object_of(given, path, "an object", source) or {}


def read_calls(calls: Any, source: str, name: str = "tool_calls") -> tuple[IntermediateData, str]:
    """Return what tool calls say, and why they cannot be read, if so. They then say nothing: not that there were none.

    Args:
        calls: a list of them, as for `tool_uses`, also as a text of JSON.
        source: what errors call the row.
        name: where the calls are.
    """
    try:
        listed = decoded_of(calls, f"$.{name}", _LIST_OF_CALLS, source)
        if is_list(listed):
            return tool_uses(listed, source, name), ""
        problem = Problem(f"$.{name}", shown(listed), _LIST_OF_CALLS)
    except EvalSetError as error:
        problem = error.problems[0]
    return IntermediateData(), str(problem)


_LIST_OF_CALLS = 'a list of tool calls: {"name", "args"}'
