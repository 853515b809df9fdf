"""Connecting to MLflow: a client of a store that answers, and its experiments.

How long the client may try, and its failures in our own words, are shared with the gate: `store.reaching`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Trace
from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME
from mlflow.tracking.default_experiment.registry import get_experiment_id

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.gating.named_runs import run_id_at
from mlflow_adk_eval.redact import without_credentials
from mlflow_adk_eval.store.reaching import HASTY, created_experiment, existing, opened, reaching_mlflow

_KIND = {"mlflow.experimentKind": "genai_development"}


def connect(tracking_uri: str | None = None) -> MlflowClient:
    """Return a client of a store that answers; ``None``: the store that MLflow is configured for.

    Raises:
        TrackingError: within seconds, if it does not answer.
    """
    uri = tracking_uri or mlflow.get_tracking_uri()
    with reaching_mlflow(f"MLflow at {without_credentials(uri)} cannot be reached", HASTY):

        def answering() -> MlflowClient:
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)
            return client

        return opened(uri, answering)


_RUNS = "runs:/"


def run_named(source: Any, tracking_uri: str | None) -> str | None:
    """Return the id of the run that ``runs:/<id>`` names, where there may be a name of it as well; ``None`` for anything else.

    Raises:
        UsageError: if there is no such run.
        TrackingError: if MLflow is unreachable.
    """
    return run_id_at(source, tracking_uri) if isinstance(source, str) and source.startswith(_RUNS) else None


def page_of(run_id: str, path: str = "", tracking_uri: str | None = None) -> str:
    """Return where a browser shows a run: an address at the tracking server, or the command that serves the store, and the address then.

    Args:
        run_id: the run.
        path: what follows the run in the address, such as ``/traces``.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run.
        TrackingError: if MLflow is unreachable.
    """
    client = connect(tracking_uri)
    with reaching_mlflow(f"the page of run {run_id} is unknown", HASTY), existing(f"run {run_id}"):
        experiment = client.get_run(run_id).info.experiment_id
    page, uri = f"#/experiments/{experiment}/runs/{run_id}{path}", without_credentials(str(client.tracking_uri))
    if uri.startswith(("http://", "https://")):
        return f"{uri.rstrip('/')}/{page}"
    return f"http://127.0.0.1:5000/{page}\n  served by: mlflow ui --backend-store-uri {uri}"


def experiment_of(client: MlflowClient, experiment: str | None, *, inherited: str | None = None) -> str:
    """Return an experiment's id, creating one of that name if there is none.

    Args:
        client: where it is.
        experiment: its name or id; ``None``: the one that MLflow would log to.
        inherited: what to take before MLflow's choice where no experiment is named: the experiment of the user's own run.

    Raises:
        UsageError: if the experiment was deleted.
    """
    if experiment is None:
        if inherited or client.tracking_uri != mlflow.get_tracking_uri():
            return inherited or "0"
        # What ``mlflow.start_run()`` would log to in the same store; `mlflow.set_experiment` leaves its choice in this variable, too.
        if chosen := MLFLOW_EXPERIMENT_ID.get():
            return str(chosen)
        experiment = MLFLOW_EXPERIMENT_NAME.get()
        if experiment is None:
            return get_experiment_id() or "0"
    known = client.get_experiment_by_name(experiment)
    if known is None and experiment.isdigit():
        with existing(f"experiment {experiment}"):
            known = client.get_experiment(experiment)
    if known is None:
        return created_experiment(client, experiment, tags=_KIND)
    if known.lifecycle_stage != "active":
        raise UsageError(f"experiment {experiment!r} was deleted; restore it or name another")
    return str(known.experiment_id)


def open_store(folder: str | Path, *, experiment: str) -> str:
    """Return the tracking URI of a SQLite store in `folder`, with an experiment that stores its artifacts there as well.

    Raises:
        TrackingError: if the store cannot be created.
    """
    root = Path(folder).resolve()
    uri = f"sqlite:///{(root / 'mlflow.db').as_posix()}"
    client = connect(uri)
    with reaching_mlflow(f"experiment {experiment!r} could not be created"):
        if client.get_experiment_by_name(experiment) is None:
            created_experiment(client, experiment, artifact_location=(root / "artifacts").as_uri(), tags=_KIND)
    return uri


def experiment_id(tracking_uri: str, experiment: str) -> str:
    """Return the id of an experiment, creating it if there is none.

    Raises:
        TrackingError: if the store does not answer.
    """
    client = connect(tracking_uri)
    with reaching_mlflow(f"experiment {experiment!r} could not be found"):
        return experiment_of(client, experiment)


def every_trace(
    client: MlflowClient,
    experiment_id: str,
    *,
    run_id: str | None = None,
    filter_string: str | None = None,
    include_spans: bool = False,
    latest_first: bool = True,
    page_size: int = 500,
) -> Iterator[Trace]:
    """Yield the traces of an experiment that a search finds, each once, by their time.

    Each page is asked for by the time at which the last one ended. By the number of the page, which is what MLflow's token says, its store would
    walk over all traces of the pages before, and miss some or give some twice where others are written at the same time.
    """
    how: Json = {"locations": [experiment_id], "run_id": run_id, "include_spans": include_spans, "max_results": page_size}
    order = [f"timestamp_ms {'DESC' if latest_first else 'ASC'}"]
    reached: int | None = None
    token: str | None = None
    there: set[str] = set()
    """The traces of the time that was reached."""
    while True:
        conditions = [filter_string] if filter_string else []
        conditions += [] if reached is None else [f"attributes.timestamp_ms {'<=' if latest_first else '>='} {reached}"]
        page = client.search_traces(filter_string=" AND ".join(conditions) or None, order_by=order, page_token=token, **how)
        yield from (trace for trace in page if trace.info.trace_id not in there)
        if not page.token:
            return
        last = page[-1].info.request_time
        # A page of one time only goes on by its token.
        token = page.token if last == reached else None
        there = {trace.info.trace_id for trace in page if trace.info.request_time == last} | (there if last == reached else set())
        reached = last
