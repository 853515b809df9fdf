"""Attack 24: a policy whose bounds every run meets, or none can: a slip of a digit, or a change that a reviewer overlooks."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.errors import PolicyError
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import Policy, Rule
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import CONVERSATIONS, RESPONSE, TRAJECTORY, Lab, decide_on, evidence_of, report_of

CASES = list(CONVERSATIONS)
BASELINE = {"baseline": {"alias": "champion"}}
IDLE: dict[str, tuple[dict[str, Any], str]] = {
    "below the lowest score": ({TRAJECTORY: {"min": -5}}, "$.rules.tool_trajectory_avg_score.min: found -5; wanted a number above 0, up to 1"),
    "the lowest score": ({TRAJECTORY: {"min": 0}}, "$.rules.tool_trajectory_avg_score.min: found 0"),
    "in percent, as a maximum": ({RESPONSE: {"max": 80}}, "$.rules.response_match_score.max: found 80; wanted a number from 0, below 1"),
    "in percent, as a minimum": ({RESPONSE: {"min": 80}}, "$.rules.response_match_score.min: found 80"),
    "the highest score, as a maximum": ({RESPONSE: {"max": 1}}, "$.rules.response_match_score.max: found 1"),
    "below every score, as a maximum": ({RESPONSE: {"max": -0.1}}, "$.rules.response_match_score.max: found -0.1"),
    "of another scale": ({"response_evaluation_score": {"min": 1}}, "$.rules.response_evaluation_score.min: found 1; wanted a number above 1, up to 5"),
    "a share of the cases": ({"case_pass_rate": {"min": 95}}, "$.rules.case_pass_rate.min: found 95"),
    "pass^k": ({"pass^3": {"min": 0}}, "$.rules['pass^3'].min: found 0"),
    "of a criterion of one's own": ({"my_metric/pass_rate": {"min": 0}}, "$.rules['my_metric/pass_rate'].min: found 0"),
    "a rate of which less is better": ({"flaky_rate": {"max": 1}}, "$.rules.flaky_rate.max: found 1"),
    "a quantity below 0": ({"judge_calls": {"max": -1}}, "$.rules.judge_calls.max: found -1; wanted a number from 0"),
    "a drop as large as there is": ({RESPONSE: {"max_drop": 1}}, "$.rules.response_match_score.max_drop: found 1; wanted a number below 1"),
    "the same within a range": ({"token_usage_v1": {"max_drop": 50, "range": [0, 50]}}, "$.rules.token_usage_v1.max_drop: found 50"),
    "a range beside that of the scores": ({RESPONSE: {"min": 3, "range": [2, 5]}}, "$.rules.response_match_score.range: found [2.0, 5.0]"),
}  # fmt: skip
BELOW = {"rules": {RESPONSE: {"min": 0.5}}, "config": {"criteria": {RESPONSE: 80}}}


@pytest.mark.parametrize("name", IDLE)
@pytest.mark.parametrize("sliced", [False, True])
def test_a_bound_without_effect_is_refused_with_the_policy(name: str, sliced: bool) -> None:
    rules, expected = IDLE[name]
    policy = {"slices": {"s": {"ids": ["*"], "rules": rules}}} if sliced else {"rules": rules}
    with pytest.raises(PolicyError) as refused:
        load_policy({**policy, **BASELINE})
    (problem,) = map(str, refused.value.problems)
    assert problem.startswith(expected.replace("$.", "$.slices.s.", 1) if sliced else expected)
    assert problem.endswith("A bound that every run or no run meets decides nothing.")


def test_a_pinned_threshold_that_no_config_can_have_is_refused_with_the_policy() -> None:
    with pytest.raises(PolicyError, match=r"\$\.config\.criteria\.response_match_score: found 80; wanted a number from 0 to 1"):
        load_policy(BELOW)


@pytest.mark.parametrize(
    "rules",
    [
        {RESPONSE: {"min": 1}},
        {"flaky_rate": {"max": 0}},
        {RESPONSE: {"max_drop": 0}},
        {"token_usage_v1": {"max": 4000, "max_drop": 200}},
        {"my_metric": {"min": -5, "max": 80}},
    ],
)
def test_a_bound_at_the_best_end_and_one_of_an_unknown_range_are_taken(rules: dict[str, Any]) -> None:
    assert set(load_policy({"rules": rules, **BASELINE}).rules) == set(rules)


def test_a_corrected_pass_rate_is_a_share_whatever_the_scores_are() -> None:
    assert not list(Rule(min=0.5, use="corrected_ci_low").without_effect(1.0, 5.0))
    assert [key for key, _, _ in Rule(min=3.0, use="corrected_ci_low").without_effect(1.0, 5.0)] == ["min"]


def config_of(low: float, high: float) -> dict[str, Any]:
    about = {"metric_name": "length", "metric_value_info": {"interval": {"min_value": low, "max_value": high}}}
    metric = {"code_config": {"name": "tests.gating.attacks.test_04_policy.length_of"}, "metric_info": about}
    return {"criteria": {TRAJECTORY: 1.0, "length": high}, "custom_metrics": {"length": metric}}


@pytest.mark.parametrize("demand", [{"min": 0.0}, {"min": 101.0}, {"max": 100.0}, {"max": -1.0}])
def test_a_bound_on_a_custom_metric_is_held_against_the_range_of_the_run(demand: dict[str, float]) -> None:
    run = evidence_of(report_of(config=config_of(0.0, 100.0)))
    decision = decide_on(run, load_policy({"rules": {"length": demand}}))
    assert decision.verdict == "undecided"
    ((key, bound),) = demand.items()
    assert any(reason.startswith(f"length: {key} {bound:g}: wanted a number") for reason in decision.reasons), decision.reasons


def test_a_policy_that_was_made_in_python_decides_nothing_by_such_a_bound() -> None:
    run = evidence_of(report_of(wrong=CASES))
    decision = decide_on(run, Policy(rules={TRAJECTORY: Rule(min=-5.0)}))
    assert decision.verdict == "undecided"
    assert decision.reasons[0].startswith("tool_trajectory_avg_score: min -5: wanted a number above 0, up to 1")


@pytest.mark.slow
def test_a_run_that_failed_is_not_promoted_by_a_bound_that_every_score_meets(lab: Lab, model: str) -> None:
    (champion,), worse = promoted(lab, model, 1), Entrant(lab, model, good=False)
    for rules in ({TRAJECTORY: {"min": -5}}, {RESPONSE: {"max": 80}}):
        with pytest.raises(PolicyError, match="A bound that every run or no run meets"):
            worse.promote(policy={"rules": rules})
    assert lab.alias(model) == champion.version
