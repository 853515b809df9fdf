"""MLflow's traces as trees of spans, from its objects or from their JSON, without importing MLflow; and what spans say of calls of models.

`traces_of` takes whatever MLflow returns: a trace, several, the frame of a search. Each becomes a `Trace` with its root `Span` objects,
children in order of time. What the spans of one turn amount to is a `TracedTurn`, which `traces.adk` and `traces.manual` make.

What a model was asked and answered is a `ModelCall`, from attributes in ADK's own spelling or that of OpenTelemetry. ADK's schema before
OpenTelemetry's has the request and the response as JSON of its own types. OpenTelemetry's has lists of messages with typed parts, in which an
answer of a tool has only the id of its call, and a streamed answer may come in several messages.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from mlflow_adk_eval.agents.turns import object_of, union_s
from mlflow_adk_eval.errors import InputError, Problem, UsageError, shown
from mlflow_adk_eval.evalset.media import unread_block
from mlflow_adk_eval.evalset.models import Content, FunctionCall, FunctionResponse, Invocation, Json, Part, carried
from mlflow_adk_eval.evalset.observation import Unknown
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.runtime import OPERATION

RUN = "mlflow.sourceRun"
"""What a trace's metadata call the MLflow run that it belongs to."""
_INSTRUCTIONS = "gen_ai.system_instructions"
_NOT_CAPTURED: tuple[Any, ...] = (None, {})
_QUOTED = "For context:"
"""How ADK begins the message that tells a model what other agents did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span and all below it, in order of time."""

    id: str
    name: str
    kind: str
    """MLflow's type of span, such as ``TOOL``."""
    start_ns: int
    end_ns: int
    failed: bool
    error: str
    """What its status says; empty where that is nothing."""
    attributes: Mapping[str, Any]
    children: tuple[Span, ...] = ()

    @property
    def inputs(self) -> Any:
        """What MLflow shows as its inputs."""
        return self.attributes.get("mlflow.spanInputs")

    @property
    def outputs(self) -> Any:
        """What MLflow shows as its outputs."""
        return self.attributes.get("mlflow.spanOutputs")

    def text(self, name: str) -> str:
        """Return an attribute that is a text, though it may look like a number; empty where there is none."""
        value = self.attributes.get(name)
        return str(value) if isinstance(value, str | int) else ""

    @property
    def seconds(self) -> tuple[float, float]:
        """When it began and ended."""
        return self.start_ns / 1e9, self.end_ns / 1e9

    def walk(self) -> Iterator[Span]:
        """Yield this span and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def outermost(self, holds: Callable[[Span], bool]) -> Iterator[Span]:
        """Yield the spans, from this one on, that are so, without those below them."""
        if holds(self):
            yield self
        else:
            for child in self.children:
                yield from child.outermost(holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace: its spans as trees, and what MLflow knows of it."""

    id: str
    time_ms: int
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    roots: tuple[Span, ...] = ()

    @property
    def session(self) -> str:
        """The session that it belongs to; empty where it does not say.

        MLflow takes it from any span, also from one inside a tool that is an agent and has a session of its own.
        """
        named = [name for root in self.roots for span in root.walk() if (name := span.text("gen_ai.conversation.id"))]
        stored = self.metadata.get("mlflow.trace.session", "")
        return named[0] if named and (not stored or stored in named) else stored

    @property
    def user(self) -> str:
        """The id of the user; empty where it does not say."""
        named = (span.text("user.id") for root in self.roots for span in root.walk())
        return self.metadata.get("mlflow.trace.user") or next(filter(None, named), "")


def unreadable(trace_id: str, path: str, found: str, wanted: str, hint: str = "") -> InputError:
    """Return the error that something in a trace cannot be understood."""
    return InputError(f"trace {trace_id}", [Problem(path, found, wanted, hint)])


def is_traces(value: Any) -> bool:
    """Whether `value` is a trace of MLflow, several, or a frame of them."""
    if _is_frame(value):
        return bool({"trace", "spans"} & set(value.columns))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return bool(value) and all(map(_is_trace, value))
    return _is_trace(value)


