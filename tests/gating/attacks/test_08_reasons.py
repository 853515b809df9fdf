"""Attack 8: a refusal without a reason, and exit codes without JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.main import cli
from tests.cli.test_cli import invoke
from tests.gating.gate_kit import Lab
from tests.tracking.small import answering, rooms

pytestmark = pytest.mark.slow

CONFIG = {
    "criteria": {"response_match_score": 0.5},
    "case_criteria": {"heat": {"response_match_score": 0.5, "token_usage_v1": 1000}},
}


def _counting(text: str, session: Any) -> Any:
    """Do what is expected, and say how many tokens that took."""
    turn = answering(rooms())(text, session)
    used = {"author": "agent", "content": turn.final_response.model_dump(), "usage_metadata": {"prompt_token_count": 10}}
    return {"final_response": turn.final_response.model_dump(), "intermediate_data": {"invocation_events": [used]}}


def test_an_efficiency_criterion_on_one_case_is_decided_there_and_verifies(lab: Lab, model: str) -> None:
    report = adk_eval.evaluate(rooms(), _counting, CONFIG, tracking_uri=lab.uri, experiment="one case", ledger="off")
    assert report.verdict == "passed"
    decision = adk_eval.gate(report.run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert (decision.verdict, bool(decision.reasons)) == ("passed", True)
    (check,) = (check for check in decision.checks if check.measure == "token_usage_v1")
    assert (check.verdict, check.cases, check.demand) == ("passed", 1, "threshold 1000.0")
    version = lab.register(model, f"models:/{lab.client.get_run(report.run_id).data.params['adk_eval.model_id']}")
    adk_eval.promote(model, version, run_id=report.run_id, tracking_uri=lab.uri)
    assert adk_eval.verify(model, alias="champion", tracking_uri=lab.uri).passed


def test_an_efficiency_criterion_that_fails_its_one_case_is_named(lab: Lab) -> None:
    strict = CONFIG | {"case_criteria": {"heat": {"token_usage_v1": 5}}}
    report = adk_eval.evaluate(rooms(), _counting, strict, tracking_uri=lab.uri, experiment="one case", ledger="off")
    decision = adk_eval.gate(report.run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert decision.verdict == "failed"
    assert any("1 of 1 case above the threshold 5.0" in reason for reason in decision.reasons)


def _commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += _commands(command, *path, name)
        elif any("--json" in option.opts for option in command.params):
            found.append((*path, name))
    return found


COMMANDS = _commands(cli)


def test_there_are_such_commands() -> None:
    assert len(COMMANDS) >= 11


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_bad_usage_is_json_too(command: tuple[str, ...]) -> None:
    result = invoke(*command, "--json", "--no-such-option")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["exit_code"], said["kind"]) == (64, 64, "UsageError")
    assert "no-such-option" in said["error"].replace("_", "-")
    assert "no-such-option" in result.stderr.replace("_", "-")


@pytest.mark.parametrize(
    "command",
    [("gate", "r"), ("compare", "r", "s"), ("power", "r", "--detect", "0.1"), ("calibrate", "r"), ("verify", "m"), ("audit", "m"),
     ("promote", "m", "--version", "1", "--run-id", "r"), ("rollback", "m", "--reason", "bad")],
    ids=" ".join,
)  # fmt: skip
def test_an_mlflow_that_is_away_is_json_too(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("no database")
    result = invoke(*command, "--json", "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db")
    said = json.loads(result.stdout)
    assert (result.exit_code, said["exit_code"], said["kind"]) == (3, 3, "TrackingError")
    assert "MLflow" in said["error"]


def test_the_problems_of_a_file_are_data(tmp_path: Path) -> None:
    policy = tmp_path / "gate.json"
    policy.write_text('{"rulse": {}, "min_cases": "3"}')
    result = invoke("gate", "r", "--json", "--policy", policy)
    said = json.loads(result.stdout)
    assert (result.exit_code, said["kind"], said["source"]) == (64, "PolicyError", str(policy))
    assert [problem["path"] for problem in said["problems"]] == ["$.rulse", "$.min_cases"]
    assert said["problems"][1]["wanted"] == "a whole number"
