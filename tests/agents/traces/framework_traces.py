"""Traces of the agents in example_projects/frameworks, as MLflow's autologging wrote them.

To write one anew, run ``evaluate.py`` there with ``MLFLOW_TRACKING_URI=STORE``, and then

    python -m tests.agents.traces.framework_traces langgraph STORE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FRAMEWORKS = ("langgraph", "openai_agents", "pydantic_ai", "strands")
_FOLDER = Path(__file__).parent / "frameworks"
_SESSION = "mlflow.trace.session"


def recorded(framework: str) -> list[dict[str, Any]]:
    """Return the traces of a conversation of two turns."""
    found: list[dict[str, Any]] = json.loads((_FOLDER / f"{framework}.json").read_text("utf-8"))
    return found


def traces_in(store: str, experiment: str) -> list[dict[str, Any]]:
    """Return the traces of an experiment in order of time, without what is about the machine."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    found = client.search_traces(locations=[client.get_experiment_by_name(experiment).experiment_id])
    return [_kept(trace.to_dict()) for trace in sorted(found, key=lambda trace: trace.info.request_time)]


def store_again(store: str, experiment: str, traces: Sequence[dict[str, Any]]) -> list[str]:
    """Write traces that `recorded` returns into an experiment as MLflow writes them, and return their ids."""
    from mlflow import MlflowClient
    from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.client import TracingClient

    experiment_id = MlflowClient(store).create_experiment(experiment)
    tracing = TracingClient(store)
    for trace in traces:
        spans = [Span.from_dict(span) for span in trace["data"]["spans"]]
        (root,) = (span for span in spans if span.parent_id is None)
        info = TraceInfo(
            trace_id=root.trace_id,
            trace_location=TraceLocation.from_experiment_id(experiment_id),
            request_time=root.start_time_ns // 1_000_000,
            execution_duration=((root.end_time_ns or 0) - root.start_time_ns) // 1_000_000,
            state=TraceState(trace["info"]["state"]),
            trace_metadata={name: text for name, text in trace["info"]["trace_metadata"].items() if text},
            tags={"mlflow.traceName": root.name},
        )
        tracing.start_trace(info)
        tracing.log_spans(experiment_id, spans)
    return [trace["info"]["trace_id"] for trace in traces]


def _kept(trace: dict[str, Any]) -> dict[str, Any]:
    info = {name: trace["info"][name] for name in ("trace_id", "request_time", "state")}
    return {"info": info | {"trace_metadata": {_SESSION: trace["info"]["trace_metadata"].get(_SESSION, "")}}, "data": trace["data"]}


if __name__ == "__main__":
    name, uri = sys.argv[1:]
    (_FOLDER / f"{name}.json").write_text(json.dumps(traces_in(uri, name), indent=1) + "\n", "utf-8")
