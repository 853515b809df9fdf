"""Runs that an earlier version logged are refused where they do not say enough.

`run_of_0_1_0` is what version 0.1.0 logged before there were parts: schema 1, four turns, one wrong, three votes each of a scripted judge.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput, LoggedModelStatus

import mlflow_adk_eval as adk_eval
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


def test_what_an_earlier_version_judged_is_refused_since_its_votes_do_not_say_who_answered(kept: tuple[str, str]) -> None:
    run_id, uri = kept
    decision = adk_eval.gate(run_id, tracking_uri=uri, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert any("adk_eval/votes.parquet cannot be read: $: found no column host" in reason for reason in decision.reasons)
