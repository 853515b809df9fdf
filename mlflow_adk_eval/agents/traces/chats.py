"""Tool calls, their results and documents, read from where clients of models leave them: the messages in spans.

Autologging of a client writes each request and each answer of a model as a span. Where the tools themselves are not traced, their calls stand
in the answers only, and what they returned in the requests that follow. Each provider has its own words for both; `calls_in` and `results_in`
look through a message for all of them, whatever it is wrapped in. `documents_in` reads what a span of type ``RETRIEVER`` found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mlflow_adk_eval.agents.traces.spans import Span, decoded
from mlflow_adk_eval.agents.turns import object_of
from mlflow_adk_eval.evalset.models import FunctionCall, FunctionResponse, Json

_REPEATED = frozenset({"additional_kwargs", "lc_kwargs", "response_metadata", "usage_metadata"})
"""Where LangChain keeps a call once more."""
_SPOKEN = frozenset({"user", "human", "system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A tool call in a model's answer."""

    name: str
    id: str = ""
    """As the model numbered it; empty where it did not."""
    args: Json | None
    """``None``: they could not be read."""


def calls_in(answer: Any) -> list[ChatCall]:
    """Return the tool calls in a model's answer, in order, each once.

    >>> calls_in({"choices": [{"message": {"tool_calls": [{"id": "1", "function": {"name": "now", "arguments": ""}}]}}]})
    [ChatCall(name='now', id='1', args={})]
    """
    calls: list[ChatCall] = []
    ids: set[str] = set()
    for call in _calls(answer):
        if call.id and call.id in ids:
            continue  # some clients write one call in several places
        ids.add(call.id)
        calls.append(call)
    return calls


