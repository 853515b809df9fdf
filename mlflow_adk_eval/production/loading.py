"""The conversations that were drawn, with their traces: few are in memory at once, and without most of what is long in them.

MLflow's own objects of a trace and its spans take longer than all else that is done with it. So where its store is a database that is known here
(`tracking.traces.TraceRows`), the spans are read as rows, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowTracingException
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import SpanAttributeKey, SpansLocation, TraceMetadataKey, TraceTagKey
from pydantic_core import from_json

from mlflow_adk_eval.agents.traces.conversations import TracedConversation, conversations_of
from mlflow_adk_eval.agents.traces.spans import decoded, traces_of
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.production.traffic import Seen
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.tracking.capture import TraceSearch
from mlflow_adk_eval.tracking.traces import TraceRows, trace_rows

_TRACES_AT_ONCE, _BYTES_AT_ONCE = 50, 8 << 20
_LARGE, _MOST_ITEMS = 100_000, 1_000
"""What is longer in a large trace is cut: a run should not hold 50 MB of what a tool returned, and no judge reads that."""

Loaded = TracedConversation | UsageError


def loaded(search: TraceSearch, drawn: Sequence[tuple[Seen, str]], edge_ms: int) -> Iterator[tuple[Seen, str, Loaded]]:
    """Yield each conversation with its traces, or why it cannot be had; few are in memory at once."""
    tracing = TracingClient(search.client.tracking_uri)
    rows = trace_rows(tracing.store, search.experiment_id)
    batch, weight = list[tuple[Seen, str]](), 0
    for entry in chain(drawn, [None]):
        size = sum(size for _, size in entry[0].traces) if entry else 0
        if batch and (entry is None or weight + size > _BYTES_AT_ONCE or sum(len(one.traces) for one, _ in batch) >= _TRACES_AT_ONCE):
            by_id = _traces(search.client, rows, [trace_id for one, _ in batch for trace_id, _ in one.traces])
            for seen, stratum in batch:
                found = [by_id.get(trace_id) for trace_id, _ in seen.traces]
                yield seen, stratum, _conversation(search, seen, found, whole=seen.began_ms >= edge_ms)
            batch, weight = [], 0
        if entry:
            batch.append(entry)
            weight += size


def _traces(client: MlflowClient, rows: TraceRows | None, ids: Sequence[str]) -> Mapping[str, Any]:
    """Return traces by id; those that are damaged are errors, and those that are gone are missing."""
    found: dict[str, Any] = _from_rows(rows, ids) if rows else {}
    if not (left := [trace_id for trace_id in ids if trace_id not in found]):
        return found
    try:
        traces = TracingClient(client.tracking_uri).batch_get_traces(left)
        return found | {trace.info.trace_id: _small(trace) for trace in traces}
    except MlflowTracingException:
        for trace_id in left:
            try:
                found[trace_id] = _small(client.get_trace(trace_id))
            except MlflowTracingException as error:
                found[trace_id] = UsageError(f"its spans cannot be read: {error.message}")
        return found


def _from_rows(rows: TraceRows, ids: Sequence[str]) -> dict[str, Any]:
    """Return those traces whose spans are in the database, as JSON."""
    infos, tags, metadata, spans = (rows.models[f"Sql{name}"] for name in ("TraceInfo", "TraceTag", "TraceMetadata", "Span"))
    session_key, user_key = TraceMetadataKey.TRACE_SESSION, TraceMetadataKey.TRACE_USER
    found: dict[str, Any] = {}
    with rows.store.ManagedSessionMaker(read_only=True) as session:
        here = session.query(infos.request_id, infos.timestamp_ms, infos.session_id).join(tags, tags.request_id == infos.request_id)
        stored = here.filter(infos.request_id.in_(ids), tags.key == TraceTagKey.SPANS_LOCATION)
        stored = stored.filter(tags.value == SpansLocation.TRACKING_STORE.value)
        for trace_id, time_ms, session_id in stored:
            known = {session_key: session_id} if session_id else {}
            found[trace_id] = {"info": {"trace_id": trace_id, "request_time": time_ms, "trace_metadata": known}, "data": {"spans": []}}
        said = session.query(metadata.request_id, metadata.key, metadata.value)
        for trace_id, key, value in said.filter(metadata.request_id.in_(found), metadata.key.in_((session_key, user_key))):
            found[trace_id]["info"]["trace_metadata"].setdefault(key, value)
        contents = session.query(spans.trace_id, spans.content).filter(spans.trace_id.in_(found))
        for trace_id, content in contents.yield_per(1):
            found[trace_id]["data"]["spans"].append(_cut(from_json(content)) if len(content) > _LARGE else from_json(content))
    return {trace_id: trace for trace_id, trace in found.items() if trace["data"]["spans"]}


def _small(trace: Any) -> Any:
    """Return a trace of MLflow without most of what is long in it."""
    size = trace.info.trace_metadata.get(TraceMetadataKey.SIZE_BYTES, "")
    if size.isdecimal() and int(size) <= _LARGE:
        return trace
    spans, left = list[Any](), trace.data.spans[::-1]
    trace.data.spans.clear()
    while left:
        spans.append(_cut(left.pop().to_dict()))
    return {"info": trace.info.to_dict(), "data": {"spans": spans}}


def _cut(span: Json) -> Json:
    """Cut what is long in a span, of which one attribute is decoded at a time, and return it."""
    attributes = span["attributes"]
    for name in [name for name, text in attributes.items() if isinstance(text, str) and len(text) > _LARGE]:
        as_text = name == SpanAttributeKey.OUTPUTS and attributes.get(SpanAttributeKey.SPAN_TYPE) == '"TOOL"'
        attributes[name] = _shortened(attributes.pop(name) if as_text else decoded(attributes.pop(name)))
    return span


def _shortened(value: Any) -> Any:
    match value:
        case str() if len(value) > _LARGE:
            return f"{value[:_LARGE]}… (the first of {len(value):,} characters)"
        case list() if len(value) > _MOST_ITEMS:
            half = _MOST_ITEMS // 2
            first, rest = value[:half], value[-half:]
            return [*map(_shortened, first), {"left out": f"{len(value) - 2 * half:,} items"}, *map(_shortened, rest)]
        case list():
            return [_shortened(one) for one in value]
        case dict():
            return {name: _shortened(one) for name, one in value.items()}
        case _:
            return value


def _conversation(search: TraceSearch, seen: Seen, found: Sequence[Any], *, whole: bool) -> Loaded:
    try:
        if broken := next((one for one in found if isinstance(one, UsageError)), None):
            return broken
        # Tags that name a case are for evaluations; here anybody could split a conversation by them.
        traces = [replace(trace, tags={}) for trace in traces_of([one for one in found if one is not None])]
        if len(traces) < len(found):
            return UsageError(f"{counted(len(found) - len(traces), 'trace')} of it cannot be had any more")
        # Turns outside of the window. What MLflow keeps under the session of an agent that was used as a tool is a conversation apart, as in MLflow.
        session = seen.key[1] if seen.key[0] == "session" else ""
        if session and not whole and all(trace.session == session for trace in traces):
            several = search.whole([trace_id for trace_id, _ in seen.traces], nested=False)
            return next((one for one in several if one.session == session), UsageError("its traces cannot be had any more"))
        return conversations_of(traces)[0]
    except UsageError as error:
        return error
