"""What `validate`, `plan`, `run` and the gate say of cases that lack something, and of what no criterion reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import invoke
from tests.kit import case_json, eval_set_json, turn_json

LACKING = "response_match_score cannot decide 1 of 2 cases, which lacks an expected response (bye)"
UNREAD = "1 case expects a final_session_state that no criterion reads (bye)"
NEVER = "response_match_score can never be evaluated on this eval set: 1 of 1 case lacks an expected response (bye)"

AGENT = """
from pathlib import Path


def agent(message):
    Path("asked.txt").write_text(message)
    return {"final_response": "Hello!", "intermediate_data": {"tool_uses": []}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    listed = case_json("hello", turn_json("Hello", "Hello!")), case_json("bye", turn_json("Bye"), final_session_state={"said": "bye"})
    Path("some.evalset.json").write_text(json.dumps(eval_set_json(*listed)), "utf-8")
    Path("test_config.json").write_text(json.dumps({"criteria": {"response_match_score": 0.8}}), "utf-8")
    Path("coverage_agent.py").write_text(AGENT, "utf-8")
    return tmp_path


def test_validate_says_it_of_an_eval_set_and_a_config(folder: Path) -> None:
    del folder
    said = invoke("validate", "some.evalset.json", "test_config.json")
    assert said.exit_code == 0
    assert f"  some.evalset.json with test_config.json: {LACKING}; write it" in said.stdout
    assert f"  some.evalset.json with test_config.json: {UNREAD}; add final_session_state: 1.0" in said.stdout
    (row, _) = json.loads(invoke("validate", "--json", "some.evalset.json", "test_config.json").stdout)
    assert row["config"] == "test_config.json"
    assert (len(row["obstacles"]), len(row["notes"])) == (1, 1)
    assert "with" not in invoke("validate", "some.evalset.json").stdout


def test_plan_says_it(folder: Path) -> None:
    del folder
    said = json.loads(invoke("plan", "some.evalset.json", "--json").stdout)
    (obstacle,), (note,) = said["obstacles"], said["notes"]
    assert obstacle.startswith(LACKING)
    assert note.startswith(UNREAD)


def test_a_run_that_no_case_can_decide_is_refused_before_the_agent_is_called(folder: Path) -> None:
    said = invoke("run", "coverage_agent:agent", "some.evalset.json:bye")
    assert said.exit_code == 64
    assert NEVER in said.stderr
    assert not (folder / "asked.txt").exists()


@pytest.mark.slow
def test_a_run_goes_on_after_a_warning_and_the_gate_says_the_same(folder: Path) -> None:
    run = invoke("run", "coverage_agent:agent", "some.evalset.json")
    assert run.exit_code == 2
    assert LACKING in run.stderr
    assert f"note: {UNREAD}" in run.stdout
    assert (folder / "asked.txt").exists()
    run_id = next(line.removeprefix("run id: ") for line in run.stdout.splitlines() if line.startswith("run id: "))
    gate = invoke("gate", run_id)
    assert f"note: {UNREAD}" in gate.stdout
    explained = json.loads(invoke("explain", run_id, "--json").stdout)
    assert explained["notes"][0].startswith(UNREAD)
    one = eval_set_json(case_json("hello", turn_json("Hello", "Hello!")))
    Path("one.evalset.json").write_text(json.dumps(one), "utf-8")
    passing = invoke("run", "coverage_agent:agent", "one.evalset.json")
    passed = next(line.removeprefix("run id: ") for line in passing.stdout.splitlines() if line.startswith("run id: "))
    assert "nothing left out" in invoke("gate", passed).stdout


@pytest.mark.slow
def test_a_gate_that_passes_does_not_claim_that_nothing_was_left_out(folder: Path) -> None:
    del folder
    config = Path("lenient.json")
    config.write_text(json.dumps({"criteria": {"response_match_score": {"threshold": 0.8, "only_where_expected": True},
                                               "tool_call_count_v1": 3}}), "utf-8")  # fmt: skip
    run = invoke("run", "coverage_agent:agent", "some.evalset.json", "--config", config)
    assert run.exit_code == 0
    run_id = next(line.removeprefix("run id: ") for line in run.stdout.splitlines() if line.startswith("run id: "))
    gate = invoke("gate", run_id)
    assert gate.exit_code == 0
    assert "but not on all that the cases expect (see the notes)" in gate.stdout
    assert "note: response_match_score leaves out 1 of 2 cases (bye), which do not say what it needs" in gate.stdout
    assert f"note: {UNREAD}" in gate.stdout
