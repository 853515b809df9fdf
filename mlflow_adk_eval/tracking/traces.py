"""Traces, one per invocation: the only module that touches MLflow's tracing classes, which are public by half.

What MLflow's own `mlflow.start_span` does per span and per assessment is here one write per trace, with its assessments
inside, and one for the spans of many traces.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import (
    Assessment,
    AssessmentError,
    AssessmentSource,
    Expectation,
    Feedback,
    SpanType,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.entities.span import Span
from mlflow.exceptions import MlflowException
from mlflow.tracing.client import TracingClient
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from mlflow_adk_eval.tracking.bundle import Run
from mlflow_adk_eval.tracking.sqlite import SqliteTraces, sqlite_traces
from mlflow_adk_eval.tracking.storable import fitted
from mlflow_adk_eval.tracking.trace_records import (
    TOKENS,
    Assessed,
    ModelCall,
    ToolCall,
    TraceRecord,
)

_AT_ONCE = 200
"""Traces whose spans are sent together."""
_PAGE = 500
_LONGEST_NAME = 1000
_SCORED_BY = AssessmentSource(source_type="CODE", source_id="mlflow_adk_eval")
_EXPECTED_BY = AssessmentSource(source_type="HUMAN", source_id="eval_set")
_SPANS_STORED = "mlflow.trace.spansLocation"
_NO_RESOURCE = Resource.get_empty()
"""Without one, OpenTelemetry starts a thread for each span to find out where it runs."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status(StatusCode.OK)


def trace_id_of(run: Run, record: TraceRecord) -> str:
    """Return the id of a record's trace: the same at each attempt to write it."""
    return f"tr-{hashlib.sha256(f'{run.run_id}/{record.request_id}'.encode()).hexdigest()[:32]}"


Trace = tuple[TraceInfo, list[Span]]


@dataclass(frozen=True, slots=True)
class _Stored:
    """What MLflow has of a trace."""

    assessments: int
    spans: bool


def write_traces(client: MlflowClient, run: Run, records: Sequence[TraceRecord]) -> None:
    """Write the traces that MLflow does not have yet, from one thread, since SQLite loses writes under more."""
    stored = _stored(client, run) if records else {}
    todo = [(index, record) for index, record in enumerate(records) if not _has_spans(stored.get(trace_id_of(run, record)))]
    if not todo:
        return
    tracing = TracingClient(client.tracking_uri)
    fast = sqlite_traces(tracing.store, run.experiment_id)
    for start in range(0, len(todo), _AT_ONCE):
        traces = [_trace(run, record, len(records) - index) for index, record in todo[start : start + _AT_ONCE]]
        new = [info for info, _ in traces if info.trace_id not in stored]
        spans = [span for _, spans in traces for span in spans]
        if not (fast and len(new) == len(traces) and _written_at_once(fast, new, spans)):
            _write(tracing, run.experiment_id, new, spans)


def _has_spans(stored: _Stored | None) -> bool:
    return stored is not None and stored.spans


def _written_at_once(store: SqliteTraces, infos: Sequence[TraceInfo], spans: Sequence[Span]) -> bool:
    """Write all of it or nothing; return which."""
    try:
        store.write(infos, spans)
    except MlflowException:
        return False
    return True


def _write(client: TracingClient, experiment_id: str, infos: Sequence[TraceInfo], spans: list[Span]) -> None:
    for info in infos:
        client.start_trace(info)
    client.log_spans(experiment_id, spans)


def missing_traces(client: MlflowClient, run: Run, records: Sequence[TraceRecord]) -> list[str]:
    """Return which traces MLflow lacks, or has without their spans or assessments, by what it would show of them."""
    stored = _stored(client, run) if records else {}
    return [
        record.request_preview
        for record in records
        if stored.get(trace_id_of(run, record)) != _Stored(len(record.feedback) + len(record.expectations), spans=True)
    ]


def _stored(client: MlflowClient, run: Run) -> dict[str, _Stored]:
    """Return what MLflow has of each of the run's traces."""
    found: dict[str, _Stored] = {}
    token = None
    while True:
        page = client.search_traces(
            locations=[run.experiment_id], run_id=run.run_id, include_spans=False, max_results=_PAGE, page_token=token
        )
        for info in (trace.info for trace in page):
            found[info.trace_id] = _Stored(len(info.assessments), spans=_SPANS_STORED in info.tags)
        token = page.token
        if not token:
            return found


def _trace(run: Run, record: TraceRecord, after_ms: int) -> Trace:
    """Return a record as MLflow's entities. The first one is the latest, since MLflow lists the latest first."""
    trace_id = trace_id_of(run, record)
    started_ms = run.started_ms + after_ms
    spans = list(_spans(record, int(trace_id.removeprefix("tr-"), 16), started_ms * 1_000_000))
    info = TraceInfo(
        trace_id=trace_id,
        trace_location=TraceLocation.from_experiment_id(run.experiment_id),
        request_time=started_ms,
        execution_duration=record.duration_ms,
        state=TraceState.ERROR if record.error else TraceState.OK,
        request_preview=record.request_preview,
        response_preview=record.response_preview or None,
        trace_metadata={
            "mlflow.sourceRun": run.run_id,
            "mlflow.modelId": run.model_id,
            "mlflow.trace_schema.version": "3",
            **_token_usage(record),
        },
        tags={
            "mlflow.traceName": fitted(record.eval_id, _LONGEST_NAME),
            "mlflow.eval.requestId": record.request_id,
            "adk.eval_case_id": fitted(record.eval_id, _LONGEST_NAME),
            "adk.run_index": str(record.run_index),
            "adk.invocation_index": str(record.invocation_index),
            **_ending(record),
        },
        assessments=list(_assessments(run, record, trace_id, spans[0].span_id, started_ms)),
    )
    return info, spans


