"""The pytest plugin, in sessions of its own: what is collected, what is paid for, how failures read, and what is handed on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.kit import turn_json

CALLS = {"tool_uses": [{"name": "switch", "args": {"room": "Bedroom", "on": True}}]}
WRONG = {"tool_uses": [{"name": "switch", "args": {"room": "bedroom", "on": True}}, {"name": "sing"}]}
CONFIG = {"criteria": {"tool_trajectory_avg_score": 1.0, "response_match_score": 0.8}}


def turn(said: str, answer: str, calls: dict[str, Any] | None = None) -> dict[str, Any]:
    return turn_json(said, answer, intermediate_data=calls or {"tool_uses": []})


def eval_set(cases: dict[str, list[dict[str, Any]]], name: str = "home") -> str:
    return json.dumps(
        {"eval_set_id": name, "eval_cases": [{"eval_id": eval_id, "conversation": turns} for eval_id, turns in cases.items()]}
    )


EXPECTED = {
    "greet": [turn("hi", "Hello there")],
    "lamp": [turn("hi", "Hello there"), turn("Lamp on!", "The lamp in the Bedroom is on.", CALLS)],
    "curt": [turn("bye", "Good night and sleep well")],
}
DONE = EXPECTED | {
    "lamp": [turn("hi", "Hello there"), turn("Lamp on!", "The lamp in the Bedroom is off.", WRONG)],
    "curt": [turn("bye", "Bye")],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an eval set of three cases, and a recording in which two of them fail."""
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "home.evalset.json").write_text(eval_set(EXPECTED))
    (tmp_path / "evals" / "test_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "recorded.json").write_text(eval_set(DONE))
    return tmp_path


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:cov", "-p", "no:sybil", *args]


def surroundings(**env: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "GITHUB_", "CI", "MLFLOW_"))}
    return kept | {"MLFLOW_ADK_EVAL_LEDGER": "off", "COLUMNS": "200", "MLFLOW_DISABLE_TELEMETRY": "true"} | env


def run(folder: Path, *args: str, agent: str | None = "recorded.json", **env: str) -> subprocess.CompletedProcess[str]:
    given = ["--adk-agent", agent] if agent else []
    return subprocess.run(
        command(*given, *args), check=False, cwd=folder, capture_output=True, text=True, timeout=300, env=surroundings(**env)
    )


def names(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stdout.splitlines() if "::" in line]


class TestTheEndOfTheProcess:
    def test_an_agent_that_ends_the_process_is_no_success(self, project: Path) -> None:
        (project / "ending.py").write_text("import os\ndef agent(text): os._exit(0)\n")
        result = run(project, "evals", agent="ending:agent")
        assert result.returncode == pytest.ExitCode.INTERNAL_ERROR
        assert "error: the agent, a metric or a library called os._exit(0), which ends pytest without a verdict" in result.stderr

    def test_a_fork_of_an_agent_ends_itself(self, project: Path) -> None:
        code = (
            "import os\ndef agent(text):\n    child = os.fork()\n    if not child: os._exit(0)\n    os.waitpid(child, 0)\n    return 'Hi'\n"
        )
        (project / "ending.py").write_text(code)
        result = run(project, "evals", agent="ending:agent")
        assert result.returncode == pytest.ExitCode.TESTS_FAILED
        assert "os._exit" not in result.stdout + result.stderr