def traces_of(value: Any) -> tuple[Trace, ...]:
    """Return traces in the order in which they were given; of several, without those of this package's own work.

    Those are among an agent's where MLflow is also who collects OpenTelemetry's spans.

    Args:
        value: a trace of MLflow, as an object, as the dict of its ``to_dict()`` or as the JSON text of it; several of them; or the
            frame that ``mlflow.search_traces`` returns.

    Raises:
        UsageError: if it is none of these.
    """
    if isinstance(value, Trace):
        return (value,)
    if _is_frame(value):
        if "trace" in value.columns:
            value = list(value["trace"])
        else:
            facts = ("trace_id", "request_time", "state", "tags", "trace_metadata")
            rows = value.to_dict("records")
            value = [{"info": {name: row.get(name) for name in facts}, "data": {"spans": row["spans"]}} for row in rows]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return tuple(trace for trace in map(_trace, value) if not any(OPERATION in root.attributes for root in trace.roots))
    return (_trace(value),)


def decoded(value: Any) -> Any:
    """Return the value that a text holds as JSON; any other text, and what is no text, as it is.

    >>> decoded('{"a": 1}'), decoded("20 °C"), decoded([1])
    ({'a': 1}, '20 °C', [1])
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _is_frame(value: Any) -> bool:
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns")


def _is_trace(value: Any) -> bool:
    if isinstance(value, Trace):
        return True
    if isinstance(value, Mapping):
        return isinstance(value.get("info"), Mapping) and isinstance(value.get("data"), Mapping)
    return hasattr(value, "info") and hasattr(getattr(value, "data", None), "spans")


def _trace(value: Any) -> Trace:
    given = decoded(value)
    if isinstance(given, Trace):
        return given
    if not _is_trace(given):
        raise UsageError(f"a trace is one of MLflow's, or the dict of its to_dict(), not {shown(value)}")
    info, spans = (given["info"], given["data"].get("spans")) if isinstance(given, Mapping) else (given.info, given.data.spans)
    trace_id = str(carried(info, "trace_id") or carried(info, "request_id"))
    state, began = carried(info, "state"), carried(info, "request_time") or 0
    if str(getattr(state, "value", state)) == "IN_PROGRESS":
        raise unreadable(trace_id, "$.info.state", "IN_PROGRESS", "a trace that has ended")
    by_time = sorted(map(_flat, spans or ()), key=lambda pair: pair[0].start_ns)
    known = {span.id for span, _ in by_time}
    return Trace(
        id=trace_id,
        time_ms=round(datetime.fromisoformat(began).timestamp() * 1000) if isinstance(began, str) else int(began),
        tags=dict(carried(info, "tags") or {}),
        metadata=dict(carried(info, "trace_metadata") or {}),
        roots=_grown("", grouped((parent if parent in known else "", span) for span, parent in by_time)),  # without a known parent: a root
    )


def _flat(span: Any) -> tuple[Span, str]:
    """Return a span of MLflow, or its JSON, in which ids are bytes in base64 and attributes are JSON once more.

    It is without what is below it, and beside it stands the id of what is above it.
    """
    if isinstance(span, Mapping):
        status: Mapping[str, Any] = span.get("status") or {}
        identity, parent = (base64.b64decode(one or "").hex() for one in (span["span_id"], span.get("parent_span_id")))
        name, start, end = span["name"], span["start_time_unix_nano"], span.get("end_time_unix_nano")
        code, message = str(status.get("code", "")), status.get("message")
        attributes = {key: decoded(value) for key, value in (span.get("attributes") or {}).items()}
        events = [(event.get("name"), event.get("attributes")) for event in span.get("events") or ()]
    else:
        identity, parent = str(span.span_id), str(span.parent_id or "")
        name, start, end = span.name, span.start_time_ns, span.end_time_ns
        code, message = str(getattr(span.status.status_code, "value", span.status.status_code)), span.status.description
        attributes = dict(span.attributes or {})
        events = [(event.name, event.attributes) for event in span.events or ()]
    for event, given in events:  # before instructions were an attribute of OpenTelemetry's conventions, they were an event
        if event == "gen_ai.system.message" and given and given.get("content"):
            attributes.setdefault(_INSTRUCTIONS, decoded(given["content"]))
    ended: Json = {"start_ns": int(start), "end_ns": int(end or start), "failed": code.endswith("ERROR"), "error": message or ""}
    return Span(id=identity, name=name, kind=str(attributes.get("mlflow.spanType") or ""), attributes=attributes, **ended), parent


def _grown(identity: str, below: Mapping[str, Sequence[Span]]) -> tuple[Span, ...]:
    # A function inside another that calls itself is a cycle, which would keep a large trace in memory until Python looks for cycles.
    return tuple(replace(span, children=_grown(span.id, below)) for span in below.get(identity, ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTurn:
    """One turn, and whether the agent got to its end."""

    invocation: Invocation
    error: str = ""
    """Why the agent failed in it; empty where it did not."""
    agent: str = ""
    """The name of the agent; empty where the spans do not say."""
    trace_id: str = ""
    """Once its conversation is read: the trace that it is in."""
    unknown: tuple[Unknown, ...] = ()
    """What its spans do not say of it."""


def error_of(span: Span) -> str:
    """Return why a span failed, without secrets; empty where it did not."""
    return redacted(span.error or "the span says only ERROR", secrets_of()) if span.failed else ""


def spent(turn: Span, models: Iterable[Span], tools: Iterable[Span]) -> dict[str, Any]:
    """Return the seconds that a turn took, and those of models and tools; a tool that waits for a model does not count."""
    model, tool = [span.seconds for span in models], [span.seconds for span in tools]
    model_s = union_s(model)
    start, end = turn.seconds
    times = {"duration": end - start, "model_duration": model_s, "tool_duration": union_s(model + tool) - model_s}
    return {"creation_timestamp": start, **{name: round(seconds, 3) for name, seconds in times.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a model."""

    request: tuple[Content, ...]
    """What it was asked."""
    answer: Content | None
    """``None`` where the model answered nothing."""
    usage: Json | None = None
    version: str | None = None
    grounding: Json | None = None
    instructions: str = ""
    tools: tuple[Any, ...] = ()

    @property
    def user(self) -> Content | None:
        """What the user said last, if the request has it."""
        for content in reversed(self.request):
            quoted = content.parts and (content.parts[0].text or "").startswith(_QUOTED)
            if content.role == "user" and not quoted:
                return content
        return None


