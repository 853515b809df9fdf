"""MLflow's traces as trees of spans, from its objects or from their JSON; without importing MLflow.

`traces_of` takes whatever MLflow returns: a trace, several, the frame of a search. Each becomes a `Trace` with its root `Span` objects,
children in order of time. What the spans of one turn amount to is a `TracedTurn`, which `traces.adk` and `traces.manual` make.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from mlflow_adk_eval.agents.adk.events import union_s
from mlflow_adk_eval.errors import InputError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.runtime import OPERATION

_SESSION, _USER, _RUN = "mlflow.trace.session", "mlflow.trace.user", "mlflow.sourceRun"
_CONVERSATION = "gen_ai.conversation.id"
INSTRUCTIONS = "gen_ai.system_instructions"
"""The attribute with an agent's instructions."""


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
        named = [name for root in self.roots for span in root.walk() if (name := span.text(_CONVERSATION))]
        stored = self.metadata.get(_SESSION, "")
        return named[0] if named and (not stored or stored in named) else stored

    @property
    def user(self) -> str:
        """The id of the user; empty where it does not say."""
        return self.metadata.get(_USER) or next((name for root in self.roots for span in root.walk() if (name := span.text("user.id"))), "")

    @property
    def run(self) -> str:
        """The MLflow run that it belongs to; empty where it belongs to none."""
        return self.metadata.get(_RUN, "")


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
        UsageError: if it is nothing of the kind.
    """
    if isinstance(value, Trace):
        return (value,)
    if _is_frame(value):
        value = _cells(value)
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


def object_of(value: Any) -> dict[str, Any]:
    """Return what a tool returned as ADK has it: an object, or another value under ``result``."""
    return dict(value) if isinstance(value, Mapping) else {"result": value}


def _is_frame(value: Any) -> bool:
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns")


def _is_trace(value: Any) -> bool:
    if isinstance(value, Trace):
        return True
    if isinstance(value, Mapping):
        return isinstance(value.get("info"), Mapping) and isinstance(value.get("data"), Mapping)
    return hasattr(value, "info") and hasattr(getattr(value, "data", None), "spans")


def _cells(frame: Any) -> Iterator[Any]:
    """Yield each row's trace: its cell, or what the other columns say of it."""
    if "trace" in frame.columns:
        yield from frame["trace"]
        return
    for row in frame.to_dict("records"):
        info = {name: row.get(name) for name in ("trace_id", "request_time", "state", "tags", "trace_metadata")}
        yield {"info": info, "data": {"spans": row["spans"]}}


def _trace(value: Any) -> Trace:
    given = decoded(value)
    if isinstance(given, Trace):
        return given
    if not _is_trace(given):
        raise UsageError(f"a trace is one of MLflow's, or the dict of its to_dict(), not {shown(value)}")
    info, spans = (given["info"], given["data"].get("spans")) if isinstance(given, Mapping) else (given.info, given.data.spans)
    trace_id = str(_of(info, "trace_id") or _of(info, "request_id"))
    state = _of(info, "state")
    if str(getattr(state, "value", state)) == "IN_PROGRESS":
        raise unreadable(trace_id, "$.info.state", "IN_PROGRESS", "a trace that has ended")
    return Trace(
        id=trace_id,
        time_ms=_milliseconds(_of(info, "request_time") or 0),
        tags=dict(_of(info, "tags") or {}),
        metadata=dict(_of(info, "trace_metadata") or {}),
        roots=_trees([_flat(span) for span in spans or ()]),
    )


def _of(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _milliseconds(value: Any) -> int:
    return round(datetime.fromisoformat(value).timestamp() * 1000) if isinstance(value, str) else int(value)


Flat = tuple[Span, str]
"""A span without what is below it, and the id of what is above it."""


def _flat(span: Any) -> Flat:
    """Return a span of MLflow, or its JSON, in which ids are bytes in base64 and attributes are JSON once more."""
    if isinstance(span, Mapping):
        status: Mapping[str, Any] = span.get("status") or {}
        identity, parent = _hex(span["span_id"]), _hex(span.get("parent_span_id") or "")
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
    for event, said in events:  # before instructions were an attribute of OpenTelemetry's conventions, they were an event
        if event == "gen_ai.system.message" and said and said.get("content"):
            attributes.setdefault(INSTRUCTIONS, decoded(said["content"]))
    return Span(
        id=identity,
        name=name,
        kind=str(attributes.get("mlflow.spanType") or ""),
        start_ns=int(start),
        end_ns=int(end or start),
        failed=code.endswith("ERROR"),
        error=message or "",
        attributes=attributes,
    ), parent


def _hex(identity: str) -> str:
    return base64.b64decode(identity).hex()


def _trees(flat: Sequence[Flat]) -> tuple[Span, ...]:
    """Return the spans as trees; one whose parent is not among them is a root."""
    known = {span.id for span, _ in flat}
    below: dict[str, list[Span]] = {}
    for span, parent in flat:
        below.setdefault(parent if parent in known else "", []).append(span)
    return tuple(_grown(span, below) for span in _by_time(below.get("", [])))


def _grown(span: Span, below: Mapping[str, Sequence[Span]]) -> Span:
    return replace(span, children=tuple(_grown(child, below) for child in _by_time(below.get(span.id, ()))))


def _by_time(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: span.start_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTurn:
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
