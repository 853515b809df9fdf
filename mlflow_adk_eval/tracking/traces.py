"""Traces, one per invocation: the only module that touches MLflow's tracing classes, which are public by half.

What MLflow's own `mlflow.start_span` does per span and per assessment is here one write per trace, with its assessments
inside, and one for the spans of many traces. All ids follow from run, turn and name, so that whatever was interrupted is completed by
writing it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient, entities
from mlflow.entities.span import Span
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.tracking.rest_store import RestStore
from mlflow.tracing.client import TracingClient
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from mlflow_adk_eval.evalset.observation import ATTRIBUTE
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.tracking.bundle import Run
from mlflow_adk_eval.tracking.client import every_trace
from mlflow_adk_eval.tracking.storable import fitted
from mlflow_adk_eval.tracking.trace_records import PREVIEW, TOKENS, Assessed, ModelCall, ToolCall, TraceRecord

if TYPE_CHECKING:
    from mlflow_adk_eval.tracking.trace_requests import TraceParts

_AT_ONCE = 200
"""Traces that are written together where there is no server."""
_LONGEST_NAME = 1000
_SCORED_BY = entities.AssessmentSource(source_type="CODE", source_id="mlflow_adk_eval")
_EXPECTED_BY = entities.AssessmentSource(source_type="HUMAN", source_id="eval_set")
OF_RUN, CONFIG_DIGEST = "mlflow.assessment.sourceRunId", "adk_eval.config_digest"
"""What an assessment's metadata call the run and the config that it is of."""
PRODUCTION = "adk_eval.production"
"""The parameter of a run that scored traces."""
THROUGH = "adk_eval.through"
"""The last trace of the conversation when it was scored: one that has gone on since is scored again."""
_SPANS_STORED = "mlflow.trace.spansLocation"
_SPANS_UPLOADED = "adk_eval.spans_uploaded"
"""MLflow has no tag for spans that are a file, and lets nobody set its own."""
_USAGE = "mlflow.trace.tokenUsage"
_NO_RESOURCE = Resource.get_empty()
"""Without one, OpenTelemetry starts a thread for each span to find out where it runs."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status(StatusCode.OK)


def trace_id_of(run: Run, record: TraceRecord) -> str:
    """Return the id of a record's trace: the same at each attempt to write it."""
    return f"tr-{hashlib.sha256(f'{run.run_id}/{record.request_id}'.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class _Stored:
    """What MLflow has of a trace."""

    assessments: frozenset[str] = frozenset()
    """The ids of all, and the names of those that are of this run: a server may give them ids of its own."""
    spans: bool = False


def write_traces(client: MlflowClient, run: Run, records: Sequence[TraceRecord]) -> None:
    """Write what MLflow lacks of the records' traces."""
    stored = _stored(client, run) if records else {}
    # The first one is the latest, since MLflow lists the latest first.
    lacking = [(record, len(records) - index) for index, record in enumerate(records) if _is_lacking(run, record, stored)]
    if not lacking:
        return
    tracing = TracingClient(client.tracking_uri)
    traces = (_trace(run, record, after_ms, stored.get(trace_id_of(run, record))) for record, after_ms in lacking)
    if type(tracing.store) is RestStore:
        from mlflow_adk_eval.tracking.trace_requests import TraceRequests  # noqa: PLC0415 - databases need none of it

        server = TraceRequests(store=tracing.store, experiment_id=run.experiment_id)
        server.tell_if_dear(len(lacking))
        server.write(traces)
        _write_as_artifacts(tracing, server.without_spans)
        return
    database = trace_rows(tracing.store, run.experiment_id)
    while some := list(islice(traces, _AT_ONCE)):  # from one thread, since SQLite loses writes under more
        infos = [info for info, _ in some if info is not None]
        spans = [span for _, spans in some for span in spans]
        if database and len(infos) == len(some) and not any(info.trace_id in stored for info in infos):
            with suppress(MlflowException):  # which has written nothing then
                database.write(infos, spans)
                continue
        for info in infos:  # in MLflow's own way
            tracing.start_trace(info)
        try:
            tracing.log_spans(run.experiment_id, spans)
        except NotImplementedError:
            _write_as_artifacts(tracing, spans)


