"""Every way in which a run can fall short of a policy, or a champion be no measure, in a real MLflow store: nothing is promoted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mlflow_adk_eval.gating.api import promote
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.manifest import Evidence
from tests.gating.gate_kit import RESPONSE, TRAJECTORY, Lab, changed, evidence_of
from tests.gating.policy_kit import JUDGED, cases, report_with, run_with, vote

COUNT = 12
GOOD = cases(*[0.9] * COUNT)
COMPARED = {"rules": {RESPONSE: {"max_drop": 0.25}}, "baseline": {"alias": "champion"}}
MINIMUM = {RESPONSE: {"min": 0.5}}
TODAY = datetime.now(UTC).date()
Change = Callable[[Evidence], Evidence]
Tamper = Callable[[Lab, str], object]


@dataclass(frozen=True)
class Contest:
    """A model whose version 1 was promoted on a run, and whose version 2 would like to be."""

    name: str
    model_id: str
    champion_run: str


def good(model_id: str) -> Evidence:
    return run_with(GOOD, model_id=model_id)


def judged_run(model_id: str, judge: str = "gemini-2.5-flash") -> Evidence:
    """Return a run in which a judge found every response right."""
    votes = [vote(case, 0, "valid") for case in GOOD]
    evidence = run_with(cases(*[1.0] * COUNT), criterion=JUDGED, thresholds={JUDGED: 0.5}, votes=votes, model_id=model_id)
    return changed(evidence, "params", {"adk_eval.judge_model": judge, f"adk_eval.judge.{JUDGED}": judge})


def held(lab: Lab, name: str, evidence: Callable[[str], Evidence] = good) -> Contest:
    model_ids = lab.agent(), lab.agent()
    for model_id in model_ids:
        lab.register(name, f"models:/{model_id}")
    run_id = lab.log(evidence(model_ids[0]))
    assert promote(name, 1, run_id=run_id, tracking_uri=lab.uri).passed
    return Contest(name, model_ids[1], run_id)


@pytest.fixture(scope="session", params=["lab", pytest.param("served_lab", marks=pytest.mark.slow)], ids=["SQLite", "server"])
def lab(request: pytest.FixtureRequest) -> Lab:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def contest(lab: Lab) -> Contest:
    return held(lab, "held_to_a_policy")


def refused(lab: Lab, contest: Contest, policy: Mapping[str, Any], evidence: Evidence, tamper: Tamper | None = None) -> Decision:
    """Return the decision on version 2, after checking that the champion is still version 1."""
    run_id = lab.log(evidence)
    if tamper:
        tamper(lab, run_id)
    decision = promote(contest.name, 2, run_id=run_id, policy=policy, raise_on_failure=False, tracking_uri=lab.uri)
    assert lab.alias(contest.name) == "1"
    return decision


def scores(*values: float, **more: Any) -> Change:
    """Return another run of the same version."""
    return lambda evidence: run_with(cases(*values), model_id=evidence.params["adk_eval.model_id"], **more)


def rest(*values: float) -> tuple[float, ...]:
    """Return scores of all cases, of which the last are as good as the champion's."""
    return (*values, *[0.9] * (COUNT - len(values)))


def ended(at: datetime) -> Tamper:
    def end(lab: Lab, run_id: str) -> None:
        lab.execute("UPDATE runs SET end_time = ? WHERE run_uuid = ?", str(int(at.timestamp() * 1000)), run_id)

    return end


def waiver(case: str = "a", expires: str = "2999-12-31", **more: Any) -> dict[str, Any]:
    return {"case": case, "owner": "ada", "reason": "the lamp is broken", "expires": expires, **more}


def part(**more: Any) -> dict[str, Any]:
    return {"slices": {"lamps": {"ids": ["a", "b"], "rules": MINIMUM, **more}}}


