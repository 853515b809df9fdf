"""Traces, one per invocation: the only module that touches MLflow's tracing classes, which are public by half.

What MLflow's own `mlflow.start_span` does per span and per assessment is here one write per trace, with its assessments
inside, and one for the spans of many traces. All ids follow from run, turn and name, so that whatever was interrupted is completed by
writing it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import (
    Assessment,
    AssessmentError,
    AssessmentSource,
    Expectation,
    Feedback,
    SpanType,
    TraceData,
    TraceInfo,
    TraceLocation,
    TraceState,
)
from mlflow.entities.span import Span
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracing.client import TracingClient
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from mlflow_adk_eval.tracking.bundle import Run
from mlflow_adk_eval.tracking.client import every_trace
from mlflow_adk_eval.tracking.storable import fitted
from mlflow_adk_eval.tracking.trace_records import (
    TOKENS,
    Assessed,
    ModelCall,
    ToolCall,
    TraceRecord,
)
from mlflow_adk_eval.tracking.trace_requests import TraceParts, by_trace, trace_requests
from mlflow_adk_eval.tracking.trace_rows import TraceRows, trace_rows

_AT_ONCE = 200
"""Traces that are written together where there is no server."""
_LONGEST_NAME = 1000
_SCORED_BY = AssessmentSource(source_type="CODE", source_id="mlflow_adk_eval")
_EXPECTED_BY = AssessmentSource(source_type="HUMAN", source_id="eval_set")
_OF_RUN = "mlflow.assessment.sourceRunId"
_SPANS_STORED = "mlflow.trace.spansLocation"
_SPANS_UPLOADED = "adk_eval.spans_uploaded"
"""MLflow has no tag for spans that are a file, and lets nobody set its own."""
_NO_RESOURCE = Resource.get_empty()
"""Without one, OpenTelemetry starts a thread for each span to find out where it runs."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status(StatusCode.OK)


def trace_id_of(run: Run, record: TraceRecord) -> str:
    """Return the id of a record's trace: the same at each attempt to write it."""
    return f"tr-{hashlib.sha256(f'{run.run_id}/{record.request_id}'.encode()).hexdigest()[:32]}"


def assessment_id_of(trace_id: str, place: int, name: str) -> str:
    """Return the id of a trace's assessment: the same at each attempt to write it, so that none is stored twice."""
    return f"a-{hashlib.sha256(f'{trace_id}/{place}/{name}'.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class _Stored:
    """What MLflow has of a trace."""

    assessments: frozenset[str] = frozenset()
    """The ids of all, and the names of those that are of this run: a server may give them ids of its own."""
    spans: bool = False

    def lacks(self, assessment_id: str, name: str) -> bool:
        """Whether it has no such assessment."""
        return assessment_id not in self.assessments and name not in self.assessments


def write_traces(client: MlflowClient, run: Run, records: Sequence[TraceRecord]) -> None:
    """Write what MLflow lacks of the records' traces."""
    stored = _stored(client, run) if records else {}
    todo = [(index, record) for index, record in enumerate(records) if _is_lacking(run, record, stored)]
    if not todo:
        return
    tracing = TracingClient(client.tracking_uri)
    lacking = (_lacking(_trace(run, record, len(records) - index), stored) for index, record in todo)
    server = trace_requests(tracing.store, run.experiment_id)
    if server:
        server.tell_if_dear(len(todo))
        server.write(lacking)
        _write_as_artifacts(tracing, server.without_spans)
        return
    database = trace_rows(tracing.store, run.experiment_id)
    while some := list(islice(lacking, _AT_ONCE)):
        # From one thread, since SQLite loses writes under more.
        if not (database and _written_at_once(database, some, stored)):
            _write(tracing, run.experiment_id, some)


def _is_lacking(run: Run, record: TraceRecord, stored: Mapping[str, _Stored]) -> bool:
    trace_id = trace_id_of(run, record)
    found = stored.get(trace_id)
    if found is None or not found.spans:
        return True
    names = (*(assessed.name for assessed in record.feedback), *record.expectations)
    return any(found.lacks(assessment_id_of(trace_id, place, name), name) for place, name in enumerate(names))


def _lacking(trace: Trace, stored: Mapping[str, _Stored]) -> TraceParts:
    """Return what MLflow lacks of a trace."""
    info, spans = trace
    found = stored.get(info.trace_id)
    if found is None:
        return info, spans
    info.assessments = [assessment for assessment in info.assessments if found.lacks(str(assessment.assessment_id), assessment.name)]
    return (info if info.assessments else None), ([] if found.spans else spans)


def _written_at_once(database: TraceRows, traces: Sequence[TraceParts], stored: Mapping[str, _Stored]) -> bool:
    """Write all of it or nothing; return which."""
    infos = [info for info, _ in traces if info is not None]
    if len(infos) < len(traces) or any(info.trace_id in stored for info in infos):
        return False
    try:
        database.write(infos, [span for _, spans in traces for span in spans])
    except MlflowException:
        return False
    return True


def _write(client: TracingClient, experiment_id: str, traces: Sequence[TraceParts]) -> None:
    """Write in MLflow's own way."""
    for info, _ in traces:
        if info is not None:
            client.start_trace(info)
    spans = [span for _, spans in traces for span in spans]
    try:
        client.log_spans(experiment_id, spans)
    except NotImplementedError:
        _write_as_artifacts(client, spans)


def _write_as_artifacts(client: TracingClient, spans: Sequence[Span]) -> None:
    """Write spans as files, as stores keep them that take none themselves."""
    for trace_id, some in by_trace(spans).items():
        place = client.get_trace_info(trace_id).tags["mlflow.artifactLocation"]
        content = json.dumps(TraceData(some).to_dict(), ensure_ascii=False)
        get_artifact_repository(place, tracking_uri=client.tracking_uri).upload_trace_data(content)
        client.set_trace_tag(trace_id, _SPANS_UPLOADED, "true")


def missing_traces(client: MlflowClient, run: Run, records: Sequence[TraceRecord]) -> list[str]:
    """Return which traces MLflow lacks, or has without their spans or assessments, by what it would show of them."""
    stored = _stored(client, run) if records else {}
    return [record.request_preview for record in records if _is_lacking(run, record, stored)]


def _stored(client: MlflowClient, run: Run) -> dict[str, _Stored]:
    """Return what MLflow has of each of the run's traces."""
    infos = (trace.info for trace in every_trace(client, run.experiment_id, run_id=run.run_id))
    return {info.trace_id: _Stored(_assessed(info, run), spans=bool({_SPANS_STORED, _SPANS_UPLOADED} & info.tags.keys())) for info in infos}


def _assessed(info: TraceInfo, run: Run) -> frozenset[str]:
    ids = {str(found.assessment_id) for found in info.assessments}
    return frozenset(ids | {found.name for found in info.assessments if (found.metadata or {}).get(_OF_RUN) == run.run_id})


Trace = tuple[TraceInfo, list[Span]]


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
    origin = {_OF_RUN: run.run_id}
    place: dict[str, Any] = {"trace_id": trace_id, "span_id": span_id, "create_time_ms": when_ms, "last_update_time_ms": when_ms}
    feedback = (feedback_of(assessed, origin, **place) for assessed in record.feedback)
    expected = (
        Expectation(name=name, value=value, source=_EXPECTED_BY, metadata=dict(origin), **place)
        for name, value in record.expectations.items()
    )
    for number, assessment in enumerate(chain(feedback, expected)):
        assessment.assessment_id = assessment_id_of(trace_id, number, assessment.name)
        yield assessment


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
