"""A command that is told to stop: no run stays open, nothing that was paid for is lost, and it says how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.cli.test_cli import EXPECTED, written
from tests.mlflow_kit import opened

AGENT = """
import asyncio, os, pathlib

STATE = pathlib.Path(os.environ["SLOW_AGENT_STATE"])

async def agent(text):
    with (STATE / "calls.txt").open("a") as calls:
        calls.write(text + "\\n")
    if text != "hi" and not (STATE / "go").exists():
        await asyncio.sleep(600)
    return {"hi": "hello"}.get(text, "it is on")

async def metric(*arguments):
    (STATE / "calls.txt").write_text("metric\\n")
    await asyncio.sleep(600)
"""
BACKGROUND = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""What a shell does to commands that a script runs in the background."""
FOREGROUND = BACKGROUND.replace("signal.SIG_IGN)", "signal.default_int_handler); signal.signal(signal.SIGHUP, signal.SIG_DFL)")
"""Neither is ignored, whatever started the tests: `nohup` ignores SIGHUP, and so do its children."""


def state_of(here: Path) -> Path:
    """Return the folder where the agent leaves its traces: files beside its source would make another version of it."""
    return here.parent / "state"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    tmp_path /= "here"
    tmp_path.mkdir()
    (tmp_path / "slow_agent.py").write_text(AGENT)
    written(tmp_path / "lights.evalset.json", EXPECTED)
    written(tmp_path / "test_config.json", {"criteria": {"response_match_score": 0.5}})
    return tmp_path


@pytest.fixture
def store(template: Path, here: Path) -> str:
    return opened(template, here / "store", "stopped")


def started(here: Path, store: str, *arguments: str, before: str = FOREGROUND) -> subprocess.Popen[str]:
    command = ["-m", "mlflow_adk_eval", "run", *arguments, "--tracking-uri", store, "--experiment", "stopped", "--concurrency", "1"]
    env = {**os.environ, "MLFLOW_ADK_EVAL_LEDGER": str(here / "ledger.sqlite"), "SLOW_AGENT_STATE": str(state_of(here))}
    return subprocess.Popen(
        [sys.executable, "-c", before, *command], cwd=here, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def words_of(process: subprocess.Popen[str]) -> str:
    """Wait for a process and return what it said; one that does not end in a minute is killed."""
    with process:
        try:
            return process.communicate(timeout=60)[1]
        finally:
            process.kill()


def stopped(process: subprocess.Popen[str], here: Path, last: str, number: int) -> str:
    """Stop a process once its last call is under way, and return what it said."""
    calls = state_of(here) / "calls.txt"
    while process.poll() is None and not (calls.exists() and last in calls.read_text().splitlines()):
        time.sleep(0.02)
    process.send_signal(number)
    said = words_of(process)
    assert process.returncode == 3, said
    assert "Traceback" not in said
    assert "error: interrupted" in said
    return said


def runs(store: str) -> list[tuple[str, str, str]]:
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("stopped")
    assert experiment
    return [(run.info.run_id, run.info.status, run.data.tags["adk_eval.status"]) for run in client.search_runs([experiment.experiment_id])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGTERM, FOREGROUND), (signal.SIGTERM, BACKGROUND), (signal.SIGHUP, FOREGROUND), (signal.SIGINT, FOREGROUND)],
    ids=["SIGTERM", "SIGTERM in the background", "SIGHUP", "SIGINT"],
)
def test_a_run_that_is_told_to_stop_says_how_to_go_on(number: int, before: str, here: Path, store: str) -> None:
    said = stopped(started(here, store, "slow_agent:agent", "lights.evalset.json", before=before), here, "turn it on", number)
    ((run_id, *states),) = runs(store)
    assert states == ["KILLED", "failed"]
    assert f"resume with the same command and --resume {run_id}" in said
    (state_of(here) / "go").touch()
    process = started(here, store, "slow_agent:agent", "lights.evalset.json", "--resume", run_id)
    said = words_of(process)
    assert process.returncode == 0, said
    assert [state for _, *state in runs(store)] == [["FINISHED", "complete"]]


def test_a_recording_whose_scoring_is_told_to_stop_leaves_no_open_run(here: Path, store: str) -> None:
    config = {"criteria": {"own": 0.5}, "custom_metrics": {"own": {"code_config": {"name": "slow_agent.metric"}}}}
    written(here / "test_config.json", config)
    written(here / "recording.json", EXPECTED)
    stopped(started(here, store, "recording.json", "lights.evalset.json"), here, "metric", signal.SIGTERM)
    assert [state for _, *state in runs(store)] == [["KILLED", "failed"]]
