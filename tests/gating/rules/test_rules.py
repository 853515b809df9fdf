"""Rules: limits, intervals and comparisons with a baseline, each outcome with its sentence; slices, waivers, cases that must pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.analysis.calibration.calibration import load_calibration
from mlflow_adk_eval.analysis.calibration.labels import CellSample
from mlflow_adk_eval.analysis.drift import Drift
from mlflow_adk_eval.analysis.stats.paired import Paired, compare_paired, holm
from mlflow_adk_eval.analysis.stats.power import cases_to_decide, smallest_shown
from mlflow_adk_eval.gating.calibration import CheckedCalibration, judged_run
from mlflow_adk_eval.gating.drift import Change, JudgeDrift, JudgeHistory
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.limits import Limit, drop_verdict, interval_verdict
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence
from tests.gating.gate_kit import RESPONSE, TRAJECTORY, changed, decide_on, evidence_of
from tests.gating.policy_kit import (
    CHAMPION,
    JUDGED,
    Scores,
    calibration_of,
    cases,
    champion,
    only_check,
    policy,
    report_with,
    run_with,
    vote,
)
from tests.gating.promotion.claim_kit import version_id

TODAY = datetime(2027, 1, 31, 12, tzinfo=UTC)
TOKENS = "token_usage_v1"


def rule(name: str = RESPONSE, **demands: Any) -> Policy:
    compared = {"baseline": {"alias": "champion"}} if "max_drop" in demands else {}
    return policy(rules={name: demands}, **compared)


def beside(before: Scores, after: Scores, **demands: Any) -> Any:
    """Return the check of a rule on two runs."""
    old = run_with(before, run_id="old", model_id="m-0")
    return only_check(run_with(after), rule(**demands), baseline=champion(old))


FORTY = cases(*[0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 0.85] * 5)
"""Forty cases with a mean of 0.7875."""


# Limits.


@pytest.mark.parametrize(
    ("demands", "verdict", "said"),
    [
        ({"min": 0.7}, "passed", "response_match_score: mean 0.7875 over 40 cases, at least 0.7"),
        ({"min": 0.7875}, "passed", "response_match_score: mean 0.7875 over 40 cases, at least 0.7875"),
        ({"min": 0.8}, "failed", "response_match_score: mean 0.7875 over 40 cases, below the minimum 0.8; lowest: a 0.5, g1 0.5, i 0.5"),
        ({"max": 0.8}, "passed", "response_match_score: mean 0.7875 over 40 cases, at most 0.8"),
        ({"max": 0.7}, "failed", "response_match_score: mean 0.7875 over 40 cases, above the maximum 0.7; highest: e1 1, g 1, m1 1"),
        ({"min": 0.6, "use": "ci_low"}, "passed", ": all of it at least 0.6"),
        ({"min": 0.9, "use": "ci_low"}, "failed", ": all of it below the minimum 0.9; lowest: a 0.5, g1 0.5, i 0.5"),
        ({"max": 0.9, "use": "ci_high"}, "passed", ": all of it at most 0.9"),
        ({"max": 0.6, "use": "ci_high"}, "failed", ": all of it above the maximum 0.6; highest: e1 1, g 1, m1 1"),
    ],
)
def test_limits_on_the_mean_and_on_the_interval(demands: dict[str, Any], verdict: str, said: str) -> None:
    check = only_check(run_with(FORTY), rule(**demands))
    assert check.verdict == verdict
    assert check.reason.endswith(said)
    assert (check.cases, check.value) == (40, pytest.approx(0.7875))
    assert check.low is not None
    assert check.high is not None
    assert check.low < 0.7875 < check.high


def test_an_interval_with_the_limit_in_it_is_undecided_and_says_how_many_cases_would_decide() -> None:
    check = only_check(run_with(FORTY), rule(min=0.77, use="ci_low"))
    assert check.verdict == "undecided"
    assert check.needed is not None
    assert check.needed > 40
    assert (
        f": the minimum 0.77 lies within it, so there are too few cases to decide; about {check.needed:,} cases would decide it"
        in check.reason
    )


def test_with_so_many_cases_of_the_same_kind_it_is_decided() -> None:
    def check(times: int) -> Check:
        found = run_with(cases(*[1] * (28 * times), *[0] * (2 * times)), criterion=TRAJECTORY, thresholds={TRAJECTORY: 1})
        return only_check(found, rule(TRAJECTORY, min=0.85, use="ci_low"))

    assert 60 < (check(1).needed or 0) <= 90
    assert [check(times).verdict for times in (1, 2, 3)] == ["undecided", "undecided", "passed"]


@pytest.mark.parametrize(
    ("found", "bound", "said"),
    [
        (cases(0.9), 0.5, "over 1 case has no interval to compare with the minimum 0.5: there is only one"),
        (cases(0.9, 0.9, 0.9), 0.5, "all cases have the same value, so nothing shows how others would vary"),
        (cases(1, 1, 1), 1.0, "there are too few cases to decide; with this mean, no number of cases would decide it"),
    ],
)
def test_what_no_interval_can_decide_is_undecided(found: Scores, bound: float, said: str) -> None:
    check = only_check(run_with(found), rule(min=bound, use="ci_low"))
    assert check.verdict == "undecided"
    assert said in check.reason


def test_a_value_is_not_rounded_to_the_limit_it_missed() -> None:
    assert "mean 0.7999999 over 1 case, below the minimum 0.8" in only_check(run_with(cases(0.7999999)), rule(min=0.8)).reason


def test_a_range_is_two_demands_and_a_limit_against_the_direction_is_noted() -> None:
    decision = decide_on(run_with(FORTY), rule(min=0.5, max=0.9))
    assert [check.demand for check in decision.checks] == ["min 0.5", "max 0.9"]
    assert decision.passed
    assert not decision.notes
    assert decide_on(run_with(FORTY), rule(max=0.9)).notes == ("response_match_score: higher is better, but the rule has a max and no min",)
    tokens = evidence_of(report_with({RESPONSE: {"a": [1]}, TOKENS: {"a": [100]}}))
    assert decide_on(tokens, rule(TOKENS, min=10)).notes == ("token_usage_v1: lower is better, but the rule has a min and no max",)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_an_interval_never_decides_more_than_each_of_its_points(first: float, last: float, bound: float, least: bool) -> None:
    low, high = sorted((first, last))
    limit = Limit(bound=bound, least=least, use="ci_low")
    verdict, inside = interval_verdict(limit, (low, high)), [limit.kept(point) for point in (low, (low + high) / 2, high)]
    assert (verdict == "passed") == all(inside)
    assert (verdict == "failed") == (not any(inside))


def test_a_measure_with_missing_values_decides_nothing() -> None:
    found = run_with({"a": [1.0], "b": [None], "c": [1.0]})
    decision = decide_on(found, rule(min=0.1))
    assert decision.verdict == "undecided"
    assert decision.checks[0].reason == "response_match_score: 1 of 3 cases without a value: b: invocation 1 of 1: the judge is down"
    assert decision.reasons[0].startswith("response_match_score: 1 of 3 scores errored, so they are missing")


def test_the_confidence_of_a_rule_comes_before_that_of_the_policy() -> None:
    checks = [
        only_check(run_with(FORTY), policy(rules={RESPONSE: demands}, confidence=0.8))
        for demands in ({"min": 0.1}, {"min": 0.1, "confidence": 0.99})
    ]
    assert (checks[1].high or 0) > (checks[0].high or 0)


# The judge's error.


def judged(**params: str) -> Evidence:
    found = cases(*[1] * 45, *[0] * 5)
    report = report_with({JUDGED: found}, thresholds={JUDGED: 0.5}, votes=[vote(case, 0, "valid") for case in found])
    return changed(evidence_of(report), "params", {"adk_eval.judge_model": "gemini-2.5-flash", **params})


def corrected(counts: tuple[int, int, int, int], *, minimum: float, params: dict[str, str | None] | None = None, name: str = JUDGED) -> Any:
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, counts, params)
    demanded = policy(rules={name: {"min": minimum, "use": "corrected_ci_low"}}, calibration=calibration)
    return only_check(judged(), demanded)


def test_a_rule_on_the_corrected_rate_takes_the_judges_error_into_account() -> None:
    check = corrected((200, 10, 90, 5), minimum=0.6)
    assert check.verdict == "passed"
    assert "pass rate of its turns, corrected for the judge's error," in check.reason
    assert check.value != pytest.approx(0.9)
    assert corrected((200, 10, 90, 5), minimum=0.85).verdict == "undecided"
    assert corrected((200, 10, 90, 5), minimum=0.85).reason.endswith(
        "so there are too few cases to decide; more labels or more cases would narrow it"
    )


def test_without_a_calibration_of_this_judge_there_is_no_corrected_rate() -> None:
    check = corrected((200, 10, 90, 5), minimum=0.6, params={"adk_eval.judge_model": "gpt-5"})
    assert check.verdict == "undecided"
    assert (
        "no corrected pass rate: the calibration is of a different judge for final_response_match_v2: adk_eval.judge_model was 'gpt-5'"
        in check.reason
    )
    assert "no corrected pass rate" in corrected((5, 5, 5, 5), minimum=0.1).reason


def test_labels_that_agree_where_the_judge_itself_is_unsure_look_copied() -> None:
    def told(counts: tuple[int, int, int, int], split: int) -> str:
        calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, counts)
        calibration["criteria"][JUDGED]["split"] = split
        demanded = policy(rules={JUDGED: {"min": 0.1, "use": "corrected_ci_low"}}, calibration=calibration)
        (line,) = (note for note in decide_on(judged(), demanded).notes if "was calibrated on" in note)
        return line

    assert told((20, 0, 10, 0), 6).endswith("even the 6 with split votes: were the labels copied from the judge?")
    assert "copied" not in told((20, 0, 10, 0), 4)
    assert "copied" not in told((20, 1, 10, 0), 6)


def test_a_judge_of_the_agents_own_family_is_told() -> None:
    def told(agent: str) -> list[str]:
        decision = decide_on(judged(**{"adk_eval.agent.models": agent}), policy(rules={JUDGED: {"min": 0.1}}))
        assert decision.passed
        return [note for note in decision.notes if "one family" in note]

    assert told("gpt-4o") == told("my-own") == []
    (note,) = told("gpt-4o | gemini-2.0-flash")
    assert note.startswith("the judge gemini-2.5-flash and the agent's model gemini-2.0-flash are of one family, and models tend to prefer")


def test_labels_from_before_a_change_of_the_judge_are_too_old() -> None:
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, (200, 10, 90, 5))
    began = datetime(2027, 1, 15, tzinfo=UTC)
    run = replace(judged(), start_time=int(began.timestamp() * 1000), end_time=int(began.timestamp() * 1000) + 1)
    measured = CheckedCalibration(calibration=load_calibration(calibration), since=datetime(2027, 1, 1, tzinfo=UTC))
    drift = Drift(size=0.06, low=0.02, high=0.1, since_run="r-7")

    def decided(changed: datetime) -> Decision:
        history = JudgeHistory(judge="g", changes=(Change(drift=drift, since=int(changed.timestamp() * 1000)),))
        demanded = policy(rules={JUDGED: {"min": 0.1}}, calibration=calibration, judge={"max_age": "90d"})
        return decide_on(run, demanded, now=TODAY, measured=measured, drift=JudgeDrift(histories={JUDGED: history}))

    said = "since then, the judge g became more lenient by 0.06 (0.02 to 0.10) with run r-7"
    after = decided(datetime(2027, 1, 10, tzinfo=UTC))
    assert after.verdict == "undecided"
    assert any(reason.endswith(f"and {said}: calibrate it again") for reason in after.reasons)
    assert any("was calibrated on" in note and note.endswith(said) for note in after.notes)
    before = decided(datetime(2026, 12, 31, tzinfo=UTC))
    assert before.passed
    assert not any(said in note for note in before.notes)


def test_a_run_from_when_a_judge_may_have_changed_is_on_no_side_of_the_change() -> None:
    drift = Drift(size=0.06, low=0.02, high=0.1, since_run="r-7", unsure=("r-6", "r-7", "r-8"))
    change = Change(drift=drift, since=70, unsure=(60, 70, 80))
    assert not any(change.may_be_between(moments) for moments in ([10, 59], [60], [70, 70], [80, 90]))
    assert all(change.may_be_between(moments) for moments in ([59, 60], [60, 65], [60, 70], [70, 80], [79, 90], [10, 90]))


def test_a_demand_on_judges_is_not_met_by_runs_that_nobody_looked_up() -> None:
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, (200, 10, 90, 5))
    decision = decide_on(judged(), policy(rules={JUDGED: {"min": 0.1}}, calibration=calibration, judge={"calibrated": True}))
    assert decision.verdict == "undecided"
    assert "the calibration's runs were not looked up" in decision.reasons[0]
    by_rule = only_check(run_with(FORTY), policy(rules={RESPONSE: {"min": 0.5, "judge": {"calibrated": True}}}))
    assert (by_rule.verdict, by_rule.reason) == ("undecided", "response_match_score: no judge decides it, so there is nothing to calibrate")


def test_a_pass_says_nothing_of_judges_where_none_took_part() -> None:
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, (200, 10, 90, 5))
    demands = {"models": ["gemini-2.5-flash"], "calibrated": True, "fresh": True}
    decision = decide_on(run_with(FORTY), policy(rules={RESPONSE: {"min": 0.5}}, calibration=calibration, judge=demands))
    assert decision.passed
    assert not [reason for reason in decision.reasons if "judge" in reason or "vote" in reason]


def by_people(said: dict[str, bool], *, minimum: float = 0.6, run_id: str = "r-1", sample: int = 0, **more: Any) -> Check:
    """Return the check of the rate that people would give, by their labels of some cases of the run."""
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, (20, 1, 9, 1))
    calibration["runs"][0]["run_id"] = run_id
    calibration["sampled"] = {"size": sample} if sample else None
    calibration["labelled"] = [
        {"eval_id": case, "invocation_index": 0, "criterion": JUDGED, "passes": int(passed), "fails": int(not passed)}
        for case, passed in said.items()
    ]
    demanded = policy(rules={JUDGED: {"min": minimum, "use": "ppi_ci_low"}}, calibration=calibration, **more)
    return only_check(judged(), demanded)


def test_a_rule_on_the_rate_that_people_would_give_needs_labels_of_this_very_run() -> None:
    names = list(cases(*[1] * 45, *[0] * 5))
    agreed = {case: index < 45 for index, case in enumerate(names) if index % 2}
    check = by_people(agreed)
    assert check.verdict == "passed"
    assert "pass rate that people would give, by 50 verdicts and labels of 25, if those were chosen at random, 0.9" in check.reason
    strict = by_people(agreed, minimum=0.85)
    assert strict.verdict == "undecided"
    assert strict.reason.endswith("more labels or more cases would narrow it")
    overruled = by_people(dict.fromkeys(agreed, False))
    assert (overruled.verdict, overruled.value) == ("failed", 0)
    few = by_people(dict(list(agreed.items())[:3]))
    assert (few.verdict, few.reason) == ("undecided", f"{JUDGED}: no corrected pass rate: too few labels: 3 of the 5 needed")
    other = by_people(agreed, run_id="r-0")
    assert other.verdict == "undecided"
    assert "the labels are of answers of run r-0, and how often people agree with a verdict differs from agent to agent" in other.reason


def test_a_sample_by_verdict_is_weighted_and_has_to_be_labelled_of_each_kind() -> None:
    drawn = CellSample(size=12).drawn(judged_run(judged()).units)
    assert Counter(kind for _, kind in drawn.values()) == {"passed": 7, "failed": 5}
    agreed = {unit.eval_id: kind == "passed" for unit, (_, kind) in drawn.items()}
    check = by_people(agreed, sample=12)
    assert (check.value, check.verdict) == (0.9, "passed")
    assert "by 50 verdicts and labels of 12, 0.9 over 50 cases" in check.reason
    lacking = by_people({case: passed for case, passed in agreed.items() if passed}, sample=12)
    assert lacking.reason.endswith("no sampled verdict failed is labelled: label the whole sample")


def test_the_rate_that_people_would_give_some_cases_rests_on_labels_of_these() -> None:
    names = list(cases(*[1] * 45, *[0] * 5))
    agreed = {case: index < 45 for index, case in enumerate(names)}
    waiver = {"owner": "ada", "reason": "known", "expires": "2027-12-31"}
    waived = [{"case": case, **waiver} for case in names[40:]]
    check = by_people(agreed, waivers=waived)
    assert (check.value, check.verdict) == (1, "passed")
    assert "by 40 verdicts and labels of 40" in check.reason


def test_copies_of_a_case_do_not_narrow_a_corrected_rate() -> None:
    known = {case: [float(case != "b")] for case in "abcdefgh"}
    one, many = (judged_cases(found) for found in (known, known | {f"copy_{index}": [1.0] for index in range(40)}))
    assert (one.cases, one.value, one.low, one.high) == (many.cases, many.value, many.low, many.high)
    assert (one.cases, one.verdict) == (8, "passed")


def judged_cases(scores: dict[str, list[float]]) -> Check:
    """Return the check of a corrected rate of a run in which the cases called copy are the first one over again."""
    report = report_with({JUDGED: scores}, thresholds={JUDGED: 0.5}, votes=[vote(case, 0, "valid") for case in scores])
    (first, *_) = report.eval_set.eval_cases
    alike = tuple(
        case.model_copy(update={"conversation": first.conversation}) if case.eval_id.startswith("copy") else case
        for case in report.eval_set.eval_cases
    )
    report = replace(report, eval_set=report.eval_set.model_copy(update={"eval_cases": alike}))
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, (200, 10, 90, 5))
    return only_check(evidence_of(report), policy(rules={JUDGED: {"min": 0.1, "use": "corrected_ci_low"}}, calibration=calibration))


def test_what_no_judge_decides_is_not_corrected() -> None:
    calibration = calibration_of(JUDGED, {"criteria": {JUDGED: 0.5}}, (20, 1, 9, 1))
    demanded = policy(rules={RESPONSE: {"min": 0.5, "use": "corrected_ci_low"}}, calibration=calibration)
    assert (
        only_check(run_with(FORTY), demanded).reason == "response_match_score: no judge decides it, so there is no judge error to correct"
    )


# Comparisons.


def noisy(shift: float, *, size: int = 40, spread: float = 0.1) -> dict[str, list[float | None]]:
    """Return cases that differ from 0.7 by a shift, and to either side of it."""
    return cases(*(0.7 + shift + (spread if index % 2 else -spread) for index in range(size)))


LEVEL = cases(*[0.7] * 40)


def test_an_identical_candidate_passes_where_so_many_cases_exclude_a_larger_drop() -> None:
    check = beside(FORTY, FORTY, max_drop=0.08)
    start = f"response_match_score: mean 0.7875, against 0.7875 for {CHAMPION}, over the same 40 cases: no change, and no case did worse"
    assert check.verdict == "passed"
    assert check.reason == f"{start}; with 95% confidence worse by at most 0.07216, within the allowed 0.08"
    assert (check.baseline, check.difference, check.p_value) == (check.value, 0, 1)
    assert check.low == pytest.approx(0.05 ** (1 / 40) - 1)
    fewer = beside(FORTY, FORTY, max_drop=0.05)
    assert (fewer.verdict, fewer.needed) == ("undecided", 59)
    assert fewer.reason.startswith(f"{start}, but 40 cases exclude no drop below 0.07216 at 95% confidence, and 0.05 is allowed; about 59 ")
    none = beside(FORTY, FORTY, max_drop=0)
    assert (none.verdict, none.needed) == ("undecided", None)
    assert none.reason.endswith("and 0 is allowed; with this difference, no number of cases would decide it")


def test_a_drop_that_is_large_and_more_than_luck_fails_with_the_worst_cases() -> None:
    check = beside(LEVEL, cases(0.2, *[0.6] * 39), max_drop=0.02)
    assert check.verdict == "failed"
    assert check.reason.startswith(
        f"response_match_score: mean 0.59, against 0.7 for {CHAMPION}, over the same 40 cases: worse by 0.11, more than the allowed 0.02 and unlikely to be chance (p = "
    )
    assert check.reason.endswith("; 40 cases did worse, most of them a 0.7 → 0.2, a1 0.7 → 0.6, b 0.7 → 0.6")
    assert check.difference == pytest.approx(-0.11)


def test_a_drop_that_luck_explains_is_undecided_and_says_what_would_decide_it() -> None:
    check = beside(LEVEL, noisy(-0.02, spread=0.3), max_drop=0.01)
    assert check.verdict == "undecided"
    assert "worse by 0.02, more than the allowed 0.01, but chance could explain it (p = " in check.reason
    assert check.needed is not None
    assert check.needed > 40
    assert f"; about {check.needed:,} cases would decide it with 80% power; 40 cases can show a drop of " in check.reason


def test_a_small_drop_passes_only_if_a_larger_one_is_excluded() -> None:
    sure = beside(LEVEL, noisy(-0.01, spread=0.01), max_drop=0.1)
    assert sure.verdict == "passed"
    assert "worse by 0.01, with 95% confidence worse by at most 0.0" in sure.reason
    unsure = beside(LEVEL, noisy(-0.01, spread=0.3), max_drop=0.1)
    assert unsure.verdict == "undecided"
    assert "worse by 0.01, but 40 cases exclude no drop below 0.1" in unsure.reason
    assert " at 95% confidence, and 0.1 is allowed; about " in unsure.reason


def test_a_gain_passes() -> None:
    check = beside(LEVEL, noisy(0.1, spread=0.15), max_drop=0.01)
    assert check.verdict == "passed"
    assert "better by 0.1, with 95% confidence by at least 0.0" in check.reason
    assert beside(LEVEL, noisy(0.1), max_drop=0).reason.endswith(
        "better by 0.1, and no case did worse; with 95% confidence by at least 0.0164"
    )


def test_too_few_cases_to_show_any_drop_say_how_many_it_takes() -> None:
    check = beside(cases(1, 1, 1, 1), cases(0, 0, 0, 0), max_drop=0.1)
    assert (check.verdict, check.needed, check.p_value) == ("undecided", 5, None)
    assert (
        ": 4 cases are too few to show a drop at 95% confidence: at least 5 are needed; 4 cases did worse, most of them a 1 → 0, b 1 → 0, c 1 → 0"
        in check.reason
    )
    assert beside(cases(1, 1, 1, 1, 1), cases(0, 0, 0, 0, 0), max_drop=0.1).verdict == "failed"


def test_use_mean_takes_the_drop_as_it_is() -> None:
    assert beside(cases(1, 1), cases(1, 0), max_drop=0.5, use="mean").verdict == "passed"
    failed = beside(cases(1, 1), cases(1, 0), max_drop=0.4, use="mean")
    assert (failed.verdict, failed.demand, failed.p_value) == ("failed", "max_drop 0.4 (mean)", None)
    assert failed.reason.endswith(": worse by 0.5, more than the allowed 0.4; 1 case did worse, most of them b 1 → 0")


def test_where_lower_is_better_a_drop_is_a_rise() -> None:
    sides = [
        evidence_of(report_with({RESPONSE: cases(*[1] * 20), TOKENS: cases(*[tokens] * 20)}), run_id=name)
        for name, tokens in (("old", 100), ("new", 130))
    ]
    demanded = rule(TOKENS, max_drop=10)
    worse = only_check(sides[1], demanded, baseline=champion(sides[0]))
    assert worse.verdict == "failed"
    assert "mean 130, against 100 for" in worse.reason
    assert "worse by 30, more than the allowed 10" in worse.reason
    assert worse.difference == 30
    assert worse.low is not None
    assert worse.high is not None
    assert 20 < worse.low <= 30 <= worse.high
    better = only_check(sides[0], demanded, baseline=champion(sides[1]))
    assert better.verdict == "passed"


def test_runs_of_a_case_are_averaged_first() -> None:
    before = {f"c{index}": [1.0, 1.0, 1.0] for index in range(4)}
    assert beside(before, {case: [0.0, 0.0, 0.0] for case in before}, max_drop=0.1).verdict == "undecided"  # four cases, not twelve


def test_p_values_are_adjusted_for_all_comparisons_of_the_policy() -> None:
    names = [f"c{index}" for index in range(20)]
    old, new = ({case: [value if index < 6 else 0.9] for index, case in enumerate(names)} for value in (0.9, 0.6))
    demanded = policy(
        rules={RESPONSE: {"max_drop": 0.01}},
        slices={
            "half": {"ids": ["c?"], "rules": {RESPONSE: {"max_drop": 0.01}}},
            "rest": {"ids": ["c1?"], "rules": {RESPONSE: {"max_drop": 0.3}}},
        },
        baseline={"alias": "champion"},
    )
    decision = decide_on(run_with(new), demanded, baseline=champion(run_with(old, run_id="old")))
    raw = [
        compare_paired({case: old[case] for case in chosen}, {case: new[case] for case in chosen})
        for chosen in (names, names[:10], names[10:])
    ]
    assert [check.p_value for check in decision.checks] == pytest.approx(list(holm([found.p_worse for found in raw if found])))
    assert "adjusted for 3 comparisons" in decision.checks[0].reason
    assert [check.verdict for check in decision.checks] == ["failed", "failed", "passed"]


@pytest.mark.parametrize(
    ("count", "max_drop", "better", "needed"),
    [
        (5, 0.2, 0, 14),  # 0.8 to the 14th is below 5 %
        (20, 0.05, 0, 59),
        (5, 0, 5, 17),  # all of them better: the drop that is excluded is the gain
        (5, 0, 3, 33),
    ],
)
def test_what_is_undecided_says_with_how_many_cases_of_the_kind_it_passes(count: int, max_drop: float, better: int, needed: int) -> None:
    def check(cases: int) -> Any:
        before = {f"c{index}": [0.5] for index in range(cases)}
        gains = better * cases / count
        return beside(before, {case: [0.7 if index < gains else 0.5] for index, case in enumerate(before)}, max_drop=max_drop)

    assert (check(count).verdict, check(count).needed) == ("undecided", needed)
    assert check(needed).verdict == "passed"


pairs = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12)


@given(pairs, st.floats(0, 0.5), st.floats(0.6, 0.99), st.floats(0, 1))
def test_laws_of_a_drop(found: list[tuple[float, float]], max_drop: float, confidence: float, more: float) -> None:
    before, after = ({str(index): [pair[side]] for index, pair in enumerate(found)} for side in (0, 1))
    paired = compare_paired(before, after, confidence=2 * confidence - 1)
    assert paired is not None
    verdict = drop_verdict(paired, max_drop=max_drop, confidence=confidence, p_adjusted=paired.p_worse)
    laxer = drop_verdict(paired, max_drop=max_drop + more, confidence=confidence, p_adjusted=paired.p_worse)
    assert not (verdict == "passed" and laxer != "passed")  # what passes a strict rule passes a lax one
    assert not (laxer == "failed" and verdict != "failed")
    assert drop_verdict(paired, max_drop=max_drop, confidence=confidence, p_adjusted=1.0) != "failed"
    if verdict == "failed":
        assert paired.p_worse <= 1 - confidence + 1e-9
        assert -paired.difference > max_drop


def binary(better: int, worse: int, size: int) -> Paired:
    before = {str(index): [float(index >= better)] for index in range(size)}
    after = {str(index): [float(not size - worse <= index)] for index in range(size)}
    paired = compare_paired(before, after)
    assert paired is not None
    return paired


def test_the_kernel_tells_how_many_cases_a_comparison_needs() -> None:
    paired = binary(2, 5, 50)
    assert smallest_shown(paired, confidence=0.95, power=0.8) > 0.06
    for max_drop in (0.01, 0.2):
        needed = cases_to_decide(paired, max_drop, confidence=0.95, power=0.8)
        assert needed is not None
        assert needed > 50
    assert cases_to_decide(paired, 0.06, confidence=0.95, power=0.8) is None


# What there is to compare with.

COMPARED = policy(rules={RESPONSE: {"min": 0.1, "max_drop": 0.08}}, baseline={"alias": "champion"})
GOOD = run_with(FORTY)


def test_without_a_champion_the_absolute_rules_alone_decide_or_nothing_is_promoted() -> None:
    nobody = Baseline(name="the champion of 'home'")
    first = decide_on(GOOD, COMPARED, baseline=nobody)
    assert first.passed
    assert [check.demand for check in first.checks] == ["min 0.1"]
    assert first.notes == ("there is no baseline yet (the champion of 'home'), so nothing was compared: only the absolute rules decide",)
    strict = policy(rules={RESPONSE: {"min": 0.1, "max_drop": 0.01}}, baseline={"alias": "champion", "if_missing": "refuse"})
    refused = decide_on(GOOD, strict, baseline=nobody)
    assert refused.verdict == "undecided"
    assert refused.reasons == (
        "not compared with the champion of 'home': there is none yet, and the policy requires one (if_missing: refuse)",
    )


def test_a_policy_that_only_compares_passes_nobody_while_there_is_nothing_to_compare_with() -> None:
    refused = decide_on(GOOD, rule(max_drop=0.01), baseline=Baseline(name="the champion of 'home'"))
    assert refused.verdict == "undecided"
    assert "there is nothing to compare with, and the policy has no other rules" in refused.reasons[0]


def test_a_baseline_that_has_problems_or_was_not_looked_for_decides_nothing() -> None:
    spoilt = decide_on(
        GOOD, COMPARED, baseline=Baseline(name=CHAMPION, version=version_id("3"), problems=("its run is gone", "and so is it"))
    )
    assert spoilt.verdict == "undecided"
    assert spoilt.reasons == (f"not compared with {CHAMPION}: its run is gone", f"not compared with {CHAMPION}: and so is it")
    assert [check.verdict for check in spoilt.checks] == ["passed", "undecided"]
    assert decide_on(GOOD, COMPARED).reasons == ("not compared with the baseline: the policy requires a baseline, but none was given",)


def test_a_run_compared_with_itself_shows_nothing() -> None:
    by_run = decide_on(GOOD, COMPARED, baseline=Baseline(name="run r-1", run=examine(GOOD)))
    assert by_run.verdict == "undecided"
    assert by_run.reasons == ("not compared with run r-1: it is the candidate run itself, so comparing shows nothing",)
    as_champion = decide_on(GOOD, COMPARED, baseline=champion(GOOD))
    assert as_champion.passed
    assert as_champion.notes == (
        f"the run belongs to {CHAMPION}, the baseline itself, so nothing was compared: only the absolute rules decide",
    )
    assert (as_champion.baseline_run_id, as_champion.baseline_sha256) == ("r-1", GOOD.sha256)
    assert decide_on(GOOD, rule(max_drop=0.1), baseline=champion(GOOD)).verdict == "undecided"


def test_another_run_of_the_champion_is_compared_and_it_is_said() -> None:
    decision = decide_on(GOOD, COMPARED, baseline=champion(run_with(FORTY, run_id="old")))
    assert decision.passed
    assert decision.notes == (f"{CHAMPION}, is the same agent version, so its other run old was compared",)
    assert decision.baseline_run_id == "old"


def test_a_baseline_that_nothing_is_compared_with_is_noted() -> None:
    decision = decide_on(GOOD, policy(rules={RESPONSE: {"min": 0.1}}, baseline={"alias": "champion"}), baseline=champion(GOOD))
    assert decision.notes == ("the policy names a baseline, but no rule has a max_drop, so nothing was compared",)


def test_both_sides_are_held_to_the_thresholds_of_the_candidate() -> None:
    old = run_with(cases(*[0.6] * 20), thresholds={RESPONSE: 0.9}, run_id="old")
    check = only_check(
        run_with(cases(*[0.6] * 20), thresholds={RESPONSE: 0.5}), rule("case_pass_rate", max_drop=0.15), baseline=champion(old)
    )
    assert (check.verdict, check.baseline, check.value) == ("passed", 1, 1)


# Slices.

TAGGED = run_with(cases(*[0.9] * 3, *[0.2] * 3), tags={"a": ["money"], "f": ["money", "late"]})


def sliced(**part: Any) -> Decision:
    return decide_on(TAGGED, policy(slices={"part": {"rules": {RESPONSE: {"min": 0.5}}, **part}}))


@pytest.mark.parametrize(
    ("part", "verdict", "said"),
    [
        ({"ids": ["a", "b"]}, "passed", "response_match_score (slice part): mean 0.9 over 2 cases, at least 0.5"),
        ({"ids": ["[ab]"]}, "passed", "response_match_score (slice part): mean 0.9 over 2 cases, at least 0.5"),
        ({"tags": ["late"]}, "failed", "response_match_score (slice part): mean 0.2 over 1 case, below the minimum 0.5; lowest: f 0.2"),
        ({"ids": ["b"], "tags": ["money"]}, "passed", "response_match_score (slice part): mean 0.6667 over 3 cases, at least 0.5"),
        ({"ids": ["A"]}, "undecided", "response_match_score (slice part): it has no cases: no case matches 'A'. Did you mean 'a'?"),
        (
            {"tags": ["monye"]},
            "undecided",
            "response_match_score (slice part): it has no cases: no case has the tag 'monye'. Did you mean 'money'?",
        ),
        ({"ids": ["a"], "min_cases": 2}, "undecided", "response_match_score (slice part): it has 1 case but needs at least 2"),
    ],
)
def test_slices_hold_the_cases_of_their_patterns_and_tags(part: dict[str, Any], verdict: str, said: str) -> None:
    decision = sliced(**part)
    assert decision.verdict == verdict
    assert said in decision.reasons


def test_a_criterion_that_no_case_of_a_slice_has_is_undecided() -> None:
    report = report_with({RESPONSE: {"a": [1]}, TRAJECTORY: {"b": [1]}}, config={"case_criteria": {"b": {TRAJECTORY: 1.0}}})
    demanded = policy(slices={"part": {"ids": ["b"], "rules": {RESPONSE: {"min": 0.5}}}})
    assert only_check(evidence_of(report), demanded).reason == "response_match_score (slice part): it applies to no case here"


def test_a_pattern_without_cases_is_noted_where_another_has_some() -> None:
    assert sliced(ids=["a", "refund_*"]).notes == ("slice part: no case matches 'refund_*'",)


# Waivers.


def waived(*waivers: dict[str, str], **demands: Any) -> Policy:
    full = [{"owner": "Ada", "reason": "ticket 7", "expires": "2027-01-31"} | waiver for waiver in waivers]
    return policy(**({"rules": {RESPONSE: {"min": 0.5}}} | demands), waivers=full)


SPOILT = run_with({"a": [0.9], "b": [0.8], "c": [0.0], "d": [None]})


def test_what_is_waived_is_in_no_number_and_is_told() -> None:
    decision = decide_on(SPOILT, waived({"case": "c"}, {"case": "d"}), now=TODAY)
    assert decision.passed
    assert decision.waived == ("case 'c': waived by Ada until 2027-01-31: ticket 7", "case 'd': waived by Ada until 2027-01-31: ticket 7")
    assert decision.reasons == (
        "2 case runs of eval set 'home' evaluated on 1 criterion, except for 2 waivers".replace("case runs", "cases"),
        "response_match_score: mean 0.85 over 2 cases, at least 0.5",
    )
    assert decision.scores == {RESPONSE: pytest.approx(0.85)}


def test_a_waiver_ends_and_one_that_covers_nothing_is_noted() -> None:
    later = decide_on(SPOILT, waived({"case": "c"}, {"case": "d"}), now=datetime(2027, 2, 1, tzinfo=UTC))
    assert later.verdict == "undecided"
    assert not later.waived
    assert later.notes[0] == "an expired waiver is ignored: case 'c': waived by Ada until 2027-01-31: ticket 7"
    idle = decide_on(GOOD, waived({"case": "A"}, {"case": "a", "criterion": "response_match"}), now=TODAY)
    assert idle.notes == (
        "a waiver covers nothing: there is no case 'A' in the eval set. Did you mean 'a'?",
        "a waiver covers nothing: case 'a' has no criterion 'response_match'. Did you mean 'response_match_score'?",
    )
    assert idle.passed
    assert not idle.waived


def test_a_waiver_of_one_criterion_leaves_the_others_of_the_case() -> None:
    report = report_with({RESPONSE: {"a": [0.1], "b": [0.9]}, TRAJECTORY: {"a": [1], "b": [1]}}, thresholds={RESPONSE: 0.5, TRAJECTORY: 1})
    demands = {"rules": {RESPONSE: {"min": 0.9}, TRAJECTORY: {"min": 1}, "case_pass_rate": {"min": 1}}, "must_pass": ["a"]}
    decision = decide_on(evidence_of(report), waived({"case": "a", "criterion": RESPONSE}, **demands), now=TODAY)
    assert decision.passed
    assert [(check.measure, check.cases) for check in decision.checks] == [
        ("must_pass", 1),
        (RESPONSE, 1),
        (TRAJECTORY, 2),
        ("case_pass_rate", 2),
    ]


def test_both_sides_of_a_comparison_lack_what_is_waived() -> None:
    old = run_with(cases(*[0.9] * 10), run_id="old")
    new = run_with(cases(*[0.9] * 9, 0.0))
    check = only_check(
        new,
        waived({"case": "j"}, rules={RESPONSE: {"max_drop": 0.3}}, baseline={"alias": "champion"}),
        baseline=champion(old),
        now=TODAY,
    )
    assert (check.verdict, check.cases, check.baseline) == ("passed", 9, pytest.approx(0.9))


@pytest.mark.parametrize(
    ("demands", "said"),
    [
        ({}, "response_match_score: all cases are waived"),
        ({"rules": {}, "must_pass": ["a"]}, "nothing in the policy applies to any case"),
        ({"rules": {}, "thresholds": True}, "every case is waived"),
        (
            {"rules": {}, "slices": {"s": {"ids": ["a"], "rules": {RESPONSE: {"min": 0.1}}}}},
            "response_match_score (slice s): all its cases are waived",
        ),
    ],
)
def test_a_policy_whose_cases_are_all_waived_passes_nobody(demands: dict[str, Any], said: str) -> None:
    found = run_with(cases(1, 1))
    decision = decide_on(found, waived({"case": "a"}, {"case": "b"}, **demands), now=TODAY)
    assert decision.verdict == "undecided"
    assert said in decision.reasons


def test_a_waiver_covers_no_doubt_about_the_evidence() -> None:
    spoilt = changed(SPOILT, "tags", {"adk_eval.status": "partial"})
    assert decide_on(spoilt, waived(*({"case": case} for case in "cd")), now=TODAY).verdict == "undecided"


# Cases that must pass, and how many there must be.


@pytest.mark.parametrize(
    ("must_pass", "verdict", "said"),
    [
        ("good", "passed", "must_pass good: passed in all 2 runs"),
        ("flaky", "failed", "must_pass flaky: flaky (run 2) failed: response_match_score is 0.1, below its threshold 0.5"),
        ("flakey", "undecided", "must_pass flakey: eval set 'home' has no such case. Did you mean 'flaky'?"),
    ],
)
def test_cases_that_must_pass_do_so_in_each_run(must_pass: str, verdict: str, said: str) -> None:
    decision = decide_on(run_with({"good": [0.9, 0.8], "flaky": [0.9, 0.1]}), policy(must_pass=[must_pass]))
    assert decision.verdict == verdict
    assert said in decision.reasons


def test_of_many_unknown_cases_that_must_pass_each_is_named_and_the_first_have_a_hint() -> None:
    unknown = [f"flakey{number}" for number in range(1000)]
    decision = decide_on(run_with({"good": [0.9, 0.8], "flaky": [0.9, 0.1]}), policy(must_pass=unknown))
    said = [check.reason for check in decision.checks if "has no such case" in check.reason]
    assert [reason.partition(": ")[0] for reason in said] == [f"must_pass {name}" for name in unknown]
    assert [index for index, reason in enumerate(said) if reason.endswith("Did you mean 'flaky'?")] == list(range(10))


def test_a_case_that_must_pass_and_was_not_evaluated_is_undecided() -> None:
    decision = decide_on(SPOILT, policy(must_pass=["d"]))
    assert decision.verdict == "undecided"
    assert decision.reasons[-1].startswith("must_pass d: d undecided: response_match_score was not evaluated: ")


def test_too_few_cases_decide_nothing_unless_something_failed() -> None:
    few = policy(rules={RESPONSE: {"min": 0.5}}, min_cases=41)
    decision = decide_on(GOOD, few)
    assert decision.verdict == "undecided"
    assert decision.reasons == ("only 40 cases not waived; the policy requires at least 41",)
    assert decide_on(run_with(cases(0.1)), few).verdict == "failed"
    assert decide_on(GOOD, policy(rules={RESPONSE: {"min": 0.5}}, min_cases=40)).passed


# The verdict.


def test_what_failed_comes_before_what_is_undecided_and_a_pass_tells_all_it_rests_on() -> None:
    demanded = policy(rules={RESPONSE: {"min": 0.9}, "pass^3": {"min": 1}}, thresholds=True)
    decision = decide_on(GOOD, demanded)
    assert decision.verdict == "failed"
    assert [reason.split(":")[0] for reason in decision.reasons] == [RESPONSE, "pass^3"]
    assert [check.verdict for check in decision.checks] == ["passed", "failed", "undecided"]
    assert decide_on(GOOD, policy(rules={RESPONSE: {"min": 0.5}}, thresholds=True)).reasons == (
        "40 cases of eval set 'home' evaluated on 1 criterion, nothing left out",
        "response_match_score: 40 cases reached the threshold 0.5 (mean 0.7875)",
        "response_match_score: mean 0.7875 over 40 cases, at least 0.5",
    )


bounds = st.floats(0.01, 1)
rule_sets = st.dictionaries(
    st.sampled_from([RESPONSE, "case_pass_rate", "pass^1", f"{RESPONSE}/pass_rate"]),
    st.builds(lambda bound, use: {"min": bound, "use": use}, bounds, st.sampled_from(["mean", "ci_low"])),
    min_size=1,
)
values = st.lists(st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]), min_size=1, max_size=8)


@given(values, rule_sets, rule_sets, bounds)
def test_a_harder_policy_never_turns_a_refusal_into_a_pass(found: list[float], one: Any, more: Any, harder: float) -> None:
    run = run_with(cases(*found))
    lax, strict = ({**one}, {**more, **{name: demand | {"min": max(demand["min"], harder)} for name, demand in one.items()}})
    if not decide_on(run, policy(rules=lax)).passed:
        assert not decide_on(run, policy(rules=strict)).passed


@given(values, rule_sets, st.randoms(use_true_random=False))
def test_the_order_of_cases_and_rules_does_not_matter(found: list[float], demanded: Any, rng: Any) -> None:
    named, names = cases(*found), list(demanded)
    shuffled = list(named)
    rng.shuffle(shuffled)
    rng.shuffle(names)
    decisions = [
        decide_on(run_with(named), policy(rules=demanded, baseline={"alias": "c"})),
        decide_on(
            run_with({case: named[case] for case in shuffled}),
            policy(rules={name: demanded[name] for name in names}, baseline={"alias": "c"}),
        ),
    ]
    assert decisions[0].verdict == decisions[1].verdict
    assert sorted(check.reason for check in decisions[0].checks) == sorted(check.reason for check in decisions[1].checks)


@given(values, st.integers(0, 7), st.booleans())
def test_a_waiver_for_a_passing_case_never_turns_a_refusal_into_a_pass(found: list[float], index: int, whole: bool) -> None:
    run, names = run_with(cases(*found)), list(cases(*found))
    case = names[index % len(names)]
    if found[index % len(names)] < 0.5:
        return
    covered = {"case": case} | ({} if whole else {"criterion": RESPONSE})
    demands: dict[str, Any] = {"rules": {"case_pass_rate": {"min": 1}}, "thresholds": True}
    if not decide_on(run, policy(**demands), now=TODAY).passed:
        assert not decide_on(run, waived(covered, **demands), now=TODAY).passed


@given(values, values, st.floats(0, 0.5))
def test_decisions_are_the_same_each_time(before: list[float], after: list[float], max_drop: float) -> None:
    size = min(len(before), len(after))
    old, new = (run_with(cases(*found[:size]), run_id=name) for found, name in ((before, "old"), (after, "new")))
    decisions = [decide_on(new, rule(max_drop=max_drop), baseline=champion(old), now=TODAY) for _ in range(2)]
    assert decisions[0] == decisions[1]
    assert replace(decisions[0], verdict="passed").baseline_run_id == "old"
