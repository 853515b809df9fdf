"""Sixteen jobs that start at the same moment on one store: nothing is lost, and all of them say what is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.gating.api import audit
from tests.mlflow_kit import Server, copied, free_port
from tests.postgres_kit import Postgres
from tests.servers.conftest import SPOILT, Site, database_of

pytestmark = pytest.mark.slow
WORKER = Path(__file__).parent / "jobs_worker.py"
JOBS, SOME_JOBS = 16, 8
AGENT = """
from tests.tracking.small import answering, rooms

answer = answering(rooms())
number = {number}


def agent(text, session):
    return answer(text, session)
"""


def done(tmp_path: Path, uri: str, *, different: bool, model: str | None, jobs: int = JOBS) -> list[dict[str, Any]]:
    """Return what came of jobs on one version of an agent, or on a version each."""
    files = [tmp_path / f"agent_{number if different else 0}.py" for number in range(jobs)]
    for number, file in enumerate(files):
        file.write_text(AGENT.format(number=number if different else 0))
    tasks = [
        {
            "uri": uri,
            "agent": str(file),
            "folder": str(tmp_path / f"job_{number}"),
            "experiment": tmp_path.name,
            "model": model,
            "wait_s": 400,
        }
        for number, file in enumerate(files)
    ]
    quiet = {**os.environ, "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    worker = subprocess.run(
        [sys.executable, str(WORKER)], input=json.dumps(tasks), capture_output=True, text=True, check=False, cwd=tmp_path, env=quiet
    )
    assert worker.returncode == 0, worker.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(worker.stdout.splitlines()[-1])
    return found


def check(results: list[dict[str, Any]], uri: str, name: str, *, different: bool, model: str | None) -> None:
    """Check that each job has its run, that equal agents are one version, and that one version holds the alias."""
    from mlflow import MlflowClient

    jobs = len(results)
    assert not [result for result in results if "error" in result], Counter(result.get("said", "")[-600:] for result in results)
    client = MlflowClient(uri, uri)
    (experiment,) = [found.experiment_id for found in client.search_experiments() if found.name == name]
    runs = {run.info.run_id: run for run in client.search_runs([experiment], max_results=1000)}
    assert {result["run_id"] for result in results} == set(runs)
    for run in runs.values():
        assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FINISHED", "complete")
        assert [found.dataset.name for found in run.inputs.dataset_inputs] == ["rooms"]
        assert len(client.search_traces(locations=[experiment], run_id=run.info.run_id)) == 5
    models = client.search_logged_models([experiment])
    assert {found.status for found in models} == {"READY"}
    assert {found.model_id for found in models} == {run.data.params["adk_eval.model_id"] for run in runs.values()}
    assert len(models) == (jobs if different else 1)
    if model is None:
        return
    versions = {str(version.version): version.source for version in client.search_model_versions(f"name = '{model}'")}
    assert sorted(versions, key=int) == sorted({result["version"] for result in results}, key=int)
    assert len(versions) == (jobs if different else 1)
    assert not [result["reasons"] for result in results if result["decision"] != "passed"]
    (found,) = audit(model, tracking_uri=uri)
    assert found.valid, found.reasons
    assert found.version in versions


def test_an_empty_file_becomes_a_store_once(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}"
    check(done(tmp_path, uri, different=False, model=None, jobs=SOME_JOBS), uri, tmp_path.name, different=False, model=None)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mlflow.db"]


@pytest.mark.skipif(not SPOILT, reason="minutes: MLFLOW_ADK_EVAL_SPOILT=all")
@pytest.mark.parametrize("different", [False, True], ids=["same", "different"])
@pytest.mark.parametrize(
    "where", ["new file", "file", "server on sqlite", "server on postgres", "new postgres", "new file behind a server"]
)
def test_all_that_jobs_do_together_is_there(
    where: str, different: bool, template: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    match where:
        case "new file":
            uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        case "file":
            uri = copied(template, tmp_path)
        case "new postgres":
            postgres: Postgres = request.getfixturevalue("postgres")
            uri = database_of(postgres)
        case "new file behind a server":
            server = Server(tmp_path, free_port()).start()
            request.addfinalizer(server.kill)
            uri = server.uri
        case _:
            site: Site = request.getfixturevalue("on_sqlite" if where.endswith("sqlite") else "on_postgres")
            uri = site.uri
    model = f"jobs_{where.replace(' ', '_')}_{different}"
    check(done(tmp_path, uri, different=different, model=model), uri, tmp_path.name, different=different, model=model)
