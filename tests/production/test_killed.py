"""`traces score` is killed at any request to a server: the next call finishes, with nothing lost and nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import Server
from tests.production.traffic_kit import assessments, talk, values
from tests.servers.proxy import Fault, Proxy, Request

pytestmark = [*QUIET, pytest.mark.slow]
MOMENTS = (0.35, 0.6, 0.85, 0.95)
"""After which share of the requests of a call that nobody kills."""


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[Proxy]:
    running = Proxy(server.uri).start()
    yield running
    running.stop()


def started(experiment: str, uri: str, folder: Path) -> subprocess.Popen[bytes]:
    command = (sys.executable, "-m", "mlflow_adk_eval", "traces", "score", experiment, "--criteria", "tool_call_count_v1=1")
    environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def production(uri: str, experiment: str) -> None:
    import mlflow

    with tracking(uri):
        mlflow.set_experiment(experiment)
        for number in range(6):
            talk(f"{experiment}-{number}" if number % 2 else "", *["light on", "thanks"][: 1 + number % 2], tools=number % 3)


@pytest.fixture(scope="module")
def requests(server: Server, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many requests a call makes that nobody kills."""
    production(server.uri, "whole")
    seen: list[str] = []

    def counting(request: Request) -> Fault | None:
        seen.append(request.path)
        return None

    with proxy.spoiling(counting):
        assert started("whole", proxy.uri, tmp_path_factory.mktemp("whole")).wait() == 0
    return len(seen)


@pytest.mark.parametrize(("moment", "elsewhere"), [*((moment, False) for moment in MOMENTS), (MOMENTS[-1], True)])
def test_the_next_call_finishes_what_a_killed_one_began(
    moment: float, elsewhere: bool, server: Server, proxy: Proxy, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = f"killed at {moment}, then {elsewhere}"
    production(server.uri, experiment)
    seen: list[int] = []

    def killing(_: Request) -> Fault | None:
        seen.append(0)
        if len(seen) == int(requests * moment):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return "cut"
        return None

    with proxy.spoiling(killing):
        process = started(experiment, proxy.uri, tmp_path)
        assert process.wait() == -signal.SIGKILL
    # On another machine there is nothing that the killed call kept.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere" if elsewhere else tmp_path)

    result = invoke("traces", "score", experiment, "--criteria", "tool_call_count_v1=1", "--tracking-uri", proxy.uri)
    assert result.exit_code == 0, result.stderr
    found = {trace: values(some) for trace, some in assessments(server.uri, experiment).items()}  # each name once
    whole = [values(some) for some in assessments(server.uri, "whole").values()]
    assert Counter(map(str, found.values())) == Counter(map(str, whole))

    again = invoke("traces", "score", experiment, "--criteria", "tool_call_count_v1=1", "--tracking-uri", proxy.uri)
    assert "nothing to score" in again.stdout
    assert {trace: values(some) for trace, some in assessments(server.uri, experiment).items()} == found
    client = MlflowClient(server.uri)
    known: Any = client.get_experiment_by_name(experiment)
    runs = client.search_runs([known.experiment_id])
    # One that was killed as soon as its run was complete may have left that, without the mark of production.
    assert sum(run.data.params.get("adk_eval.production") == "score" for run in runs) == 1 + elsewhere
