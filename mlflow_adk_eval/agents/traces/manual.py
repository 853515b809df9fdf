"""Turns from spans that people write with MLflow, and from those that this package writes.

A span whose outputs hold a whole conversation, as `predict_fn` and logged runs write them, is read as it is. Otherwise a turn is a span
whose inputs name ``user_content``, or each root span of the trace: its inputs hold the user's message, its outputs the answer, and its
spans of type ``TOOL``, ``RETRIEVER``, ``LLM`` and ``CHAT_MODEL`` what happened between. Calls of tools that have no span of their own are read
from the messages of models (`traces.chats`); where those are not there either, they are unknown. Messages may be texts, ADK's content, or a
chat's. MLflow's autologging of other frameworks writes such spans.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.traces import spans
from mlflow_adk_eval.agents.traces.chats import Chats, context_in, documents_in, read_chats
from mlflow_adk_eval.agents.turns import object_of
from mlflow_adk_eval.evalset import models as evals
from mlflow_adk_eval.evalset.observation import ATTRIBUTE, Unknown
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.redact import redacted, secrets_of

_TURN = "user_content"
"""The input by which spans of this package say that they are a turn."""


@dataclass(frozen=True, slots=True)
class _Side:
    """Where a span's inputs hold what the user said, or its outputs what the agent did."""

    name: str
    keys: tuple[str, ...]
    roles: tuple[str | None, ...]


_INPUTS = _Side(
    "inputs",
    (_TURN, "messages", "message", "user_message", "input", "query", "question", "prompt", "request", "text", "content"),
    (None, "user", "human"),
)
_OUTPUTS = _Side(
    "outputs",
    ("final_response", "response", "output", "answer", "text", "content", "result", "message", "messages"),
    (None, "assistant", "model", "ai"),
)
_LANGCHAIN = {"human", "ai", "tool", "system"}
"""What LangChain's messages have as their type, and no role beside it."""
_STREAM = "{'_all_messages': ["
"""How MLflow's autologging shows what PydanticAI's ``run_stream`` gives."""
_QUERIES = _Side("inputs", ("query", "question", "input", "text"), (None, "user", "human"))
_MODELS = {"LLM", "CHAT_MODEL"}
_RETRIEVERS = {"RETRIEVER", "RERANKER"}
STEPS = _RETRIEVERS | {"TOOL"}
UNTRACED = "the trace has neither spans of tools nor the messages of models"
_NO_MODEL_ERRORS = Unknown(what="model_errors", why="spans do not say whether a model refused to answer")
_SHORTEST_OWN = 20
"""A shorter answer of a model, such as a number, may well stand in a document, too."""


def records(trace: spans.Trace) -> list[spans.Span]:
    """Return the spans whose outputs are a whole conversation, as those of `predict_fn` are."""

    def is_record(span: spans.Span) -> bool:
        return isinstance(span.outputs, Mapping) and isinstance(span.outputs.get("conversation"), list)

    return [span for root in trace.roots for span in root.outermost(is_record)]


def record_error(span: spans.Span) -> str:
    """Return why a recorded conversation is not what was asked for; empty where it is."""
    return redacted(str(span.outputs.get("error") or ""), secrets_of()) or spans.error_of(span)


def manual_turns(trace: spans.Trace) -> Iterator[spans.TracedTurn]:
    """Yield the turns that a trace's inputs and outputs hold.

    Raises:
        InputError: if they do not hold what the user or the agent said.
    """
    recorded = records(trace)
    for span in recorded:  # whose outputs are the invocations themselves
        turns = parse(tuple[evals.Invocation, ...], span.outputs["conversation"], f"trace {trace.id}, outputs", at="$.conversation")
        unknown = parse(tuple[Unknown, ...], span.outputs.get("unknown") or (), f"trace {trace.id}, outputs", at="$.unknown")
        last, agent = len(turns) - bool(span.outputs.get("unfinished")), span.name if span.kind == "AGENT" else ""
        for index, turn in enumerate(turns):
            error = record_error(span) if index >= last else ""
            of_turn = tuple(entry for entry in unknown if entry.turn in (None, index))
            yield spans.TracedTurn(invocation=turn, error=error, agent=agent, unknown=of_turn)
    for root in [] if recorded else trace.roots:
        yield from (manual_turn(trace, span) for span in list(root.outermost(_says_turn)) or [root])


