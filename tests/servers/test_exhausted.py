"""A server whose pool of connections is exhausted, one whose answers are lost, and one that has moved."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import TrackingError
from mlflow_adk_eval.viewer.store import RunStore
from tests.analysis.calibrated import evaluated
from tests.cli.test_cli import invoke
from tests.mlflow_kit import Server
from tests.servers.proxy import Proxy, at
from tests.tracking.small import CONFIG, answering, rooms

pytestmark = pytest.mark.slow
ROOMS, EXPERIMENT = rooms(), "exhausted"
REPEATED = 6
"""How often a request is made while there is no room for it."""


@pytest.fixture
def proxy(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the pauses between attempts, half a minute in all
    return Proxy(server.uri).start()


def run_of(server: Server) -> tuple[str, str, dict[str, str]]:
    """Return the id, the status and the tags of the only run."""
    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    (run, *_) = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    return run.info.run_id, run.info.status, run.data.tags


def test_a_run_that_could_not_begin_does_not_stay_open(proxy: Proxy, server: Server) -> None:
    with proxy.spoiling(at("/runs/log-batch", "full", times=REPEATED + 3)), pytest.raises(TrackingError, match="QueuePool limit"):
        adk_eval.evaluate(ROOMS, answering(ROOMS), CONFIG, experiment=EXPERIMENT, tracking_uri=proxy.uri)
    _, status, tags = run_of(server)
    assert (status, tags["adk_eval.status"]) == ("FAILED", "failed")


def test_that_it_stays_open_is_said_where_it_cannot_be_helped(proxy: Proxy, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        proxy.spoiling(at("/runs/log-batch", "full", times=9 * REPEATED)),
        pytest.raises(TrackingError, match="QueuePool limit"),
    ):
        adk_eval.evaluate(ROOMS, answering(ROOMS), CONFIG, experiment=EXPERIMENT, tracking_uri=proxy.uri)
    run_id, status, _ = run_of(server)
    assert status == "RUNNING"
    assert f"run {run_id} could not be marked as FAILED and may show RUNNING forever" in caplog.text


def test_what_was_evaluated_is_kept_and_uploaded_to_where_the_environment_says(
    proxy: Proxy, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(message: str) -> str:
        proxy.plan = at("/runs/log-batch", "full", times=9 * REPEATED)  # from the first answer of the agent on
        return f"You said {message}"

    with pytest.raises(TrackingError, match="mlflow-adk-eval upload adk_eval_pending/") as failure:
        adk_eval.evaluate(ROOMS, answer, CONFIG, experiment=EXPERIMENT, tracking_uri=proxy.uri)
    assert "QueuePool limit" in str(failure.value)
    run_id, _, _ = run_of(server)
    assert list(Path("adk_eval_pending", run_id).iterdir())

    begun = proxy.uri
    proxy.stop()
    gone = invoke("upload", f"adk_eval_pending/{run_id}")
    assert gone.exit_code == 3, gone.output
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    other = invoke("upload", f"adk_eval_pending/{run_id}")
    assert other.exit_code == 64, other.output
    assert f"run {run_id} (started at {begun}; try that as --tracking-uri) does not exist" in other.output.replace("\n", " ")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    moved = invoke("upload", f"adk_eval_pending/{run_id}")
    assert moved.exit_code == 0, moved.output
    assert f"run {run_id} is complete; you can delete adk_eval_pending/{run_id}" in moved.output
    assert invoke("upload", f"adk_eval_pending/{run_id}").exit_code == 0, "twice is as good as once"
    assert run_of(server)[:2] == (run_id, "FINISHED")


@pytest.mark.parametrize("fault", ["lost", "503"])
def test_a_label_whose_answer_is_lost_is_there_once(proxy: Proxy, server: Server, fault: str) -> None:
    report = evaluated(server.uri)
    run_id = str(report.run_id)
    store = RunStore(proxy.uri)
    _, labelling = store.labelling(run_id, "anna")
    unit = labelling.units[0]
    for passed, reason, times in ((True, "fine", 1), (True, "fine", 0), (False, "not so", 1), (True, "fine", 1)):
        with proxy.spoiling(at("/assessments", fault, times=times)):  # type: ignore[arg-type]
            labelling.add(unit, passed=passed, reason=reason)
    trace = MlflowClient(server.uri).get_trace(labelling._trace(unit)).info
    said = [(one.value, one.rationale) for one in trace.assessments if one.source.source_id == "anna"]
    assert sorted(said, key=str) == [(False, "not so"), (True, "fine"), (True, "fine")]
