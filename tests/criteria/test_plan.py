from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.config.eval_config import default_config, parse_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.results.outcomes import Errored
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing import ScriptedJudge
from tests.kit import RESPONSE, TRAJECTORY, case, cases, config, scenario, turn

STATE = "final_session_state"
HINT = "only_where_expected: true leaves them out"


def names(found: Any) -> list[str]:
    return [planned.name for planned in found]


def problems(value: dict[str, Any], *eval_cases: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(parse_config(value, "config"), cases(*eval_cases))
    return [str(problem) for problem in caught.value.problems]


def test_criteria_follow_the_config_and_efficiency_is_measured_besides() -> None:
    planned = plan(config(**{RESPONSE: 0.5, TRAJECTORY: 1.0}), cases(case("a", turn()))).of("a")
    assert names(planned) == [RESPONSE, TRAJECTORY, *CRITERIA.informative]
    assert [found.threshold for found in planned] == [0.5, 1.0, None, None, None, None]
    assert [found.greater_is_better for found in planned] == [True, True, False, False, False, False]


def test_an_efficiency_metric_with_a_threshold_decides_where_the_config_names_it() -> None:
    planned = plan(config(token_usage_v1=4000, **{TRAJECTORY: 1.0}), cases(case("a", turn()))).of("a")
    assert names(planned) == ["token_usage_v1", TRAJECTORY, *(name for name in CRITERIA.informative if name != "token_usage_v1")]
    assert (planned[0].threshold, planned[0].greater_is_better) == (4000, False)


def test_cases_may_have_criteria_of_their_own() -> None:
    found = plan(
        parse_config({"criteria": {TRAJECTORY: 1.0}, "case_criteria": {"b": {RESPONSE: 0.5}}}, "config"),
        cases(case("a", turn()), case("b", turn())),
    )
    assert names(found.of("a"))[0] == TRAJECTORY
    assert names(found.of("b"))[0] == RESPONSE


def test_a_case_that_expects_no_state_may_be_left_out_of_the_plan() -> None:
    eval_set = cases(
        case("with", turn(), final_session_state={"a": 1}), case("without", turn()), case("empty", turn(), final_session_state={})
    )
    settings = config(TRAJECTORY, **{STATE: {"threshold": 1.0, "only_where_expected": True}})
    found = plan(settings, eval_set)
    assert [STATE in names(found.of(eval_id)) for eval_id in eval_set.eval_ids] == [True, False, False]
    everywhere = plan(config(TRAJECTORY, STATE), eval_set)
    assert all(STATE in names(everywhere.of(eval_id)) for eval_id in eval_set.eval_ids)


def test_the_plan_is_the_same_for_all_cases_that_share_criteria() -> None:
    found = plan(default_config(), cases(case("a", turn()), case("b", turn())))
    assert found.of("a") is found.of("b") is found.default


def test_a_judge_that_cannot_be_had_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(JudgeError, match="GOOGLE_API_KEY"):
        plan(config("final_response_match_v2"), cases(case("a", turn())))


def test_a_simulated_users_quality_needs_a_scenario() -> None:
    (problem,) = problems({"criteria": {"per_turn_user_simulator_quality_v1": 1.0}}, case("a", turn()), scenario("s"))
    assert problem.endswith(f"wanted a criterion without that need, because these cases are written conversations: a. {HINT}")


def test_rubric_criteria_need_rubrics_for_every_case() -> None:
    name = "rubric_based_tool_use_quality_v1"
    rubric = {"rubric_id": "r", "rubric_content": {"text_property": "polite"}, "type": "TOOL_USE_QUALITY"}
    with_rubric, without = case("a", turn(), rubrics=[rubric]), case("b", turn())
    (problem,) = problems({"criteria": {name: 0.5}}, with_rubric, without)
    assert problem.startswith(f"$.criteria.{name}: found ")
    assert "in these cases: b" in problem
    plan(config(**{name: 0.5}), cases(with_rubric), JudgeSession(JudgeSetup(judge=len)))


def test_clashing_rubrics_of_a_case_are_that_cases_error_and_nobody_elses() -> None:
    name = "rubric_based_final_response_quality_v1"
    kind, rude = (
        {"rubric_id": "r", "rubric_content": {"text_property": text}, "type": "FINAL_RESPONSE_QUALITY"} for text in ("kind", "rude")
    )
    good, clash = case("a", turn("hi"), rubrics=[kind]), case("b", turn("hi", rubrics=[rude]), rubrics=[kind])
    report = score(cases(good, clash), {"a": ["hi"], "b": ["hi"]}, {"criteria": {name: 0.5}}, judge=ScriptedJudge("yes"), ledger="off")
    first, second = report.cases
    assert (first.verdict, second.verdict, report.verdict) == ("passed", "undecided", "undecided")
    assert isinstance(second.results[0].overall, Errored)
    assert "the rubric id 'r' is used for two different rubrics" in second.results[0].overall.error


def test_a_criterion_that_needs_a_reference_is_refused_for_scenarios() -> None:
    listed = [scenario(f"s{index}") for index in range(7)]
    wanted = f"a criterion without that need, because these cases are scenarios: s0, s1, s2, s3, s4 and 2 more. {HINT}"
    assert problems({"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5, "tool_call_count_v1": 3}}, case("a", turn()), *listed) == [
        f"$.criteria.{name}: found a criterion that needs a reference conversation; wanted {wanted}" for name in (TRAJECTORY, RESPONSE)
    ]


def test_each_obstacle_is_named_once_and_at_its_place() -> None:
    value = {"criteria": {"tool_call_count_v1": 3}, "case_criteria": {"s": {TRAJECTORY: 1.0}, "gone": {"safety_v1": 1.0}}}
    assert [problem.partition(": found")[0] for problem in problems(value, case("a", turn()), scenario("s"))] == [
        f"$.case_criteria['s'].{TRAJECTORY}",
        "$.case_criteria['gone']",
    ]


def test_scenarios_can_be_measured_without_a_reference() -> None:
    assert names(plan(config(tool_call_count_v1=3), cases(scenario("s"))).of("s"))[0] == "tool_call_count_v1"
