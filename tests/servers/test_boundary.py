"""Whatever MLflow, or what stands before it, answers: one message and the exit code for it, and never a traceback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit
from typing import NoReturn

import pytest

from mlflow_adk_eval.cli import options
from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.store.reaching import reaching_mlflow
from mlflow_adk_eval.tracking.client import connect
from tests.cli.test_cli import EXPECTED, invoke, written
from tests.mlflow_kit import Server
from tests.servers.proxy import Fault, Proxy, at


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy on a port of its own: MLflow remembers the version of each server that it asked."""
    started = Proxy(server.uri).start()
    yield started
    started.stop()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["503", "html", 3.5], ids=str)
def test_a_version_that_cannot_be_asked_costs_no_run(fault: Fault | float, proxy: Proxy, here: Path) -> None:
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
    cases, recording = written(here / "lights.evalset.json", EXPECTED), written(here / "recording.json", actual)
    with proxy.spoiling(at("/version", fault)):
        done = invoke("run", recording, cases, "--tracking-uri", proxy.uri, "--experiment", "versions")
    assert "Traceback" not in done.stderr
    assert done.exit_code in (0, 3)
    for folder in here.glob("adk_eval_pending/*"):  # in this process, which has learnt by then that it does not know the version
        uploaded = invoke("upload", folder, "--tracking-uri", proxy.uri)
        assert uploaded.exit_code == 0, uploaded.stderr
    (run,) = (found for found in connect(proxy.uri).search_runs(["0", *_experiment(proxy, "versions")], max_results=1))
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FINISHED", "complete")


def _experiment(proxy: Proxy, name: str) -> list[str]:
    found = connect(proxy.uri).get_experiment_by_name(name)
    return [] if found is None else [str(found.experiment_id)]


@pytest.mark.slow
def test_a_login_page_is_told_from_mlflow(proxy: Proxy, here: Path) -> None:
    with proxy.spoiling(lambda _: "html"):
        done = invoke("gate", "0123456789abcdef0123456789abcdef", "--tracking-uri", proxy.uri)
    assert done.exit_code == 3
    assert done.stderr.startswith("error: MLflow could not be queried: ")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["truncated", "broken", "cut", "429"])
def test_an_answer_that_is_none_is_a_tracking_error(fault: Fault, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with proxy.spoiling(lambda _: fault), pytest.raises(TrackingError, match="cannot be reached"):
        connect(proxy.uri)


def test_a_mistake_of_ours_is_not_called_one_of_mlflow() -> None:
    with pytest.raises(KeyError), reaching_mlflow("it could not be done"):
        raise KeyError("ours")


def test_a_mistake_exits_with_3_since_1_says_that_a_threshold_was_missed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*_: object) -> NoReturn:
        raise KeyError("ours")

    monkeypatch.setattr(options, "eval_set_paths", mistaken)
    done = invoke("run", "agent", "cases.json", "--json")
    assert done.exit_code == 3
    assert "KeyError: 'ours'" in done.stderr
    assert json.loads(done.stdout)["error"] == "KeyError: 'ours'"


@pytest.mark.slow
@pytest.mark.parametrize("bytes_a_file", [4096, 20000])
def test_a_full_disk_is_one_message(server: Server, here: Path, bytes_a_file: int) -> None:
    cases, recording = written(here / "lights.evalset.json", EXPECTED), here / "recording.json"
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
    written(recording, actual)
    command = [sys.executable, "-m", "mlflow_adk_eval", "run", str(recording), str(cases), "--tracking-uri", server.uri]
    command += ["--experiment", f"full {bytes_a_file}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, preexec_fn=lambda: setrlimit(RLIMIT_FSIZE, (bytes_a_file, bytes_a_file))
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert re.search(r"^error: cannot write: .*File too large.*TMPDIR", done.stderr)
    client = connect(server.uri)
    (run,) = client.search_runs([client.get_experiment_by_name(f"full {bytes_a_file}").experiment_id])
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FAILED", "failed")
