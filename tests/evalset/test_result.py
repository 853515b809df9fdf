from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.errors import EvalSetError
from mlflow_adk_eval.evalset.conversation import FAILED, PASSED, EvalCaseResult, EvalSetResult, dumps_result, parse_result
from tests.strategies import CARRIED, QUICK, USER_DATA, invocations, respelt

TURN = {"user_content": {"role": "user", "parts": [{"text": "hi", "thought": None, "video_metadata": None}]}, "final_response": None}
METRIC = {
    "metric_name": "response_match_score",
    "threshold": 0.8,
    "criterion": {"threshold": 0.8, "includeIntermediateResponsesInFinal": False},
    "custom_function_path": None,
    "score": 0.25,
    "eval_status": FAILED,
    "details": {"rubric_scores": None, "token_usage_details": None, "duration_details": None},
}


def result_of(*turns: Any, metric: Any = METRIC) -> dict[str, Any]:
    per_invocation = [{"actual_invocation": turn, "expected_invocation": turn, "eval_metric_results": [metric]} for turn in turns]
    case = {
        "eval_set_file": "s",
        "eval_set_id": "s",
        "eval_id": "c",
        "final_eval_status": FAILED,
        "eval_metric_results": None,
        "overall_eval_metric_results": [metric],
        "eval_metric_result_per_invocation": per_invocation,
        "session_id": "adk-eval-session-1",
        "session_details": {"id": "1", "app_name": "a", "user_id": "u", "state": {"room": None}, "events": [], "last_update_time": 1.5},
        "user_id": "u",
    }
    return {
        "eval_set_result_id": "app_s_1.5",
        "eval_set_result_name": "app_s_1.5",
        "eval_set_id": "s",
        "eval_case_results": [case],
        "creation_timestamp": 1.5,
    }


def parse(value: Any) -> EvalSetResult:
    return parse_result(json.dumps(value).encode(), "r.json")


def test_a_result_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "app_s_1.5.evalset_result.json"
    file.write_text(json.dumps(result_of(TURN, TURN)), encoding="utf-8")
    (case,) = parse_result(file.read_bytes(), str(file)).eval_case_results
    assert (case.eval_id, case.final_eval_status, case.session_id) == ("c", FAILED, "adk-eval-session-1")
    assert [turn.user_text for turn in case.actual] == ["hi", "hi"]
    (metric,) = case.overall_eval_metric_results
    assert (metric.metric_name, metric.threshold, metric.score, metric.eval_status) == ("response_match_score", 0.8, 0.25, 2)


@QUICK
@given(st.lists(invocations(), max_size=2), st.integers(0, 2**32))
def test_both_spellings_and_the_double_encoding_of_old_versions_read_the_same(turns: Any, seed: int) -> None:
    value = result_of(*turns)
    expected = parse(value)
    keep = USER_DATA | CARRIED | {"criterion", "details", "session_details"}
    assert parse(respelt(value, seed, keep=keep)) == expected
    assert parse(json.dumps(value)) == expected


@QUICK
@given(st.lists(invocations(allow_nan=True), max_size=2))
def test_what_adk_wrote_is_written_back_with_nulls_and_without_nan(turns: Any) -> None:
    value = result_of(TURN, *turns)
    assert json.loads(dumps_result(parse(value)), parse_constant=_refuse) == _finite(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _refuse(constant: str) -> None:
    pytest.fail(f"{constant} is not JSON")


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_becomes_null(score: float) -> None:
    """ADK writes null too, so that NaN cannot be told from "not evaluated"; what matters is that the file stays JSON."""
    metric = METRIC | {"score": score}
    (case,) = json.loads(dumps_result(parse(result_of(metric=metric))), parse_constant=_refuse)["eval_case_results"]
    assert case["overall_eval_metric_results"][0]["score"] is None


def test_a_result_made_by_hand_has_all_that_adk_requires() -> None:
    result = EvalSetResult(eval_set_result_id="r", eval_set_id="s", eval_case_results=(EvalCaseResult(final_eval_status=PASSED),))
    (case,) = json.loads(dumps_result(result))["eval_case_results"]
    assert case == {"final_eval_status": 1, "overall_eval_metric_results": [], "eval_metric_result_per_invocation": [], "session_id": ""}


@pytest.mark.parametrize(
    ("change", "path", "wanted"),
    [
        ({"final_eval_status": "PASSED"}, "$.eval_case_results[0].final_eval_status", "a whole number"),
        ({"final_eval_status": 0}, "$.eval_case_results[0].final_eval_status", "a number of at least 1"),
        ({"final_eval_status": 5}, "$.eval_case_results[0].final_eval_status", "a number of at most 4"),
        ({"session_details": "x"}, "$.eval_case_results[0].session_details", "an object"),
    ],
)
def test_what_is_wrong_is_named(change: Any, path: str, wanted: str) -> None:
    value = result_of(TURN)
    value["eval_case_results"][0] |= change
    with pytest.raises(EvalSetError) as caught:
        parse(value)
    assert [(problem.path, problem.wanted) for problem in caught.value.problems] == [(path, wanted)]


def test_unknown_fields_are_kept() -> None:
    value = result_of(TURN) | {"theirs": {"x": [1]}}
    assert json.loads(dumps_result(parse(value)))["theirs"] == {"x": [1]}
