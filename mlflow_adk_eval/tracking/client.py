"""Reaching MLflow: the client, how long it may try, and its failures in our own words."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import mlflow
import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.redact import message_of, without_credentials
from mlflow_adk_eval.runtime import defaults

HASTY: Mapping[str, str] = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}
"""Before the agent is called nothing is lost by giving up. MLflow's own seven retries take four minutes."""
PATIENT: Mapping[str, str] = {**HASTY, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
"""Afterwards a short restart of the server is waited for: 6 seconds."""

_DATABASE_S = 15
_ABSENT = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "INVALID_PARAMETER_VALUE"}


@contextmanager
def reaching_mlflow(what: str, limits: Mapping[str, str] = PATIENT) -> Generator[None, None, None]:
    """Bound how long MLflow's client tries within, and turn its errors into ours.

    MLflow reads the limits from the environment at each request. Those that the user has set stay as they are.

    Args:
        what: what could not be done, to begin the message with.
        limits: for how long to try.

    Raises:
        TrackingError: for whatever goes wrong between the client and its store.
    """
    with defaults(limits):
        try:
            yield
        except (MlflowException, requests.RequestException, OSError) as error:
            raise TrackingError(f"{what}: {message_of(error)}") from error


@contextmanager
def existing(what: str) -> Generator[None, None, None]:
    """Say that `what`, which the user named, does not exist where MLflow says so.

    Raises:
        UsageError: if it does not exist.
    """
    try:
        yield
    except MlflowException as error:
        if error.error_code in _ABSENT:
            raise UsageError(f"{what} does not exist in MLflow: {message_of(error)}") from None
        raise


def is_absent(error: MlflowException) -> bool:
    """Whether MLflow says that what was asked for does not exist."""
    return error.error_code in _ABSENT


def connect(tracking_uri: str | None = None) -> MlflowClient:
    """Return a client of a store that answers; ``None``: the store that MLflow is configured for.

    Raises:
        TrackingError: within seconds, if it does not answer.
    """
    uri = tracking_uri or mlflow.get_tracking_uri()
    with reaching_mlflow(f"MLflow at {without_credentials(uri)} cannot be reached", HASTY):
        _knock(uri)
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


def _knock(uri: str) -> None:
    """Try a database once, since MLflow would try one that is down ten times within two minutes."""
    from sqlalchemy import create_engine  # noqa: PLC0415 - servers need none of it
    from sqlalchemy.engine import make_url  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    if uri.partition("://")[0].partition("+")[0] not in {"sqlite", "postgresql", "mysql", "mssql"}:
        return
    try:
        url = make_url(uri)
        if url.drivername.startswith("sqlite") and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        patience = {"connect_timeout": _DATABASE_S} if url.drivername.startswith(("postgresql", "mysql")) else {}
        engine = create_engine(url, connect_args=patience)
        engine.connect().close()
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        raise OSError(str(error)) from error


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
        return inherited or _current_experiment(client)
    found = client.get_experiment_by_name(experiment)
    if found is None and experiment.isdigit():
        with existing(f"experiment {experiment}"):
            found = client.get_experiment(experiment)
    if found is None:
        return str(client.create_experiment(experiment, tags={"mlflow.experimentKind": "genai_development"}))
    if found.lifecycle_stage != "active":
        raise UsageError(f"experiment {experiment!r} was deleted; restore it or name another")
    return str(found.experiment_id)


def _current_experiment(client: MlflowClient) -> str:
    """Return the experiment that ``mlflow.start_run()`` would log to, if it would log to the same store."""
    from mlflow.tracking.fluent import (  # noqa: PLC0415 - the only way to `set_experiment`'s state
        _get_experiment_id,  # pyright: ignore[reportPrivateUsage]
    )

    if client.tracking_uri == mlflow.get_tracking_uri():
        return _get_experiment_id() or "0"
    return "0"


def open_store(folder: str | Path, *, experiment: str) -> str:
    """Return the tracking URI of a SQLite store in `folder`, with an experiment whose artifacts lie there, too.

    Raises:
        TrackingError: if the store cannot be made.
    """
    root = Path(folder).resolve()
    uri = f"sqlite:///{(root / 'mlflow.db').as_posix()}"
    client = connect(uri)
    with reaching_mlflow(f"experiment {experiment!r} could not be created"):
        if client.get_experiment_by_name(experiment) is None:
            tags = {"mlflow.experimentKind": "genai_development"}
            client.create_experiment(experiment, artifact_location=(root / "artifacts").as_uri(), tags=tags)
    return uri


def experiment_id(tracking_uri: str, experiment: str) -> str:
    """Return the id of an experiment, creating it if there is none.

    Raises:
        TrackingError: if the store does not answer.
    """
    client = connect(tracking_uri)
    with reaching_mlflow(f"experiment {experiment!r} could not be found"):
        return experiment_of(client, experiment)
