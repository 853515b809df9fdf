"""MLflow that is away, at the start or in between: found at once, and nothing is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import pytest

from tests.mlflow_kit import Server, copied, free_port
from tests.tracking.small import CONFIG, answering, rooms


def never(text: str, session: Any) -> Never:
    raise AssertionError("the agent was called")


def quickly(uri: str, seconds: float) -> str:
    from mlflow_adk_eval import TrackingError, evaluate

    began = time.monotonic()
    with pytest.raises(TrackingError) as away:
        evaluate(rooms(), never, CONFIG, tracking_uri=uri)
    assert time.monotonic() - began < seconds
    return str(away.value)


def test_a_server_that_refuses_is_found_before_the_agent_is_called(store: str) -> None:
    message = quickly(f"http://me:pw123@127.0.0.1:{free_port()}", seconds=100)
    assert message.startswith("MLflow at http://127.0.0.1:")
    assert "cannot be reached" in message
    assert "pw123" not in message
    assert not Path("adk_eval_pending").exists()


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up_on(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "cannot be reached" in quickly(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=100)


@pytest.mark.parametrize("uri", ["sqlite:////proc/nobody/mlflow.db", "sqlite:////proc", "postgresql://me:pw123@127.0.0.1:1/mlflow"])
def test_a_database_that_cannot_be_opened_is_not_tried_for_minutes(store: str, uri: str) -> None:
    assert "pw123" not in quickly(uri, seconds=100)


def test_a_store_of_files_is_refused_in_mlflows_words(store: str) -> None:
    assert "maintenance mode" in quickly("file:///tmp/mlruns", seconds=100)


def test_the_users_limits_are_respected_and_ours_do_not_stay(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    quickly(f"http://127.0.0.1:{free_port()}", seconds=100)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
    assert "MLFLOW_HTTP_REQUEST_TIMEOUT" not in os.environ


def test_a_run_that_could_not_be_started_is_marked_as_failed(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import TrackingError, evaluate

    def away(*args: Any) -> Never:
        raise OSError("away")

    monkeypatch.setattr(MlflowClient, "log_inputs", away)
    with pytest.raises(TrackingError, match="the run could not be started: away"):
        evaluate(rooms(), never, CONFIG, experiment="unstarted", tracking_uri=store)
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("unstarted").experiment_id])
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("FAILED", "failed")


@pytest.mark.slow
def test_a_server_killed_in_mid_run_costs_nothing(
    new_server: Callable[[], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import TrackingError, evaluate, upload

    monkeypatch.chdir(tmp_path)
    server = new_server()
    once = threading.Lock()

    def agent(text: str, session: Any) -> Any:
        if once.acquire(blocking=False):
            server.kill()
        return answering(rooms())(text, session)

    with pytest.raises(TrackingError, match="mlflow-adk-eval upload adk_eval_pending/") as lost:
        evaluate(rooms(), agent, CONFIG, experiment="killed", tracking_uri=server.uri)
    (folder,) = (tmp_path / "adk_eval_pending").iterdir()
    assert str(folder.relative_to(tmp_path)) in str(lost.value)
    with pytest.raises(TrackingError, match="cannot be reached"):
        upload(folder)
    server.start()
    client = MlflowClient(server.uri)
    waiting = client.get_run(folder.name).data.tags
    assert waiting["adk_eval.status"] == "running"  # nobody could tell it otherwise, but it has said from the start where to look
    assert "mlflow-adk-eval upload adk_eval_pending/" in waiting["mlflow.note.content"]
    assert upload(folder) == folder.name
    finished = contents(client, folder.name)
    assert upload(folder) == folder.name
    assert contents(client, folder.name) == finished
    whole = evaluate(rooms(), agent, CONFIG, experiment="killed", tracking_uri=server.uri)
    assert comparable(finished) == comparable(contents(client, whole.run_id))


def contents(client: Any, run_id: str) -> dict:
    run = client.get_run(run_id)
    traces = client.search_traces(locations=[run.info.experiment_id], run_id=run_id)
    return {
        "status": run.info.status,
        "params": run.data.params,
        "tags": run.data.tags,
        "metrics": run.data.metrics,
        "history": {key: len(client.get_metric_history(run_id, key)) for key in run.data.metrics},
        "artifacts": sorted(file.path for file in client.list_artifacts(run_id, "adk_eval")),
        "inputs": [found.dataset.digest for found in run.inputs.dataset_inputs] + [found.model_id for found in run.inputs.model_inputs],
        "traces": {
            trace.info.request_preview: (
                len(trace.data.spans),
                [(found.name, found.value, found.rationale) for found in trace.info.assessments],
            )
            for trace in traces
        },
    }


def comparable(found: dict) -> dict:
    """Leave out what is each run's own: its measured seconds, and the hash of artifacts that hold them."""
    measured = "invocation_duration_v1"
    return {
        **found,
        "params": {name: value for name, value in found["params"].items() if name != "adk_eval.manifest_sha256"},
        "metrics": {name: value for name, value in found["metrics"].items() if measured not in name},
        "history": {name: count for name, count in found["history"].items() if measured not in name},  # alike seconds have no interval
        "tags": {
            name: value
            for name, value in found["tags"].items()
            if name not in ("mlflow.note.content", "mlflow.runName", "mlflow.adk_eval.creation")
        },
    }