def tells(span: spans.Span) -> bool:
    """Whether a span says as MLflow shows it what was asked and answered, and each tool below it what it was given."""
    tools = (below for child in span.children for below in child.walk() if below.kind == "TOOL")
    return span.inputs is not None and (span.outputs is not None or span.failed) and all(tool.inputs is not None for tool in tools)


def _says_turn(span: spans.Span) -> bool:
    """Whether a span says by the name of its input that it is a turn."""
    return isinstance(span.inputs, Mapping) and _TURN in span.inputs


def manual_turn(trace: spans.Trace, span: spans.Span) -> spans.TracedTurn:
    """Return the turn that a span's inputs and outputs hold.

    Raises:
        InputError: if they do not hold what the user or the agent said.
    """
    below = [one for child in span.children for one in child.outermost(lambda inner: inner.kind in STEPS)]
    tools = [one for one in below if one.kind == "TOOL"]
    models = _innermost_models(span)
    inside_tools = {one.id for tool in tools for one in tool.walk()}
    user = _content(_message_of(trace, span, span.inputs, _INPUTS), "user")
    final = _message_of(trace, span, span.outputs, _OUTPUTS) if span.outputs is not None else None
    agent = _agent(span)
    author = agent or span.name
    calls = [(tool, *_call(tool)) for tool in tools]
    chat = read_chats([one for one in models if one.id not in inside_tools], [(call, tool.start_ns) for tool, call, _ in calls])
    details = _app_details(author, span, models)
    events = [
        *_model_events(author, models),
        *_tool_events(author, calls),
        *_chat_events(author, chat),
        *_document_events(author, [one for one in below if one.kind in _RETRIEVERS]),
        *_context_events(author, user.text, details, [one for one in models if one.id not in inside_tools]),
    ]
    times = spans.spent(span, models, tools)
    if models:
        times["inference_call_count"] = len(models)
    else:  # then nobody knows how long models took
        del times["model_duration"], times["tool_duration"]
    done: evals.InvocationEvents | evals.IntermediateData
    if models or any(event.grounding_metadata for _, event in events):
        ordered = sorted(events, key=lambda pair: pair[0])
        done = evals.InvocationEvents(invocation_events=tuple(event for _, event in ordered))
    else:
        responses = tuple(response for _, _, response in calls if response)
        done = evals.IntermediateData(tool_uses=tuple(call for _, call, _ in calls), tool_responses=responses)
    invocation = evals.Invocation(
        invocation_id=trace.id,
        user_content=user,
        final_response=_content(final, "model") if final else None,
        intermediate_data=done,
        app_details=details,
        **times,
    )
    unknown = _stated(span) if _says_turn(span) else (*_unknown(below, models, chat), _NO_MODEL_ERRORS)
    return spans.TracedTurn(invocation=invocation, error=spans.error_of(span), agent=agent, unknown=unknown)


def _innermost_models(span: spans.Span) -> list[spans.Span]:
    """Return the spans of models; of models within models only the innermost."""
    return [one for one in span.walk() if one.kind in _MODELS and sum(inner.kind in _MODELS for inner in one.walk()) == 1]


def _stated(span: spans.Span) -> tuple[Unknown, ...]:
    """Return what a span that says that it is a turn says to be unknown of it. All its tool calls have spans."""
    return parse(tuple[Unknown, ...], span.attributes.get(ATTRIBUTE) or (), f"span {span.name!r}", at=f"$.attributes.{ATTRIBUTE}")


def _unknown(steps: Sequence[spans.Span], models: Sequence[spans.Span], chat: Chats) -> tuple[Unknown, ...]:
    """Return what the spans of a turn do not say of its tool calls; where steps have spans, tools would have them, too."""
    if chat.unread:
        return (Unknown(what="calls", why=f"the arguments of {chat.unread} cannot be read"),)
    if chat.unsure:
        return (Unknown(what="calls", why=f"a model asked for {chat.unsure} beside a call that has a span, and it has none"),)
    if steps:
        return ()
    if not models:
        return (Unknown(what="calls", why=UNTRACED),)
    if chat.silent:
        return (Unknown(what="calls", why=f"the span {chat.silent!r} of a model has not the message that would hold them"),)
    return ()


