"""Attack 1: have a candidate compared with a poor run of the champion, by editing the tags that lead to its record."""

from __future__ import annotations

import pytest

from tests.gating.entrant import Entrant
from tests.gating.gate_kit import RESPONSE, TRAJECTORY, Lab, evidence_of, report_of

pytestmark = pytest.mark.slow

POLICY = {"rules": {TRAJECTORY: {"max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}
CASES = ["lights", "heating", "film"]


def entrant(lab: Lab, model: str, **how: object) -> Entrant:
    found = Entrant(lab, model)
    found.run_id = lab.log(evidence_of(report_of(**how), model_id=found.model_id))  # type: ignore[arg-type]
    return found


@pytest.fixture
def poor_record(lab: Lab, model: str) -> tuple[Entrant, str]:
    """The champion, promoted on a perfect run, and the record of a poor run of its own, under another alias."""
    champion = Entrant(lab, model)
    champion.promote()
    good_run = champion.run_id
    champion.run_id = lab.log(evidence_of(report_of(wrong=CASES), model_id=champion.model_id))
    assert champion.promote("staging", policy={"rules": {RESPONSE: {"min": 0.01}}}).passed
    place = champion.tags["mlflow.adk_eval.gate.passed.staging"]
    champion.run_id = good_run
    return champion, place


def test_a_tag_that_leads_to_a_poor_run_changes_no_comparison(lab: Lab, model: str, poor_record: tuple[Entrant, str]) -> None:
    champion, place = poor_record
    regressed = entrant(lab, model, wrong=["heating"])
    for key in ("mlflow.adk_eval.gate.passed.champion", "adk_eval.gate.record"):
        lab.client.set_model_version_tag(model, champion.version, key, place)
    decision = regressed.promote(policy=POLICY, raise_on_failure=False)
    assert decision.verdict != "passed"
    assert decision.baseline_run_id in ("", champion.run_id)
    assert lab.alias(model) == champion.version


def test_a_later_poor_run_of_the_champion_is_not_what_is_compared_with(lab: Lab, model: str, poor_record: tuple[Entrant, str]) -> None:
    champion, _ = poor_record
    lab.log(evidence_of(report_of(wrong=CASES), model_id=champion.model_id))
    regressed = entrant(lab, model, wrong=["heating"])
    decision = regressed.promote(policy=POLICY, raise_on_failure=False)
    assert decision.verdict == "failed"
    assert decision.baseline_run_id == champion.run_id


def test_a_record_of_the_champion_that_was_rewritten_is_not_compared_with(lab: Lab, model: str, poor_record: tuple[Entrant, str]) -> None:
    champion, place = poor_record
    regressed, path = entrant(lab, model, wrong=["heating"]), champion.tags["mlflow.adk_eval.gate.passed.champion"].split()[1]
    run_id, poor_path, _ = place.split()
    (lab.artifacts(champion.run_id) / path).write_bytes((lab.artifacts(run_id) / poor_path).read_bytes())
    decision = regressed.promote(policy=POLICY, raise_on_failure=False)
    assert decision.verdict == "undecided"
    assert f"its promotion record {path} in run {champion.run_id} was changed after the decision" in "\n".join(decision.reasons)


def test_a_version_that_was_promoted_to_a_lesser_alias_on_a_poor_run_is_not_known_by_that(lab: Lab, model: str) -> None:
    champion = Entrant(lab, model)
    champion.promote()
    good_run = champion.run_id
    champion.run_id = lab.log(evidence_of(report_of(wrong=CASES), model_id=champion.model_id))
    assert champion.promote("a_first_alias", policy={"rules": {TRAJECTORY: {"max": 0.9}}}).passed
    policy = POLICY | {"baseline": {"version": int(champion.version)}}
    regressed = entrant(lab, model, wrong=["heating"])
    decision = regressed.promote(policy=policy, raise_on_failure=False)
    assert decision.verdict == "undecided"
    expected = f"several of its runs led to promotions, to a_first_alias by run {champion.run_id}, champion by run {good_run}; name one"
    assert expected in "\n".join(decision.reasons)
    named = regressed.promote(policy=POLICY | {"baseline": {"run": good_run}}, raise_on_failure=False)
    assert (named.verdict, named.baseline_run_id) == ("failed", good_run)
