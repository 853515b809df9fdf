"""One MLflow store on SQLite for all tests of the gate."""

from __future__ import annotations

import itertools

import pytest

from tests.gate.gate_kit import Lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    return Lab(client, uri, client.create_experiment("gate", artifact_location=(folder / "artifacts").as_uri()))


_numbers = itertools.count()


@pytest.fixture
def model() -> str:
    """Return the name of a registered model that no other test uses."""
    return f"home_automation_{next(_numbers)}"
