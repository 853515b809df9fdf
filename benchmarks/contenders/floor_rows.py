"""A trace per turn as bare rows of MLflow 3.17's SQLite tables, past all of its code but for the run itself."""

from __future__ import annotations

import base64
import json
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import mlflow

from contenders import CRITERIA, THRESHOLD

Row = Mapping[str, Any]

_METADATA = json.dumps({"threshold": str(THRESHOLD)})


def write(rows: Sequence[Row]) -> None:
    """Log a run with a trace, a span and the scores of each turn, in one transaction."""
    with mlflow.start_run() as run:
        path = mlflow.get_tracking_uri().removeprefix("sqlite:///")
        with closing(sqlite3.connect(path)) as database, database:
            for table, values in _tables(rows, run.info).items():
                marks = ", ".join(f":{column}" for column in values[0])
                database.executemany(f"insert into {table} ({', '.join(values[0])}) values ({marks})", values)


def _tables(rows: Sequence[Row], run: Any) -> dict[str, list[dict[str, Any]]]:
    """Return what to insert, by table."""
    rng, now = random.Random(1), time.time_ns()
    ids = [(rng.getrandbits(128).to_bytes(16), rng.getrandbits(64).to_bytes(8)) for _ in rows]
    pairs = [(f"tr-{trace.hex()}", span.hex(), row) for (trace, span), row in zip(ids, rows, strict=True)]
    common = {"experiment_id": int(run.experiment_id)}
    metadata = {"mlflow.sourceRun": run.run_id, "mlflow.trace_schema.version": "3"}
    tags = {"mlflow.trace.spansLocation": "TRACKING_STORE"}
    return {
        "trace_info": [common | _trace(trace_id, row, now) for trace_id, _, row in pairs],
        "trace_request_metadata": [
            {"request_id": trace_id, "key": key, "value": value} for trace_id, *_ in pairs for key, value in metadata.items()
        ],
        "trace_tags": [{"request_id": trace_id, "key": key, "value": value} for trace_id, *_ in pairs for key, value in tags.items()],
        "assessments": [
            common | _assessment(trace_id, span_id, name, row[name], now) | {"assessment_id": f"a-{rng.getrandbits(128):032x}"}
            for trace_id, span_id, row in pairs
            for name in CRITERIA
        ],
        "spans": [common | _span(number, row, now) for number, row in zip(ids, rows, strict=True)],
    }


def _trace(trace_id: str, row: Row, now: int) -> dict[str, Any]:
    return {
        "request_id": trace_id,
        "timestamp_ms": now // 10**6,
        "execution_time_ms": 1,
        "status": "OK",
        "request_preview": row["prompt"][:1000],
        "response_preview": row["actual"][:1000],
        "db_payload_generation": 1,
        "trace_name": row["eval_id"],
    }


def _assessment(trace_id: str, span_id: str, name: str, score: float, now: int) -> dict[str, Any]:
    return {
        "trace_id": trace_id,
        "name": name,
        "assessment_type": "feedback",
        "value": json.dumps(score),
        "created_timestamp": now // 10**6,
        "last_updated_timestamp": now // 10**6,
        "trace_timestamp_ms": now // 10**6,
        "aggregate_value": score,
        "is_numeric_value": True,
        "source_type": "CODE",
        "source_id": "bench",
        "span_id": span_id,
        "rationale": f"{name} is {score:.3f}.",
        "valid": True,
        "assessment_metadata": _METADATA,
    }


def _span(number: tuple[bytes, bytes], row: Row, now: int) -> dict[str, Any]:
    trace, span = number
    trace_id = f"tr-{trace.hex()}"
    times = {"start_time_unix_nano": now, "end_time_unix_nano": now + 1000}
    values = {"mlflow.spanType": "CHAIN", "mlflow.spanInputs": {"query": row["prompt"]}, "mlflow.spanOutputs": row["actual"]}
    content = {
        "trace_id": base64.b64encode(trace).decode(),
        "span_id": base64.b64encode(span).decode(),
        "parent_span_id": None,
        "name": row["eval_id"],
        **times,
        "events": [],
        "status": {"code": "STATUS_CODE_UNSET", "message": ""},
        "attributes": {key: json.dumps(value, ensure_ascii=False) for key, value in {**values, "mlflow.traceRequestId": trace_id}.items()},
        "links": [],
    }
    stored = {"trace_id": trace_id, "span_id": span.hex(), "name": row["eval_id"], "type": "CHAIN", "status": "UNSET", **times}
    return stored | {"content": json.dumps(content, ensure_ascii=False)}
