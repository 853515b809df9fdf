"""Putting the agent version of an evaluation into the model registry."""

from __future__ import annotations

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.outcome import Report
from mlflow_adk_eval.tracking.client import connect, existing, is_absent, reaching_mlflow


def register(report: Report, name: str, *, tracking_uri: str | None = None) -> str:
    """Return the version of the registered model `name` that is the evaluated agent, registering it if it is none yet.

    Raises:
        UsageError: if the report was not logged, or its run is not in this store.
        TrackingError: if MLflow does not take it.
    """
    if report.run_id is None:
        raise UsageError("the report was not logged in MLflow, so there is no agent version to register")
    client = connect(tracking_uri)
    with reaching_mlflow(f"the agent could not be registered as {name!r}"):
        with existing(f"run {report.run_id}"):
            model_id = client.get_run(report.run_id).data.params.get("adk_eval.model_id")
        if model_id is None:
            raise TrackingError(f"run {report.run_id} does not say which agent version it evaluated")
        return _version(client, name, f"models:/{model_id}", model_id)


def _version(client: MlflowClient, name: str, source: str, model_id: str) -> str:
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if not is_absent(error):
            raise
        client.create_registered_model(name)
    known = [version for version in client.search_model_versions(f"name = '{name}'") if version.source == source]
    version = known[0] if known else client.create_model_version(name, source, model_id=model_id)
    return str(version.version)
