"""Many traces at once into a database that MLflow reaches without a server, ten times as fast as one after the other.

MLflow writes a trace as some twenty objects of its object-relational mapper, in a transaction of its own: 4 ms for the trace
and its assessments and 1 ms for its spans. The rows themselves take 0.1 ms. So where the store is MLflow's own store of SQLite,
PostgreSQL or MySQL and its tables are exactly those known here, the rows are inserted as rows, through MLflow's session and table
definitions. Anywhere else there is no such writer, and traces are written in MLflow's own way. A test holds both ways' rows together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Assessment, TraceInfo
from mlflow.entities.span import Span

from mlflow_adk_eval.tracking.trace_records import TOKENS

Row = dict[str, Any]

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

_DATABASES = {"sqlite", "postgresql", "mysql"}

_USAGE = "mlflow.trace.tokenUsage"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRows:
    """A database that takes traces as rows."""

    store: Any
    experiment: Any
    models: Mapping[str, Any]
    """MLflow's table definitions, by name."""
    aggregate: Any
    """MLflow's function from an assessment's value to what it sums up."""

    def write(self, infos: Sequence[TraceInfo], spans: Sequence[Span]) -> None:
        """Write new traces in one transaction.

        Raises:
            MlflowException: if the store does not take them; then it has taken none.
        """
        experiment_id = int(self.experiment.experiment_id)
        rows: dict[str, list[Row]] = {
            "SqlTraceInfo": [_trace_row(experiment_id, info) for info in infos],
            "SqlTraceTag": [row for info in infos for row in self._tag_rows(info)],
            "SqlTraceMetadata": [row for info in infos for row in _metadata_rows(info)],
            "SqlAssessments": [self._assessment_row(experiment_id, info, found) for info in infos for found in info.assessments],
            "SqlSpan": [_span_row(experiment_id, span) for span in spans],
        }
        with self.store.ManagedSessionMaker(read_only=False) as session:
            for name, values in rows.items():
                if values:
                    session.execute(self.models[name].__table__.insert(), values)

    def _tag_rows(self, info: TraceInfo) -> Iterator[Row]:
        for key, value in info.tags.items():
            if key != "mlflow.traceName":
                yield {"request_id": info.trace_id, "key": key, "value": value}
        location = self.store._get_trace_artifact_location_tag(self.experiment, info.trace_id)  # noqa: SLF001 - checked by trace_rows
        yield {"request_id": info.trace_id, "key": location.key, "value": location.value}
        yield {"request_id": info.trace_id, "key": "mlflow.trace.spansLocation", "value": "TRACKING_STORE"}

    def _assessment_row(self, experiment_id: int, info: TraceInfo, assessment: Assessment) -> Row:
        content: Any = assessment.feedback or assessment.expectation
        error = getattr(content, "error", None)
        aggregate, is_numeric = self.aggregate(content.value)
        return {
            "assessment_id": assessment.assessment_id,
            "trace_id": info.trace_id,
            "name": assessment.name,
            "assessment_type": "feedback" if assessment.feedback else "expectation",
            "value": json.dumps(content.value),
            "error": json.dumps(error.to_dictionary()) if error else None,
            "created_timestamp": assessment.create_time_ms,
            "last_updated_timestamp": assessment.last_update_time_ms,
            "experiment_id": experiment_id,
            "trace_timestamp_ms": info.request_time,
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


def _trace_row(experiment_id: int, info: TraceInfo) -> Row:
    return {
        "request_id": info.trace_id,
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
    }


def _metadata_rows(info: TraceInfo) -> Iterator[Row]:
    metadata = {key: value for key, value in info.trace_metadata.items() if key != _USAGE}  # which has columns of its own
    for key, value in {**metadata, "mlflow.trace.infoFinalized": "true"}.items():
        yield {"request_id": info.trace_id, "key": key, "value": value}


def _span_row(experiment_id: int, span: Span) -> Row:
    return {
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


def trace_rows(store: Any, experiment_id: str) -> TraceRows | None:
    """Return the writer for a store of MLflow's; ``None`` if it is not MLflow's own in a database, with the tables that are known here."""
    try:
        from mlflow.store.tracking.dbmodels import models  # noqa: PLC0415 - needed for databases only
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # noqa: PLC0415
        from mlflow.store.tracking.utils.sql_trace_rollups import rollups_enabled  # noqa: PLC0415
        from mlflow.store.tracking.utils.trace_analytics import assessment_aggregate  # noqa: PLC0415
    except ImportError:
        return None
    if type(store) is not SqlAlchemyStore or store.db_type not in _DATABASES or rollups_enabled():
        return None
    tables = {name: getattr(models, name, None) for name in _TABLES}
    known = all(table is not None and set(table.__table__.columns.keys()) == set(_TABLES[name].split()) for name, table in tables.items())
    if not known or not hasattr(store, "_get_trace_artifact_location_tag"):
        return None
    return TraceRows(
        store=store,
        experiment=store.get_experiment(experiment_id),
        models=tables,
        aggregate=assessment_aggregate,
    )