def model_call(span: Span, inner: Sequence[Span]) -> ModelCall | None:
    """Return what a span says of the call of a model; ``None`` where it does not hold the messages.

    Args:
        span: the span.
        inner: the spans of the same call below it.
    """
    attributes = {name: value for one in (*reversed(inner), span) for name, value in one.attributes.items()}
    request = decoded(attributes.get("gcp.vertex.agent.llm_request"))
    if isinstance(request, Mapping) and request not in _NOT_CAPTURED:
        response = decoded(attributes.get("gcp.vertex.agent.llm_response"))
        answered: Mapping[str, Any] = response if isinstance(response, Mapping) else {}
        config = request.get("config") or {}
        instruction = config.get("system_instruction") or ""
        content = answered.get("content")
        return ModelCall(
            request=tuple(Content.model_validate(one) for one in request.get("contents") or ()),
            answer=Content.model_validate(content) if content else None,
            usage=answered.get("usage_metadata") or usage_of(attributes),
            version=answered.get("model_version"),
            grounding=answered.get("grounding_metadata"),
            instructions=instruction if isinstance(instruction, str) else Content.model_validate(instruction).text,
            tools=tuple(config.get("tools") or ()),
        )
    messages = decoded(attributes.get("gen_ai.input.messages"))
    if not isinstance(messages, list):
        return None
    answer = _joined(_contents(decoded(attributes.get("gen_ai.output.messages")) or ()))
    tools = tuple(declarations(decoded(attributes.get("gen_ai.tool.definitions")) or ()))
    about: Json = {"usage": usage_of(attributes), "version": model_name(attributes), "instructions": instructions_of(attributes)}
    return ModelCall(request=_contents(messages), answer=answer, tools=tools, **about)