def _agent(span: spans.Span) -> str:
    """Return the name of the agent; where the span is called like the method that ran it, as it says otherwise or as a span below is called."""
    if span.kind != "AGENT" or _says_turn(span):
        return ""
    named = span.text("gen_ai.agent.name")
    if not named and "." in span.name:
        named = span.text("name") or next((one.name for one in span.walk() if one.kind == "AGENT" and "." not in one.name), "")
    return named or span.name


def _app_details(agent: str, turn: spans.Span, models: Sequence[spans.Span]) -> evals.AppDetails | None:
    """Return the instructions and tools with which models were asked first, as far as their spans say so."""
    requests = [span.inputs if isinstance(span.inputs, Mapping) else {"messages": span.inputs} for span in models]
    chats = [inputs["messages"] for inputs in requests if isinstance(inputs.get("messages"), list)]
    messages = [one for chat in chats for one in chat if isinstance(one, Mapping)]
    texts = (one.get("instructions") or (_role(one) in {"system", "developer"} and _message(one, _INPUTS)) for one in messages)
    instructions = spans.instructions_of(turn.attributes) or next((text for text in texts if isinstance(text, str)), "")
    offered = [spans.decoded(span.attributes.get("mlflow.chat.tools")) for span in models]
    offered += [(inputs.get("model_request_parameters") or {}).get("function_tools") for inputs in requests]
    definitions = [  # those of PydanticAI as OpenAI declares them
        {"type": "function", "parameters": tool["parameters_json_schema"], **tool} if "parameters_json_schema" in tool else tool
        for tool in next(filter(None, offered), ())
    ]
    tools = tuple(spans.declarations(definitions))
    details = evals.AgentDetails(name=agent, instructions=instructions, tool_declarations=tools)
    return evals.AppDetails(agent_details={agent: details}) if instructions or tools else None


def _message_of(trace: spans.Trace, span: spans.Span, value: Any, side: _Side) -> Any:
    """Return the message among a span's inputs or outputs."""
    message = _message(value, side)
    if isinstance(message, str) and message.startswith(_STREAM):
        wanted, hint = "the agent's answer", "PydanticAI's run and run_sync are fully traced, run_stream is not"
        raise spans.unreadable(trace.id, f"span {span.name!r}, {side.name}", "a stream without its text", wanted, hint)
    if message is None and side is _OUTPUTS and isinstance(value, Mapping) and set(side.keys) & set(value):
        return ""  # there is a place for an answer, and nothing in it
    if message is None:
        given = json.dumps(value, ensure_ascii=False, default=str)[:200]
        wanted = f"a text, or an object with one of {', '.join(side.keys)}"
        raise spans.unreadable(trace.id, f"span {span.name!r}, {side.name}", given, wanted)
    return message


def _message(value: Any, side: _Side) -> Any:
    """Return a text or a message in ADK's format; ``None`` where there is none, or more than one could be meant."""
    match value:
        case str() | {"parts": [*_]}:
            return value
        case {"choices": [{"message": message}, *_]}:
            return _message(message, side)
        case Mapping():
            known = [value[key] for key in side.keys if value.get(key) is not None]
            texts = [text for text in value.values() if isinstance(text, str)]
            return _message((known or texts)[0], side) if known or len(texts) == 1 else None
        case [*_]:
            return _last(value, side)
        case _:
            return None


def _last(messages: Sequence[Any], side: _Side) -> Any:
    """Return the last message of a chat on this side, or the texts of one message that comes in blocks.

    What stands before the user's last message is no answer to it, but was said in turns before.
    """
    if texts := [one["text"] for one in messages if isinstance(one, Mapping) and _role(one) is None and isinstance(one.get("text"), str)]:
        return "\n".join(texts)
    of_user = [place for place, one in enumerate(messages) if isinstance(one, Mapping) and _role(one) in {"user", "human"}]
    now = messages[of_user[-1] + 1 :] if of_user and side is _OUTPUTS else messages
    mine = [one for one in now if not isinstance(one, Mapping) or _role(one) in side.roles]
    return _message(mine[-1], side) if mine else "" if of_user and side is _OUTPUTS else None