class TestCollection:
    def test_without_an_agent_nothing_is_collected_nor_imported(self, project: Path) -> None:
        (project / "snapshot.test.json").write_text("no json at all")
        (project / "test_light.py").write_text(
            "import sys\ndef test_light():\n    ours = [name for name in sys.modules if name.startswith('mlflow_adk_eval')]\n"
            "    light = {'', '.testing', '.testing.pytest_plugin'}\n"
            "    assert {name.removeprefix('mlflow_adk_eval') for name in ours} == light, ours\n    assert 'pydantic' not in sys.modules\n"
        )
        result = run(project, "-p", "no:hypothesispytest", "-p", "no:anyio", agent=None)
        assert "1 passed" in result.stdout, result.stdout

    def test_names_of_tests(self, project: Path) -> None:
        odd = {"a::b": EXPECTED["greet"], "a:b": EXPECTED["greet"], "x[1]": EXPECTED["greet"], "new\nline": EXPECTED["greet"]}
        (project / "evals" / "odd.test.json").write_text(eval_set(odd))
        legacy = [{"query": "hi", "reference": "Hello there", "expected_tool_use": []}]
        (project / "evals" / "old.test.json").write_text(json.dumps(legacy))
        result = run(project, "--collect-only", "-q", "evals")
        assert names(result) == [
            "evals/home.evalset.json::greet",
            "evals/home.evalset.json::lamp",
            "evals/home.evalset.json::curt",
            "evals/odd.test.json::a:b",
            "evals/odd.test.json::a:b~2",
            "evals/odd.test.json::x(1)",
            "evals/odd.test.json::new\\nline",
            "evals/old.test.json::old",
        ]

    @pytest.mark.slow
    def test_runs_and_how_to_select(self, project: Path) -> None:
        both = run(project, "--collect-only", "-q", "--adk-num-runs", "2", "evals/home.evalset.json::greet")
        assert names(both) == ["evals/home.evalset.json::greet[run1]", "evals/home.evalset.json::greet[run2]"]
        one = run(project, "--collect-only", "-q", "--adk-num-runs", "2", "evals/home.evalset.json::greet[run2]")
        assert names(one) == ["evals/home.evalset.json::greet[run2]"]
        assert names(run(project, "--collect-only", "-q", "-m", "not adk")) == []

    @pytest.mark.slow
    def test_bad_files_are_errors_without_a_traceback(self, project: Path) -> None:
        (project / "bad.test.json").write_text('{"eval_set_id": "b", "eval_casess": []}')
        (project / "sub").mkdir()
        (project / "sub" / "fine.test.json").write_text(eval_set(EXPECTED))
        (project / "sub" / "test_config.json").write_text('{"criteria": {"tool_trajectory": 1}}')
        result = run(project)
        assert "bad.test.json: 1 problem in this eval set" in result.stdout
        assert "Did you mean 'eval_cases'?" in result.stdout
        assert "sub/test_config.json: 1 problem in this eval config" in result.stdout
        assert "Traceback" not in result.stdout
        assert "2 errors during collection" in result.stdout
        assert result.returncode == 2

    @pytest.mark.slow
    def test_the_ini_file(self, project: Path) -> None:
        (project / "strict.json").write_text('{"criteria": {"response_match_score": 0.1}}')
        (project / "pytest.ini").write_text("[pytest]\nadk_agent = recorded.json\nadk_config = strict.json\n")
        result = run(project / "evals", "-q", agent=None)
        assert "response_match_score  ≥ 0.1  mean 0.6429  passed 2 of 3" in result.stdout, result.stdout
        assert "no tests ran" in run(project, "-q", "--adk-agent=", agent=None).stdout

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--adk-num-runs", "0"], "--adk-num-runs=0: wanted a whole number of at least 1"),
            (["--adk-case-timeout", "soon"], "--adk-case-timeout=soon: wanted a number of seconds above 0"),
            (["--adk-experiment", "e", "-n", "2"], "the cases of one MLflow run must come from one process"),
        ],
    )
    def test_options_that_make_no_sense(self, project: Path, args: list[str], message: str) -> None:
        result = run(project, *args)
        assert message in result.stderr
        assert result.returncode == pytest.ExitCode.USAGE_ERROR


FAILURE = """\
tool_trajectory_avg_score is 0.5, below its threshold 1
response_match_score is 0.9286 (≥ 0.8)

turn 2  user: Lamp on!
  tool calls (- expected, + the agent's)
    - switch({"room": "Bedroom", "on": true})
    + switch({"room": "bedroom", "on": true})
    ?   $.room: expected 'Bedroom', got 'bedroom'
    + sing({})
  answer ([-expected-], {+the agent's+})
      The lamp in the Bedroom is [-on-]{+off+}.
  tool_trajectory_avg_score 0: 0 of 1 expected calls match (EXACT)."""

WHY = "turn 2: tool_trajectory_avg_score: switch was called with different arguments: $.room: expected 'Bedroom', got 'bedroom'"

TOTALS = """\
tool_trajectory_avg_score  ≥ 1    mean 0.8333  passed 2 of 3
response_match_score       ≥ 0.8  mean 0.6429  passed 2 of 3"""


