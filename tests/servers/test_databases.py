"""Databases that MLflow reaches without a server: traces are written as rows, and these are what MLflow itself would write."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.tracing.client import TracingClient
from mlflow.tracking._tracking_service.utils import _get_store  # noqa: PLC2701 - MLflow has no public one

from mlflow_adk_eval.tracking import traces
from mlflow_adk_eval.tracking.bundle import Bundle
from tests.mlflow_kit import free_port
from tests.postgres_kit import postgres  # noqa: F401 - a fixture
from tests.tracking import judged
from tests.tracking.test_traces import UNKNOWN_TABLES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mariadb() -> Iterator[str]:
    """Provide the URI of an empty database of a MariaDB server of the tests' own."""
    pytest.importorskip("pymysql", reason="pymysql is not installed")
    if not shutil.which("mariadbd") or not shutil.which("mariadb-install-db"):
        pytest.skip("MariaDB is not installed: apt install mariadb-server")
    folder, port = Path(tempfile.mkdtemp(prefix="mariadb")), free_port()
    data, user = folder / "data", "mysql" if os.geteuid() == 0 else str(os.environ.get("USER"))
    if os.geteuid() == 0:
        shutil.chown(folder, "mysql")
        folder.chmod(0o755)
    subprocess.run(
        ["mariadb-install-db", f"--datadir={data}", f"--user={user}", "--auth-root-authentication-method=normal"],
        check=True,
        capture_output=True,
    )
    options = [f"--datadir={data}", f"--port={port}", f"--socket={folder}/socket", "--bind-address=127.0.0.1", "--skip-log-bin"]
    options += ["--innodb-flush-log-at-trx-commit=0", f"--pid-file={folder}/pid"]
    server = subprocess.Popen(
        ["mariadbd", "--no-defaults", f"--user={user}", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        import pymysql

        for _ in range(300):
            try:
                connection = pymysql.connect(host="127.0.0.1", port=port, user="root")
                break
            except pymysql.err.OperationalError:
                assert server.poll() is None
                time.sleep(0.1)
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE mlflow CHARACTER SET utf8mb4")
        yield f"mysql+pymysql://root@127.0.0.1:{port}/mlflow"
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def postgresql(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres").new_database()).replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


def logged(uri: str, folder: Path, experiment: str) -> Bundle:
    MlflowClient(uri).create_experiment(experiment, artifact_location=(folder / experiment).as_uri())
    return judged.logged(uri, judged.report(), experiment)


def rows_in(uri: str, run_id: str) -> dict[str, list[Any]]:
    """Return all rows about the traces of a run."""
    from sqlalchemy import text

    with _get_store(uri).engine.connect() as connection:
        select = text("select request_id from trace_request_metadata where key = 'mlflow.sourceRun' and value = :run")
        if uri.startswith("mysql"):
            select = text("select request_id from trace_request_metadata where `key` = 'mlflow.sourceRun' and value = :run")
        ids = {row.request_id for row in connection.execute(select, {"run": run_id})}
        found: dict[str, list[Any]] = {}
        for table in ("trace_info", "trace_tags", "trace_request_metadata", "assessments", "spans"):
            column = "trace_id" if table in {"assessments", "spans"} else "request_id"
            rows = [row for row in connection.execute(text(f"select * from {table}")).mappings() if row[column] in ids]  # noqa: S608
            found[table] = sorted((dict(row) for row in rows), key=repr)
    return found


def test_both_ways_of_writing_leave_the_same_rows(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(traces, "_TABLES", UNKNOWN_TABLES)
        bundle = logged(database, tmp_path, "ways")
    plain = rows_in(database, bundle.run.run_id)
    assert {table: len(rows) for table, rows in plain.items()} == {
        "trace_info": 3,
        "trace_tags": 18,
        "trace_request_metadata": 12,
        "assessments": 18,
        "spans": 5,
    }
    client = MlflowClient(database)
    client.delete_traces(bundle.run.experiment_id, trace_ids=[row["request_id"] for row in plain["trace_info"]])
    one_by_one: list[str] = []
    start_trace = TracingClient.start_trace
    monkeypatch.setattr(TracingClient, "start_trace", lambda self, info: (one_by_one.append(info.trace_id), start_trace(self, info))[1])
    traces.write_traces(client, bundle.run, bundle.traces)
    assert not one_by_one
    assert rows_in(database, bundle.run.run_id) == plain
    assert traces.missing_traces(client, bundle.run, bundle.traces) == []


def test_what_another_has_written_meanwhile_is_completed(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers of one run: the second one finds rows that were not there when it looked."""
    monkeypatch.chdir(tmp_path)
    bundle = logged(database, tmp_path, "two writers")
    before = rows_in(database, bundle.run.run_id)
    monkeypatch.setattr(traces, "_stored", lambda *_: {})
    traces.write_traces(MlflowClient(database), bundle.run, bundle.traces)
    after = rows_in(database, bundle.run.run_id)
    for row in (*before["trace_info"], *after["trace_info"]):
        row.pop("db_payload_generation")
    assert {table: sorted(rows, key=repr) for table, rows in after.items()} == {
        table: sorted(rows, key=repr) for table, rows in before.items()
    }


def test_other_tables_than_the_known_ones_are_left_to_mlflow(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces.trace_rows(TracingClient(database).store, "0") is not None
    monkeypatch.setattr(traces, "_TABLES", UNKNOWN_TABLES)
    assert traces.trace_rows(TracingClient(database).store, "0") is None
