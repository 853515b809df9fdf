"""Which runs can be compared, and why others cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.comparable import incomparable
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence
from tests.gating.gate_kit import RESPONSE, TRAJECTORY, changed, decide_on, evidence_of
from tests.gating.policy_kit import CHAMPION, JUDGED, cases, champion, policy, report_with, run_with, vote

FOUND = cases(*[0.9] * 6)
DEMANDED = policy(rules={RESPONSE: {"min": 0.1, "max_drop": 0.4}}, baseline={"alias": "champion"})
NEW = run_with(FOUND)


def why_not(candidate: Evidence, baseline: Evidence, demanded: Policy) -> list[str]:
    return incomparable(examine(candidate), examine(baseline), demanded)


def old(found: Any = FOUND, **more: Any) -> Evidence:
    return run_with(found, run_id="old", model_id="m-0", **more)


WORLD = {
    "environment_simulation_config": {"tool_simulation_configs": [{"tool_name": "f", "injection_configs": [{"injected_response": {}}]}]}
}
OTHERWISE = {"case_criteria": {"a": {RESPONSE: {"threshold": 0.5, "include_intermediate_responses_in_final": True}}}}


def test_the_same_cases_under_the_same_config_can_be_compared() -> None:
    assert why_not(NEW, old(cases(*[0.1] * 6)), DEMANDED) == []


def test_thresholds_and_how_many_calls_are_made_at_a_time_do_not_matter() -> None:
    assert why_not(NEW, old(thresholds={RESPONSE: 0.99}), DEMANDED) == []
    assert why_not(*judged(), JUDGED_RULE) == []
    options = {"judge_model_options": {"parallelism_limit": 9}}
    assert why_not(judged()[0], judged(settings=options)[1], JUDGED_RULE) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: old(cases(*[0.9] * 5)), "run old used a different eval set: its digest is sha256:"),
        (lambda: old(thresholds={TRAJECTORY: 1}, criterion=TRAJECTORY), f"run old did not evaluate {RESPONSE}"),
        (lambda: changed(old(), "tags", {"adk_eval.status": "partial"}), "run old: the run contains only part of the evaluation"),
        (lambda: replace(old(), manifest=None), "run old: the run has no adk_eval/manifest.json, so its artifacts cannot be checked"),
        (lambda: old(config=WORLD), "run old ran under different conditions: its config has another environment_simulation_config"),
        (lambda: old(config=OTHERWISE), f"run old has different settings for {RESPONSE} for a"),
    ],
)
def test_other_cases_criteria_and_conditions_cannot_be_compared(change: Callable[[], Evidence], said: str) -> None:
    (reason,) = why_not(NEW, change(), DEMANDED)
    assert reason.startswith(said)
    decision = decide_on(NEW, DEMANDED, baseline=champion(change()))
    assert decision.verdict == "undecided"
    assert said in decision.reasons[0]
    assert decision.reasons[0].startswith(f"not compared with {CHAMPION}: ")


def test_a_candidate_that_is_no_evidence_is_not_worth_comparing() -> None:
    assert why_not(replace(NEW, manifest=None), old(), DEMANDED) == []


def test_the_number_of_runs_matters_only_to_measures_of_all_of_them() -> None:
    twice = old({case: [0.9, 0.9] for case in FOUND})
    assert why_not(NEW, twice, DEMANDED) == []
    rates = policy(rules={"case_pass_rate": {"max_drop": 0.4}}, baseline={"alias": "champion"})
    assert why_not(NEW, twice, rates) == ["run old has 2 runs of each case, but the candidate has 1, so case_pass_rate is not comparable"]


JUDGED_RULE = policy(rules={JUDGED: {"max_drop": 0.4}}, baseline={"alias": "champion"})
PARAMS = {
    "adk_eval.judge_model": "gemini-2.5-flash",
    f"adk_eval.judge.{JUDGED}": "gemini-2.5-flash-001",
    f"adk_eval.prompt.{JUDGED}": "1+1 aaa",
}


def judged(settings: dict[str, Any] | None = None, **params: str | None) -> tuple[Evidence, Evidence]:
    """Return a candidate and a baseline in which a judge decided; the baseline with other settings or params."""
    found: list[Evidence] = []
    for name, more, others in (("new", {}, {}), ("old", settings or {}, params)):
        config = {JUDGED: {"threshold": 0.5, **more}}
        report = report_with(
            {JUDGED: FOUND, RESPONSE: FOUND}, thresholds={**config, RESPONSE: 0.5}, votes=[vote(case, 0, "valid") for case in FOUND]
        )
        found.append(changed(evidence_of(report, run_id=name, model_id=f"m-{name}"), "params", {**PARAMS, **others}))
    return found[0], found[1]


@pytest.mark.parametrize(
    ("settings", "params", "said"),
    [
        ({}, {f"adk_eval.judge.{JUDGED}": "gemini-3"}, f"run old has a different judge for {JUDGED}: adk_eval.judge.{JUDGED} is 'gemini-3' there, but 'gemini-2.5-flash-001' here"),
        ({}, {f"adk_eval.judge.{JUDGED}": None, "adk_eval.judge_model": "gpt-5"}, f"run old has a different judge for {JUDGED}: adk_eval.judge_model is 'gpt-5' there, but 'gemini-2.5-flash' here"),
        ({}, {f"adk_eval.judge.{JUDGED}": None, "adk_eval.judge_model": None}, f"run old has a different judge for {JUDGED}: adk_eval.judge_model is absent there, but 'gemini-2.5-flash' here"),
        ({}, {f"adk_eval.prompt.{JUDGED}": "2+1 bbb"}, f"run old used a different judge prompt for {JUDGED}: adk_eval.prompt.{JUDGED} is '2+1 bbb' there, but '1+1 aaa' here"),
        ({"judge_model_options": {"num_samples": 3}}, {}, f"run old has different settings for {JUDGED} for a, b, and 4 more of this kind"),
    ],
)  # fmt: skip
def test_another_judge_is_another_measure(settings: dict[str, Any], params: dict[str, str | None], said: str) -> None:
    new, before = judged(settings, **params)
    assert why_not(new, before, JUDGED_RULE) == [said]
    untouched = policy(rules={JUDGED: {"min": 0.1}, RESPONSE: {"max_drop": 0.4}}, baseline={"alias": "champion"})
    assert why_not(new, before, untouched) == []  # what no rule compares may differ


def test_a_prompt_that_one_run_never_needed_does_not_matter() -> None:
    assert why_not(*judged(**{f"adk_eval.prompt.{JUDGED}": None}), JUDGED_RULE) == []