class TestResults:
    def test_a_failure_reads_like_a_diff_and_the_totals_follow(self, project: Path) -> None:
        result = run(project, "-v")
        assert FAILURE in result.stdout, result.stdout
        assert TOTALS in result.stdout, result.stdout
        assert "evals/home.evalset.json::greet PASSED" in result.stdout
        assert f"FAILED evals/home.evalset.json::lamp - {WHY}\n" in result.stdout
        assert "Traceback" not in result.stdout
        assert "\x1b" not in result.stdout
        assert result.returncode == 1

    @pytest.mark.slow
    def test_colours_where_pytest_colours(self, project: Path) -> None:
        result = run(project, "--color=yes", "-k", "lamp")
        assert '\x1b[31m    - switch({"room": "Bedroom", "on": true})\x1b[0m' in result.stdout
        assert '\x1b[32m    + switch({"room": "bedroom", "on": true})\x1b[0m' in result.stdout

    @pytest.mark.slow
    def test_missing_evidence_is_a_failure_of_its_own_kind(self, project: Path) -> None:
        (project / "recorded.json").write_text(eval_set({name: turns for name, turns in DONE.items() if name != "curt"}))
        (project / "metrics_.py").write_text("def absent(*_): return [None]\n")
        metric = {"criteria": {"absent": 0.5}, "custom_metrics": {"absent": {"code_config": {"name": "metrics_.absent"}}}}
        (project / "absent.json").write_text(json.dumps(metric))
        silent = run(project, "-v", "-k", "curt")
        assert "evals/home.evalset.json::curt UNDECIDED" in silent.stdout
        assert "curt - agent failed: " in silent.stdout
        assert "mean 0 of 1 scored  passed 0 of 1" in silent.stdout
        assert "cause: the recording does not contain the case · 1 case, 2 criteria\n" in silent.stdout
        unknown = run(project, "-k", "greet", "--adk-config", "absent.json")
        assert "undecided: no threshold was missed, but something was not evaluated" in unknown.stdout, unknown.stdout
        assert "absent was NOT EVALUATED: invocation 1 of 1: the metric gave no score" in unknown.stdout
        assert "1 failed" in unknown.stdout

    @pytest.mark.slow
    @pytest.mark.parametrize("parallel", [[], ["-n", "2"]])
    def test_junit_and_github_with_and_without_xdist(self, project: Path, parallel: list[str]) -> None:
        summary = project / "summary.md"
        result = run(project, "--junitxml=junit.xml", *parallel, GITHUB_STEP_SUMMARY=str(summary))
        assert "passed 2 of 3" in result.stdout, result.stdout
        assert f"lamp - {WHY}" in result.stdout
        cases = {case.get("name"): case for case in ET.parse(project / "junit.xml").getroot().iter("testcase")}  # noqa: S314 - our own
        assert set(cases) == {"greet", "lamp", "curt"}
        failure = cases["lamp"].find("failure")
        assert failure is not None
        assert failure.get("message") == WHY
        assert (failure.text or "").strip() == FAILURE
        properties = {found.get("name"): found.get("value") for found in cases["lamp"].iter("property")}
        assert properties["adk_verdict"] == "failed"
        assert properties["tool_trajectory_avg_score"] == "0.5"
        assert cases["greet"].find("failure") is None
        text = summary.read_text()
        assert text.count("ADK evaluation: 1 of 3 cases passed · verdict: failed") == 1
        assert "| tool&#95;trajectory&#95;avg&#95;score | 0.8333 | ≥ 1 | 2 of 3 |" in text

    @pytest.mark.slow
    def test_the_session_ends_at_the_first_failure(self, project: Path) -> None:
        result = run(project, "-x", GITHUB_STEP_SUMMARY=str(project / "summary.md"))
        assert "1 failed, 1 passed" in result.stdout
        assert "1 of 3 selected cases did not finish" in result.stdout
        assert "1 more did not finish" in (project / "summary.md").read_text()

    @pytest.mark.slow
    def test_judges(self, project: Path) -> None:
        (project / "judges_.py").write_text(
            "from mlflow_adk_eval.testing import ScriptedJudge\njudge = ScriptedJudge('invalid', rationale='far too short')\n"
        )
        (project / "judged.json").write_text('{"criteria": {"final_response_match_v2": 0.5}}')
        given = ("--adk-config", "judged.json", "--adk-judge", "judges_:judge", "-k", "curt or greet")
        for parallel in ([], ["-n", "2"]):
            result = run(project, *given, *parallel)
            assert "final_response_match_v2 0: invalid 3:0: far too short" in result.stdout, result.stdout
            assert "final_response_match_v2, turn 1, vote 3 by scripted: invalid. far too short" in result.stdout
            assert "Judged by scripted: 6 calls," in result.stdout
        wrong = run(project, *given[:2], "--adk-judge", "judges_:jugde")
        assert "--adk-judge=judges_:jugde: module 'judges_' has no attribute 'jugde'" in wrong.stdout
        assert "3 errors" in wrong.stdout
        assert "Traceback" not in wrong.stdout