def _calls(value: Any) -> Iterator[ChatCall]:
    if isinstance(value, Mapping):
        call = _call(value)
        if call is not None:
            yield call
            return
        for key, item in value.items():
            if key not in _REPEATED or "tool_calls" not in value:
                yield from _calls(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _calls(item)


def _call(value: Mapping[str, Any]) -> ChatCall | None:
    """Return the call that an object is in the words of one of the providers; ``None`` where it is none."""
    match value:
        case {"function": {"name": str() as name, "arguments": arguments}}:  # OpenAI's chats, LiteLLM, Groq, Mistral
            return _called(name, value.get("id"), arguments)
        case {"type": "function_call", "name": str() as name}:  # OpenAI's responses
            return _called(name, value.get("call_id") or value.get("id"), value.get("arguments"))
        case {"type": "tool_use", "name": str() as name}:  # Anthropic
            return _called(name, value.get("id"), value.get("input"))
        case {"toolUse": {"name": str() as name, **use}}:  # Bedrock
            return _called(name, use.get("toolUseId"), use.get("input"))
        case {"function_call": {"name": str() as name, **call}} | {"functionCall": {"name": str() as name, **call}}:  # Gemini
            return _called(name, call.get("id"), call.get("args", call.get("arguments")))
        case {"type": "tool_call", "name": str() as name}:  # LangChain, and OpenTelemetry's conventions
            return _called(name, value.get("id"), value.get("args", value.get("arguments")))
        case _:
            return None


def _called(name: str, identity: Any, arguments: Any) -> ChatCall:
    return ChatCall(name=name, id=identity if isinstance(identity, str) else "", args=arguments_of(arguments))


def arguments_of(value: Any) -> Json | None:
    """Return the arguments of a call, which may be a JSON text; ``None`` where they cannot be read.

    >>> arguments_of(""), arguments_of('{"a": 1}'), arguments_of('{"a'), arguments_of([1])
    ({}, {'a': 1}, None, None)
    """
    if value is None or value == "":
        return {}  # servers send that for a tool without parameters
    read = decoded(value)
    return dict(read) if isinstance(read, Mapping) else None


def results_in(request: Any) -> list[tuple[str, Json]]:
    """Return what tools returned, each with the id of its call, or the tool's name where calls have no ids, as a request tells it."""
    return [(identity, object_of(_content(content))) for identity, content in _results(request)]


def _results(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        match value:
            case {"tool_call_id": str() as identity, "content": content}:  # OpenAI's chats, LangChain
                yield identity, content
            case {"type": "tool_result", "tool_use_id": str() as identity}:  # Anthropic
                yield identity, value.get("content")
            case {"type": "function_call_output", "call_id": str() as identity}:  # OpenAI's responses
                yield identity, value.get("output")
            case {"toolResult": {"toolUseId": str() as identity, **result}}:  # Bedrock
                yield identity, result.get("content")
            case {"function_response": {"response": response, **answer}} | {"functionResponse": {"response": response, **answer}}:
                yield str(answer.get("id") or answer.get("name") or ""), response  # Gemini, which often numbers no calls
            case _:
                for item in value.values():
                    yield from _results(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _results(item)


def _content(content: Any) -> Any:
    """Return what a tool said, out of the blocks that hold it."""
    match content:
        case [{"text": text}] | [{"json": text}]:
            return decoded(text)
        case _:
            return decoded(content)


def tells_calls(answer: Any) -> bool:
    """Whether a model's answer is a message, which holds its tool calls, and not only the text of one.

    A message with neither text nor call lost something: MLflow leaves the calls of a streamed answer of OpenAI out.
    """
    if not isinstance(answer, Mapping | list | tuple):
        return False
    return bool(calls_in(answer)) or (_says_text(answer) and not _stopped_for_calls(answer))


def _says_text(value: Any) -> bool:
    """Whether a message holds a text, or media, anywhere."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in _CONTENTS and isinstance(item, str) and item.strip():
                return True
            if key in ("inline_data", "inlineData", "file_data", "fileData", "audio", "image_url") and item:
                return True
            if isinstance(item, Mapping | list | tuple) and _says_text(item):
                return True
        return False
    return isinstance(value, list | tuple) and any(_says_text(item) for item in value)


_CONTENTS = frozenset({"content", "text", "output_text", "refusal", "transcript", "response", "answer", "output"})
_STOPS = frozenset({"tool_calls", "function_call", "tool_use", "toolUse"})


def _stopped_for_calls(value: Any) -> bool:
    """Whether an answer says that it ended in order to call tools."""
    if isinstance(value, Mapping):
        if any(value.get(key) in _STOPS for key in ("finish_reason", "stop_reason", "stopReason") if isinstance(value.get(key), str)):
            return True
        return any(_stopped_for_calls(item) for item in value.values() if isinstance(item, Mapping | list | tuple))
    return isinstance(value, list | tuple) and any(_stopped_for_calls(item) for item in value)


def since_the_user(request: Any) -> list[Any]:
    """Return the messages of a request after the last one of the user: what the agent did so far in the turn."""
    messages = _listed(request)
    last = max((place for place, message in enumerate(messages) if _is_of_user(message)), default=-1)
    return messages[last + 1 :]


def _is_of_user(message: Any) -> bool:
    """Whether the user says a message. Anthropic, Bedrock and Gemini put the results of tools into messages of that role."""
    if not isinstance(message, Mapping) or str(message.get("role") or message.get("type") or "") not in ("user", "human"):
        return False
    return bool(_text(message.get("content", message.get("parts")))) or not any(_results(message))


def _listed(request: Any) -> list[Any]:
    """Return the messages of a request; none where it has no list of them."""
    listed: Any = request
    if isinstance(request, Mapping):
        listed = next((request[key] for key in ("messages", "input", "contents") if key in request), None)
    while isinstance(listed, list | tuple) and len(listed) == 1 and isinstance(listed[0], list | tuple):
        listed = listed[0]  # LangChain asks for several chats at once
    if isinstance(listed, str):
        return [{"role": "user", "content": listed}]
    return list(listed) if isinstance(listed, list | tuple) else []


def context_in(request: Any, *, known: Sequence[str], own: Sequence[str]) -> list[str]:
    """Return what a request tells the model in the name of the user or the system beyond what is known.

    Args:
        request: the inputs of a model's span.
        known: texts that are told elsewhere: what the user said in the turn, the instructions.
        own: what models said before in the turn. A text that repeats it is the agent's own word, and no evidence.
    """
    texts: list[str] = []
    for text in _spoken(request):
        is_known = any(text.strip() == one.strip() for one in known)
        is_own = any(one.strip() and one.strip() in text for one in own)
        if text.strip() and not is_known and not is_own:
            texts.append(text)
    return texts


def _spoken(request: Any) -> Iterator[str]:
    """Yield what the system says in a request, and the last message of the user; those before are of earlier turns."""
    messages = _messages(request)
    of_user = [place for place, (role, _) in enumerate(messages) if role in ("user", "human")]
    for place, (role, text) in enumerate(messages):
        if role not in ("user", "human") or place == of_user[-1]:
            yield text


def _messages(request: Any) -> list[tuple[str, str]]:
    """Return who says what in a request, without the model and the tools."""
    messages: list[tuple[str, str]] = []
    for message in _listed(request):
        if isinstance(message, Mapping):
            role = str(message.get("role") or message.get("type") or "")
            text = _text(message.get("content", message.get("parts")))
            if role in _SPOKEN and text:
                messages.append((role, text))
    return messages


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = [one if isinstance(one, str) else one.get("text") for one in content if isinstance(one, str | Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def documents_in(found: Any) -> list[Json]:
    """Return the documents that a retriever found, as ADK's grounding metadata has them.

    >>> documents_in([{"page_content": "330 metres", "metadata": {"doc_uri": "tower.md"}}])
    [{'retrieved_context': {'text': '330 metres', 'uri': 'tower.md'}}]
    """
    return [{"retrieved_context": chunk} for chunk in _chunks(found)]


_TEXTS = ("page_content", "text", "content", "chunk", "body", "document", "snippet")
"""How documents call their text."""
_PLACES = ("doc_uri", "uri", "url", "source", "path", "id")


def _chunks(value: Any) -> Iterator[Json]:
    if isinstance(value, str):
        if value.strip():
            yield {"text": value}
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _chunks(item)
    elif isinstance(value, Mapping):
        text = next((value[key] for key in _TEXTS if isinstance(value.get(key), str)), None)
        if text is None:
            inner = [item for item in value.values() if isinstance(item, list | tuple | Mapping)]
            for item in inner:
                yield from _chunks(item)
            return
        chunk: Json = {"text": text}
        metadata = value.get("metadata")
        about = {**value, **(metadata if isinstance(metadata, Mapping) else {})}
        place = next((about[key] for key in _PLACES if isinstance(about.get(key), str) and about[key] != text), "")
        if place:
            chunk["uri"] = place
        if isinstance(about.get("title"), str):
            chunk["title"] = about["title"]
        yield chunk


@dataclass(slots=True, kw_only=True)
class FoundCall:
    """A tool call that stands in the messages of models, and when."""

    call: FunctionCall
    made_ns: int
    response: FunctionResponse | None = None
    answered_ns: int = 0


@dataclass(slots=True, kw_only=True)
class Chats:
    """What the messages of the models of a turn say of tools."""

    calls: list[FoundCall] = field(default_factory=list[FoundCall])
    """Those that no span of a tool shows."""
    unread: str = ""
    """The name of a tool whose arguments cannot be read; empty where all can."""
    silent: str = ""
    """The name of a model's span that does not hold its message; empty where all do."""
    unsure: str = ""
    """The name of a tool that a model asked for beside one that has a span; empty where there is none."""


def read_chats(models: Sequence[Span], traced: Sequence[tuple[FunctionCall, int]]) -> Chats:
    """Return the tool calls that stand in the messages of a turn's models and that no span shows.

    Args:
        models: the spans of models, without those within tools.
        traced: the calls that spans of tools show, each with when it began.
    """
    chats = Chats()
    seen = Counter[tuple[str, str]]()
    for span in sorted(models, key=lambda one: one.start_ns):
        done = since_the_user(span.inputs)
        _take(chats, seen, calls_in(done), span.start_ns)  # a streamed answer may have lost them, but the next request has them
        _answer(chats, results_in(done), span.start_ns)
        _take(chats, seen, calls_in(span.outputs), span.end_ns, again=False)
        if not tells_calls(span.outputs) and not span.failed:
            chats.silent = chats.silent or span.name
    if chats.silent and _all_told(models):
        chats.silent = ""
    last_ns = max((span.end_ns for span in models), default=0)
    _keep_untraced(chats, traced, last_ns)
    return chats


def _all_told(models: Sequence[Span]) -> bool:
    """Whether the requests tell what the answers before them lost, and the last answer holds its message."""
    answered = sorted((one for one in models if not one.failed), key=lambda one: one.start_ns)
    for one, later in pairwise(answered):
        if not tells_calls(one.outputs) and not calls_in(since_the_user(later.inputs)):
            return False
    return bool(answered) and tells_calls(answered[-1].outputs)


def _key(call: ChatCall) -> tuple[str, str]:
    """Return what makes a call the same as one in an earlier message: its id, else its name and arguments."""
    return ("id", call.id) if call.id else (call.name, repr(call.args))


def _take(chats: Chats, seen: Counter[tuple[str, str]], calls: Sequence[ChatCall], at_ns: int, *, again: bool = True) -> None:
    """Take the calls of a message.

    Args:
        chats: what takes them.
        seen: how often each call was taken already.
        calls: those of the message.
        at_ns: when it was sent.
        again: whether the message repeats those that came before, as a request does.
    """
    here = Counter[tuple[str, str]]()
    for call in calls:
        key = _key(call)
        here[key] += 1
        if (again or call.id) and here[key] <= seen[key]:
            continue
        seen[key] += 1
        if call.args is None:
            chats.unread = chats.unread or call.name
        made = FunctionCall(id=call.id or None, name=call.name, args=call.args or {})
        chats.calls.append(FoundCall(call=made, made_ns=at_ns))


def _answer(chats: Chats, results: Sequence[tuple[str, Json]], at_ns: int) -> None:
    """Give each call its result: by its id, else in order by the tool's name. A request repeats the results before it."""
    waiting = list(chats.calls)
    for identity, returned in results:
        found = next((one for one in waiting if identity in (one.call.id, one.call.name)), None)
        if found is None:
            continue
        waiting.remove(found)
        if found.response is None:
            found.response = FunctionResponse(id=found.call.id, name=found.call.name, response=returned)
            found.answered_ns = at_ns


def _keep_untraced(chats: Chats, traced: Sequence[tuple[FunctionCall, int]], last_ns: int) -> None:
    """Leave only the calls that no span of a tool shows.

    Where tools have spans, the last answer of a model may ask for something that is no call, such as a tool that holds the
    output. If another call of that answer has a span, nobody can tell whether this one was made.

    Args:
        chats: the calls in messages.
        traced: the calls that spans of tools show, each with when it began.
        last_ns: when the last model answered.
    """
    left = list(chats.calls)
    spare = list(traced)
    shown: dict[int, int] = {}
    """When the last call of an answer began that has a span, by when the answer came."""
    for same_args in (True, False):
        for found in list(left):
            span = next((one for one in spare if _same(found.call, one[0], same_args=same_args)), None)
            if span is not None:
                spare.remove(span)
                left.remove(found)
                shown[found.made_ns] = max(span[1], shown.get(found.made_ns, 0))
    if len(left) == len(spare):
        left = []  # the spans call the tools by other names
    if not traced:
        chats.calls = left
        return
    chats.calls = [found for found in left if found.response is not None or found.made_ns < last_ns]
    beside = [found for found in left if found not in chats.calls and found.made_ns in shown]
    chats.unsure = beside[0].call.name or "" if beside else ""
    for found in chats.calls:  # calls of one answer stay together
        found.made_ns = max(found.made_ns, shown.get(found.made_ns, 0))


def _same(one: FunctionCall, other: FunctionCall, *, same_args: bool) -> bool:
    return one.name == other.name and (not same_args or (one.args or {}) == (other.args or {}))