Situation = tuple[Mapping[str, Any], Change | None, Tamper | None, str, str]
REFUSALS: dict[str, Situation] = {
    # pins
    "another set": ({"rules": MINIMUM, "eval_set": {"id": "garden"}}, None, None, "undecided", "eval set"),
    "an edited set": ({"rules": MINIMUM, "eval_set": {"digest": "sha256:" + "0" * 64}}, None, None, "undecided", "digest"),
    "another judge": (
        {"rules": {JUDGED: {"min": 0.5}}, "judge": {"models": ["gemini-3-pro"]}}, lambda e: judged_run(e.params["adk_eval.model_id"]),
        None, "undecided", "gemini-2.5-flash",
    ),
    "too few cases": ({"rules": MINIMUM, "min_cases": 30}, None, None, "undecided", "12 cases"),
    "too few for waivers": (
        {"rules": MINIMUM, "min_cases": COUNT, "waivers": [waiver()]}, None, None, "undecided", "11 cases",
    ),
    "too old": ({"rules": MINIMUM, "max_age": "7d"}, None, ended(datetime.now(UTC) - timedelta(days=8)), "undecided", "ended"),
    "from the future": ({"rules": MINIMUM, "max_age": "7d"}, None, ended(datetime.now(UTC) + timedelta(days=1)), "undecided", "but it is only"),
    # absolute rules
    "mean too low": ({"rules": {RESPONSE: {"min": 0.95}}}, None, None, "failed", f"{RESPONSE}: "),
    "mean too high": ({"rules": {RESPONSE: {"max": 0.5}}}, None, None, "failed", f"{RESPONSE}: "),
    "pass rate too low": ({"rules": {"case_pass_rate": {"min": 0.95}}}, scores(*rest(0.1)), None, "failed", "case_pass_rate"),
    "too flaky": (
        {"rules": {"flaky_rate": {"max": 0.05}}},
        lambda e: run_with({"a": [0.9, 0.1], "b": [0.9, 0.9]}, model_id=e.params["adk_eval.model_id"]),
        None, "failed", "flaky_rate",
    ),
    "a bound too low": ({"rules": {"case_pass_rate": {"min": 0.9, "use": "ci_low"}}}, None, None, "undecided", "case_pass_rate"),
    "a bound of nothing": ({"rules": {RESPONSE: {"min": 0.9, "use": "ci_low"}}}, None, None, "undecided", f"{RESPONSE}: "),
    "an unknown measure": ({"rules": {"response_match": {"min": 0.5}}}, None, None, "undecided", "Did you mean 'response_match_score'"),
    "a criterion that was not evaluated": ({"rules": {TRAJECTORY: {"min": 1.0}}}, None, None, "undecided", TRAJECTORY),
    "pass^3 of one run": ({"rules": {"pass^3": {"min": 0.5}}}, None, None, "undecided", "num_runs 3"),
    "cost without a price": (
        {"rules": {"cost": {"max": 1.0}}, "prices": {"gemini-3-pro": {"tokens": 1.0}}}, lambda e: judged_run(e.params["adk_eval.model_id"]),
        None, "undecided", "gemini-2.5-flash-001",
    ),
    "flips without a judge": ({"rules": {"judge_flip_rate": {"max": 0.1}}}, None, None, "undecided", "judge"),
    "thresholds of the run": ({"thresholds": True, "rules": {RESPONSE: {"min": 0.1}}}, scores(*rest(0.2)), None, "failed", "threshold"),
    # single cases
    "a case that must pass": ({"must_pass": ["a"]}, scores(*rest(0.1)), None, "failed", "must_pass a"),
    "a case that must pass and is not there": ({"must_pass": ["lamp"]}, None, None, "undecided", "must_pass lamp: eval set"),
    "an expired waiver": (
        {"must_pass": ["a"], "waivers": [waiver(expires=str(TODAY - timedelta(days=1)))]}, scores(*rest(0.1)), None, "failed", "must_pass a",
    ),
    "a waiver of another case": ({"must_pass": ["a"], "waivers": [waiver("b")]}, scores(*rest(0.1)), None, "failed", "must_pass a"),
    "a waiver of another criterion": (
        {"must_pass": ["a"], "waivers": [waiver(criterion=TRAJECTORY)]}, scores(*rest(0.1)), None, "failed", "must_pass a",
    ),
    "everything is waived": (
        {"rules": MINIMUM, "waivers": [waiver(case) for case in GOOD]}, None, None, "undecided", "every case is waived",
    ),
    "a waiver covers no tampering": (
        {"rules": MINIMUM, "waivers": [waiver()]}, None,
        lambda lab, run_id: lab.client.log_metric(run_id, f"{RESPONSE}/mean", 1.0), "undecided", "the logged metric",
    ),
    # slices
    "a slice too low": (part(), scores(*rest(0.1, 0.2)), None, "failed", "lamps"),
    "a slice too small": (part(min_cases=3), None, None, "undecided", "it has 2 cases but needs at least 3"),
    "a slice of no case": (part(ids=["lamp_*"]), None, None, "undecided", "it has no cases"),
    "a slice of no tag": (part(ids=[], tags=["lamps"]), None, None, "undecided", "it has no cases"),
    "a slice that is waived": ({**part(), "waivers": [waiver(), waiver("b")]}, None, None, "undecided", "all its cases are waived"),
    # against the champion
    "worse than the champion": (COMPARED, scores(*[0.6] * COUNT), None, "failed", RESPONSE),
    "worse in a slice": (
        {"slices": {"lamps": {"ids": ["[a-f]"], "rules": COMPARED["rules"]}}, "baseline": {"alias": "champion"}},
        scores(*rest(*[0.5] * 6)), None, "failed", "lamps",
    ),
    "worse or not, nobody knows": (COMPARED, scores(*rest(0.1, 0.1, 0.99)), None, "undecided", RESPONSE),
    "a drop too large as measured": (
        {"rules": {RESPONSE: {"max_drop": 0.02, "use": "mean"}}, "baseline": {"alias": "champion"}},
        scores(*rest(0.5)), None, "failed", RESPONSE,
    ),
    "other cases than the champion": (COMPARED, scores(*[0.9] * (COUNT + 1)), None, "undecided", "used a different eval set"),
    "other settings than the champion": (
        {"rules": {TRAJECTORY: {"max_drop": 0.02}}, "baseline": {"alias": "champion"}},
        lambda e: changed_criterion(e.params["adk_eval.model_id"]), None, "undecided", f"did not evaluate {TRAJECTORY}",
    ),
    "compared with itself": (
        {**COMPARED, "baseline": {"run": "SELF"}}, None, None, "undecided", "it is the candidate run itself",
    ),
    "a champion that must be there": (
        {**COMPARED, "baseline": {"alias": "grandmaster", "if_missing": "refuse"}}, None, None, "undecided", "grandmaster",
    ),
    "nothing but a champion that is not there": ({**COMPARED, "baseline": {"alias": "grandmaster"}}, None, None, "undecided", "grandmaster"),
}  # fmt: skip


