"""The fewest calls of MLflow that make scores and their reasons visible, some of them to its semi-public tracing client."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import mlflow
import pandas as pd
from mlflow.entities import AssessmentSource, Feedback, Span, TraceInfo, TraceLocation, TraceState
from mlflow.tracing.client import TracingClient
from mlflow.tracing.utils import build_otel_context, encode_span_id
from opentelemetry.sdk.trace import ReadableSpan

from contenders import CRITERIA, THRESHOLD

Row = dict[str, Any]

_SPANS_PER_CALL = 600


class _Trace:
    """A trace under construction: one request for itself and its assessments; its spans travel with those of others."""

    def __init__(self, rng: random.Random, name: str, inputs: Any, outputs: Any) -> None:
        self._rng = rng
        self._number = rng.getrandbits(128)
        self.trace_id = f"tr-{self._number:032x}"
        self._name = name
        self.assessments: list[Feedback] = []
        self._root = build_otel_context(self._number, rng.getrandbits(64))
        self.spans = [self._span(name, self._root, None, inputs, outputs)]

    def add_turn(self, row: Row) -> None:
        """Add a span for the turn, with its scores."""
        context = build_otel_context(self._number, self._rng.getrandbits(64))
        self.spans.append(self._span(f"turn_{row['turn']}", context, self._root, {"query": row["prompt"]}, row["actual"]))
        self.assess(row, context)

    def assess(self, row: Row, context: Any = None) -> None:
        """Add the scores of a turn to the trace, at the root span unless told otherwise."""
        for name in CRITERIA:
            self.assessments.append(
                Feedback(
                    name=name,
                    value=row[name],
                    rationale=f"{name} is {row[name]:.3f}.",
                    source=AssessmentSource(source_type="CODE", source_id="bench"),
                    metadata={"threshold": str(THRESHOLD)},
                    trace_id=self.trace_id,
                    span_id=encode_span_id((context or self._root).span_id),
                )
            )

    def _span(self, name: str, context: Any, parent: Any, inputs: Any, outputs: Any) -> Span:
        now = time.time_ns()
        values = {"mlflow.spanType": "AGENT" if parent else "CHAIN", "mlflow.spanInputs": inputs, "mlflow.spanOutputs": outputs}
        attributes = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
        attributes["mlflow.traceRequestId"] = json.dumps(self.trace_id)
        return Span(ReadableSpan(name=name, context=context, parent=parent, start_time=now, end_time=now + 1000, attributes=attributes))

    def info(self, run: Any, first: Row) -> TraceInfo:
        """Return the trace without its spans."""
        return TraceInfo(
            trace_id=self.trace_id,
            trace_location=TraceLocation.from_experiment_id(run.info.experiment_id),
            request_time=time.time_ns() // 10**6,
            state=TraceState.OK,
            execution_duration=1,
            request_preview=first["prompt"][:1000],
            response_preview=first["actual"][:1000],
            trace_metadata={"mlflow.sourceRun": run.info.run_id, "mlflow.trace_schema.version": "3"},
            tags={"mlflow.traceName": self._name},
            assessments=self.assessments,
        )


def case_traces(rows: Sequence[Row]) -> None:
    """Log one trace per case, with a span and the assessments of each turn."""
    _log(_per_case(rows))


def invocation_traces(rows: Sequence[Row]) -> None:
    """Log one trace per turn, with its assessments."""
    _log(_per_invocation(rows))


def table(rows: Sequence[Row]) -> None:
    """Log the means and one table of all turns."""
    frame = pd.DataFrame(rows)
    with mlflow.start_run():
        mlflow.log_metrics({f"{name}/mean": float(frame[name].mean()) for name in CRITERIA})
        mlflow.log_table(frame, "per_invocation.json")


def _per_case(rows: Sequence[Row]) -> Iterator[tuple[_Trace, Row]]:
    rng = random.Random(1)
    for eval_id, turns in groupby(rows, key=lambda row: row["eval_id"]):
        listed = list(turns)
        trace = _Trace(rng, eval_id, {"eval_id": eval_id}, None)
        for row in listed:
            trace.add_turn(row)
        yield trace, listed[0]


def _per_invocation(rows: Sequence[Row]) -> Iterator[tuple[_Trace, Row]]:
    rng = random.Random(1)
    for row in rows:
        trace = _Trace(rng, row["eval_id"], {"query": row["prompt"]}, row["actual"])
        trace.assess(row)
        yield trace, row


def _log(traces: Iterator[tuple[_Trace, Row]]) -> None:
    client = TracingClient()
    spans: list[Span] = []
    with mlflow.start_run() as run:
        for trace, first in traces:
            client.start_trace(trace.info(run, first))
            spans += trace.spans
            if len(spans) >= _SPANS_PER_CALL:
                client.log_spans(run.info.experiment_id, spans)
                spans = []
        if spans:
            client.log_spans(run.info.experiment_id, spans)
