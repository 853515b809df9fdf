"""Evaluations by `mlflow.genai.evaluate`, and what MLflow has of them afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Assessment, Trace

from tests.mlflow_kit import copied

QUIET = [
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),  # what MLflow says of itself
    pytest.mark.filterwarnings("ignore::FutureWarning:mlflow"),
    pytest.mark.filterwarnings("ignore:Starting with pandas version 4.0"),  # MLflow's call
    pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning"),  # what google-adk says of itself
]
WORKERS = "MLFLOW_GENAI_EVAL_MAX_WORKERS"


@pytest.fixture(scope="module", name="store")
def genai_store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The store that MLflow logs to in all tests of a module."""
    folder = tmp_path_factory.mktemp("genai")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        uri = copied(template, folder)
        with tracking(uri):
            yield uri


@contextmanager
def tracking(store: str, workers: str | None = "4") -> Iterator[None]:
    """Make a store the one that MLflow logs to, into an experiment of its own."""
    import mlflow

    before = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_EXPERIMENT_ID"), os.environ.get(WORKERS)
    mlflow.set_tracking_uri(store)
    mlflow.set_experiment("genai")
    _set(WORKERS, workers)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before[0])
        _set("MLFLOW_EXPERIMENT_ID", before[1])
        _set(WORKERS, before[2])
        mlflow.tracking.fluent._active_experiment_id = None


def _set(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def traces_of(run_id: str) -> list[Trace]:
    """Return the traces of a run with their spans, in the order of their rows' previews."""
    import mlflow

    found: Any = mlflow.search_traces(run_id=run_id, return_type="list", max_results=1000)
    return sorted(found, key=lambda trace: trace.info.request_preview or "")


def feedback_of(trace: Trace, run_id: str) -> dict[str, Assessment]:
    """Return the feedback that a run gave a trace, by name."""
    found = [one for one in trace.info.assessments if one.feedback is not None]
    return {one.name: one for one in found if one.metadata["mlflow.assessment.sourceRunId"] == run_id}


def values_of(trace: Trace, run_id: str) -> Mapping[str, Any]:
    """Return the values among them; ``None`` where there is an error."""
    return {name: one.feedback.value for name, one in feedback_of(trace, run_id).items()}


def errors_of(trace: Trace, run_id: str) -> Mapping[str, tuple[str, str | None]]:
    """Return code and message of the errors among them."""
    found = feedback_of(trace, run_id).items()
    return {name: (one.error.error_code, one.error.error_message) for name, one in found if one.error is not None}
