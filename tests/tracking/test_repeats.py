"""Repeated runs in a real store: what is logged of an agent that is not always of one mind."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval import GateFailed, evaluate, gate
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.files import files_in
from mlflow_adk_eval.tracking.bundle import bundle_of, load, metrics_of
from tests.mlflow_kit import copied
from tests.results.repeated import PASSED, repeated
from tests.tracking.small import CONFIG, answering, rooms
from tests.tracking.test_bundle import RUN

NAMES = {"pass_hat_1", "pass_hat_2", "pass_hat_3", "flaky_cases", "case_pass_rate_by_run", "case_pass_rate_run_std"}
CASES = rooms()


def moody(text: str, session: Any) -> Any:
    """Do as expected, but in the second run do nothing about *heat*, and in the third break down over *both*."""
    if session.eval_id == "heat" and session.run_index == 1:
        return {"final_response": "no"}  # and no call
    if session.eval_id == "both" and session.run_index == 2:
        raise ConnectionError("the house does not answer")
    return answering(CASES)(text, session)


@dataclass(frozen=True)
class Logged:
    report: Report
    client: Any
    run: Any
    files: dict[str, bytes]


def logged(store: str, folder: Path, agent: Any, num_runs: int) -> Logged:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    report = evaluate(CASES, agent, CONFIG, num_runs=num_runs, experiment="repeats", tracking_uri=store, ledger=False)
    assert report.run_id
    target = Path(client.download_artifacts(report.run_id, "adk_eval", str(folder)))
    return Logged(report, client, client.get_run(report.run_id), dict(files_in(target)))


def run_id(found: Logged) -> str:
    return str(found.run.info.run_id)


@pytest.fixture(scope="module")
def store_uri(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("repeats")
    with contextlib.chdir(folder):
        yield copied(template, folder)


@pytest.fixture(scope="module")
def flaky(store_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return logged(store_uri, tmp_path_factory.mktemp("flaky"), moody, 3)


def test_the_metrics_say_how_reliable_the_agent_is(flaky: Logged) -> None:
    metrics = flaky.run.data.metrics
    assert metrics["pass_hat_1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert metrics["pass_hat_2"] == pytest.approx((1 + 1 / 3 + 1 / 3) / 3)
    assert metrics["pass_hat_3"] == metrics["case_pass_rate"] == pytest.approx(1 / 3)
    assert metrics["pass_hat_2_ci_low"] < metrics["pass_hat_2"] < metrics["pass_hat_2_ci_high"]
    assert (metrics["cases"], metrics["flaky_cases"]) == (3, 2)
    found = flaky.report.repeats.criteria["tool_trajectory_avg_score"]
    assert metrics["tool_trajectory_avg_score/run_std"] == float(f"{found.run_std:.7g}")
    assert metrics["tool_trajectory_avg_score/within_case_variance"] == float(f"{found.within_variance:.7g}")
    assert metrics["tool_trajectory_avg_score/between_case_variance"] == float(f"{found.between_variance:.7g}")
    assert metrics["case_pass_rate_run_std"] == pytest.approx(((1 - 7 / 9) ** 2 + 2 * (2 / 3 - 7 / 9) ** 2) ** 0.5 / 2**0.5)


def test_the_share_of_passed_cases_has_a_step_for_each_run(flaky: Logged) -> None:
    history = flaky.client.get_metric_history(flaky.run.info.run_id, "case_pass_rate_by_run")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1), (2, pytest.approx(2 / 3)), (3, pytest.approx(2 / 3))]
    model = flaky.client.get_logged_model(flaky.run.data.params["adk_eval.model_id"])
    assert {metric.step for metric in model.metrics if metric.key == "case_pass_rate_by_run"} == {1, 2, 3}
    assert {metric.key for metric in model.metrics} >= NAMES


def test_the_table_has_a_row_for_each_case_and_mlflow_shows_it(flaky: Logged) -> None:
    table = json.loads(flaky.files["repeats.json"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert table["columns"][0] == "eval_id"
    assert [(row["eval_id"], row["verdicts"], row["pass_hat_2"]) for row in rows] == [
        ("light", "passed, passed, passed", 1),
        ("heat", "passed, failed, passed", pytest.approx(1 / 3)),
        ("both", "passed, passed, undecided", pytest.approx(1 / 3)),
    ]
    shown = {found["path"]: found["type"] for found in json.loads(flaky.run.data.tags["mlflow.loggedArtifacts"])}
    assert shown == {"adk_eval/invocations.json": "table", "adk_eval/repeats.json": "table"}
    named = json.loads(flaky.files["manifest.json"])["artifacts"]
    assert named["repeats.json"] == hashlib.sha256(flaky.files["repeats.json"]).hexdigest()


def test_people_find_the_flaky_cases_on_the_first_page_and_in_the_report(flaky: Logged) -> None:
    assert "| heat | 2 of 3 runs passed, 1 failed |" in flaky.run.data.tags["mlflow.note.content"]
    assert "2 of 3 cases are flaky" in flaky.files["report.html"].decode()


def test_the_gate_reads_a_run_with_repeats(flaky: Logged, store_uri: str, tmp_path: Path) -> None:
    with pytest.raises(GateFailed, match=r"heat \(run 2\) 0"):
        gate(run_id(flaky), tracking_uri=store_uri)
    steady = logged(store_uri, tmp_path, answering(CASES), 2)
    assert gate(run_id(steady), tracking_uri=store_uri).passed
    assert steady.run.data.metrics["pass_hat_2"] == 1
    assert steady.run.data.metrics["flaky_cases"] == 0


def test_a_changed_table_of_repeats_is_no_evidence(store_uri: str, tmp_path: Path) -> None:
    steady = logged(store_uri, tmp_path, answering(CASES), 2)
    steady.client.log_text(run_id(steady), steady.files["repeats.json"].decode() + " ", "adk_eval/repeats.json")
    with pytest.raises(GateFailed, match=r"adk_eval/repeats\.json was changed after the run"):
        gate(run_id(steady), tracking_uri=store_uri)


def test_a_run_without_repeats_has_nothing_of_it(store_uri: str, tmp_path: Path) -> None:
    once = logged(store_uri, tmp_path, answering(CASES), 1)
    assert "repeats.json" not in once.files
    assert not [name for name in once.run.data.metrics if "pass_hat" in name or name in NAMES or name.endswith(("_std", "_variance"))]
    assert "flaky" not in once.run.data.tags["mlflow.note.content"]
    assert gate(run_id(once), tracking_uri=store_uri).passed


def test_a_bundle_keeps_its_series(tmp_path: Path) -> None:
    made = bundle_of(repeated({"a": [PASSED, 0.2], "b": [PASSED, PASSED]}), RUN, traces=False, secrets={})
    assert made.series == {"case_pass_rate_by_run": (1.0, 0.5)}
    made.save(tmp_path)
    assert load(tmp_path) == made


def test_what_has_no_finite_value_is_left_out() -> None:
    nothing = repeated({"a": [None, None]})
    names = {name for name, _ in metrics_of(nothing)}
    assert {"pass_hat_1", "pass_hat_2", "flaky_cases", "case_pass_rate_run_std"} <= names
    assert not any(name.endswith(("/run_std", "_variance", "_ci_low")) for name in names)
    huge = dict(metrics_of(repeated({"a": [1e200, -1e200], "b": [0.0, 0.0]})))
    assert "response_match_score/within_case_variance" not in huge


def test_no_cases_have_no_repeats() -> None:
    empty = replace(repeated({}), num_runs=2)
    assert not empty.repeats.run_pass_rates
    assert {name for name, _ in metrics_of(empty)} == {"cases"}
