"""One MLflow store on SQLite for all tests of the gate, and one behind a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gating.gate_kit import Lab
from tests.tracking.conftest import Server, free_port


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    for store in (client._tracking_client.store, client._get_registry_client().store):
        _without_waiting_for_the_disk(store.engine)
    return Lab(client, uri, client.create_experiment("gate", artifact_location=(folder / "artifacts").as_uri()), folder)


@pytest.fixture(scope="session")
def served_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One MLflow server, which also serves the artifacts, for all tests of the gate."""
    from mlflow import MlflowClient

    server = Server(tmp_path_factory.mktemp("served"), free_port()).start()
    client = MlflowClient(server.uri, server.uri)
    yield Lab(client, server.uri, client.create_experiment("gate"), server.folder)
    server.kill()


def _without_waiting_for_the_disk(engine: Any) -> None:
    """Make SQLite leave the writing to the operating system: the store is gone after the tests."""
    from sqlalchemy import event

    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    engine.dispose()


_numbers = itertools.count()


@pytest.fixture
def model() -> str:
    """Return the name of a registered model that no other test uses."""
    return f"home_automation_{next(_numbers)}"
