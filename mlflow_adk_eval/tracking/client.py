"""Connecting to MLflow: a client of a store that answers, and its experiments.

How long the client may try, and its failures in our own words, are shared with the gate: `gating.mlflow_client`.
"""

from __future__ import annotations

from pathlib import Path

import mlflow
from mlflow import MlflowClient

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.mlflow_client import HASTY, existing, is_absent, reaching_mlflow
from mlflow_adk_eval.redact import without_credentials

__all__ = [
    "HASTY",
    "connect",
    "existing",
    "experiment_id",
    "experiment_of",
    "is_absent",
    "open_store",
    "reaching_mlflow",
]

_DATABASE_S = 15


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
