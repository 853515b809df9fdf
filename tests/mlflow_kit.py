"""MLflow's stores and servers for tests: every one begins as a copy of an empty database, which MLflow takes seconds to make."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.workers import made_once


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, which takes MLflow seconds to make."""
    from mlflow import MlflowClient
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _without_waiting_for_the_disk)

    def make(folder: Path) -> None:
        with contextlib.chdir(folder):  # where the artifacts of the default experiment will go
            MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()

    return made_once(tmp_path_factory, "template", make) / "mlflow.db"


def copied(template: Path, folder: Path) -> str:
    shutil.copy(template, folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


def opened(template: Path, folder: Path, experiment: str) -> str:
    """Do what `open_store` does, on a copy of the empty store."""
    from mlflow_adk_eval.tracking.client import open_store

    folder.mkdir(exist_ok=True)
    copied(template, folder)
    return open_store(folder, experiment=experiment)


def _without_waiting_for_the_disk(connection: Any, _: Any) -> None:
    """Make SQLite leave the writing to the operating system: the store is gone after the tests."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


_STORES = ("mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store")


def forget_statements() -> None:
    """Free what the stores of tests that are over take: MLflow keeps an engine for each for ever, with all statements that it compiled."""
    for module in _STORES:
        if module in sys.modules:
            for engine in list(sys.modules[module].SqlAlchemyStore._engine_map.values()):
                engine.clear_compiled_cache()


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty SQLite store; artifacts and whatever else is written go to the test's own folder."""
    monkeypatch.chdir(tmp_path)
    return copied(template, tmp_path)


@dataclass
class Server:
    """A real MLflow server, on a copy of the empty store unless it is told otherwise."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    backend: str = ""
    """The URI of another database than the copy."""
    prefix: str = ""
    """The path below which it serves."""
    options: tuple[str, ...] = ()
    """More options of `mlflow server`."""

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def start(self) -> Server:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        command += [
            "--backend-store-uri",
            self.backend or f"sqlite:///{self.folder / 'mlflow.db'}",
            "--artifacts-destination",
            str(self.folder / "artifacts"),
            *(("--static-prefix", self.prefix) if self.prefix else ()),
            *self.options,
        ]
        with (self.folder / "server.log").open("ab") as log:
            quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=quiet, start_new_session=True)
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1).close()  # noqa: S310
            except OSError:
                assert self.process.poll() is None, (self.folder / "server.log").read_text()
                time.sleep(0.1)
            else:
                return self
        raise AssertionError((self.folder / "server.log").read_text())

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def new_server(template: Path, tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Make servers that the test may kill."""
    made: list[Server] = []

    def make() -> Server:
        folder = tmp_path / f"server{len(made)}"
        folder.mkdir()
        copied(template, folder)
        made.append(Server(folder, free_port()).start())
        return made[-1]

    yield make
    for server in made:
        server.kill()


@pytest.fixture(scope="session")
def server(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it alone."""
    folder = tmp_path_factory.mktemp("server")
    copied(template, folder)
    running = Server(folder, free_port()).start()
    yield running
    running.kill()