def _ending(record: TraceRecord) -> dict[str, str]:
    """Return the tags by which the last turns of simulated conversations can be found."""
    tags = {"adk_eval.ending": record.ending, "adk_eval.ending_detail": fitted(record.ending_detail, _LONGEST_NAME)}
    return {name: text for name, text in tags.items() if text}


def _assessments(run: Run, record: TraceRecord, trace_id: str, span_id: str, when_ms: int) -> Iterator[Assessment]:
    origin = {"mlflow.assessment.sourceRunId": run.run_id}
    place: dict[str, Any] = {"trace_id": trace_id, "span_id": span_id, "create_time_ms": when_ms, "last_update_time_ms": when_ms}
    for assessed in record.feedback:
        yield feedback_of(assessed, origin, **place)
    for name, value in record.expectations.items():
        yield Expectation(name=name, value=value, source=_EXPECTED_BY, metadata=dict(origin), **place)


def feedback_of(assessed: Assessed, origin: Mapping[str, str] | None = None, **place: Any) -> Feedback:
    """Return an assessment as MLflow's entity.

    Args:
        assessed: what it says.
        origin: metadata that say where it came from.
        **place: the trace, the span and the time that it belongs to, if they are known.
    """
    return Feedback(
        name=assessed.name,
        value=assessed.value,
        error=AssessmentError(error_code=assessed.code, error_message=assessed.error) if assessed.code else None,
        rationale=assessed.rationale or None,
        source=AssessmentSource(source_type="LLM_JUDGE", source_id=assessed.judge) if assessed.judge else _SCORED_BY,
        metadata={**assessed.metadata, **(origin or {})},
        **place,
    )


def _spans(record: TraceRecord, trace_number: int, started_ns: int) -> Iterator[Span]:
    """Yield the turn and, inside it, each call of a model or tool. When they took place is not known, only in which order."""
    root = _context(trace_number, 0)
    status = Status(StatusCode.ERROR, record.error) if record.error else _OK
    ended_ns = started_ns + record.duration_ms * 1_000_000
    attributes = _attributes(SpanType.AGENT, {"user_content": record.user}, {"final_response": record.response or None})
    attributes |= {"adk_eval.injected": list(record.injected)} if record.injected else {}
    yield _span("invocation", root, None, (started_ns, ended_ns), status, attributes)
    for number, step in enumerate(_steps(record), start=1):
        when_ns = started_ns + number
        here = (_context(trace_number, number), root, (when_ns, when_ns), _OK)
        if isinstance(step, ToolCall):
            injected = {"adk_eval.injected": step.injected} if step.injected else {}
            yield _span(step.name, *here, _attributes(SpanType.TOOL, step.args, step.response) | injected)
        else:
            yield _span(step.model, *here, _attributes(SpanType.LLM, None, None) | _of_model(step))


def _attributes(span_type: str, inputs: Any, outputs: Any) -> dict[str, Any]:
    return {"mlflow.spanType": span_type, "mlflow.spanInputs": inputs, "mlflow.spanOutputs": outputs}


def _of_model(call: ModelCall) -> dict[str, Any]:
    return {"mlflow.llm.model": call.model} | ({"mlflow.chat.tokenUsage": call.tokens} if call.tokens else {})


def _steps(record: TraceRecord) -> list[ToolCall | ModelCall]:
    """Return the calls of models and tools in their order."""
    placed: list[tuple[int, int, ToolCall | ModelCall]] = [(number, 0, step) for number, step in enumerate(record.calls, start=1)]
    placed += [(step.after, 1, step) for step in record.models]
    return [step for *_, step in sorted(placed, key=lambda place: place[:2])]


def _token_usage(record: TraceRecord) -> dict[str, str]:
    """Return the tokens of the turn, where MLflow's pages look for them."""
    counted = [step.tokens for step in record.models if step.tokens]
    return {"mlflow.trace.tokenUsage": json.dumps({name: sum(one[name] for one in counted) for name in TOKENS})} if counted else {}


def _context(trace_number: int, number: int) -> SpanContext:
    span_number = int.from_bytes(hashlib.sha256(f"{trace_number}/{number}".encode()).digest()[:8], "big")
    return SpanContext(trace_number, span_number or 1, is_remote=False, trace_flags=_SAMPLED)


def _span(
    name: str,
    context: SpanContext,
    parent: SpanContext | None,
    times_ns: tuple[int, int],
    status: Status,
    attributes: Mapping[str, Any],
) -> Span:
    found = {"mlflow.traceRequestId": f"tr-{context.trace_id:032x}", **attributes}
    return Span(
        ReadableSpan(
            name=name,
            context=context,
            parent=parent,
            resource=_NO_RESOURCE,
            attributes={key: json.dumps(value, ensure_ascii=False) for key, value in found.items()},
            start_time=times_ns[0],
            end_time=times_ns[1],
            status=status,
        )
    )