def _is_lacking(run: Run, record: TraceRecord, stored: Mapping[str, _Stored]) -> bool:
    trace_id = trace_id_of(run, record)
    trace = stored.get(trace_id)
    if trace is None or not trace.spans:
        return True
    names = (*(assessed.name for assessed in record.feedback), *record.expectations)
    return any(trace.assessments.isdisjoint((_assessment_id(trace_id, place, name), name)) for place, name in enumerate(names))


def _write_as_artifacts(client: TracingClient, spans: Sequence[Span]) -> None:
    """Write spans as files, as stores keep them that take none themselves."""
    for trace_id, some in grouped((span.trace_id, span) for span in spans).items():
        place = client.get_trace_info(trace_id).tags["mlflow.artifactLocation"]
        content = json.dumps(entities.TraceData(some).to_dict(), ensure_ascii=False)
        get_artifact_repository(place, tracking_uri=client.tracking_uri).upload_trace_data(content)
        client.set_trace_tag(trace_id, _SPANS_UPLOADED, "true")


def missing_traces(client: MlflowClient, run: Run, records: Sequence[TraceRecord]) -> list[str]:
    """Return which traces MLflow lacks, or has without their spans or assessments, by what it would show of them."""
    stored = _stored(client, run) if records else {}
    return [record.request_preview for record in records if _is_lacking(run, record, stored)]


def _stored(client: MlflowClient, run: Run) -> dict[str, _Stored]:
    """Return what MLflow has of each of the run's traces."""
    traces: dict[str, _Stored] = {}
    for trace in every_trace(client, run.experiment_id, run_id=run.run_id):
        assessments = trace.info.assessments
        ids = {str(assessment.assessment_id) for assessment in assessments}
        ids |= {assessment.name for assessment in assessments if (assessment.metadata or {}).get(OF_RUN) == run.run_id}
        traces[trace.info.trace_id] = _Stored(frozenset(ids), spans=bool({_SPANS_STORED, _SPANS_UPLOADED} & trace.info.tags.keys()))
    return traces


def _trace(run: Run, record: TraceRecord, after_ms: int, stored: _Stored | None) -> TraceParts:
    """Return as MLflow's entities what it lacks of a record's trace, of which it has what is `stored`."""
    trace_id = trace_id_of(run, record)
    started_ms = run.started_ms + after_ms
    spans = _spans(record, int(trace_id.removeprefix("tr-"), 16), started_ms * 1_000_000)
    place: dict[str, Any] = {"trace_id": trace_id, "span_id": spans[0].span_id}
    place |= {"create_time_ms": started_ms, "last_update_time_ms": started_ms}
    assessments: list[entities.Assessment] = [feedback_of(assessed, {OF_RUN: run.run_id}, **place) for assessed in record.feedback]
    assessments += [
        entities.Expectation(name=name, value=value, source=_EXPECTED_BY, metadata={OF_RUN: run.run_id}, **place)
        for name, value in record.expectations.items()
    ]
    for number, assessment in enumerate(assessments):
        assessment.assessment_id = _assessment_id(trace_id, number, assessment.name)
    if stored:
        assessments = [one for one in assessments if stored.assessments.isdisjoint((str(one.assessment_id), one.name))]
        spans = [] if stored.spans else spans
        if not assessments:
            return None, spans
    counted = [call.tokens for call in record.models if call.tokens]
    usage = {_USAGE: json.dumps({name: sum(tokens[name] for tokens in counted) for name in TOKENS})} if counted else {}
    # Those by which the last turns of simulated conversations can be found.
    ending = {"adk_eval.ending": record.ending, "adk_eval.ending_detail": fitted(record.ending_detail, _LONGEST_NAME)}
    eval_id = fitted(record.eval_id, _LONGEST_NAME)
    info = entities.TraceInfo(
        trace_id=trace_id,
        trace_location=entities.TraceLocation.from_experiment_id(run.experiment_id),
        request_time=started_ms,
        execution_duration=record.duration_ms,
        state=entities.TraceState.ERROR if record.error else entities.TraceState.OK,
        request_preview=record.request_preview,
        response_preview=(record.response or record.error)[:PREVIEW] or None,  # without an answer, the reason
        trace_metadata={"mlflow.sourceRun": run.run_id, "mlflow.modelId": run.model_id, "mlflow.trace_schema.version": "3", **usage},
        tags={
            "mlflow.traceName": eval_id,
            "mlflow.eval.requestId": record.request_id,
            "adk.eval_case_id": eval_id,
            "adk.run_index": str(record.run_index),
            "adk.invocation_index": str(record.invocation_index),
            **{name: text for name, text in ending.items() if text},
        },
        assessments=assessments,
    )
    return info, spans