def _role(message: Mapping[str, Any]) -> Any:
    kind = message.get("type")
    return message.get("role") or (kind if kind in _LANGCHAIN else None)


def _content(message: Any, role: str) -> evals.Content:
    if isinstance(message, str):
        return evals.Content(role=role, parts=(evals.Part(text=message),) if message else ())
    return parse(evals.Content, {"role": role, **message}, f"the {role}'s message")


def _call(span: spans.Span) -> tuple[evals.FunctionCall, evals.FunctionResponse | None]:
    given, returned = span.inputs, span.outputs
    match returned:  # out of the message of LangChain or the block of Strands that it is the JSON text of
        case {"type": "tool", "content": content} | [{"text": str() as content}]:
            returned = spans.decoded(content)
        case _:
            pass
    if returned is None and span.failed:
        returned = {"error": spans.error_of(span)}
    args: evals.Json = dict(given) if isinstance(given, Mapping) else {} if given is None else {"input": given}
    name = span.text("gen_ai.tool.name") or span.name
    answer = None if returned is None else evals.FunctionResponse(id=span.id, name=name, response=object_of(returned))
    return evals.FunctionCall(id=span.id, name=name, args=args), answer


_Timed = tuple[int, evals.InvocationEvent]


def _model_events(author: str, models: Iterable[spans.Span]) -> Iterator[_Timed]:
    """Yield what models cost."""
    for span in models:
        version = spans.model_name(span.attributes) or span.name
        usage = spans.usage_of(span.attributes)
        yield span.end_ns, evals.InvocationEvent(author=author, usage_metadata=usage, model_version=version)


def _called(author: str, call: evals.FunctionCall) -> evals.InvocationEvent:
    content = evals.Content(role="model", parts=(evals.Part(function_call=call),))
    return evals.InvocationEvent(author=author, content=content)


def _answered(author: str, response: evals.FunctionResponse) -> evals.InvocationEvent:
    content = evals.Content(role="user", parts=(evals.Part(function_response=response),))
    return evals.InvocationEvent(author=author, content=content)


def _tool_events(author: str, calls: Iterable[tuple[spans.Span, evals.FunctionCall, evals.FunctionResponse | None]]) -> Iterator[_Timed]:
    """Yield the calls of the tools that have spans of their own, and what they returned."""
    for span, call, response in calls:
        yield span.start_ns, _called(author, call)
        if response:
            yield span.end_ns, _answered(author, response)


def _chat_events(author: str, chat: Chats) -> Iterator[_Timed]:
    """Yield the calls that stand only in the messages of models, and what those say that they returned."""
    for found in chat.calls:
        yield found.made_ns, _called(author, found.call)
        if found.response:
            yield found.answered_ns, _answered(author, found.response)


def _document_events(author: str, retrievers: Iterable[spans.Span]) -> Iterator[_Timed]:
    """Yield the documents that were retrieved for the model, as ADK has its own."""
    for span in retrievers:
        chunks = documents_in(span.outputs)
        if chunks:
            query = _message(span.inputs, _QUERIES) if span.inputs is not None else None
            grounding: evals.Json = {"grounding_chunks": chunks}
            if isinstance(query, str):
                grounding["retrieval_queries"] = [query]
            yield span.end_ns, evals.InvocationEvent(author=author, grounding_metadata=grounding)


def _context_events(author: str, user: str, details: evals.AppDetails | None, models: Sequence[spans.Span]) -> Iterator[_Timed]:
    """Yield what models were told in the name of the user or the system beyond the user's own words and the instructions."""
    known = [user, *(agent.instructions for agent in details.agent_details.values())] if details else [user]
    own: list[str] = []
    for span in sorted(models, key=lambda one: one.start_ns):
        for text in context_in(span.inputs, known=known, own=own):
            known.append(text)
            chunk = {"retrieved_context": {"text": text, "title": "a message to the model"}}
            yield span.start_ns, evals.InvocationEvent(author=author, grounding_metadata={"grounding_chunks": [chunk]})
        said = _message(span.outputs, _OUTPUTS)
        if isinstance(said, str) and len(said.strip()) >= _SHORTEST_OWN:
            own.append(said)
