"""What `traces score` cannot work with is said in one sentence, with the exit code that says whose turn it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import TraceInfo, TraceLocation, TraceState
from mlflow.tracing.client import TracingClient

from tests.cli.test_cli import invoke
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import copied
from tests.production.traffic_kit import assessments, talk
from tests.servers.test_basic_auth import accounts as accounts  # noqa: PLC0414 - a fixture
from tests.servers.test_basic_auth import ask

pytestmark = QUIET
CALLS = ("--criteria", "tool_call_count_v1=1")


@pytest.fixture(scope="module")
def store(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with an experiment without traces, one whose traces say nothing, and one whose traces are half written."""
    import mlflow

    folder = tmp_path_factory.mktemp("bad")
    uri = copied(template, folder)
    with chdir(folder), tracking(uri):
        mlflow.set_experiment("empty")
        mlflow.set_experiment("mute")
        for _ in range(2):
            with mlflow.start_span("nothing"):
                pass
        with mlflow.start_span("numbers", span_type="AGENT") as span:
            span.set_inputs({"a": 1, "b": 2})
            span.set_outputs({"c": 3})
        mlflow.flush_trace_async_logging()
        experiment_id = mlflow.set_experiment("half").experiment_id
        talk("", "hello")
        for number, state in enumerate((TraceState.IN_PROGRESS, TraceState.OK)):
            info = TraceInfo(
                trace_id=f"tr-{number:032x}",
                trace_location=TraceLocation.from_experiment_id(experiment_id),
                request_time=int(time.time() * 1000),
                state=state,
                trace_metadata={},
                tags={},
            )
            TracingClient(uri).start_trace(info)
        yield uri


BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "no such experiment": (("nowhere", *CALLS), 64, "experiment 'nowhere' does not exist in this MLflow store"),
    "no such id": (("4711", *CALLS), 64, "experiment '4711' does not exist in this MLflow store"),
    "criteria that need expectations": (
        ("empty", "--criteria", "response_match_score=0.5,tool_trajectory_avg_score=1"),
        64,
        "response_match_score, tool_trajectory_avg_score need expectations, which traces do not have; leave them out",
    ),
    "a misspelt criterion": (("empty", "--criteria", "tool_call_cuont_v1=1"), 64, "Did you mean 'tool_call_count_v1'?"),
    "no threshold": (
        ("empty", "--criteria", "safety_v1"),
        64,
        "--criteria safety_v1: wanted NAME=THRESHOLD, such as hallucinations_v1=0.8",
    ),
    "no criteria": (("empty",), 64, "name what to score by: --criteria NAME=THRESHOLD,... or --config FILE, and not both"),
    "no such config": (("empty", "--config", "none.json"), 64, "found no such file; wanted a file that exists"),
    "a bad time": (
        ("empty", *CALLS, "--since", "yesterday"),
        64,
        "since='yesterday': wanted how long ago, such as 24h or 7d, or a time in ISO 8601",
    ),
    "a bad filter": (("empty", *CALLS, "--filter", "no filter"), 3, "the traces could not be read: Invalid clause(s) in filter string"),
    "a bad rate": (("empty", *CALLS, "--fail-below", "50"), 64, "50.0 is not in the range 0<=x<=1"),
    "a store of files": (
        ("empty", *CALLS, "--tracking-uri", "file:///nowhere/files"),
        3,
        "MLflow at file:///nowhere/files cannot be reached",
    ),
    "no server": (("empty", *CALLS, "--tracking-uri", "http://127.0.0.1:9"), 3, "MLflow at http://127.0.0.1:9 cannot be reached"),
}


@pytest.mark.parametrize(("options", "code", "says"), BAD.values(), ids=list(BAD))
def test_bad_input_is_one_error(
    store: str, options: tuple[str, ...], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.chdir(tmp_path)
    result = invoke("traces", "score", *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert result.stderr.lower().count("error:") == 1
    assert "Traceback" not in result.stderr
    assert {file.name for file in tmp_path.iterdir()} <= {".adk_eval"}


def test_a_window_without_traces_is_no_error_unless_a_rate_was_asked_for(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, code in (((), 0), (("--since", "24h", "--until", "23h"), 0), (("--fail-below", "0.5"), 2)):
        result = invoke("traces", "score", "empty", *CALLS, *options, "--tracking-uri", store)
        assert (result.exit_code, result.stderr) == (code, "")
        assert "0 conversations" in result.stdout
        assert "nothing to score" in result.stdout


def test_traces_without_content_are_named_with_what_they_lack(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("traces", "score", "mute", *CALLS, "--fail-below", "0.5", "--tracking-uri", store)
    assert result.exit_code == 2
    reasons = [line for line in result.stdout.splitlines() if line.startswith("  not read: tr-")]
    assert len(reasons) == 3
    assert sum("span 'nothing', inputs: found null; wanted a text, or an object with one of" in reason for reason in reasons) == 2
    assert sum("span 'numbers', " in reason for reason in reasons) == 1
    assert not any(assessments(store, "mute").values())


def test_half_written_traces_wait_and_broken_ones_are_named(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("traces", "score", "half", *CALLS, "--tracking-uri", store)
    assert result.exit_code == 0
    assert "2 conversations: 0 scored before, 1 not ended" in result.stdout
    assert f"  not read: tr-{1:032x}: " in result.stdout
    assert "2 assessments written" in result.stdout
    assert sorted(len(some) for some in assessments(store, "half").values()) == [0, 0, 2]


@pytest.mark.slow
def test_a_missing_permission_is_named(accounts: tuple[str, Callable[[str], str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    (uri, as_user), folder = accounts, tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    as_user("eva")
    with tracking(uri):
        experiment_id = mlflow.set_experiment("production").experiment_id
        (trace_id,) = talk("", "hello")
    command: tuple[Any, ...] = ("traces", "score", "production", *CALLS, "--tracking-uri", uri)

    as_user("ann")
    result = invoke(*command)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "error: the run could not be started: MLflow denies you the permission (403);"
        " you need READ on the experiment to read, and EDIT to write\n"
    )

    as_user("eva")
    ask(uri, "3.0/mlflow/users/permissions/grant", username="ann", resource_type="experiment", resource_id=experiment_id, permission="EDIT")
    as_user("ann")
    assert invoke(*command).exit_code == 0
    assert len(MlflowClient(uri).get_trace(trace_id).info.assessments) == 2