def _assessment_id(trace_id: str, place: int, name: str) -> str:
    """Return the id of a trace's assessment: the same at each attempt to write it, so that none is stored twice."""
    return f"a-{hashlib.sha256(f'{trace_id}/{place}/{name}'.encode()).hexdigest()[:32]}"


def feedback_of(assessed: Assessed, origin: Mapping[str, str] | None = None, **place: Any) -> entities.Feedback:
    """Return an assessment as MLflow's entity.

    Args:
        assessed: what it says.
        origin: metadata that say where it came from.
        **place: the trace, the span and the time that it belongs to, if they are known.
    """
    return entities.Feedback(
        name=assessed.name,
        value=assessed.value,
        error=entities.AssessmentError(error_code=assessed.code, error_message=assessed.error) if assessed.code else None,
        rationale=assessed.rationale or None,
        source=entities.AssessmentSource(source_type="LLM_JUDGE", source_id=assessed.judge) if assessed.judge else _SCORED_BY,
        metadata={**assessed.metadata, **(origin or {})},
        **place,
    )


def _spans(record: TraceRecord, trace_number: int, started_ns: int) -> list[Span]:
    """Return the turn and, inside it, each call of a model or tool. When they took place is not known, only in which order."""
    turn: dict[str, Any] = {
        "mlflow.spanType": entities.SpanType.AGENT,
        "mlflow.spanInputs": {"user_content": record.user},
        "mlflow.spanOutputs": {"final_response": record.response or None},
    }
    if record.injected:
        turn["adk_eval.injected"] = list(record.injected)
    if record.unknown:
        turn[ATTRIBUTE] = list(record.unknown)
    drafts: list[tuple[str, dict[str, Any]]] = [("invocation", turn)]
    ordered: list[tuple[int, int, ToolCall | ModelCall]] = [(number, 0, call) for number, call in enumerate(record.calls, start=1)]
    ordered += [(call.after, 1, call) for call in record.models]
    for *_, call in sorted(ordered, key=lambda place: place[:2]):
        if isinstance(call, ToolCall):
            attributes = {"mlflow.spanType": entities.SpanType.TOOL, "mlflow.spanInputs": call.args, "mlflow.spanOutputs": call.response}
            drafts.append((call.name, attributes | ({"adk_eval.injected": call.injected} if call.injected else {})))
        else:
            attributes = {"mlflow.spanType": entities.SpanType.LLM, "mlflow.spanInputs": None, "mlflow.spanOutputs": None}
            attributes["mlflow.llm.model"] = call.model
            drafts.append((call.model, attributes | ({"mlflow.chat.tokenUsage": call.tokens} if call.tokens else {})))
    spans: list[Span] = []
    root: SpanContext | None = None
    failed = Status(StatusCode.ERROR, record.error) if record.error else _OK
    for number, (name, attributes) in enumerate(drafts):
        digest = hashlib.sha256(f"{trace_number}/{number}".encode()).digest()
        context = SpanContext(trace_number, int.from_bytes(digest[:8], "big") or 1, is_remote=False, trace_flags=_SAMPLED)
        named = {"mlflow.traceRequestId": f"tr-{trace_number:032x}", **attributes}
        began_ns = started_ns + number
        span = ReadableSpan(
            name=name,
            context=context,
            parent=root,
            resource=_NO_RESOURCE,
            attributes={key: json.dumps(value, ensure_ascii=False) for key, value in named.items()},
            start_time=began_ns,
            end_time=began_ns if root else started_ns + record.duration_ms * 1_000_000,
            status=_OK if root else failed,
        )
        spans.append(Span(span))
        root = root or context
    return spans


