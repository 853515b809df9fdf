"""MLflow servers on SQLite and on PostgreSQL, each behind a proxy that can spoil requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.mlflow_kit import Server, free_port
from tests.postgres_kit import Postgres, postgres
from tests.servers.proxy import Proxy

__all__ = ["postgres"]


@dataclass(frozen=True)
class Site:
    """A server, and the proxy before it."""

    server: Server
    proxy: Proxy

    @property
    def uri(self) -> str:
        return self.proxy.uri


@pytest.fixture(scope="session")
def on_sqlite(server: Server) -> Iterator[Site]:
    proxy = Proxy(server.uri).start()
    yield Site(server, proxy)
    proxy.stop()


@pytest.fixture(scope="session")
def on_postgres(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server = Server(tmp_path_factory.mktemp("server_on_postgres"), free_port(), backend=database_of(postgres)).start()
    proxy = Proxy(server.uri).start()
    yield Site(server, proxy)
    proxy.stop()
    server.kill()


def database_of(postgres: Postgres) -> str:
    """Return the URI of an empty database, as SQLAlchemy wants it."""
    return postgres.new_database().replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(f"on_{request.param}")


T = TypeVar("T")
SPOILT = os.environ.get("MLFLOW_ADK_EVAL_SPOILT", "")
"""How many requests of each command are spoilt, or "all"; where it is set, jobs meet on every kind of store, too."""


def sample(cases: Sequence[T], count: int, site: Site) -> Sequence[T]:
    """Return so many of the cases, or as many as are wanted, spread over all of them; others for another site."""
    count = len(cases) if SPOILT == "all" else int(SPOILT or count)
    count = min(count, len(cases))
    within = 1 if site.server.backend else 2
    return [cases[(3 * number + within) * len(cases) // (3 * count) if count < len(cases) else number] for number in range(count)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test's commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
