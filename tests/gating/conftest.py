"""One MLflow store on SQLite for all tests of the gate, and one behind a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gating.gate_kit import Lab
from tests.mlflow_kit import Server, copied, free_port


@pytest.fixture(scope="session")
def lab(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = copied(template, folder)
    client = MlflowClient(uri, uri)
    return Lab(client, uri, client.create_experiment("gate", artifact_location=(folder / "artifacts").as_uri()), folder)


@pytest.fixture(scope="session")
def served_lab(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One MLflow server, which also serves the artifacts, for all tests of the gate."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("served")
    copied(template, folder)
    server = Server(folder, free_port()).start()
    client = MlflowClient(server.uri, server.uri)
    yield Lab(client, server.uri, client.create_experiment("gate"), server.folder)
    server.kill()


_numbers = itertools.count()


@pytest.fixture
def model() -> str:
    """Return the name of a registered model that no other test uses."""
    return f"home_automation_{next(_numbers)}"