_TABLES: Mapping[str, str] = {
    "SqlTraceInfo": "request_id experiment_id timestamp_ms execution_time_ms status client_request_id request_preview response_preview "
    "db_payload_generation trace_name session_id input_tokens output_tokens total_tokens cache_read_input_tokens "
    "cache_creation_input_tokens cache_creation_input_tokens_above_1hr input_cost output_cost total_cost",
    "SqlTraceTag": "key value request_id",
    "SqlTraceMetadata": "key value request_id",
    "SqlAssessments": "assessment_id trace_id name assessment_type value error created_timestamp last_updated_timestamp experiment_id "
    "trace_timestamp_ms aggregate_value is_numeric_value source_type source_id run_id span_id rationale overrides valid "
    "assessment_metadata",
    "SqlSpan": "trace_id experiment_id span_id parent_span_id name type status start_time_unix_nano end_time_unix_nano duration_ns "
    "content input_cost output_cost total_cost model_name model_provider",
}
"""MLflow's tables of traces with their columns, as of MLflow 3.17 and 3.18."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRows:
    """A database that MLflow reaches without a server, and that takes many traces at once, ten times as fast as one after the other.

    MLflow writes a trace as some twenty objects of its object-relational mapper, in a transaction of its own: 4 ms for the trace
    and its assessments and 1 ms for its spans. The rows themselves take 0.1 ms. So where the store is MLflow's own store of SQLite,
    PostgreSQL or MySQL and its tables are exactly those known here, the rows are inserted as rows, through MLflow's session and table
    definitions. Anywhere else there is no such writer, and traces are written in MLflow's own way. A test holds both ways' rows together.
    """

    store: Any
    experiment: Any
    models: Mapping[str, Any]
    """MLflow's table definitions, by name."""
    aggregate: Any
    """MLflow's function from an assessment's value to what it sums up."""

    def write(self, infos: Sequence[entities.TraceInfo], spans: Sequence[Span]) -> None:
        """Write new traces in one transaction.

        Raises:
            MlflowException: if the store does not take them; then it has taken none.
        """
        experiment_id = int(self.experiment.experiment_id)
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        for info in infos:
            key = info.trace_id
            rows["SqlTraceInfo"].append({
                "request_id": key,
                "experiment_id": experiment_id,
                "timestamp_ms": info.request_time,
                "execution_time_ms": info.execution_duration,
                "status": info.state.value,
                "client_request_id": info.client_request_id,
                "request_preview": info.request_preview,
                "response_preview": info.response_preview,
                "db_payload_generation": 1,
                "trace_name": info.tags.get("mlflow.traceName"),
                **dict.fromkeys(TOKENS),
                **json.loads(info.trace_metadata.get(_USAGE, "{}")),
            })  # fmt: skip
            location = self.store._get_trace_artifact_location_tag(self.experiment, key)  # noqa: SLF001 - checked by trace_rows
            # The name and the tokens have columns of their own.
            tags = {**info.tags, location.key: location.value, _SPANS_STORED: "TRACKING_STORE"}
            rows["SqlTraceTag"] += [{"request_id": key, "key": name, "value": tags[name]} for name in tags if name != "mlflow.traceName"]
            metadata = {**info.trace_metadata, "mlflow.trace.infoFinalized": "true"}
            rows["SqlTraceMetadata"] += [{"request_id": key, "key": name, "value": metadata[name]} for name in metadata if name != _USAGE]
            rows["SqlAssessments"] += [self._assessment_row(experiment_id, key, info.request_time, one) for one in info.assessments]
        rows["SqlSpan"] = [
            {
                "trace_id": span.trace_id,
                "experiment_id": experiment_id,
                "span_id": span.span_id,
                "parent_span_id": span.parent_id,
                "name": span.name,
                "type": span.span_type,
                "status": span.status.status_code.value,
                "start_time_unix_nano": span.start_time_ns,
                "end_time_unix_nano": span.end_time_ns,
                "content": json.dumps(span.to_dict(), ensure_ascii=False),
                "model_name": span.get_attribute("mlflow.llm.model"),
            }
            for span in spans
        ]
        with self.store.ManagedSessionMaker(read_only=False) as session:
            for name, values in rows.items():
                if values:
                    session.execute(self.models[name].__table__.insert(), values)

    def assess(self, assessments: Sequence[entities.Assessment]) -> int:
        """Write those assessments that are not there, on traces that are, in one transaction, and return how many that were."""
        traces, table = self.models["SqlTraceInfo"], self.models["SqlAssessments"]
        experiment_id = int(self.experiment.experiment_id)
        by_id = {str(one.assessment_id): one for one in assessments}
        with self.store.ManagedSessionMaker(read_only=False) as session:
            wanted = {one.trace_id for one in assessments}
            found = session.query(traces.request_id, traces.timestamp_ms).filter(traces.experiment_id == experiment_id)
            times: dict[str, int] = dict(found.filter(traces.request_id.in_(wanted)).all())
            there = {name for (name,) in session.query(table.assessment_id).filter(table.assessment_id.in_(by_id))}
            new = [one for name, one in by_id.items() if name not in there and one.trace_id in times]
            if new:
                rows = [self._assessment_row(experiment_id, str(one.trace_id), times[str(one.trace_id)], one) for one in new]
                session.execute(table.__table__.insert(), rows)
        return len(new)

    def _assessment_row(self, experiment_id: int, trace_id: str, time_ms: int, assessment: entities.Assessment) -> dict[str, Any]:
        content: Any = assessment.feedback or assessment.expectation
        error = getattr(content, "error", None)
        aggregate, is_numeric = self.aggregate(content.value)
        return {
            "assessment_id": assessment.assessment_id,
            "trace_id": trace_id,
            "name": assessment.name,
            "assessment_type": "feedback" if assessment.feedback else "expectation",
            "value": json.dumps(content.value),
            "error": json.dumps(error.to_dictionary()) if error else None,
            "created_timestamp": assessment.create_time_ms,
            "last_updated_timestamp": assessment.last_update_time_ms,
            "experiment_id": experiment_id,
            "trace_timestamp_ms": time_ms,
            "aggregate_value": aggregate,
            "is_numeric_value": is_numeric,
            "source_type": assessment.source.source_type,
            "source_id": assessment.source.source_id,
            "run_id": assessment.run_id,
            "span_id": assessment.span_id,
            "rationale": assessment.rationale,
            "overrides": None,
            "valid": True,
            "assessment_metadata": json.dumps(assessment.metadata),
        }


def trace_rows(store: Any, experiment_id: str) -> TraceRows | None:
    """Return the writer for a store of MLflow's; ``None`` if it is not MLflow's own in a database, with the tables that are known here."""
    try:
        from mlflow.store.tracking.dbmodels import models  # noqa: PLC0415 - needed for databases only
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: PLC0415
        from mlflow.store.tracking.utils.sql_trace_rollups import rollups_enabled  # noqa: PLC0415
        from mlflow.store.tracking.utils.trace_analytics import assessment_aggregate  # noqa: PLC0415
    except ImportError:
        return None
    if type(store) is not SqlAlchemyStore or store.db_type not in {"sqlite", "postgresql", "mysql"} or rollups_enabled():
        return None
    tables = {name: getattr(models, name, None) for name in _TABLES}
    known = all(table is not None and set(table.__table__.columns.keys()) == set(_TABLES[name].split()) for name, table in tables.items())
    if not known or not hasattr(store, "_get_trace_artifact_location_tag"):
        return None
    return TraceRows(store=store, experiment=store.get_experiment(experiment_id), models=tables, aggregate=assessment_aggregate)