AGENT = """
import asyncio, time
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

def note(*words):
    with open("log.txt", "a") as log:
        print(*words, file=log)

class Slow(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        said = llm_request.contents[-1].parts[0].text
        note("begin", said)
        try:
            await asyncio.sleep(float(said.split()[1]))
        finally:
            note("end", said)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="ok")]))

root_agent = LlmAgent(name="slow", model=Slow(model="slow"))
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A project whose ADK agent takes as long as the user says, and writes down when it was asked."""
    (tmp_path / "slow_agent.py").write_text(AGENT)
    cases = {f"c{number}": [turn(f"c{number} 0.4", "ok")] for number in range(6)}
    (tmp_path / "a.test.json").write_text(eval_set(cases, "a"))
    return tmp_path


def log(folder: Path) -> list[list[str]]:
    path = folder / "log.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def most_at_once(lines: list[list[str]]) -> int:
    counts = [sum(1 if line[0] == "begin" else -1 for line in lines[: index + 1]) for index in range(len(lines))]
    return max(counts)


ATTENDED = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
"""Does a command as one that somebody watches: in the background of a shell ctrl-C is ignored, and so it is by what starts there."""


class TestSpeed:
    @pytest.mark.slow
    @pytest.mark.needs("google-adk", "1.39")  # the first ones warn of what ADK does itself, and warnings are errors in this session
    def test_selected_cases_are_had_side_by_side_and_no_other(self, slow: Path) -> None:
        (slow / "conftest.py").write_text(
            "import pytest\ndef pytest_collection_modifyitems(items):\n"
            "    [item.add_marker(pytest.mark.skip) for item in items if item.name == 'c4']\n"
        )
        result = run(
            slow,
            "-k",
            "not c5",
            "--adk-concurrency",
            "3",
            "--durations=0",
            "-vv",
            agent="slow_agent",
            PYTHONWARNINGS="error,ignore::DeprecationWarning",
        )
        assert "4 passed, 1 skipped, 1 deselected" in result.stdout, result.stdout
        assert sorted(line[1] for line in log(slow) if line[0] == "begin") == ["c0", "c1", "c2", "c3"]
        assert most_at_once(log(slow)) == 3
        durations = {line.split("::")[1]: float(line.split("s call")[0]) for line in result.stdout.splitlines() if "s call " in line}
        assert durations.keys() == {"c0", "c1", "c2", "c3"}
        assert all(seconds >= 0.4 for seconds in durations.values())

    @pytest.mark.slow
    def test_on_demand_where_the_session_may_end_before(self, slow: Path) -> None:
        late = {"c0": [turn("c0 0.01", "ok")], "c1": [turn("c1 60", "ok")], "c2": [turn("c2 0.01", "ok")]}
        (slow / "a.test.json").write_text(eval_set(late, "a"))
        result = run(slow, "-x", "--adk-case-timeout", "4", agent="slow_agent")
        assert "1 failed, 1 passed" in result.stdout, result.stdout
        assert "the agent did not finish: the case took longer than its limit of 4 s" in result.stdout
        assert log(slow) == [["begin", "c0", "0.01"], ["end", "c0", "0.01"], ["begin", "c1", "60"], ["end", "c1", "60"]]

    @pytest.mark.slow
    @pytest.mark.parametrize("args", [[], ["--maxfail=9"]])
    def test_ctrl_c_ends_everything(self, slow: Path, args: list[str]) -> None:
        (slow / "a.test.json").write_text(eval_set({f"c{number}": [turn(f"c{number} 600", "ok")] for number in range(6)}, "a"))
        attended = [sys.executable, "-c", ATTENDED, *command("--adk-agent", "slow_agent", *args)]
        process = subprocess.Popen(attended, cwd=slow, stdout=subprocess.PIPE, text=True, env=surroundings())
        deadline = time.monotonic() + 300
        while not log(slow) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        interrupted = time.monotonic()
        output, _ = process.communicate(timeout=300)
        assert time.monotonic() - interrupted < 200
        assert process.returncode == pytest.ExitCode.INTERRUPTED, output
        assert "6 of 6 selected cases did not finish" in output
        begun, ended = ([line[1] for line in log(slow) if line[0] == word] for word in ("begin", "end"))
        assert begun
        assert sorted(begun) == sorted(ended)
        assert len(begun) <= 4

    @pytest.mark.slow
    def test_an_agent_that_cannot_be_loaded(self, slow: Path) -> None:
        result = run(slow, "-k", "c1 or c2", agent="slow_agnet")
        assert result.stdout.count("there is no module 'slow_agnet'") >= 2
        assert "2 errors" in result.stdout
        assert "Traceback" not in result.stdout
        assert "modules.py" not in result.stdout


