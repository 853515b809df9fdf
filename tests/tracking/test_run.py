"""What a run in MLflow holds when an evaluation has ended."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.evalset.models import eval_set_digest
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.files import files_in
from tests.mlflow_kit import Server, copied
from tests.tracking.small import CONFIG, answering, eval_set, expected_of, many, rooms, turn


def broken(text: str, session: Any) -> Any:
    if session.history:
        raise RuntimeError("the boiler does not answer")
    return "all is off"


@pytest.fixture(scope="module")
def logged(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Report, dict[str, bytes]]:
    """A run with a case that passes, one that fails and one that is undecided."""
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    folder = tmp_path_factory.mktemp("logged")
    uri = copied(template, folder)
    client = MlflowClient(uri)
    experiment = client.create_experiment("rooms", artifact_location=(folder / "artifacts").as_uri())
    agent = answering(rooms(), heat="it is far too cold", both=broken)
    with contextlib.chdir(folder):
        report = evaluate(rooms(), agent, CONFIG, experiment=experiment, run_name="nightly", tracking_uri=uri)
    files = dict(files_in(Path(client.download_artifacts(report.run_id, "adk_eval", str(folder)))))
    return client, client.get_run(report.run_id), report, files


def test_the_run_is_finished_and_says_what_came_of_it(logged: Any) -> None:
    _, run, report, _ = logged
    assert run.info.status == "FINISHED"
    assert run.info.end_time >= run.info.start_time
    assert run.info.run_name == "nightly"
    assert report.run_id == run.info.run_id
    assert report.verdict == "failed"
    wanted = {
        "mlflow.runType": "genai_evaluate",
        "adk_eval.status": "complete",
        "adk_eval.verdict": "failed",
        "adk_eval.eval_set_id": "rooms",
    }
    assert {name: run.data.tags.get(name) for name in wanted} == wanted
    assert sum(not name.startswith("mlflow.") for name in run.data.tags) <= 4  # as many chips as MLflow's page has room for
    assert run.data.tags["mlflow.user"]
    assert run.data.tags["mlflow.source.name"]


@pytest.mark.needs("google-adk")
def test_the_params_tie_the_run_to_what_was_evaluated(logged: Any) -> None:
    _, run, report, files = logged
    import mlflow

    params = run.data.params
    assert params["threshold.tool_trajectory_avg_score"] == "1.0"
    assert params["threshold.response_match_score"] == "0.5"
    assert (params["adk_eval.schema"], params["adk_eval.traces"], params["adk_eval.trace_count"]) == ("2", "all", "5")
    assert params["adk_eval.match_type.tool_trajectory_avg_score"] == "EXACT"
    assert params["adk_eval.eval_set_digest"] == eval_set_digest(rooms())
    assert params["adk_eval.config_digest"] == report.config.digest()
    assert params["adk_eval.num_runs"] == "1"
    assert params["adk_eval.version.mlflow"] == mlflow.__version__
    assert params["adk_eval.version.mlflow_adk_eval"]
    assert params["adk_eval.version.google-adk"]
    assert params["adk_eval.version.python"].startswith("3.")
    assert params["adk_eval.manifest_sha256"] == hashlib.sha256(files["manifest.json"]).hexdigest()
    assert [found.model_id for found in run.inputs.model_inputs] == [params["adk_eval.model_id"]]


def test_the_manifest_names_every_other_artifact_by_its_hash(logged: Any) -> None:
    _, _, _, files = logged
    others = {name: content for name, content in files.items() if name != "manifest.json"}
    assert sorted(others) == [
        "actual/part-00000.parquet",
        "agent_source.json",
        "cases/part-00000.parquet",
        "cells/part-00000.parquet",
        "config.json",
        "eval_set.json",
        "invocations.json",
        "report.html",
        "result.evalset_result.json",
    ]
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in others.items()}
    part = {"first_case_no": 0, "last_case_no": 2, "cases": 3, "case_runs": 3, "turns": 5, "votes": 0}
    assert json.loads(files["manifest.json"]) == {"schema": 2, "artifacts": hashes, "eval_set": {"eval_set_id": "rooms"}, "parts": [part]}


def test_the_dataset_has_our_digest(logged: Any) -> None:
    client, run, _, _ = logged
    dataset = run.inputs.dataset_inputs[0].dataset
    digest = eval_set_digest(rooms())
    assert (dataset.name, dataset.source_type) == ("rooms", "adk_evalset")
    kept = client.get_dataset(json.loads(dataset.source)["dataset_id"])
    assert (kept.name, kept.tags["adk_eval.eval_set_digest"]) == (f"rooms@{dataset.digest[:8]}", digest)
    assert len(dataset.digest) <= 36
    assert digest.startswith(f"sha256:{dataset.digest}")
    assert json.loads(dataset.profile) == {"num_cases": 3, "digest": digest}
    assert [(tag.key, tag.value) for tag in run.inputs.dataset_inputs[0].tags] == [("mlflow.data.context", "evaluation")]


def test_the_metrics_are_those_of_the_report(logged: Any) -> None:
    _, run, report, _ = logged
    metrics = run.data.metrics
    for name, summary in report.summaries().items():
        if summary.threshold is not None:
            assert metrics[f"{name}/mean"] == float(f"{summary.mean:.7g}")
            assert metrics[f"{name}/threshold"] == summary.threshold
            assert metrics[f"{name}/pass_rate"] == pytest.approx(1 / 3)
            assert metrics[f"{name}/evaluated"] == summary.evaluated == 4
            assert metrics[f"{name}/errored"] == summary.errored == 1
            assert 0 <= metrics[f"{name}/ci_low"] < metrics[f"{name}/ci_high"] <= 1
    assert metrics["cases"] == 3
    assert metrics["case_pass_rate"] == pytest.approx(1 / 3)
    assert "token_usage_v1/mean" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_metrics_count_for_the_agent_version_on_this_dataset(logged: Any) -> None:
    client, run, _, _ = logged
    model = client.get_logged_model(run.data.params["adk_eval.model_id"])
    found = {metric.key: metric for metric in model.metrics}
    assert found["case_pass_rate"].value == run.data.metrics["case_pass_rate"]
    assert (found["case_pass_rate"].dataset_name, found["case_pass_rate"].dataset_digest) == (
        "rooms",
        run.inputs.dataset_inputs[0].dataset.digest,
    )
    assert set(found) == set(run.data.metrics)


def test_people_find_the_verdict_the_numbers_and_the_reasons_on_the_first_page(logged: Any) -> None:
    _, run, _, _ = logged
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("**1 of 3 cases passed** in rooms · verdict: **failed**")
    assert re.search(r"\| response_match_score \| \S+ · 2 of 3 scored \| ≥ 0.5 \|", note)
    assert "the boiler does not answer" in note


def test_mlflow_shows_the_table(logged: Any) -> None:
    import mlflow

    client, run, _, files = logged
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "adk_eval/invocations.json", "type": "table"}]
    table = json.loads(files["invocations.json"])
    assert table["columns"][:2] == ["key", "verdict"]
    assert [row[0] for row in table["data"]] == ["light #1", "light #2", "heat #1", "both #1", "both #2"]
    assert client.tracking_uri.startswith("sqlite")
    assert mlflow.active_run() is None


@pytest.mark.needs("google-adk", "2.13")
def test_adk_loads_what_was_logged(logged: Any) -> None:
    _, _, _, files = logged
    from google.adk.evaluation.eval_config import EvalConfig
    from google.adk.evaluation.eval_result import EvalSetResult
    from google.adk.evaluation.eval_set import EvalSet

    assert [case.eval_id for case in EvalSet.model_validate_json(files["eval_set.json"]).eval_cases] == ["light", "heat", "both"]
    assert list(EvalConfig.model_validate_json(files["config.json"]).criteria) == list(CONFIG["criteria"])
    result = EvalSetResult.model_validate_json(files["result.evalset_result.json"])
    assert [case.final_eval_status.name for case in result.eval_case_results] == ["PASSED", "FAILED", "NOT_EVALUATED"]


@pytest.mark.slow
def test_a_recording_scores_the_same_over_http(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate, score

    monkeypatch.chdir(tmp_path)
    recording = expected_of(rooms()) | {"heat": expected_of(many(1))["case_0000"]}
    report = evaluate(rooms(), recording, CONFIG, experiment="over http", tracking_uri=server.uri)
    assert report.scores == score(rooms(), recording, CONFIG).scores
    client = MlflowClient(server.uri)
    run = client.get_run(report.run_id)
    assert (run.info.status, run.data.tags["adk_eval.status"], run.data.params["adk_eval.trace_count"]) == ("FINISHED", "complete", "5")
    traces = client.search_traces(locations=[run.info.experiment_id], run_id=report.run_id)
    assert {trace.info.request_preview: len(trace.info.assessments) for trace in traces} == {
        "[light #1] light on": 5,
        "[light #2] thanks": 5,
        "[heat #1] 21 degrees please": 5,
        "[both #1] all off": 5,
        "[both #2] sure?": 5,
    }
    assert sorted(len(trace.data.spans) for trace in traces) == [1, 1, 2, 2, 2]
    assert len(client.list_artifacts(report.run_id, "adk_eval")) == 9


def test_each_run_of_a_case_has_its_own_row_and_trace(store: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    report = evaluate(rooms(), answering(rooms()), CONFIG, num_runs=2, experiment="twice", tracking_uri=store)
    client = MlflowClient(store)
    run = client.get_run(report.run_id)
    previews = [trace.info.request_preview for trace in client.search_traces(locations=[run.info.experiment_id], run_id=report.run_id)]
    assert len(set(previews)) == 10
    assert "[light #2 run 2] thanks" in previews
    assert run.data.params["adk_eval.num_runs"] == "2"
    assert run.data.metrics["cases"] == 3


def test_a_criterion_of_any_name_is_logged(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    (tmp_path / "house_metrics.py").write_text(
        "import numpy\ndef polite(metric, actual, expected, scenario):\n    return [numpy.float32(0.5) for _ in actual]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "polite? (1/2) " + "x" * 300
    config = {"criteria": {name: 0.5}, "custom_metrics": {name: {"code_config": {"name": "house_metrics.polite"}}}}
    report = evaluate(rooms(), answering(rooms()), config, experiment="custom", tracking_uri=store)
    client = MlflowClient(store)
    run = client.get_run(report.run_id)
    assert report.passed
    (mean,) = (value for key, value in run.data.metrics.items() if key.startswith("polite") and key.endswith("/mean"))
    assert mean == 0.5
    (trace, *_) = client.search_traces(locations=[run.info.experiment_id], run_id=report.run_id, include_spans=False)
    scores = [found for found in trace.info.assessments if found.name.startswith("polite")]
    assert [(found.value, type(found.value)) for found in scores] == [(0.5, float)]
    assert "/" not in scores[0].name


def test_nothing_is_cut_by_mlflow_in_silence(store: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    cases = eval_set({f"{'long' * 1000} {number}": [turn("hello", "hello")] for number in range(3)}, "set" * 4000)
    report = evaluate(
        cases, answering(cases, **dict.fromkeys(cases.eval_ids, "bye " * 5000)), CONFIG, experiment="long", tracking_uri=store
    )
    run = MlflowClient(store).get_run(report.run_id)
    assert run.data.tags["adk_eval.status"] == "complete"
    assert all(len(value) <= 8000 for value in run.data.tags.values())
    assert "… (" in run.data.tags["adk_eval.eval_set_id"]
    traces = MlflowClient(store).search_traces(locations=[run.info.experiment_id], run_id=report.run_id)
    assert len({trace.info.request_preview for trace in traces}) == 3
    assert {len(trace.data.spans[0].outputs["final_response"]) for trace in traces} == {20_000}


def test_a_report_without_cases_is_logged_as_undecided(store: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    report = evaluate(eval_set({}), lambda text, session: "", CONFIG, experiment="nothing", tracking_uri=store)
    run = MlflowClient(store).get_run(report.run_id)
    assert (run.data.tags["adk_eval.status"], run.data.tags["adk_eval.verdict"]) == ("complete", "undecided")
    assert run.data.metrics == {"cases": 0}


def test_a_run_that_nobody_named_is_called_as_its_agent_and_the_time(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate

    monkeypatch.chdir(tmp_path)
    run = MlflowClient(store).get_run(evaluate(rooms(), answering(rooms()), CONFIG, tracking_uri=store).run_id)
    agent = run.data.tags["adk_eval.agent_version"].partition("#")[0]
    assert re.fullmatch(rf"{re.escape(agent)} · \d\d:\d\d", run.info.run_name or "")