def test_an_upload_that_was_cut_off_goes_on_where_it_was(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate, upload
    from mlflow_adk_eval.tracking import logged_run, traces
    from mlflow_adk_eval.tracking.traces import TracingClient, write_traces

    def cut_off(*args: Any) -> Never:
        raise KeyboardInterrupt

    monkeypatch.setattr(traces, "_TABLES", {"SqlTraceInfo": "unknown"})
    with monkeypatch.context() as patched:
        patched.setattr(logged_run, "write_traces", lambda client, run, records: write_traces(client, run, records[:2]) or cut_off())
        with pytest.raises(KeyboardInterrupt) as interrupted:
            evaluate(rooms(), answering(rooms()), CONFIG, experiment="cut", tracking_uri=store)
    assert "mlflow-adk-eval upload" in interrupted.value.__notes__[0]
    (folder,) = (tmp_path / "adk_eval_pending").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(TracingClient, "log_spans", cut_off)  # traces are there, their spans are not
        with pytest.raises(KeyboardInterrupt):
            upload(folder)
    client = MlflowClient(store)
    run = client.get_run(folder.name)
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("KILLED", "pending")
    assert f"mlflow-adk-eval upload adk_eval_pending/{folder.name}" in run.data.tags["mlflow.note.content"]
    upload(folder)
    found = contents(client, folder.name)
    assert "upload" not in found["tags"]["mlflow.note.content"]
    assert (found["status"], found["tags"]["adk_eval.status"]) == ("FINISHED", "complete")
    assert {preview: (spans, len(assessed)) for preview, (spans, assessed) in found["traces"].items()} == {
        "[light #1] light on": (2, 5),
        "[light #2] thanks": (1, 5),
        "[heat #1] 21 degrees please": (2, 5),
        "[both #1] all off": (2, 5),
        "[both #2] sure?": (1, 5),
    }
    assert set(found["history"].values()) == {1}


def test_the_folder_for_what_is_pending_can_be_chosen(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_adk_eval import TrackingError, evaluate
    from mlflow_adk_eval.tracking import logged_run

    def full(*args: Any) -> Never:
        raise OSError("No space left on device")

    monkeypatch.setattr(logged_run, "write_traces", full)
    with pytest.raises(TrackingError, match="No space left on device"):
        evaluate(rooms(), answering(rooms()), CONFIG, tracking_uri=store, pending_folder=tmp_path / "safe")
    assert [path.name for path in (tmp_path / "safe").iterdir()]
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackingError, match="It could not be saved in"):
        evaluate(rooms(), answering(rooms()), CONFIG, tracking_uri=store, pending_folder=tmp_path / "file")


def test_a_folder_whose_run_is_gone_is_refused(store: str, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow_adk_eval import TrackingError, UsageError, evaluate, upload
    from mlflow_adk_eval.tracking import logged_run

    def away(*args: Any) -> Never:
        raise OSError("away")

    with monkeypatch.context() as patched:
        patched.setattr(logged_run, "write_traces", away)
        with pytest.raises(TrackingError):
            evaluate(rooms(), answering(rooms()), CONFIG, tracking_uri=store)
    (folder,) = (tmp_path / "adk_eval_pending").iterdir()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UsageError, match=rf"run {folder.name} \(started at .*\) does not exist"):
        upload(folder, tracking_uri=copied(template, other))