def usage_of(attributes: Mapping[str, Any]) -> Json | None:
    """Return the tokens that a span reports, in ADK's terms; ``None`` where it reports none."""
    usage = decoded(attributes.get("mlflow.chat.tokenUsage"))
    chat = usage if isinstance(usage, Mapping) else {}
    out = attributes.get("gen_ai.usage.output_tokens", chat.get("output_tokens"))
    thoughts = attributes.get("gen_ai.usage.reasoning.output_tokens")
    counts = {
        "prompt_token_count": attributes.get("gen_ai.usage.input_tokens", chat.get("input_tokens")),
        "candidates_token_count": out - thoughts if out is not None and thoughts is not None else out,
        "thoughts_token_count": thoughts,
        "cached_content_token_count": attributes.get("gen_ai.usage.cache_read.input_tokens"),
    }
    return {name: count for name, count in counts.items() if count is not None} or None


def model_name(attributes: Mapping[str, Any]) -> str | None:
    """Return which model answered, as far as a span says."""
    names = ("gen_ai.response.model", "mlflow.llm.model", "gen_ai.request.model")
    return next((str(attributes[name]) for name in names if attributes.get(name)), None)


def instructions_of(attributes: Mapping[str, Any]) -> str:
    """Return the instructions that a span has as an attribute, a text or a list of parts; empty where it has none."""
    value = decoded(attributes.get(_INSTRUCTIONS)) or ()
    return value if isinstance(value, str) else "\n".join(str(part.get("content") or part.get("text") or "") for part in value)


def _contents(messages: Iterable[Mapping[str, Any]]) -> tuple[Content, ...]:
    """Return messages as ADK has them. An answer of a tool has only the id of its call, which has the tool's name."""
    contents: list[Content] = []
    names: dict[str, str] = {}
    for message in messages:
        parts = tuple(part for raw in message.get("parts") or () if (part := _part(raw, names)))
        names |= {call.id: call.name for part in parts if (call := part.function_call) and call.id and call.name}
        role = message.get("role") or "model"
        contents.append(Content(role="model" if role == "assistant" else role, parts=parts))
    return tuple(contents)


def _part(raw: Mapping[str, Any], names: Mapping[str, str]) -> Part | None:
    match raw.get("type"):
        case "text" | "reasoning" as kind:
            return Part(text=raw.get("content") or "", thought=True if kind == "reasoning" else None)
        case "tool_call":
            given = raw.get("arguments")
            args = None if given == "" else decoded(given)  # some servers write an empty text for a tool without parameters
            return Part(function_call=FunctionCall(id=raw.get("id"), name=raw.get("name"), args={} if args is None else object_of(args)))
        case "tool_call_response":
            given, identity = decoded(raw.get("response", raw.get("result"))), raw.get("id") or ""
            name = names.get(identity, identity.rpartition("_")[0])
            return Part(function_response=FunctionResponse(id=identity, name=name, response=None if given is None else object_of(given)))
        case "blob":
            return Part(inline_data={"mime_type": raw.get("mime_type") or "application/octet-stream"})
        case "file" | "file_data" | "uri":
            return Part(file_data={"mime_type": raw.get("mime_type") or "", "file_uri": raw.get("uri") or raw.get("file_id") or ""})
        case str(kind):
            return unread_block(kind)
        case _:
            return None


def _joined(answers: Sequence[Content]) -> Content | None:
    """Return an answer that came in several messages as one; if the last repeats what came before, it is all of it."""
    if len(answers) <= 1:
        return answers[0] if answers else None
    *before, last = ["".join(part.text or "" for part in content.parts or ()) for content in answers]
    if last and "".join(before) == last:
        return answers[-1]
    parts: list[Part] = []
    for part in (part for content in answers for part in content.parts or ()):
        if parts and part.text is not None and parts[-1].text is not None and part.thought == parts[-1].thought:
            parts[-1] = parts[-1].model_copy(update={"text": parts[-1].text + part.text})
        else:
            parts.append(part)
    return Content(role="model", parts=tuple(parts))


def declarations(definitions: Iterable[Mapping[str, Any]]) -> Iterable[Json]:
    """Yield the tools as ADK's requests declare them."""
    names = {"description": "description", "name": "name", "parameters": "parameters_json_schema"}
    definitions = [{**tool, **(tool.get("function") or {})} for tool in definitions]
    functions = [tool for tool in definitions if tool.get("type") == "function"]
    functions = [{name: tool[key] for key, name in names.items() if tool.get(key) is not None} for tool in functions]
    if functions:
        yield {"function_declarations": functions}
    yield from ({str(tool.get("name")): {}} for tool in definitions if tool.get("type") != "function")
