"""A store in a folder, and putting agent versions into its registry."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from mlflow_adk_eval import TrackingError, UsageError, score
from mlflow_adk_eval.tracking.agent_versions import register
from mlflow_adk_eval.tracking.client import experiment_id, open_store
from mlflow_adk_eval.tracking.evaluate import evaluate
from tests.mlflow_kit import copied
from tests.tracking.small import CONFIG, expected_of, rooms


def test_a_store_keeps_everything_in_its_folder(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "demo"
    home.mkdir()
    copied(template, home)
    uri = open_store("demo", experiment="home")
    assert open_store(home, experiment="home") == uri
    client = MlflowClient(uri)
    assert client.get_experiment(experiment_id(uri, "home")).artifact_location == (home / "artifacts").as_uri()
    evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="home", tracking_uri=uri)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    assert sorted(path.name for path in home.iterdir()) == ["artifacts", "mlflow.db"]


def test_each_agent_version_is_registered_once(store: str) -> None:
    first = evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="home", tracking_uri=store)
    second = evaluate(rooms(), lambda text, session: "", CONFIG, experiment="home", tracking_uri=store)
    before = mlflow.get_tracking_uri()
    assert [register(report, "home", tracking_uri=store) for report in (first, second, first)] == ["1", "2", "1"]
    assert mlflow.get_tracking_uri() == before
    version = MlflowClient(store).get_model_version("home", "1")
    assert version.source == f"models:/{MlflowClient(store).get_run(first.run_id).data.params['adk_eval.model_id']}"


def test_a_run_that_is_no_evaluation_cannot_be_registered(store: str) -> None:
    report = score(rooms(), expected_of(rooms()), CONFIG)
    run = MlflowClient(store).create_run("0")
    with pytest.raises(TrackingError, match="does not name the agent version"):
        register(dataclasses.replace(report, run_id=run.info.run_id), "home", tracking_uri=store)
    with pytest.raises(UsageError, match="run 0123 does not exist"):
        register(dataclasses.replace(report, run_id="0123"), "home", tracking_uri=store)
    with pytest.raises(UsageError, match="was not logged"):
        register(report, "home", tracking_uri=store)


def test_a_set_that_holds_an_id_twice_leaves_no_run_behind(store: str) -> None:
    case = rooms().eval_cases[0]
    twice = rooms().model_copy(update={"eval_cases": (case, case)})
    with pytest.raises(UsageError, match="several cases with the same id"):
        evaluate(twice, lambda text, session: "", CONFIG, experiment="home", tracking_uri=store)
    assert MlflowClient(store).get_experiment_by_name("home") is None
