"""Production in a store of MLflow: an agent that people talk to, as MLflow traces it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Assessment


def talk(session: str, *texts: str, tools: int = 0, fails: str = "", metadata: Mapping[str, str] | None = None) -> list[str]:
    """Have a conversation with an agent that is traced, and return the ids of its traces; it fails in the turn in which the user says `fails`."""
    import mlflow

    ids = list[str]()
    for text in texts:
        with suppress(OSError), mlflow.start_span("assistant", span_type="AGENT") as root:
            ids.append(root.trace_id)
            root.set_inputs({"question": text})
            mlflow.update_current_trace(metadata={**({"mlflow.trace.session": session} if session else {}), **(metadata or {})})
            for number in range(tools):
                with mlflow.start_span("switch", span_type="TOOL") as tool:
                    tool.set_inputs({"number": number})
                    tool.set_outputs({"done": True})
            if text == fails:
                Path("no such room").read_bytes()
            with mlflow.start_span("model", span_type="CHAT_MODEL") as model:  # which says that it asked for no other call
                model.set_inputs({"messages": [{"role": "user", "content": text}]})
                model.set_outputs({"choices": [{"message": {"role": "assistant", "content": f"I did: {text}"}}]})
            root.set_outputs(f"I did: {text}")
        time.sleep(0.002)  # a trace's time is in milliseconds
    mlflow.flush_trace_async_logging()
    return ids


def assessments(uri: str, experiment: str = "production") -> dict[str, Sequence[Assessment]]:
    """Return the assessments by trace."""
    client = MlflowClient(uri)
    known: Any = client.get_experiment_by_name(experiment)
    traces = client.search_traces(locations=[known.experiment_id], include_spans=False, max_results=500)
    return {trace.info.trace_id: trace.info.assessments for trace in traces}


def values(found: Sequence[Assessment]) -> dict[str, Any]:
    """Return the value of each assessment, or the code of the error in its place, by name."""
    named: dict[str, Any] = {}
    for one in found:
        assert one.feedback is not None
        assert one.name not in named
        named[one.name] = one.feedback.error.error_code if one.feedback.error else one.feedback.value
    return named
