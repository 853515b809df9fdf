"""Traces that frameworks leave in MLflow are scored where they are by one command, without any file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.agents.traces.framework_traces import FRAMEWORKS, recorded, store_again
from tests.agents.traces.test_traces_adk import COMPLETE
from tests.agents.traces.traced import traced
from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET
from tests.production.traffic_kit import assessments, values

pytestmark = QUIET
CRITERIA = "tool_call_count_v1=1,inference_call_count_v1=2,token_usage_v1=500,invocation_duration_v1=60"
COMMAND = ("traces", "score", "production", "--criteria", CRITERIA)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_command_scores_what_a_framework_left(store: str, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = store_again(store, "production", recorded(framework))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    before = set(tmp_path.iterdir())

    result = invoke(*COMMAND)

    assert result.exit_code == 0, result.stderr
    assert "10 assessments written" in result.stdout
    left = {file.name for file in set(tmp_path.iterdir()) - before} - {"mlruns"}
    assert left <= {".adk_eval"}
    found = {trace: values(some) for trace, some in assessments(store).items()}
    assert set(found) == {first, second}
    for trace, tools, models in ((first, 1.0, 2.0), (second, 0.0, 1.0)):
        counts = {name: value for name, value in found[trace].items() if name.endswith("count_v1")}
        assert counts == {"tool_call_count_v1": tools, "inference_call_count_v1": models}
        assert found[trace]["adk_passed"] is True
        assert 0 < found[trace]["token_usage_v1"] < 500
        assert 0 < found[trace]["invocation_duration_v1"] < 60

    again = invoke(*COMMAND)

    assert (again.exit_code, "nothing to score" in again.stdout) == (0, True), again.stdout + again.stderr
    assert {trace: values(some) for trace, some in assessments(store).items()} == found
    client = MlflowClient(store)
    known: Any = client.get_experiment_by_name("production")
    (run,) = client.search_runs([known.experiment_id])
    assert run.data.params["adk_eval.production"] == "score"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["content", "legacy"])
def test_one_command_scores_what_adk_left(
    mode: str, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = traced(mode, tmp_path_factory)
    shutil.copy(made.store.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.chdir(tmp_path)
    command = ("traces", "score", "traced", *COMMAND[3:])

    result = invoke(*command)

    assert result.exit_code == 0, result.stderr
    found = assessments(store, "traced")
    silent = {trace["info"]["trace_id"] for trace in made.of("single")}  # in one turn, so nothing decides this conversation
    assert not any(found[trace] for trace in silent)
    for scenario in set(COMPLETE) - {"single"}:
        ids = [trace["info"]["trace_id"] for trace in made.of(scenario)]
        assert ids
        for trace in ids:
            assert {one.name for one in found[trace]} >= {"adk_passed", "tool_call_count_v1", "token_usage_v1"}, scenario

    invoke(*command)

    assert {trace: len(some) for trace, some in assessments(store, "traced").items()} == {trace: len(some) for trace, some in found.items()}
