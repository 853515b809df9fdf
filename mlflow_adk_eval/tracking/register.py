"""Putting the agent version of an evaluation into the model registry."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.utils import _use_tracking_uri  # pyright: ignore[reportPrivateUsage] - resets the URI afterwards

from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.client import connect, existing, is_absent, reaching_mlflow

_VERSIONS = "mlflow.modelVersions"
"""MLflow's tag of a LoggedModel with the versions that it is registered as."""


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
        version = _version(client, name, f"models:/{model_id}", model_id)
        _link(client, model_id, name, version)
        return version


def _version(client: MlflowClient, name: str, source: str, model_id: str) -> str:
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if not is_absent(error):
            raise
        client.create_registered_model(name)
    known = [version for version in client.search_model_versions(f"name = '{name}'") if version.source == source]
    if known:
        return str(known[0].version)
    with _default_store(client.tracking_uri):
        return str(client.create_model_version(name, source, model_id=model_id).version)


def _link(client: MlflowClient, model_id: str, name: str, version: str) -> None:
    """Have the LoggedModel's pages name the version, which only MLflow's server sees to by itself."""
    linked = json.loads(client.get_logged_model(model_id).tags.get(_VERSIONS, "[]"))
    ours = {"name": name, "version": version}
    if not any({**one, "version": str(one.get("version"))} == ours for one in linked):
        client.set_logged_model_tags(model_id, {_VERSIONS: json.dumps([*linked, ours])})


@contextmanager
def _default_store(tracking_uri: str) -> Generator[None, None, None]:
    """Make a store the default one within: MLflow looks up the LoggedModel of a new version there, whatever the client's store is."""
    before, environment = mlflow.get_tracking_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    if before == tracking_uri:
        yield
        return
    try:
        with _use_tracking_uri(tracking_uri):
            yield
    finally:
        if environment is None:
            os.environ.pop("MLFLOW_TRACKING_URI", None)
        else:
            os.environ["MLFLOW_TRACKING_URI"] = environment
