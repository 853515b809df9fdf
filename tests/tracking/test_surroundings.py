"""What an evaluation does to the user's own MLflow, environment and event loop: nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Never

import anyio
import pytest

from mlflow_adk_eval import UsageError, aevaluate, evaluate
from mlflow_adk_eval.results.report import Report
from tests.tracking.small import CONFIG, answering, eval_set, expected_of, rooms, turn


@pytest.fixture
def current(store: str) -> Iterator[Any]:
    """Make the store the one that MLflow is configured for."""
    import mlflow

    mlflow.set_tracking_uri(store)
    yield mlflow
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.tracking.fluent._active_experiment_id = None
    mlflow.set_tracking_uri(None)
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


def test_the_users_run_is_left_as_it_is(current: Any) -> None:
    current.set_experiment("mine")
    with current.start_run(run_name="training") as mine:
        report = evaluate(rooms(), expected_of(rooms()), CONFIG)
        assert current.active_run().info.run_id == mine.info.run_id
    client = current.MlflowClient()
    outer, inner = client.get_run(mine.info.run_id), client.get_run(report.run_id)
    assert (outer.data.params, outer.data.metrics, outer.inputs.dataset_inputs) == ({}, {}, [])
    assert not [tag for tag in outer.data.tags if tag.startswith("adk_eval")]
    assert inner.data.tags["mlflow.parentRunId"] == mine.info.run_id
    assert inner.info.experiment_id == outer.info.experiment_id


def test_a_run_in_another_store_is_no_parent(current: Any, template: Path, tmp_path: Path) -> None:
    from tests.mlflow_kit import copied

    (tmp_path / "other").mkdir()
    other = copied(template, tmp_path / "other")
    with current.start_run():
        report = evaluate(rooms(), expected_of(rooms()), CONFIG, tracking_uri=other)
    assert "mlflow.parentRunId" not in current.MlflowClient(other).get_run(report.run_id).data.tags


def test_global_state_stays(current: Any) -> None:
    current.set_active_model(name="my model")
    before = (current.get_active_model_id(), current.get_tracking_uri(), dict(os.environ), Path.cwd())
    last_model = current.last_logged_model().model_id
    report = evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="elsewhere")
    assert (current.get_active_model_id(), current.get_tracking_uri(), dict(os.environ), Path.cwd()) == before
    assert current.last_logged_model().model_id == last_model
    assert current.active_run() is None
    run = current.MlflowClient().get_run(report.run_id)
    assert run.data.params["adk_eval.model_id"] != before[0]
    current.clear_active_model()


def experiment_name(mlflow: Any, report: Any) -> str:
    client = mlflow.MlflowClient()
    return client.get_experiment(client.get_run(report.run_id).info.experiment_id).name


def test_the_experiment_is_mlflows_choice_or_the_named_one(current: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(**options: Any) -> str:
        return experiment_name(current, evaluate(rooms(), expected_of(rooms()), CONFIG, traces=False, **options))

    assert run() == "Default"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    assert run() == "from the environment"
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    chosen = current.set_experiment("chosen").experiment_id
    assert run() == "chosen"
    assert run(experiment="by name") == "by name"
    assert run(experiment=chosen) == "chosen"


def test_an_experiment_that_cannot_be_logged_to_is_refused(current: Any) -> None:
    client = current.MlflowClient()
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(UsageError, match="experiment 'gone' was deleted"):
        evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="gone")
    with pytest.raises(UsageError, match="experiment 4711 does not exist"):
        evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="4711")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": {"max_call": 3}}, "Did you mean 'max_calls'?"),
        ({"budget": {"max_calls": 0}}, "max_calls=0"),
        ({"num_runs": 0}, "num_runs=0"),
        ({"traces": -1}, "traces=-1"),
        ({"traces": "all"}, "traces='all'"),
        ({"agent": None}, "agent: wanted"),
        ({"agent": 42}, "an agent is"),
        ({"config": {"criteria": {"response_match": 0.5}}}, "Did you mean 'response_match_score'?"),
        ({"eval_set": "missing.evalset.json"}, "missing.evalset.json"),
    ],
)
def test_what_makes_no_sense_is_found_before_mlflow_is_asked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    call = {"eval_set": rooms(), "agent": answering(rooms()), "config": CONFIG} | options
    with pytest.raises(UsageError) as refused:
        evaluate(**call, tracking_uri=f"sqlite:///{tmp_path / 'never' / 'mlflow.db'}")
    assert message in str(refused.value)
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("error", "status"), [(RuntimeError("the terminal is gone"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_crash_marks_the_run_as_failed_and_an_interruption_as_killed(store: str, error: BaseException, status: str) -> None:
    from mlflow import MlflowClient

    def progress(done: int, of: int) -> Never:
        raise error

    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        evaluate(rooms(), answering(rooms()), CONFIG, experiment="crashes", tracking_uri=store, progress=progress)
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("crashes").experiment_id])
    assert (run.info.status, run.data.tags["adk_eval.status"]) == (status, "failed")


def test_the_asynchronous_twin_leaves_the_event_loop_free(store: str) -> None:
    from mlflow import MlflowClient

    async def main() -> tuple[Report, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await anyio.sleep(0.005)
                ticks += 1

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            report = await aevaluate(rooms(), answering(rooms()), CONFIG, experiment="async", tracking_uri=store)
            group.cancel_scope.cancel()
        return report, ticks

    report, ticks = asyncio.run(main())
    assert report.passed
    assert ticks > 10
    assert MlflowClient(store).get_run(report.run_id).data.tags["adk_eval.status"] == "complete"


def test_a_cancelled_evaluation_marks_its_run(store: str) -> None:
    from mlflow import MlflowClient

    started: list[anyio.CancelScope] = []

    async def agent(text: str, session: Any) -> None:
        started[0].cancel()
        await anyio.sleep(60)

    async def main() -> None:
        with anyio.CancelScope() as evaluation:
            started.append(evaluation)
            await aevaluate(rooms(), agent, CONFIG, experiment="cancelled", tracking_uri=store)

    anyio.run(main)
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("cancelled").experiment_id])
    assert (run.info.status, run.data.tags["adk_eval.status"]) == ("KILLED", "failed")


def test_evaluate_works_inside_a_running_event_loop(store: str) -> None:
    async def notebook() -> Report:
        return evaluate(rooms(), answering(rooms()), CONFIG, experiment="notebook", tracking_uri=store)

    assert asyncio.run(notebook()).passed


def test_all_writes_come_from_one_thread(store: str) -> None:
    from mlflow.tracking.client import TracingClient
    from sqlalchemy import event

    writers = set()

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE")):
            writers.add(threading.get_ident())

    engine = TracingClient(store).store.engine
    event.listen(engine, "before_cursor_execute", note)
    evaluate(rooms(), answering(rooms()), CONFIG, experiment="threads", tracking_uri=store)
    assert writers == {threading.get_ident()}


SECRET = "sk-live-0123456789"  # noqa: S105 - made up


def test_secrets_of_the_environment_are_written_nowhere(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", SECRET)

    def leaky(text: str, session: Any) -> dict[str, Any]:
        if session.eval_id == "error":
            raise RuntimeError(f"401 for {SECRET} at https://bot:hunter2@weather.example/v1")
        tool = {"name": "ask", "args": {"key": SECRET, "deep": [{"header": f"Bearer {SECRET}"}]}}
        answer = {"name": "ask", "response": {"echo": SECRET}}
        session.state["token"] = SECRET
        return {"final_response": f"the key is {SECRET}", "intermediate_data": {"tool_uses": [tool], "tool_responses": [answer]}}

    cases = eval_set({"error": [turn("hello", "hello")], "said": [turn("hello", "hello")]})
    report = evaluate(cases, leaky, CONFIG, experiment="secrets", tracking_uri=store)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("invocations.json" in path.name for path in written)
    assert not [path for path in written if SECRET.encode() in path.read_bytes() or b"hunter2" in path.read_bytes()]
    (table,) = (json.loads(path.read_text()) for path in written if path.name == "invocations.json")
    assert "the key is [WEATHER_API_KEY]" in str(table)
    assert "401 for [WEATHER_API_KEY] at https://weather.example/v1" in str(table)
    connection = sqlite3.connect(store.removeprefix("sqlite:///"))
    assert "WEATHER_API_KEY" in str(connection.execute("select content from spans").fetchall())
    connection.close()
    assert report.run_id


def test_eval_ids_and_names_never_become_paths(store: str, tmp_path: Path) -> None:
    cases = eval_set({"../../escape": [turn("a", "a")], "/etc/passwd": [turn("b", "b")]}, "../set")
    evaluate(cases, expected_of(cases), CONFIG, experiment="paths", tracking_uri=store)
    names = {path.name for path in Path(tmp_path / "mlruns").rglob("*.json")}
    assert names == {"config.json", "eval_set.json", "invocations.json", "manifest.json", "result.evalset_result.json"}
    assert not list(tmp_path.parent.glob("escape*"))
