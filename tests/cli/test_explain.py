"""``plan`` before a run and ``explain`` after it, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.test_cli import EXPECTED, invoke, written
from tests.mlflow_kit import opened


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return opened(template, tmp_path / "store", "lights")


@pytest.fixture
def lights(tmp_path: Path) -> Path:
    return written(tmp_path / "lights.evalset.json", EXPECTED)


def failed_run(tmp_path: Path, lights: Path, store: str, answer: str) -> str:
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][1]["conversation"][0]["final_response"]["parts"][0]["text"] = answer
    done = invoke("run", written(tmp_path / "regressed.json", actual), lights, "--tracking-uri", store, "--json")
    report = json.loads(done.stdout)
    assert report["causes"][0]["extent"] == "1 case, 1 criterion"
    run_id: str = report["run_id"]
    return run_id


def test_a_run_is_explained_by_its_causes_and_a_case_by_its_turns(
    tmp_path: Path, lights: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTS_API_KEY", "sk-0123456789abcdef")
    run_id = failed_run(tmp_path, lights, store, "go away\n\x1b[31msk-0123456789abcdef")
    at, eval_id = ("--tracking-uri", store), EXPECTED["eval_cases"][1]["eval_id"]
    whole = json.loads(invoke("explain", run_id, "--json", *at).stdout)
    assert (whole["run_id"], whole["verdict"], whole["case_runs"]) == (run_id, "failed", {"passed": 1, "failed": 1})
    [cause] = whole["causes"]
    assert (cause["cause"], cause["cases"]) == ("response_match_score below its threshold 0.8", [eval_id])
    assert yaml.safe_load(invoke("explain", run_id, *at).stdout) == whole

    shown = invoke("explain", run_id, "--case", eval_id, *at)
    assert "sk-0123456789abcdef" not in shown.stdout
    assert "\x1b" not in shown.stdout  # nothing in it is a command of the terminal
    [case] = yaml.safe_load(shown.stdout)["case_runs"]
    [turn] = case["turns"]
    assert turn["answer"] == "go away\n\x1b[31m[LIGHTS_API_KEY]"
    assert turn["expected_answer"] == EXPECTED["eval_cases"][1]["conversation"][0]["final_response"]["parts"][0]["text"]
    assert list(turn["missed"]) == ["response_match_score"]
    assert case["criteria"]["response_match_score"]["passed"] is False
    unknown = invoke("explain", run_id, "--case", f"{eval_id}x", *at)
    assert (unknown.exit_code, f"Did you mean {eval_id!r}?" in unknown.stderr) == (64, True)


def test_a_turn_without_a_score_says_why(tmp_path: Path, lights: Path, store: str) -> None:
    (tmp_path / "broken.py").write_text("def agent(text, session):\n    raise RuntimeError('no light today')\n")
    done = invoke("run", "broken:agent", lights, "--tracking-uri", store, "--json")
    assert done.exit_code == 3
    run_id, eval_id = json.loads(done.stdout)["run_id"], EXPECTED["eval_cases"][0]["eval_id"]
    [case] = json.loads(invoke("explain", run_id, "--case", eval_id, "--tracking-uri", store, "--json").stdout)["case_runs"]
    assert case["verdict"] == "undecided"
    assert "no light today" in case["why"]
    assert "no light today" in case["criteria"]["response_match_score"]["no_score"]


def test_a_plan_counts_what_a_run_would_do_and_names_what_stands_in_its_way(
    tmp_path: Path, lights: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)
    config = written(tmp_path / "judged.json", {"criteria": {"response_match_score": 0.8, "final_response_match_v2": 0.5}})
    at = ("--tracking-uri", store)
    before = json.loads(invoke("plan", lights, "--json", *at).stdout)
    assert (before["cases"], before["conversations"], before["obstacles"], before["last_run"]) == (2, 2, [], None)
    run_id = failed_run(tmp_path, lights, store, "go away")
    plan = yaml.safe_load(invoke("plan", lights, "--config", config, "--num-runs", "3", *at).stdout)
    turns = sum(len(case["conversation"]) for case in EXPECTED["eval_cases"])
    assert (plan["conversations"], plan["written_turns"], plan["simulated_conversations"]) == (6, 3 * turns, 0)
    assert plan["judges"] == {"final_response_match_v2": "gemini-2.5-flash, 5 votes for each verdict"}
    assert "no API key for Gemini" in plan["obstacles"][0]
    assert (plan["last_run"]["run_id"], plan["last_run"]["verdict"]) == (run_id, "failed")
    refused = invoke("plan", lights, "--config", written(tmp_path / "wrong.json", {"criteria": {"response_match": 1}}), *at)
    assert (refused.exit_code, "response_match" in refused.stderr) == (64, True)
