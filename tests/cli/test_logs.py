"""With --log-format json, standard error is lines of JSON, and nothing else."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import EXPECTED, invoke, written

AS_JSON = ("--log-format", "json")
NOISY = """
import atexit, logging, os, subprocess, sys, threading, time

logging.basicConfig(level=logging.DEBUG)
print("imported")

def chatter():
    while True:
        print("still here")
        time.sleep(0.001)

def agent(message):
    print("asked with", os.environ["SHOP_API_KEY"])
    logging.getLogger("shop").info("not important")
    logging.getLogger("shop").error("out of \x1b[31mred")
    os.write(1, b"by number\\n")
    subprocess.run(["sh", "-c", "echo by a child >&2"])
    atexit.register(print, "bye")
    threading.Thread(target=chatter, daemon=True).start()
    sys.stdout = None
    if message == "hi":
        raise RuntimeError("closed")
    return "it is on"
"""
CASES = len(EXPECTED["eval_cases"])
WORDY = """
import logging

def agent(message):
    logging.getLogger("shop").setLevel(logging.DEBUG)
    print("asked")
    logging.getLogger("shop").info("not important")
    logging.getLogger("shop").error("out of stock")
    raise ValueError("No API key was provided.")
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
    return written(tmp_path / "recording.json", actual), written(tmp_path / "lights.evalset.json", EXPECTED)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_run_and_the_gate_tell_what_they_do(files: tuple[Path, Path], store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    del store
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)  # there, the gate also annotates what is on standard error
    at = ("--tracking-uri", f"sqlite:///{Path.cwd()}/mlflow.db")  # MLflow keeps a store of this process by its address, whatever the folder
    command = [sys.executable, "-m", "mlflow_adk_eval", *AS_JSON, "run", *map(str, files), *at, "--json"]
    quiet = {name: value for name, value in os.environ.items() if name != "MLFLOW_CONFIGURE_LOGGING"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet)
    assert done.returncode == 0, done.stderr
    found = lines(done.stderr)
    ours = [line for line in found if line["logger"].startswith("mlflow_adk_eval")]
    assert [line["message"] for line in ours] == [
        "the run started",
        *["a case ended"] * CASES,
        "the run is logged",
        "evaluated",
        "the command ended",
    ]
    run_id = json.loads(done.stdout)["run_id"]
    assert {line["run_id"] for line in ours if "run_id" in line} == {run_id}
    assert ours[1]["eval_id"] == EXPECTED["eval_cases"][0]["eval_id"]
    assert ours[1]["scores"]["tool_trajectory_avg_score"] == 1
    assert (ours[-2]["verdict"], ours[-1]["exit_code"]) == ("passed", 0)
    assert all(line["timestamp"] and line["level"] for line in found)
    decided = lines(invoke(*AS_JSON, "gate", run_id, *at).stderr)
    assert [(line["message"], line.get("verdict")) for line in decided] == [("decided", "passed"), ("the command ended", None)]


def test_an_error_is_a_line(tmp_path: Path) -> None:
    done = invoke(*AS_JSON, "score", tmp_path / "nothing.json", "--actual", tmp_path / "nothing.json")
    error, ended = lines(done.stderr)
    assert (error["level"], error["exit_code"], ended["exit_code"], done.exit_code) == ("ERROR", 64, 64, 64)
    assert "nothing.json" in error["message"]


def test_nobody_hears_it_who_did_not_ask(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.getLogger().handlers[:]
    asked = invoke(*AS_JSON, "score", files[1], "--actual", files[0])
    assert logging.getLogger().handlers == before
    plain = invoke("score", files[1], "--actual", files[0])
    assert (plain.stdout, plain.stderr) == (asked.stdout, "")
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LOG_FORMAT", "json")
    assert [line["message"] for line in lines(invoke("score", files[1], "--actual", files[0]).stderr)] == [
        *["a case ended"] * CASES,
        "evaluated",
        "the command ended",
    ]


def test_what_an_agent_writes_is_in_a_file_and_never_in_the_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [sys.executable, "-m", "mlflow_adk_eval", "record", "noisy:agent", str(files[1]), "-o", "made.json"]
    known = {**os.environ, "SHOP_API_KEY": "sk-0123456789", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*command, "--json", "--concurrency", "1"], capture_output=True, text=True, check=False, env=known)
    said = json.loads(done.stdout)
    assert (done.returncode, done.stderr, [error["eval_id"] for error in said["errors"]]) == (3, "", ["hi"])
    kept = (tmp_path / said["agent_output"]).read_text()
    assert Path(said["agent_output"]).parent == Path(".adk_eval/agent_output")
    for line in ("imported", "asked with [SHOP_API_KEY]", "INFO:shop:not important", "out of �[31mred", "by number", "by a child"):
        assert line in kept, line
    assert "0123456789" not in kept
    shown = subprocess.run(
        [*command, "--force", "--json", "--agent-output", "show"], capture_output=True, text=True, check=False, env=known
    )
    assert ("agent_output" in json.loads(shown.stdout), "by number\n" in shown.stderr) == (False, True)


def test_the_file_is_named_where_a_run_does_not_pass_and_loggers_obey(
    files: tuple[Path, Path], tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del store
    (tmp_path / "wordy.py").write_text(WORDY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a process without pytest's own
    made = invoke("run", "wordy:agent", files[1], "--log-level", "error", "--tracking-uri", "sqlite:///mlflow.db")
    (named,) = [line.removeprefix("agent output: ") for line in made.stdout.splitlines() if line.startswith("agent output: ")]
    kept = (tmp_path / named).read_text()
    assert ("out of stock" in kept, "not important" in kept, "asked" in kept, "asked" in made.stdout) == (True, False, True, False)
    assert "ValueError: No API key was provided." in made.stdout.splitlines()[1], "the cause comes first"
    assert made.stdout.splitlines()[-1].startswith("next: set the key of the agent's model, such as GOOGLE_API_KEY")
    assert logging.getLogger("shop").isEnabledFor(logging.DEBUG), "the option ends with its command"