def changed_criterion(model_id: str) -> Evidence:
    """Return a run in which another criterion decides, too."""
    both = {RESPONSE: GOOD, TRAJECTORY: cases(*[1.0] * COUNT)}
    return evidence_of(report_with(both, thresholds={RESPONSE: 0.5, TRAJECTORY: 1.0}), model_id=model_id)


@pytest.mark.parametrize("why", REFUSALS)
def test_what_falls_short_of_a_policy_is_refused(why: str, lab: Lab, contest: Contest) -> None:
    policy, change, tamper, verdict, said = REFUSALS[why]
    evidence = run_with(GOOD, model_id=contest.model_id)
    if policy.get("baseline") == {"run": "SELF"}:
        run_id = lab.log(evidence)
        own = {**policy, "baseline": {"run": run_id}}
        decision = promote(contest.name, 2, run_id=run_id, policy=own, raise_on_failure=False, tracking_uri=lab.uri)
        assert lab.alias(contest.name) == "1"
    else:
        decision = refused(lab, contest, policy, change(evidence) if change else evidence, tamper)
    assert decision.verdict == verdict, decision.reasons
    assert any(said in reason for reason in decision.reasons), decision.reasons


SPOILT: dict[str, tuple[Tamper, str]] = {
    "its table was edited": (lambda lab, run: lab.client.log_text(run, "{}", "adk_eval/cells/part-00000.parquet"), "was changed after the run"),
    "its table is gone": (lambda lab, run: (lab.artifacts(run) / "adk_eval" / "cells" / "part-00000.parquet").unlink(), "is missing"),
    "its manifest was edited": (lambda lab, run: lab.client.log_text(run, "{}", "adk_eval/manifest.json"), "manifest.json was changed after the run"),
    "its run was deleted": (lambda lab, run: lab.client.delete_run(run), "deleted"),
    "its metric was edited": (lambda lab, run: lab.client.log_metric(run, f"{RESPONSE}/mean", 0.1), "the logged metric"),
    "its run is marked as partial": (lambda lab, run: lab.client.set_tag(run, "adk_eval.status", "partial"), "only part of the evaluation"),
    "its run is open again": (lambda lab, run: lab.client.update_run(run, status="RUNNING"), "still running"),
}  # fmt: skip


