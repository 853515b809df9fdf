"""The gate inside a test: on runs, on reports that were logged, and on reports that were not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import PolicyError, UsageError
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.testing import ScriptedJudge, assert_gate
from mlflow_adk_eval.tracking.bundle import evidence_of_report
from tests.gating.gate_kit import decide_on
from tests.tracking.small import answering, expected_of, many

TRAJECTORY, MATCH = "tool_trajectory_avg_score", "final_response_match_v2"
CONFIG = {"criteria": {TRAJECTORY: 1.0, "response_match_score": 0.5}}
EIGHT = many(8)
WRONG = expected_of(EIGHT) | {"case_0003": ["I do not know"]}


def scored(actual: Any = None, config: Any = CONFIG, **options: Any) -> adk_eval.Report:
    return adk_eval.score(EIGHT, actual or expected_of(EIGHT), config, **options)


def test_a_report_that_was_never_logged_is_held_to_a_policy_without_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    policy = tmp_path / "gate.yaml"
    policy.write_text(f"rules:\n  {TRAJECTORY}: {{min: 0.9}}\n  case_pass_rate: {{min: 0.8}}\n")
    decision = assert_gate(scored(), policy)
    assert decision.passed
    assert decision.run_id == "(not logged)"
    assert "the report was not logged to MLflow" in decision.notes[-1]
    assert len(decision.evidence_sha256) == 64
    assert [path.name for path in tmp_path.iterdir()] == ["gate.yaml"]


def test_without_a_policy_each_threshold_of_each_case_counts() -> None:
    assert assert_gate(scored()).passed
    with pytest.raises(AssertionError, match="1 of 8 cases below the threshold"):
        assert_gate(scored(WRONG))


def test_the_message_has_the_verdict_the_rules_and_the_worst_cases() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_gate(scored(WRONG), {"rules": {TRAJECTORY: {"min": 0.95}, "response_match_score": {"min": 0.5}}})
    message = str(caught.value)
    assert "gate on run (not logged) · verdict: failed" in message
    assert "case_0003" in message
    assert "response_match_score" in message
    assert "\x1b" not in message


def test_what_was_not_evaluated_is_not_enough() -> None:
    with pytest.raises(AssertionError, match="verdict: undecided"):
        assert_gate(scored({"case_0000": ["answer 0"]}), {"rules": {TRAJECTORY: {"min": 0.1}}})


def test_a_wrong_policy_is_no_failed_assertion() -> None:
    with pytest.raises(PolicyError, match="rulez"):
        assert_gate(scored(), {"rulez": {}})


def test_a_run_and_a_report_that_was_logged_are_decided_on_from_the_store(store: str) -> None:
    report = adk_eval.evaluate(EIGHT, answering(EIGHT), CONFIG, tracking_uri=store, traces=False)
    policy = {"rules": {TRAJECTORY: {"min": 0.9}}}
    for source in (report, str(report.run_id)):
        decision = assert_gate(source, policy, tracking_uri=store)
        assert decision.run_id == report.run_id
        assert decision.notes == ()
    with pytest.raises(UsageError, match="'nonsense' does not exist"):
        assert_gate("nonsense", policy, tracking_uri=store)


def test_a_report_that_was_not_logged_can_be_compared_with_a_champion(store: str) -> None:
    champion = adk_eval.evaluate(EIGHT, answering(EIGHT), CONFIG, tracking_uri=store, traces=False)
    policy = {"rules": {TRAJECTORY: {"max_drop": 0.35}}, "baseline": {"run": champion.run_id}}
    decision = assert_gate(scored(), policy, tracking_uri=store)
    assert decision.baseline_run_id == champion.run_id
    worse = scored({eval_id: ["I do not know"] for eval_id in EIGHT.eval_ids})
    with pytest.raises(AssertionError, match="unlikely to be chance"):
        assert_gate(worse, policy, tracking_uri=store)
    with pytest.raises(AssertionError, match="the evaluated agent version is unknown"):
        assert_gate(scored(), policy, agent_version=champion_model(champion, store), tracking_uri=store)


def champion_model(report: adk_eval.Report, store: str) -> str:
    return MlflowStore(store).evidence(str(report.run_id)).params["adk_eval.model_id"]


@pytest.mark.parametrize("judged", [False, True])
def test_the_evidence_of_a_report_is_that_of_the_run_it_would_be(store: str, judged: bool) -> None:
    config = {"criteria": {TRAJECTORY: 1.0, **({MATCH: 0.5} if judged else {})}}
    judge = ScriptedJudge({MATCH: "valid"}) if judged else None
    logged = adk_eval.evaluate(EIGHT, answering(EIGHT), config, judge=judge, ledger=False, tracking_uri=store, traces=False, num_runs=2)
    run = MlflowStore(store).evidence(str(logged.run_id))
    same = evidence_of_report(replace(logged, run_id=None))
    # A report knows neither its agent's source nor earlier runs.
    of_the_run = {"adk_eval.manifest_sha256", "adk_eval.agent.source_sha256", "adk_eval.agent.source", "adk_eval.git"}
    of_the_run |= {"adk_eval.anchors_sha256", "adk_eval.evaluation"} if judged else set()
    assert {name: value for name, value in same.params.items() if name not in of_the_run} == {
        name: value for name, value in run.params.items() if name not in of_the_run
    }
    assert set(same.artifacts) == set(run.artifacts) - {"agent_source.json", *(["anchors.json"] if judged else [])}
    assert {name for name in same.artifacts if same.artifacts[name] != run.artifacts[name]} <= {"report.html", "result.evalset_result.json"}
    assert dict(same.metrics) == {name: run.metrics[name] for name in same.metrics}
    ours, theirs = decide_on(same), decide_on(run)
    assert (ours.verdict, ours.reasons, ours.scores, ours.checks) == (theirs.verdict, theirs.reasons, theirs.scores, theirs.checks)


@pytest.mark.slow
def test_in_pytest_the_traceback_ends_at_the_assertion(tmp_path: Path) -> None:
    test = tmp_path / "test_agent.py"
    test.write_text(
        "import mlflow_adk_eval as adk_eval\n"
        "from mlflow_adk_eval.testing import assert_gate\n"
        "def test_agent():\n"
        "    turn = {'user_content': {'parts': [{'text': 'hi'}]}, 'final_response': {'parts': [{'text': 'hello'}]}}\n"
        "    cases = adk_eval.EvalSet.model_validate({'eval_set_id': 's', 'eval_cases': [{'eval_id': 'a', 'conversation': [turn]}]})\n"
        "    report = adk_eval.score(cases, {'a': ['go away']}, {'criteria': {'response_match_score': 0.8}})\n"
        "    assert_gate(report, {'rules': {'response_match_score': {'min': 0.8}}})\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(test)]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert shown.returncode == 1
    assert "response_match_score: mean 0 over 1 case, below the minimum 0.8" in shown.stdout
    assert "asserting.py" not in shown.stdout
