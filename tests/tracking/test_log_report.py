"""Logging a finished report: as a run of its own, and into a run that somebody else has opened."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import TrackingError, UsageError
from tests.kit import turn_json
from tests.mlflow_kit import copied
from tests.tracking import judged
from tests.tracking.small import CONFIG, expected_of, many, rooms

CRITERIA_TAG = "mlflow.genaiEvaluate.qualityCriteria"


@pytest.fixture(scope="module")
def uri(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as patched, contextlib.chdir(folder):
        found = copied(template, folder)
        patched.setenv("MLFLOW_TRACKING_URI", found)
        yield found


def scored(**answers: Any) -> Any:
    from mlflow_adk_eval import score

    return score(rooms(), expected_of(rooms()) | answers, CONFIG)


def logged(report: Any, **options: Any) -> Any:
    from mlflow_adk_eval.tracking.evaluate import log_report

    return log_report(report, **{"agent_name": "lights", "experiment": "reports"} | options)


def of(run_id: str | None) -> Any:
    from mlflow import MlflowClient

    return MlflowClient().get_run(run_id)


def without(names: dict[str, Any], *parts: str) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not any(part in name for part in parts)}


def test_a_logged_report_is_a_run_as_evaluate_makes_it_and_the_gate_accepts_it(uri: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import evaluate, gate

    ours = of(logged(scored()).run_id)
    theirs = of(evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="evaluated").run_id)
    assert ours.data.metrics == theirs.data.metrics
    of_the_agent = ("model_id", "manifest", "agent.source")
    assert without(ours.data.params, *of_the_agent) == without(theirs.data.params, *of_the_agent)
    assert ours.data.tags.keys() == theirs.data.tags.keys()
    assert (ours.data.tags["adk_eval.status"], ours.data.tags["adk_eval.agent_version"]) == ("complete", "lights")
    client = MlflowClient()
    files = [[artifact.path for artifact in client.list_artifacts(run.info.run_id, "adk_eval")] for run in (ours, theirs)]
    assert files[0] == files[1] != []
    assert len(client.search_traces(locations=[ours.info.experiment_id], run_id=ours.info.run_id, include_spans=False)) == 5
    assert gate(ours.info.run_id).verdict == "passed"


def test_a_report_that_failed_is_refused_by_the_gate(uri: str) -> None:
    from mlflow_adk_eval import gate

    report = logged(scored(heat=expected_of(many(1))["case_0000"]), run_name="nightly")
    assert of(report.run_id).info.run_name == "nightly"
    decision = gate(report.run_id, raise_on_failure=False)
    assert (decision.verdict, len(decision.reasons)) == ("failed", 2)


def test_the_users_run_is_the_parent_as_with_evaluate(uri: str) -> None:
    import mlflow

    with mlflow.start_run(experiment_id=mlflow.create_experiment("parents")) as parent:
        report = logged(scored(), experiment=None)
    run = of(report.run_id)
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert run.info.experiment_id == parent.info.experiment_id
    assert "adk_eval.status" not in of(parent.info.run_id).data.tags


def test_an_open_run_keeps_its_name_its_note_its_tables_and_stays_open(uri: str) -> None:
    import mlflow
    import pandas as pd

    from mlflow_adk_eval import gate

    tags = {"mlflow.note.content": "my note", "mlflow.source.name": "train.py", "team": "lights", CRITERIA_TAG: "mine"}
    with mlflow.start_run(experiment_id=mlflow.create_experiment("open"), run_name="mine", tags=tags) as mine:
        mlflow.log_param("adk_eval.num_runs", "1")
        mlflow.log_table(pd.DataFrame({"a": [1]}), "mine.json")
        report = logged(scored(), run_id=mine.info.run_id)
        assert report.run_id == mine.info.run_id
        run = of(mine.info.run_id)
        assert run.info.status == "RUNNING"
        assert "still running" in gate(mine.info.run_id, raise_on_failure=False).reasons[0]
    said = run.data.tags
    assert (run.info.run_name, said["mlflow.source.name"], said["team"]) == ("mine", "train.py", "lights")
    assert said[CRITERIA_TAG] == "mine"
    assert said["mlflow.note.content"].startswith("my note\n\n**3 of 3 cases passed**")
    assert [table["path"] for table in json.loads(said["mlflow.loggedArtifacts"])] == ["mine.json", "adk_eval/invocations.json"]
    assert (said["mlflow.runType"], said["adk_eval.status"], said["adk_eval.verdict"]) == ("genai_evaluate", "complete", "passed")
    assert "mlflow.parentRunId" not in said
    assert gate(mine.info.run_id).verdict == "passed"


def test_a_run_takes_one_evaluation(uri: str) -> None:
    import mlflow

    with mlflow.start_run(experiment_id=mlflow.create_experiment("one")) as mine:
        logged(scored(), run_id=mine.info.run_id)
        with pytest.raises(UsageError, match="already contains an evaluation"):
            logged(scored(), run_id=mine.info.run_id)
    assert of(mine.info.run_id).data.tags["adk_eval.status"] == "complete"


def test_a_run_that_has_ended_takes_none(uri: str) -> None:
    import mlflow

    with mlflow.start_run(experiment_id=mlflow.create_experiment("ended")) as mine:
        pass
    with pytest.raises(UsageError, match="is not open: its status is FINISHED"):
        logged(scored(), run_id=mine.info.run_id)


def test_a_param_that_says_something_else_fails_the_evaluation_but_does_not_end_the_run(uri: str) -> None:
    import mlflow

    with mlflow.start_run(experiment_id=mlflow.create_experiment("other")) as mine:
        mlflow.log_param("threshold.response_match_score", "0.1")
        with pytest.raises(TrackingError, match=r"threshold\.response_match_score"):
            logged(scored(), run_id=mine.info.run_id)
        run = of(mine.info.run_id)
        assert (run.info.status, run.data.tags["adk_eval.status"]) == ("RUNNING", "failed")


def test_what_mlflow_cannot_take_is_kept_and_finished_later(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    from mlflow_adk_eval import gate, upload

    def away(*args: Any, **kwargs: Any) -> None:
        raise MlflowException("the disk is full")

    experiment = mlflow.create_experiment("kept")
    report = scored()
    mine = mlflow.start_run(experiment_id=experiment, tags={"mlflow.note.content": "my note"})
    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "log_artifacts", away)
        with pytest.raises(TrackingError, match="upload"):
            logged(report, run_id=mine.info.run_id, pending_folder=tmp_path)
    mlflow.end_run("FAILED")
    assert of(mine.info.run_id).info.status == "FAILED"
    for _ in range(2):
        assert upload(tmp_path / mine.info.run_id) == mine.info.run_id
    run = of(mine.info.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.note.content"].startswith("my note\n\n**3 of 3 cases passed**")
    assert run.data.tags["mlflow.note.content"].count("**passed**") == 1
    assert gate(mine.info.run_id).verdict == "passed"


def test_the_prompts_of_the_judges_are_registered_where_that_is_wanted(uri: str) -> None:
    from mlflow import MlflowClient

    from mlflow_adk_eval import score
    from mlflow_adk_eval.testing import ScriptedJudge

    config = {"criteria": {judged.MATCH: {"threshold": 0.8, "judge_model_options": {"num_samples": 1}}}}
    report = score(judged.rooms(), expected_of(judged.rooms()), config, judge=ScriptedJudge("valid"), ledger=False)
    run = of(logged(report, register_prompts=True).run_id)
    named = run.data.params[f"adk_eval.prompt_uri.{judged.MATCH}"]
    assert named.startswith("prompts:/")
    prompt = MlflowClient().load_prompt(named)
    assert prompt.tags["adk_eval.sha256"] == run.data.params[f"adk_eval.prompt.{judged.MATCH}"].split()[-1]
    assert run.data.tags["adk_eval.status"] == "complete"
    assert not any("prompt_uri" in name for name in of(logged(report).run_id).data.params)


def test_evaluate_registers_them_too(uri: str) -> None:
    from mlflow_adk_eval import evaluate
    from mlflow_adk_eval.testing import ScriptedJudge

    config = {"criteria": {judged.MATCH: {"threshold": 0.8, "judge_model_options": {"num_samples": 1}}}}
    told: dict[str, Any] = {"judge": ScriptedJudge("valid"), "ledger": False, "register_prompts": True, "experiment": "prompts"}
    report = evaluate(judged.rooms(), expected_of(judged.rooms()), config, **told)
    assert of(report.run_id).data.params[f"adk_eval.prompt_uri.{judged.MATCH}"].startswith("prompts:/")


def test_prompts_that_cannot_be_registered_do_not_cost_the_evaluation(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    report = logged(judged.report(lost=False), register_prompts=True)  # the hashes of this report are made up
    run = of(report.run_id)
    assert any("neither in MLflow's registry" in note for note in report.notes)
    assert "neither in MLflow's registry" in caplog.text
    assert (run.data.tags["adk_eval.status"], run.data.tags["adk_eval.verdict"]) == ("complete", "passed")


def criteria_of_mlflow(tag: str, metrics: dict[str, float]) -> dict[str, bool]:
    """Return whether each rule of a tag holds, read as MLflow 3.18 writes it: ``mlflow.genai.evaluation.quality_criteria`` has the same fields and words."""
    said = json.loads(tag)
    assert (said.keys(), said["schemaVersion"]) == ({"schemaVersion", "revision", "rules"}, 1)
    assert all(rule.keys() == {"metricKey", "comparator", "threshold"} for rule in said["rules"])
    compare = {"GTE": lambda value, bound: value >= bound, "LTE": lambda value, bound: value <= bound}
    return {rule["metricKey"]: compare[rule["comparator"]](metrics[rule["metricKey"]], rule["threshold"]) for rule in said["rules"]}


@pytest.mark.parametrize(("answers", "verdict"), [({}, "passed"), ({"heat": [turn_json("21 degrees please", "No.")]}, "failed")])
def test_the_thresholds_are_the_quality_criteria_of_mlflow_and_agree_with_the_verdict(
    uri: str, answers: dict[str, Any], verdict: str
) -> None:
    report = scored(**answers) if answers else scored()
    run = of(logged(report).run_id)
    held = criteria_of_mlflow(run.data.tags[CRITERIA_TAG], run.data.metrics)
    assert run.data.tags["adk_eval.verdict"] == verdict
    assert all(held.values()) == (verdict == "passed")
    assert held.keys() >= {f"{name}/pass_rate" for name in report.config.thresholds()}


def test_quality_criteria_name_a_mean_only_where_all_cases_have_one_threshold() -> None:
    from mlflow_adk_eval.config.eval_config import parse_config
    from mlflow_adk_eval.tracking.bundle import QUALITY_CRITERIA, quality_criteria

    criteria = {"response_match_score": 0.8, "tool_call_count_v1": 4}
    config = parse_config({"criteria": criteria, "case_criteria": {"a": {"response_match_score": 0.5}}}, "config")
    rules = json.loads(quality_criteria(config)[QUALITY_CRITERIA])["rules"]
    assert rules == [
        {"metricKey": "response_match_score/pass_rate", "comparator": "GTE", "threshold": 1.0},
        {"metricKey": "tool_call_count_v1/mean", "comparator": "LTE", "threshold": 4.0},
        {"metricKey": "tool_call_count_v1/pass_rate", "comparator": "GTE", "threshold": 1.0},
    ]


def test_quality_criteria_are_written_as_mlflow_writes_them() -> None:
    theirs = pytest.importorskip("mlflow.genai.evaluation.quality_criteria", reason="MLflow has no quality criteria before 3.18")
    from mlflow.utils import mlflow_tags

    from mlflow_adk_eval.config.eval_config import parse_config
    from mlflow_adk_eval.tracking.bundle import QUALITY_CRITERIA, quality_criteria

    config = parse_config({"criteria": {"response_match_score": 0.8, "tool_call_count_v1": 4}}, "config")
    ours = json.loads(quality_criteria(config)[QUALITY_CRITERIA])
    rules = [
        theirs.QualityCriteriaRule(name, aggregation, comparator, bound)
        for name, aggregation, comparator, bound in (
            ("response_match_score", "mean", ">=", 0.8),
            ("response_match_score", "pass_rate", ">=", 1.0),
            ("tool_call_count_v1", "mean", "<=", 4.0),
            ("tool_call_count_v1", "pass_rate", ">=", 1.0),
        )
    ]
    written = json.loads(theirs.build_quality_criteria_tag(rules))
    assert mlflow_tags.MLFLOW_GENAI_EVALUATE_QUALITY_CRITERIA == QUALITY_CRITERIA
    assert {**written, "revision": ours["revision"]} == ours