class TestMlflow:
    @pytest.mark.slow
    def test_a_session_is_one_run(self, project: Path) -> None:
        from mlflow import MlflowClient

        from mlflow_adk_eval.config.inputs import load_inputs
        from mlflow_adk_eval.evalset.models import eval_set_digest

        store = f"sqlite:///{project / 'mlflow.db'}"
        (project / "evals" / "more.test.json").write_text(eval_set({"greet": EXPECTED["greet"], "again": EXPECTED["greet"]}, "more"))
        both = DONE | {"again": DONE["greet"]}
        (project / "recorded.json").write_text(eval_set(both))
        result = run(project, "--adk-experiment", "tests", "-W", "error", MLFLOW_TRACKING_URI=store)
        assert "MLflow run " in result.stdout, result.stdout
        assert "2 failed, 3 passed" in result.stdout
        client = MlflowClient(store)
        (found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        assert found.data.tags["adk_eval.verdict"] == "failed"
        assert found.data.tags["adk_eval.status"] == "complete"
        assert found.data.metrics["response_match_score/pass_rate"] == 0.8
        files = [project / "evals" / name for name in ("home.evalset.json", "more.test.json")]
        assert found.data.params["adk_eval.eval_set_digest"] == eval_set_digest(load_inputs(files)[0])

    @pytest.mark.slow
    def test_what_is_not_logged(self, project: Path) -> None:
        nowhere = run(
            project,
            "--adk-experiment",
            "tests",
            "-k",
            "greet",
            MLFLOW_TRACKING_URI="http://127.0.0.1:9",
            MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
        )
        assert "NOT logged in MLflow: " in nowhere.stdout
        assert nowhere.returncode == pytest.ExitCode.TESTS_FAILED
        stopped = run(project, "--adk-experiment", "tests", "-x")
        assert "NOT logged in MLflow: 1 of 3 selected cases did not finish" in stopped.stdout


LAMPS = """
from pathlib import Path

def switch(room: str, on: bool) -> dict:
    with Path("switched.log").open("a") as log:
        log.write(room + "\\n")
    return {"ok": True}

def answer(text, session):
    observed = session.tool(switch)
    if text != "Lamp on!":
        return "Hello there"
    observed(ROOM, True)
    return "The lamp in the Bedroom is on."
"""


class TestReplay:
    @pytest.mark.slow
    def test_a_recorded_world_answers_and_is_logged(self, project: Path) -> None:
        from mlflow import MlflowClient

        recording = [sys.executable, "-m", "mlflow_adk_eval", "record", "lamps:answer", "evals/home.evalset.json", "-o", "world.json"]
        (project / "lamps.py").write_text(LAMPS.replace("ROOM", "'Bedroom'"))
        subprocess.run(recording, check=True, cwd=project, capture_output=True, timeout=300, env=surroundings())
        real, store = project / "switched.log", f"sqlite:///{project / 'mlflow.db'}"
        real.unlink()
        (project / "pytest.ini").write_text("[pytest]\nadk_replay = world.json\n")
        where = {"agent": "lamps:answer", "MLFLOW_TRACKING_URI": store}
        result = run(project, "-k", "lamp or greet", "--adk-experiment", "tests", **where)
        assert "2 passed, 1 deselected" in result.stdout, result.stdout
        assert f"tool calls replayed from {project / 'world.json'}" in result.stdout
        client = MlflowClient(store)
        (found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        assert found.data.params["adk_eval.replay"] == "strict"
        again = run(project, "-k", "lamp", "--adk-replay", found.info.run_id, "-n", "2", **where)
        assert "1 passed" in again.stdout, again.stdout
        assert f"tool calls replayed from {found.info.run_id}" in again.stdout
        (project / "lamps.py").write_text(LAMPS.replace("ROOM", "'Kitchen'"))
        other = run(project, "-k", "lamp", **where)
        assert 'switch({"room": "Kitchen", "on": true}) was never recorded; the nearest recording differs in $.room' in other.stdout
        assert "1 failed" in other.stdout
        assert not real.exists()

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["--adk-replay", "absent.json"], "absent.json"),
            (["--adk-replay", "recorded.json"], "the recording"),
            (["--adk-replay-models"], "replay_models: wanted something to replay"),
            (["-o", "adk_replay_models=perhaps"], "--adk-replay-models=perhaps: wanted yes or no"),
        ],
    )
    def test_what_cannot_be_replayed(self, project: Path, args: list[str], message: str) -> None:
        (project / "lamps.py").write_text(LAMPS.replace("ROOM", "'Bedroom'"))
        result = run(project, *args, agent="lamps:answer")
        assert message in result.stdout + result.stderr, result.stdout
        assert "Traceback" not in result.stdout + result.stderr
        assert not (project / "switched.log").exists()
        assert result.returncode
