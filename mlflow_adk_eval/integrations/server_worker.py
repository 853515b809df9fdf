"""A worker of MLflow's own server: its application, and the store behind it as what runs inside the worker reads it."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from mlflow.server import ARTIFACTS_DESTINATION_ENV_VAR, BACKEND_STORE_URI_ENV_VAR, STATIC_PREFIX_ENV_VAR
from mlflow.server.fastapi_app import app as mlflow_app
from mlflow.store.artifact.artifact_repository_registry import (
    _artifact_repository_registry,  # noqa: PLC2701  # pyright: ignore[reportPrivateUsage] - MLflow has an entry point for it, which would hold for every process
    get_artifact_repository,
)
from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository
from mlflow.utils.uri import append_to_uri_path, validate_path_is_safe


def server_worker() -> tuple[Any, str, str]:
    """Return what the worker in which this is called serves, whose artifacts can be read from then on without a request to the server itself.

    That is MLflow's own application, for FastAPI, the URI of its store, and the path below which the server has all of its pages; empty: none.
    """
    _artifact_repository_registry.register("mlflow-artifacts", _own_artifacts)
    return mlflow_app, os.environ[BACKEND_STORE_URI_ENV_VAR], os.environ.get(STATIC_PREFIX_ENV_VAR, "").rstrip("/")


def _own_artifacts(artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> Any:
    """Return where artifacts are that clients reach through this server."""
    place = urlsplit(artifact_uri)
    destination = os.environ.get(ARTIFACTS_DESTINATION_ENV_VAR)
    if place.netloc or not destination:
        return MlflowArtifactsRepository(artifact_uri, tracking_uri=tracking_uri, registry_uri=registry_uri)
    return get_artifact_repository(append_to_uri_path(destination, validate_path_is_safe(place.path.lstrip("/"))))
