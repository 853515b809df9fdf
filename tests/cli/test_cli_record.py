"""Recording on the command line, and scoring what was recorded: files, exit codes, and what is said of conversations."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.agents.recordings import load_recording
from tests.cli.test_cli import invoke, written
from tests.kit import turn_json
from tests.mlflow_kit import opened

pytestmark = pytest.mark.needs("google-adk")
EXAMPLE = Path(__file__).parents[2] / "example_projects" / "home_automation"
HOME = ("home_automation_agent", "home_automation.evalset.json")
TALKING = """
import asyncio
import pathlib

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

class Model(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        said = llm_request.contents[-1].parts[0].text
        if said == "wait":
            pathlib.Path("waiting").touch()
            await asyncio.sleep(600)
        if said == "boom":
            raise RuntimeError("no model")
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=f"you said {said}")]))


root_agent = LlmAgent(name="talker", model=Model(model="talker"))


def user(scenario, turns):
    return scenario.conversation_plan if len(turns) < 2 else None
"""


def asks(eval_id: str, *texts: str) -> dict[str, Any]:
    turns = [turn_json(text, f"you said {text}") for text in texts]
    return {"eval_id": eval_id, "conversation": turns}


def follows(eval_id: str, plan: str) -> dict[str, Any]:
    return {"eval_id": eval_id, "conversation_scenario": {"starting_prompt": "hi", "conversation_plan": plan}}


def talks(folder: Path, *cases: dict[str, Any]) -> Path:
    config = {"criteria": {"response_match_score": 1}, "case_criteria": {}}
    for case in cases:
        if "conversation" not in case:
            config["case_criteria"][case["eval_id"]] = {"tool_call_count_v1": 0}
    written(folder / "test_config.json", config)
    return written(folder / "talks.evalset.json", {"eval_set_id": "talks", "eval_cases": list(cases)})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example project, as the working directory, which the interpreter forgets again."""
    known = set(sys.modules)
    shutil.copytree(EXAMPLE, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.syspath_prepend(str(tmp_path / "home"))
    yield tmp_path / "home"
    for name in [name for name in set(sys.modules) - known if str(tmp_path) in str(getattr(sys.modules[name], "__file__", ""))]:
        del sys.modules[name]


@pytest.fixture
def talker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An agent of its own name in the working directory, since Python keeps what it has imported."""
    name = f"talker_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(TALKING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_what_was_recorded_scores_like_the_agent(home: Path) -> None:
    recorded = invoke("record", *HOME, "-o", "home.recording.json")
    then = "next: mlflow-adk-eval score home_automation.evalset.json --actual home.recording.json"
    assert (recorded.exit_code, recorded.stdout) == (0, f"home.recording.json: 11 conversations, 16 turns\n{then}\n")
    assert (
        invoke("validate", "home.recording.json").stdout
        == "home.recording.json: recording, 11 conversations on 11 cases of home_automation\n"
    )
    scored = invoke("score", HOME[1], "--actual", "home.recording.json")
    assert scored.exit_code == 0
    assert "11 of 11 cases passed in home_automation · verdict: passed" in scored.stdout
    file = json.loads((home / "home.recording.json").read_text())
    assert (file["agent"], file["num_runs"], file["eval_set_id"]) == ("home_automation_agent", 1, "home_automation")


def test_a_run_saves_what_its_agent_did(template: Path, home: Path, tmp_path: Path) -> None:
    store = opened(template, tmp_path / "store", "home")
    at = ("--tracking-uri", store)
    options = ("--experiment", "home", "--save-recording", "run.json", "--turn-timeout", "60", "--num-runs", "2")
    result = invoke("run", *HOME, *at, *options)
    assert result.exit_code == 0
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines() if ": " in line)
    assert said["recording"] == "run.json"
    run_id = said["run id"]
    saved = load_recording("run.json")
    assert saved.num_runs(saved.runs) == 2
    assert saved.origin
    assert saved.origin.agent_version.startswith("m-")
    again, of_run = (
        json.loads(invoke("score", HOME[1], "--actual", actual, *at, "--json").stdout) for actual in ("run.json", f"runs:/{run_id}")
    )
    assert again == of_run
    replayed = invoke("run", f"runs:/{run_id}", HOME[1], *at, "--experiment", "home", "--json")
    assert replayed.exit_code == 0
    assert json.loads(replayed.stdout)["criteria"] == again["criteria"]


def test_failed_conversations_are_recorded_and_named_with_3(talker: str, tmp_path: Path) -> None:
    talks(tmp_path, asks("fine", "hello"), asks("fails", "hello", "boom", "never"))
    result = invoke("record", talker, "talks.evalset.json", "-o", "talks.json", "--num-runs", "2")
    assert result.exit_code == 3
    assert result.stdout.splitlines() == [
        "talks.json: 4 conversations, 6 turns",
        "  - fails (run 1): turn 2: RuntimeError: no model",
        "  - fails (run 2): turn 2: RuntimeError: no model",
        "next: mlflow-adk-eval score talks.evalset.json --actual talks.json",
    ]
    scored = invoke("score", "talks.evalset.json", "--actual", "talks.json")
    assert scored.exit_code == 2
    assert "? RuntimeError: no model · 1 case, 1 criterion\n    - fails (run 1), fails (run 2)\n" in scored.stdout
    valid = invoke("validate", "talks.json").stdout
    assert valid == "talks.json: recording, 4 conversations on 2 cases of talks, 2 of them failed\n"


def test_a_function_plays_the_user_and_the_endings_are_told(template: Path, talker: str, tmp_path: Path) -> None:
    talks(tmp_path, follows("ends", "bye"), follows("breaks", "boom"))
    given = ("talks.evalset.json", "--user-simulator", f"{talker}:user")
    result = invoke("record", talker, *given, "-o", "talks.json", "--json")
    said = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (said["conversations"], said["turns"]) == (2, 4)
    assert said["Endings"] == "2 simulated conversations: 1 reached the goal, 1 broke off"
    assert [(one["eval_id"], one["error"]) for one in said["errors"]] == [("breaks", "turn 2: RuntimeError: no model")]
    store = opened(template, tmp_path / "store", "talks")
    evaluated = invoke("run", talker, *given, "--tracking-uri", store, "--experiment", "talks", "--json")
    scored = invoke("score", "talks.evalset.json", "--actual", "talks.json", "--json")
    live, again = json.loads(evaluated.stdout), json.loads(scored.stdout)
    assert live["endings"] == again["endings"] == {"goal": 1, "error": 1}
    assert (evaluated.exit_code, live["verdict"], live["reasons"]) == (scored.exit_code, again["verdict"], again["reasons"])


def test_a_user_simulator_that_does_not_exist_is_bad_usage(talker: str, tmp_path: Path) -> None:
    talks(tmp_path, follows("ends", "bye"))
    result = invoke("record", talker, "talks.evalset.json", "--user-simulator", f"{talker}:usr", "-o", "talks.json")
    assert result.exit_code == 64
    assert f"--user-simulator={talker}:usr: module '{talker}' has no attribute 'usr'" in result.stderr


@pytest.mark.parametrize("command", ["record", "run"])
def test_a_file_that_exists_is_left_alone_before_anything_is_paid_for(command: str, talker: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("mine")
    file = ("-o", "mine.json") if command == "record" else ("--save-recording", "mine.json")
    result = invoke(command, talker, "no_such.evalset.json", *file)
    assert result.exit_code == 64
    assert "mine.json already exists" in result.stderr
    assert (tmp_path / "mine.json").read_text() == "mine"
    nowhere = invoke(command, talker, "no_such.evalset.json", file[0], "nowhere/x.json")
    assert nowhere.exit_code == 64
    assert "nowhere/x.json cannot be written: there is no folder nowhere" in nowhere.stderr


def test_force_overwrites(talker: str, tmp_path: Path) -> None:
    talks(tmp_path, asks("fine", "hello"))
    (tmp_path / "mine.json").write_text("mine")
    assert invoke("record", talker, "talks.evalset.json", "-o", "mine.json", "--force").exit_code == 0
    assert list(load_recording("mine.json").runs) == ["fine"]


def test_a_commit_is_recorded_as_the_version(talker: str, tmp_path: Path) -> None:
    talks(tmp_path, asks("fine", "hello"))
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run(["git", *command], check=True, cwd=tmp_path, env={**os.environ, **who})
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, cwd=tmp_path, capture_output=True, text=True).stdout.strip()
    for name, version in ((), commit), (("--agent-version", "v7"), "v7"):
        assert invoke("record", talker, "talks.evalset.json", "-o", "talks.json", "--force", *name).exit_code == 0
        origin = load_recording("talks.json").origin
        assert origin
        assert origin.agent_version.partition("+")[0] == version


ATTENDED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
"""Does a command as one that somebody watches: in the background of a shell ctrl-C is ignored, and so it is by what starts there."""


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_recorded(talker: str, tmp_path: Path) -> None:
    talks(tmp_path, asks("fine", "hello"), asks("waits", "wait"))
    record = ["-m", "mlflow_adk_eval", "record", talker, "talks.evalset.json", "-o", "talks.json", "--concurrency", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", ATTENDED, sys.executable, *record], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(1200):
        if (tmp_path / "waiting").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert (process.returncode, told.strip().splitlines()[-1]) == (3, "error: interrupted")
    found = load_recording(tmp_path / "talks.json").runs
    assert [turn.final_text for turn in found["fine"][0].actual] == ["you said hello"]
    assert found["waits"][0].error == "the recording was interrupted before this conversation ended"


@pytest.mark.slow
def test_recording_and_scoring_need_no_mlflow(talker: str, tmp_path: Path) -> None:
    talks(tmp_path, asks("fine", "hello"))
    code = (
        "import sys\nfrom mlflow_adk_eval.cli.main import run_here\n"
        "def cli(*words):\n    sys.argv[1:] = words\n    code = run_here()\n    assert not code, code\n"
        f"cli('record', {talker!r}, 'talks.evalset.json', '-o', 'talks.json')\n"
        "cli('score', 'talks.evalset.json', '--actual', 'talks.json')\nprint('mlflow' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert shown.splitlines()[-1] == "False"
