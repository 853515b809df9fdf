"""Comparing runs that are in MLflow: the same as comparing their reports, but only on evidence that can be believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mlflow_adk_eval import Report, TrackingError, UsageError, evaluate, gate
from mlflow_adk_eval.analysis.comparison.compare import Comparison
from mlflow_adk_eval.evalset.models import FunctionResponse, IntermediateData, Invocation
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.testing import Request, ScriptedJudge
from mlflow_adk_eval.tracking.client import experiment_id
from mlflow_adk_eval.tracking.compare import compare, log_comparison, readable_run, run_of_examined
from tests.cli.test_cli import invoke as run_cli
from tests.gating.gate_kit import changed, evidence_of, report_of, with_artifact, with_table
from tests.mlflow_kit import opened
from tests.tracking.small import answering, rooms, turn

QUALITY, GROUNDED = "rubric_based_final_response_quality_v1", "hallucinations_v1"
JUDGE = {"judge_model": "gemini-2.5-flash", "num_samples": 3}
CONFIG = {
    "criteria": {
        "tool_trajectory_avg_score": 1.0,
        "response_match_score": 0.5,
        GROUNDED: {"threshold": 0.5, "judge_model_options": JUDGE},
        QUALITY: {
            "threshold": 1.0,
            "judge_model_options": JUDGE,
            "rubrics": [{"rubric_id": "polite", "rubric_content": {"text_property": "The answer is polite."}}],
        },
    }
}
EXPERIMENT = "comparisons"


def verdicts(request: Request) -> dict[str, str]:
    """Call rude what is short, and unsupported what is about Mars."""
    if request.name == QUALITY:
        return dict.fromkeys((key for key in request.blocks if key.startswith("item")), "no" if "Whatever" in request.text else "yes")
    return {key: "unsupported" if "Mars" in text else "supported" for key, text in request.blocks.items() if key.startswith("item")}


def returning(agent: Any) -> Any:
    """Return an agent whose tools, unlike those of an expectation, return something, which hallucinations are judged by."""

    def whole(text: str, session: Any) -> Invocation:
        done = Invocation.model_validate(agent(text, session))
        came = tuple(FunctionResponse(id=call.id, name=call.name, response={"done": True}) for call in done.tool_calls)
        return done.model_copy(update={"intermediate_data": IntermediateData(tool_uses=done.tool_calls, tool_responses=came)})

    return whole


@pytest.fixture(scope="module")
def runs(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Report, Report]:
    """A store with a run of a good agent and one of a bad one."""
    store = opened(template, tmp_path_factory.mktemp("store"), EXPERIMENT)

    def run(name: str, **answers: Any) -> Report:
        agent = returning(answering(rooms(), **answers))
        judge = ScriptedJudge(verdicts, rationale="It is | *so*.")
        return evaluate(rooms(), agent=agent, config=CONFIG, judge=judge, experiment=EXPERIMENT, tracking_uri=store, run_name=name)

    bad = {
        "light": turn("light on", "Whatever.", ("switch", {"room": "all"})),
        "heat": turn("21 degrees please", "It is 21 degrees. It is cold on Mars."),
    }
    return store, run("good"), run("bad", **bad)


def told(found: Comparison) -> Any:
    """Return what a comparison comes to, without what only a run in MLflow knows."""
    said = found.to_json(every=True)
    return {name: said[name] for name in ("cases", "deltas", "judging", "changes")}


def test_runs_compare_as_their_reports_do(runs: tuple[str, Report, Report]) -> None:
    store, good, bad = runs
    by_id = compare(good.run_id or "", bad.run_id or "", tracking_uri=store)
    assert told(by_id) == told(compare(good, bad))
    assert told(by_id) == told(compare(good, bad.run_id or "", tracking_uri=store))
    assert {case.eval_id: case.flip for case in by_id.cases} == {"light": "worse", "heat": "worse", "both": "none"}
    sentences = [cause.sentence for case in by_id.flipped for _, cause in case.all_causes()]
    assert "switch is called with $.room = 'all', was 'hall' (expected 'hall')" in sentences
    assert "rubric polite (The answer is polite.): judged no (no 2), was yes (yes 2): It is | *so*." in sentences
    assert 'heat({"to": 21}) is no longer called (the reference calls it)' in sentences


def test_what_runs_differ_in_is_read_from_parameters(runs: tuple[str, Report, Report]) -> None:
    store, good, bad = runs
    found = compare(good.run_id or "", bad.run_id or "", tracking_uri=store)
    assert (found.before.name, found.after.name) == ("good", "bad")
    assert {one.about for one in found.differences if not one.intended} == set()
    assert found.before.facts["Judges"] == "scripted"
    assert found.before.facts["Version of mlflow"]
    assert found.before.warnings == found.after.warnings == ()


def invoke(*arguments: object) -> Result:
    return run_cli("compare", *arguments)


def test_the_command_explains_and_exits_with_0(runs: tuple[str, Report, Report]) -> None:
    store, good, bad = runs
    result = invoke(good.run_id, bad.run_id, "--tracking-uri", store)
    assert result.exit_code == 0
    assert "Of 3 cases in both runs, 2 now fail" in result.stdout
    assert "switch is called with $.room = 'all', was 'hall' (expected 'hall')" in result.stdout
    again = invoke(bad.run_id, good.run_id, "--tracking-uri", store)
    assert again.exit_code == 0
    assert "Of 3 cases in both runs, 2 now pass" in again.stdout


def test_the_command_says_it_as_json(runs: tuple[str, Report, Report]) -> None:
    store, good, bad = runs
    flipped, every = (
        json.loads(invoke(good.run_id, bad.run_id, "--tracking-uri", store, "--json", *more).stdout) for more in ([], ["--all"])
    )
    assert [case["eval_id"] for case in flipped["changes"]] == ["light", "heat"]
    assert [case["eval_id"] for case in every["changes"]] == ["light", "heat", "both"]
    assert flipped["cases"] == {
        "compared": 3, "worse": 2, "better": 0, "undecided": 0, "flaky": 0, "shifted": 0,
        "only_before": [], "only_after": [], "altered": [],
    }  # fmt: skip
    assert flipped["before"]["run_id"] == good.run_id


def test_the_page_is_saved_and_not_overwritten(runs: tuple[str, Report, Report], tmp_path: Path) -> None:
    store, good, bad = runs
    file = tmp_path / "compare.html"
    assert invoke(good.run_id, bad.run_id, "-o", file, "--tracking-uri", store).exit_code == 0
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    refused = invoke(good.run_id, bad.run_id, "-o", file, "--tracking-uri", store)
    assert refused.exit_code == 64
    assert "already exists; --force overwrites it" in refused.stderr
    assert "cannot be written" in invoke(good.run_id, bad.run_id, "-o", tmp_path, "--force", "--tracking-uri", store).stderr
    assert invoke(good.run_id, bad.run_id, "-o", file, "--force", "--confidence", 0.9, "--tracking-uri", store).exit_code == 0
    assert "interval, each end 90%" in file.read_text(encoding="utf-8")


def test_a_logged_page_lies_beside_the_evidence_which_stays_valid(runs: tuple[str, Report, Report]) -> None:
    from mlflow import MlflowClient

    store, good, bad = runs
    before = gate(good.run_id or "", tracking_uri=store)
    result = invoke(bad.run_id, good.run_id, "--log", "--tracking-uri", store)
    path = f"adk_eval_compare/{bad.run_id}.html"
    where = f"http://127.0.0.1:5000/#/experiments/{experiment_id(store, EXPERIMENT)}/runs/{good.run_id}/artifacts/{path}"
    told = [f"logged: {where}", f"  served by: mlflow ui --backend-store-uri {store}"]
    *_, where, served, following = result.stdout.splitlines()
    assert (result.exit_code, [where, served]) == (0, told)
    assert following == f"next: mlflow-adk-eval gate {good.run_id} --tracking-uri {store}"
    page = Path(MlflowClient(store).download_artifacts(good.run_id, path))
    assert "2 now pass" in page.read_text(encoding="utf-8")
    assert gate(good.run_id or "", tracking_uri=store).evidence_sha256 == before.evidence_sha256


def test_a_report_that_was_not_logged_cannot_take_the_page(runs: tuple[str, Report, Report]) -> None:
    from mlflow_adk_eval.tracking.compare import compare

    _, good, bad = runs
    with pytest.raises(UsageError, match="only a comparison of two runs in MLflow can be logged"):
        log_comparison(compare(replace(good, run_id=None), bad), "")


@pytest.mark.parametrize(("run", "said"), [("0" * 32, "does not exist"), ("", "the run id is empty")])
def test_a_run_that_does_not_exist_is_bad_usage(runs: tuple[str, Report, Report], run: str, said: str) -> None:
    store, good, _ = runs
    refused = invoke(run, good.run_id, "--tracking-uri", store)
    assert refused.exit_code == 64
    assert said in refused.stderr


def test_a_run_without_an_evaluation_is_bad_usage(runs: tuple[str, Report, Report]) -> None:
    from mlflow import MlflowClient

    store, good, _ = runs
    empty = MlflowClient(store).create_run(experiment_id(store, EXPERIMENT)).info.run_id
    refused = invoke(good.run_id, empty, "--tracking-uri", store)
    assert refused.exit_code == 64
    assert "contains no finished evaluation" in refused.stderr


@pytest.mark.slow
def test_a_server_that_is_away_is_no_verdict(runs: tuple[str, Report, Report]) -> None:
    _, good, bad = runs
    refused = invoke(good.run_id, bad.run_id, "--tracking-uri", "http://127.0.0.1:9")
    assert refused.exit_code == 3


def spoilt(kind: str) -> Evidence:
    evidence = evidence_of(report_of(wrong=["film"]))
    match kind:
        case "table edited":
            return replace(evidence, artifacts={**evidence.artifacts, "cells/part-00000.parquet": b"{}"})
        case "manifest gone":
            return replace(evidence, manifest=None)
        case "score out of range":
            return with_table(evidence, lambda rows: rows[0].update({"response_match_score/score": 7.0}))
        case "turn missing":
            return with_table(evidence, lambda rows: rows[1:])
        case _:
            return with_artifact(evidence, "config.json", b"{}")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("table edited", "the artifact adk_eval/cells/part-00000.parquet was changed after the run"),
        ("manifest gone", "the run has no adk_eval/manifest.json"),
        ("score out of range", "outside its range from 0 to 1"),
        ("turn missing", "is not in adk_eval/cells/part-00000.parquet"),
        ("config spoilt", "adk_eval/config.json cannot be read"),
    ],
)
def test_evidence_that_cannot_be_believed_is_not_compared(kind: str, said: str) -> None:
    with pytest.raises(TrackingError, match=r"^run r-1 cannot be compared: ") as refused:
        readable_run(spoilt(kind))
    assert said in str(refused.value)


def test_the_state_of_a_run_and_its_metrics_are_warned_of() -> None:
    evidence = changed(evidence_of(report_of()), "params", {"threshold.response_match_score": "0.1"})
    partial = changed(changed(evidence, "tags", {"adk_eval.status": "partial"}), "metrics", {"cases": 7.0})
    assert run_of_examined(readable_run(partial)).warnings == (
        "the run contains only part of the evaluation (adk_eval.status is partial)",
        "the run's parameter threshold.response_match_score is 0.1, but its config demands 0.5",
        "the logged metric cases is 7, but the table gives 3",
    )