@pytest.mark.parametrize("why", SPOILT)
def test_a_champion_whose_evidence_is_spoilt_is_no_measure(why: str, lab: Lab, model: str) -> None:
    tamper, said = SPOILT[why]
    contest = held(lab, model)
    tamper(lab, contest.champion_run)
    decision = refused(lab, contest, COMPARED, run_with(GOOD, model_id=contest.model_id))
    assert decision.verdict == "undecided"
    assert any(said in reason for reason in decision.reasons), decision.reasons


def test_a_champion_that_nobody_evaluated_is_no_measure(lab: Lab, model: str) -> None:
    for model_id in (lab.agent(), lab.agent()):
        lab.register(model, f"models:/{model_id}")
    lab.client.set_registered_model_alias(model, "champion", "1")
    decision = refused(lab, Contest(model, model_id, ""), COMPARED, run_with(GOOD, model_id=model_id))
    assert decision.verdict == "undecided"
    assert any("version 1" in reason for reason in decision.reasons), decision.reasons


def test_a_champion_judged_by_another_judge_is_no_measure(lab: Lab, model: str) -> None:
    contest = held(lab, model, evidence=judged_run)
    policy = {"rules": {JUDGED: {"max_drop": 0.25}}, "baseline": {"alias": "champion"}}
    same = promote(model, 2, run_id=lab.log(judged_run(contest.model_id)), policy=policy, dry_run=True, tracking_uri=lab.uri)
    assert same.passed
    decision = refused(lab, contest, policy, judged_run(contest.model_id, "gemini-3-pro"))
    assert decision.verdict == "undecided"
    assert any(f"has a different judge for {JUDGED}" in reason for reason in decision.reasons), decision.reasons


def test_what_the_policies_wanted_is_enough_for_a_promotion(lab: Lab, model: str) -> None:
    contest = held(lab, model)
    policy = {
        **COMPARED, **part(), "thresholds": True, "eval_set": {"id": "home"}, "min_cases": COUNT, "max_age": "7d", "must_pass": ["a"],
    }  # fmt: skip
    run_id = lab.log(run_with(GOOD, model_id=contest.model_id))
    assert promote(contest.name, 2, run_id=run_id, policy=policy, tracking_uri=lab.uri).passed
    assert lab.alias(contest.name) == "2"


def test_there_are_as_many_situations_as_promised() -> None:
    from tests.gating.evidence.test_refusals import REFUSALS as OF_EVIDENCE

    assert len(OF_EVIDENCE) + len(REFUSALS) + len(SPOILT) >= 110
    assert not set(OF_EVIDENCE) & set(itertools.chain(REFUSALS, SPOILT))
