"""A report in ADK's own result format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval import score
from mlflow_adk_eval.agents.recordings import load_recording
from mlflow_adk_eval.evalset.conversation import dumps_result
from mlflow_adk_eval.report.adk_result import result_of
from tests.tracking.small import CONFIG, eval_set, expected_of, rooms, turn


def mixed() -> dict[str, list[Any]]:
    recorded = expected_of(rooms())
    return {"light": recorded["light"], "heat": [turn("21 degrees please", "no")], "both": recorded["both"][:1]}


@pytest.mark.needs("google-adk", "2.10")
def test_adk_reads_it() -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    text = dumps_result(result_of(score(rooms(), mixed(), CONFIG), app_name="home/automation", created=1.5))
    result = EvalSetResult.model_validate_json(text)
    assert (result.eval_set_result_id, result.eval_set_result_name) == ("home/automation_rooms_1.5", "home_automation_rooms_1.5")
    passed, failed, undecided = result.eval_case_results
    assert [case.final_eval_status.value for case in result.eval_case_results] == [1, 2, 3]
    assert [found.metric_name for found in passed.overall_eval_metric_results][:2] == list(CONFIG["criteria"])
    assert failed.overall_eval_metric_results[0].score == 0.0
    assert undecided.overall_eval_metric_results[0].score is None
    assert passed.eval_metric_result_per_invocation[0].expected_invocation.final_response.parts[0].text == "the light is on"
    assert passed.overall_eval_metric_results[0].criterion.threshold == 1.0


def test_it_is_a_recording_of_the_same_conversations(tmp_path: Path) -> None:
    report = score(rooms(), mixed(), CONFIG)
    (tmp_path / "result.json").write_text(dumps_result(result_of(report)))
    assert score(rooms(), tmp_path / "result.json", CONFIG).scores == report.scores
    assert load_recording(tmp_path / "result.json").runs["light"][0].actual == report.cases[0].actual


def test_statuses_are_numbers_and_information_is_neither_passed_nor_failed() -> None:
    case = json.loads(dumps_result(result_of(score(rooms(), mixed(), CONFIG))))["eval_case_results"][0]
    found = {result["metric_name"]: result["eval_status"] for result in case["overall_eval_metric_results"]}
    assert found == {
        "tool_trajectory_avg_score": 1,
        "response_match_score": 1,
        "tool_call_count_v1": 4,
        "inference_call_count_v1": 3,
        "token_usage_v1": 3,
        "invocation_duration_v1": 3,
    }


@pytest.mark.needs("google-adk", "2.13")
def test_details_stand_where_adk_has_a_place_for_them() -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    events = [{"author": "a", "usage_metadata": {"prompt_token_count": 7, "candidates_token_count": 5}}]
    said = turn("hi", "hi") | {"intermediate_data": {"invocation_events": events}, "duration": 2.0}
    cases = eval_set({"one": [turn("hi", "hi")]})
    result = EvalSetResult.model_validate_json(dumps_result(result_of(score(cases, {"one": [said]}, CONFIG))))
    (turn_result,) = result.eval_case_results[0].eval_metric_result_per_invocation
    found = {metric.metric_name: metric.details for metric in turn_result.eval_metric_results}
    assert found["token_usage_v1"].token_usage_details.prompt_tokens == 7
    assert found["invocation_duration_v1"].duration_details.total_seconds == 2.0


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.parametrize("state", [None, {"room": "hall"}])
def test_the_sessions_state_is_kept(state: dict[str, str] | None) -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    actual = eval_set({"light": [turn("light on", "ok")]})
    if state:
        case = actual.eval_cases[0].model_copy(update={"final_session_state": state})
        actual = actual.model_copy(update={"eval_cases": (case,)})
    cases = eval_set({"light": [turn("light on", "ok")]})
    result = EvalSetResult.model_validate_json(dumps_result(result_of(score(cases, actual, CONFIG))))
    session = result.eval_case_results[0].session_details
    assert (session.state if session else None) == state
