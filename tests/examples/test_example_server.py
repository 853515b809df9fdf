"""The deployment of a server: its command is one that MLflow takes, and serves evaluations on PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

import mlflow_adk_eval as adk_eval
from tests.mlflow_kit import free_port
from tests.postgres_kit import Postgres, postgres
from tests.tracking.small import CONFIG, expected_of, rooms

__all__ = ["postgres"]
PROJECT = Path(__file__).parents[2] / "example_projects" / "server"


def services() -> dict[str, Any]:
    return YAML(typ="safe").load((PROJECT / "compose.yaml").read_text())


def test_every_variable_is_in_the_example_and_the_options_are_mlflows() -> None:
    import mlflow as mlflow_package
    from mlflow import cli
    from mlflow.environment_variables import MLFLOW_SERVER_ENABLE_JOB_EXECUTION

    text = (PROJECT / "compose.yaml").read_text()
    wanted = {line.partition("=")[0] for line in (PROJECT / "env.example").read_text().split()}
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", text)) == wanted
    mlflow = services()["services"]["mlflow"]
    program, name, *options = mlflow["command"]
    assert (program, name) == ("mlflow", "server")
    given = cli.server.make_context("server", options, resilient_parsing=True).params
    assert given["app_name"] == "basic-auth"
    assert "PASSWORD" not in str(mlflow["command"]), "everybody on the machine can read a command line"
    assert MLFLOW_SERVER_ENABLE_JOB_EXECUTION.name in mlflow["environment"]
    assert "MLFLOW_BACKEND_STORE_URI" in {option.envvar for option in cli.server.params}
    assert (given["port"], given["workers"], given["artifacts_destination"]) == (5000, "4", "s3://mlflow")
    assert set(mlflow["depends_on"]) <= set(services()["services"])
    auth = ConfigParser()
    auth.read_string(services()["configs"]["auth"]["content"])
    shipped = (Path(mlflow_package.__file__).parent / "server" / "auth" / "basic_auth.ini").read_text()
    assert set(auth["mlflow"]) <= set(re.findall(r"^(?:# )?(\w+) = ", shipped, re.MULTILINE))
    assert f"authorization_function = {auth['mlflow']['authorization_function']}\n" in shipped


@pytest.mark.slow
def test_the_command_serves_evaluations_on_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    *command, last = services()["services"]["mlflow"]["command"]
    assert last == "--app-name=basic-auth"  # needs packages of its own
    database = postgres.new_database().replace("postgresql://", "postgresql+psycopg://")
    port = free_port()
    changed = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--workers": "1",
        "--artifacts-destination": str(tmp_path / "objects"),
        "--allowed-hosts": f"127.0.0.1:{port}",
    }
    names = [option.partition("=")[0] for option in command[2:]]
    assert names == list(changed)
    started = [sys.executable, "-m", *command[:2], *(f"{name}={changed[name]}" for name in names)]
    environment = {**os.environ, "MLFLOW_BACKEND_STORE_URI": database, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(started, stdout=log, stderr=log, start_new_session=True, cwd=tmp_path, env=environment)
    uri = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 300
        while not answers(uri):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.2)
        report = adk_eval.evaluate(rooms(), expected_of(rooms()), CONFIG, tracking_uri=uri, ledger=postgres.new_database())
        assert adk_eval.gate(str(report.run_id), tracking_uri=uri).passed
        assert list((tmp_path / "objects").rglob("adk_eval/cells/part-00000.parquet"))
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def answers(uri: str) -> bool:
    try:
        return httpx.get(f"{uri}/health").status_code == 200
    except httpx.HTTPError:
        return False
