"""Attack 11: a judge that nobody measured, or a calibration that was edited, is of another judge, old, or copied from the verdicts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from tests.analysis.calibrated import CONFIG, MATCH, answers, deserves, evaluated
from tests.gating.gate_kit import Lab

pytestmark = pytest.mark.slow

JSON = dict[str, Any]
ONE = {"criteria": {MATCH: CONFIG["criteria"][MATCH]}}
WANTED: JSON = {"calibrated": True, "min_kappa": 0.6, "max_age": "90d", "labels": 19, "min_sensitivity": 0.9, "min_specificity": 0.8}
LABELS = [
    {"eval_id": eval_id, "invocation_index": index, "criterion": MATCH, "label": deserves(answer)}
    for eval_id, index, answer in answers()
    if "down" not in answer
]


@pytest.fixture(scope="module")
def run(lab: Lab) -> Report:
    with pytest.MonkeyPatch.context() as within:
        within.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        return evaluated(lab.uri, ONE)


@pytest.fixture(scope="module")
def other(lab: Lab) -> Report:
    """Return a run by a judge that has three votes."""
    with pytest.MonkeyPatch.context() as within:
        within.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        return evaluated(lab.uri, {"criteria": {MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 3}}}})


@pytest.fixture(scope="module")
def calibration(lab: Lab, run: Report) -> JSON:
    return adk_eval.calibrate(run, LABELS, tracking_uri=lab.uri).model_dump(mode="json", exclude_none=True)


def decided(lab: Lab, run: Report, calibration: JSON | None, judge: JSON | None = WANTED, rule: JSON | None = None) -> Decision:
    waived = [{"case": "down", "owner": "a", "reason": "b", "expires": "2999-01-01"}]
    policy: JSON = {"rules": {MATCH: {"min": 0.1, **(rule or {})}}, "waivers": waived}
    policy |= {"judge": judge} if judge else {}
    policy |= {"calibration": calibration} if calibration else {}
    return adk_eval.gate(run, policy, tracking_uri=lab.uri, raise_on_failure=False)


def edited(calibration: JSON, edit: Callable[[JSON], Any]) -> JSON:
    found = copy.deepcopy(calibration)
    edit(found)
    return found


def test_a_judge_that_was_measured_well_enough_decides(lab: Lab, run: Report, calibration: JSON) -> None:
    decision = decided(lab, run, calibration)
    assert decision.passed, decision.reasons
    (line,) = (note for note in decision.notes if note.startswith(f"{MATCH}: the judge judge "))
    assert "was calibrated on 19 labelled verdicts, given by 20" in line
    assert "κ 0.7" in line
    assert "sensitivity 0.92 [" in line
    assert "specificity 0.86 [" in line
    kept = load_policy({"rules": {MATCH: {"min": 0.1}}, "judge": WANTED, "calibration": calibration}).to_json()
    assert kept["calibration"]["criteria"][MATCH]["true_passes"] == 11  # as the record keeps it


def test_a_judge_that_was_never_measured_is_told_and_refused_where_that_is_demanded(lab: Lab, run: Report) -> None:
    never = f"{MATCH}: the judge judge was never calibrated against people's labels: the policy names no calibration"
    lenient, strict = decided(lab, run, None, None), decided(lab, run, None)
    assert (lenient.verdict, strict.verdict) == ("passed", "undecided")
    assert never in lenient.notes
    assert never in strict.reasons
    for demand in ({"labels": 1}, {"max_age": "90d"}, {"min_kappa": 0.1}):  # each of which takes a calibration
        assert never in decided(lab, run, None, demand).reasons
    by_rule = decided(lab, run, None, None, {"judge": {"calibrated": True}})
    assert (by_rule.verdict, by_rule.checks[0].verdict) == ("undecided", "undecided")
    assert never in by_rule.checks[0].reason


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        ({"min_kappa": 0.9}, "is not reliable enough: its κ is 0.7"),
        ({"min_specificity": 0.5, "use": "ci_low"}, "the lower bound of its specificity at 95% is 0.4"),
        ({"labels": 20}, "was calibrated on 19 labelled verdicts, but the policy requires 20"),
        ({"min_sensitivity": 0.95}, "its sensitivity is 0.92, but the policy requires at least 0.95"),
    ],
)
def test_a_judge_that_is_worse_than_demanded_decides_nothing(lab: Lab, run: Report, calibration: JSON, demand: JSON, said: str) -> None:
    decision = decided(lab, run, calibration, demand)
    assert decision.verdict == "undecided"
    assert said in decision.reasons[0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda found: found["criteria"][MATCH].update(false_failures=0, false_passes=0, true_passes=12, true_failures=7),
        lambda found: found["criteria"][MATCH].update(settings_sha256="0" * 64),
        lambda found: found["criteria"][MATCH]["sample"].update(passed=1),
        lambda found: found.update(labelled=found["labelled"][:5]),
        lambda found: found.update(labelled=[], runs=[]),
        lambda found: found["labelled"].append({"eval_id": "nobody", "criterion": MATCH, "passes": 1, "fails": 0}),
        lambda found: found["labelled"].append(found["labelled"][0]),
        lambda found: found["labelled"][0].update(passes=0, fails=1),
        lambda found: found["runs"][0].update(evidence_sha256="0" * 64),
        lambda found: found["runs"][0].update(run_id="0" * 32),
    ],
    ids=["counts", "settings", "sample", "labels left out", "nothing left", "invented", "twice", "flipped", "evidence", "no such run"],
)  # fmt: skip
def test_an_edited_calibration_contradicts_its_evidence(lab: Lab, run: Report, calibration: JSON, edit: Callable[[JSON], Any]) -> None:
    decision = decided(lab, run, edited(calibration, edit))
    assert decision.verdict == "undecided"
    assert "was never calibrated against people's labels: " in decision.reasons[0]
    assert "cannot be trusted: " in decision.reasons[0]


def test_the_calibration_of_another_judge_does_not_count_and_cannot_be_relabelled(lab: Lab, other: Report, calibration: JSON) -> None:
    refused = decided(lab, other, calibration)
    assert refused.verdict == "undecided"
    assert "the calibration is of a different judge" in refused.reasons[0]
    renamed = edited(calibration, lambda found: found["criteria"][MATCH]["params"].update({f"adk_eval.num_samples.{MATCH}": "3"}))
    assert "its params of final_response_match_v2 do not follow" in decided(lab, other, renamed).reasons[0]


def test_an_old_calibration_is_not_made_younger_in_its_file_or_in_mlflow(lab: Lab, run: Report, calibration: JSON) -> None:
    old = edited(calibration, lambda found: found["runs"][0].update(ended_at="2020-01-01T00:00:00Z"))
    decision = decided(lab, run, old)  # MLflow's own end time is now
    assert decision.verdict == "undecided"
    assert "was calibrated on verdicts of 2020-01-01 00:00 UTC, more than 90d before" in decision.reasons[0]
    young = edited(calibration, lambda found: found["runs"][0].update(ended_at="2999-01-01T00:00:00Z"))
    assert decided(lab, run, young).passed  # MLflow says when it was


def test_evidence_that_was_edited_after_it_was_labelled(lab: Lab, calibration: JSON, run: Report) -> None:
    with pytest.MonkeyPatch.context() as within:
        within.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        fresh = evaluated(lab.uri, ONE)
    labelled = adk_eval.calibrate(fresh, LABELS, tracking_uri=lab.uri).model_dump(mode="json", exclude_none=True)
    lab.client.log_text(fresh.run_id, "{}", "adk_eval/config.json")
    decision = decided(lab, run, labelled)
    assert decision.verdict == "undecided"
    assert "cannot be trusted" in decision.reasons[0]
    assert calibration["runs"][0]["run_id"] != fresh.run_id


def test_limit_labels_that_nobody_gave_are_believed(lab: Lab, run: Report) -> None:
    """Whoever writes the labels decides what is true: a calibration is reviewed as the policy is."""
    copied = [
        {**label, "label": cell.score >= 0.5}
        for label in LABELS
        for case in run.cases
        if case.eval_id == label["eval_id"]
        for cell in [case.results[0].per_invocation[label["invocation_index"]]]
        if cell is not None and hasattr(cell, "score")
    ]
    found = adk_eval.calibrate(run, copied, tracking_uri=lab.uri)
    assert decided(lab, run, found.model_dump(mode="json", exclude_none=True)).passed
