"""The disk of the server is full: one message, nothing paid for is lost, and one `upload` completes the run once there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.cli.test_cli import EXPECTED, invoke, written
from tests.mlflow_kit import Server, copied, free_port
from tests.servers.conftest import SPOILT
from tests.servers.proxy import Fault, Proxy, Request

pytestmark = pytest.mark.slow
_SIZE = 24 * 1024 * 1024


class Disk:
    """A disk of its own, which can be full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", folder], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a disk of its own cannot be made here: {mounted.stderr.strip()}")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def proxy(disk: Disk, template: Path) -> Iterator[Proxy]:
    """A server whose database and artifacts are on that disk."""
    copied(template, disk.folder)
    server = Server(disk.folder, free_port()).start()
    proxy = Proxy(server.uri).start()
    yield proxy
    proxy.stop()
    server.kill()


def evaluated(disk: Disk, proxy: Proxy, here: Path, path: str) -> subprocess.CompletedProcess[str]:
    """Run an evaluation while the disk becomes full with the first request to `path`."""
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
    cases, recording = written(here / "lights.evalset.json", EXPECTED), written(here / "recording.json", actual)
    met: list[str] = []

    def fills(request: Request) -> Fault | None:
        if not met and path in request.path:
            met.append(request.path)
            disk.fill()
        return None

    command = [
        sys.executable,
        "-m",
        "mlflow_adk_eval",
        "run",
        str(recording),
        str(cases),
        "--tracking-uri",
        proxy.uri,
        "--experiment",
        "full",
    ]
    few = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    with proxy.spoiling(fills):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here, env=few)
    assert met
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("path", ["/mlflow/traces", *(["/manifest.json", "/v1/traces", "/runs/update"] if SPOILT else [])])
def test_a_run_that_met_a_full_disk_is_completed_by_an_upload(path: str, disk: Disk, proxy: Proxy, here: Path) -> None:
    done = evaluated(disk, proxy, here, path)
    assert "Everything is saved in adk_eval_pending/" in done.stderr
    (folder,) = here.glob("adk_eval_pending/*")
    assert invoke("upload", folder, "--tracking-uri", proxy.uri).exit_code == 3
    disk.free()
    assert invoke("upload", folder, "--tracking-uri", proxy.uri).exit_code == 0
    client = MlflowClient(proxy.uri)
    run = client.get_run(folder.name)
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FINISHED", "complete")
    turns = int(run.data.metrics["tool_trajectory_avg_score/evaluated"])
    assert len(client.search_traces(locations=[run.info.experiment_id], run_id=folder.name)) == turns
    assert invoke("gate", folder.name, "--tracking-uri", proxy.uri).exit_code == 0


@pytest.mark.skipif(not SPOILT, reason="MLFLOW_ADK_EVAL_SPOILT is not set")
@pytest.mark.parametrize("path", ["/runs/create", "/runs/log-inputs"])
def test_a_run_that_a_full_disk_does_not_let_begin_says_so(path: str, disk: Disk, proxy: Proxy, here: Path) -> None:
    done = evaluated(disk, proxy, here, path)
    assert "error: the run could not be started: " in done.stderr
    disk.free()
    client = MlflowClient(proxy.uri)
    experiment = client.get_experiment_by_name("full")
    assert experiment
    runs = client.search_runs([experiment.experiment_id])
    assert [run.data.tags["adk_eval.status"] for run in runs] == (["running"] if path == "/runs/log-inputs" else [])
    assert all("MLflow or the process failed" in run.data.tags["mlflow.note.content"] for run in runs)
    for run in runs:
        assert invoke("gate", run.info.run_id, "--tracking-uri", proxy.uri).exit_code == 2
