"""Finishing a run that MLflow could not take when it ended."""

from __future__ import annotations

from pathlib import Path

from mlflow_adk_eval.tracking.bundle import load
from mlflow_adk_eval.tracking.client import connect, existing, reaching_mlflow
from mlflow_adk_eval.tracking.log import finish_run


def upload(folder: str | Path, *, tracking_uri: str | None = None) -> str:
    """Log what `folder` holds and return the run's id. What an earlier attempt has logged is neither changed nor doubled.

    Args:
        folder: what an evaluation left in ``adk_eval_pending`` when it could not reach MLflow. It is not deleted.
        tracking_uri: where the run is, if that has changed since.

    Raises:
        UsageError: if the folder is no such thing, or its run does not exist.
        TrackingError: if MLflow can still not be reached, or loses something; everything stays in the folder.
    """
    bundle = load(Path(folder))
    client = connect(tracking_uri or bundle.run.tracking_uri)
    run_id = bundle.run.run_id
    with reaching_mlflow(f"run {run_id} could not be finished, and {folder} still holds it"):
        with existing(f"run {run_id}"):
            client.get_run(run_id)
        finish_run(client, bundle)
    return run_id
