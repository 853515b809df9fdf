"""Runs that an earlier version logged can still be read.

`run_of_0_1_0` is what version 0.1.0 logged before there were parts: schema 1, four turns, one wrong, three votes each of a scripted judge.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput, LoggedModelStatus

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.evalset import eval_set_digest, load_eval_set, load_result
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from tests.mlflow_kit import copied

KEPT = Path(__file__).with_name("run_of_0_1_0")


@pytest.fixture
def kept(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A store with the run, and the run's id in it."""
    uri = copied(template, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client, said = MlflowClient(uri), json.loads((KEPT / "run.json").read_text())
    experiment = client.create_experiment("old", artifact_location=(tmp_path / "old").as_uri())
    run_id, agent = client.create_run(experiment).info.run_id, client.create_logged_model(experiment, name="recording").model_id
    client.finalize_logged_model(agent, LoggedModelStatus.READY)
    client.log_inputs(run_id, models=[LoggedModelInput(agent)])
    params = said["params"] | {"adk_eval.model_id": agent}  # MLflow gives ids itself
    for write, values in ((client.log_param, params), (client.log_metric, said["metrics"]), (client.set_tag, said["tags"])):
        for name, value in values.items():
            write(run_id, name, value)
    client.log_artifacts(run_id, str(KEPT / "adk_eval"), "adk_eval")
    client.set_terminated(run_id)
    return run_id, uri


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code in {0, 1}, done.output
    return done.output


def test_the_gate_decides_on_it_and_refuses_it_when_it_was_changed(kept: tuple[str, str]) -> None:
    run_id, uri = kept
    decision = adk_eval.gate(run_id, tracking_uri=uri, raise_on_failure=False)
    (reason,) = decision.reasons
    assert (decision.verdict, reason.partition(";")[0]) == (
        "failed",
        "tool_trajectory_avg_score: 1 of 3 cases below the threshold 0.5 (mean 0.6667)",
    )
    votes = KEPT / "adk_eval" / "votes.parquet"
    MlflowClient(uri).log_text(run_id, votes.read_bytes().decode("latin-1"), "adk_eval/votes.parquet")
    changed = adk_eval.gate(run_id, tracking_uri=uri, raise_on_failure=False)
    assert (changed.verdict, changed.reasons[0]) == ("undecided", "the artifact adk_eval/votes.parquet was changed after the run")


def test_it_is_compared_exported_and_scored_again(kept: tuple[str, str], tmp_path: Path) -> None:
    run_id, uri = kept
    comparison = adk_eval.compare(run_id, run_id, tracking_uri=uri)
    assert [delta.difference for delta in comparison.deltas if delta.difference] == []
    digest = MlflowClient(uri).get_run(run_id).data.params["adk_eval.eval_set_digest"]
    for what, name in (("eval_set", "set.evalset.json"), ("result", "result.evalset_result.json"), ("rows", "rows.jsonl")):
        assert "3 cases" in invoke("export", run_id, what, "-o", tmp_path / name)
    assert eval_set_digest(load_eval_set(tmp_path / "set.evalset.json")) == digest
    assert len(load_result(tmp_path / "result.evalset_result.json").eval_case_results) == 3
    assert recording_of_run(run_id, uri).num_runs(["light", "heat", "door"]) == 1
    again = adk_eval.evaluate(
        load_eval_set(tmp_path / "set.evalset.json"), f"runs:/{run_id}", {"criteria": {"tool_trajectory_avg_score": 0.5}}, tracking_uri=uri
    )
    assert [case.verdict for case in again.cases] == ["passed", "passed", "failed"]
    invoke("report", run_id, "-o", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == (KEPT / "adk_eval" / "report.html").read_bytes()
