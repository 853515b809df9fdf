"""Deciding again from a record: on the same policy, the same baseline and the same day, and coming to the same numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.claim_log import Outcome
from mlflow_adk_eval.gating.promotion.record import read_record
from mlflow_adk_eval.gating.promotion.verify import differences
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.results.decision import Check, Decision
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import TRAJECTORY, Lab
from tests.gating.promotion.claim_kit import forge_claim

POLICY = {
    "name": "gate.yaml",
    "max_age": "2w",
    "thresholds": True,
    "rules": {TRAJECTORY: {"min": 0.9, "max_drop": 0.5, "use": "mean"}},
    "baseline": {"alias": "champion"},
    "waivers": [],
}


def record_of(entrant: Entrant) -> dict[str, Any]:
    content = MlflowStore(entrant.lab.uri).artifact(entrant.run_id, entrant.record.path)
    found: dict[str, Any] = json.loads(content or b"")
    return found


def test_a_record_holds_all_that_it_takes_to_decide_again(lab: Lab, model: str) -> None:
    first, second = promoted(lab, model, 2, policy=POLICY)
    record = record_of(second)
    assert record["schema"] == 2
    assert (record["kind"], record["claim"], record["previous"]["number"]) == ("promotion", 2, "1")
    assert (record["version"]["number"], record["version"]["source"]) == ("2", f"models:/{second.model_id}")
    assert Policy.model_validate(record["policy"]) == load_policy(POLICY)
    manifest = lab.client.get_run(first.run_id).data.params["adk_eval.manifest_sha256"]
    compared = record["compared"]
    assert (compared["run_id"], compared["version"]["number"], compared["sha256"], compared["problems"]) == (
        first.run_id,
        "1",
        manifest,
        [],
    )
    assert [check["verdict"] for check in record["decision"]["checks"]] == ["passed"] * len(record["decision"]["checks"])
    assert record["decision"]["decided_at"]
    assert record["decision"]["decided_by"]
    assert second.verify().passed
    assert second.verify().checks
    assert record_of(first)["compared"]["run_id"] == ""
    assert first.verify(version=1, alias=None).passed


def test_a_baseline_whose_evidence_was_changed_does_not_verify(lab: Lab, model: str) -> None:
    first, second = promoted(lab, model, 2, policy=POLICY)
    lab.client.log_text(first.run_id, "{}", "adk_eval/manifest.json")
    (reason,) = second.verify().reasons
    assert reason.startswith("the evidence of its baseline, the champion, version 1 of ")
    assert reason.endswith(f" in run {first.run_id} was changed after the decision")


def test_a_baseline_whose_artifact_was_changed_does_not_verify(lab: Lab, model: str) -> None:
    first, second = promoted(lab, model, 2, policy=POLICY)
    lab.client.log_text(first.run_id, "{}", "adk_eval/cells/part-00000.parquet")
    assert any("adk_eval/cells/part-00000.parquet was changed after the run" in reason for reason in second.verify().reasons)


def rewritten(entrant: Entrant, edit: Callable[[dict[str, Any]], object]) -> tuple[str, ...]:
    """Promote with a record that was edited before it was claimed, as a forger without a key could; return why it does not verify."""
    lab, store = entrant.lab, MlflowStore(entrant.lab.uri)
    entrant.promote(policy=POLICY)
    record = record_of(entrant)
    record["claim"] = 2
    edit(record)
    content, path = json.dumps(record), "adk_eval_gate/edited.json"
    lab.client.log_text(entrant.run_id, content, path)
    place = f"{entrant.run_id} {path} {hashlib.sha256(content.encode()).hexdigest()}"
    forge_claim(store, entrant.name, version=entrant.version, record=place)
    lab.client.set_model_version_tag(entrant.name, entrant.version, "mlflow.adk_eval.gate.passed.champion", place)
    decision = entrant.verify()
    assert decision.verdict == "undecided" or not decision.reasons
    return decision.reasons


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda r: r["decision"]["scores"].update({TRAJECTORY: 0.95}), f"the promotion record says the score of {TRAJECTORY} is 0.95, but the evidence gives 1"),
        (lambda r: r["decision"].update(checks=[]), "the promotion record lacks checks that its policy asks for"),
        (lambda r: r["decision"]["checks"][0].update(value=0.5), "the promotion record says the check "),
        (lambda r: r["policy"]["rules"][TRAJECTORY].update(min=0.1), "the policy 'gate.yaml' in the promotion record is not the one used for the decision: its digest differs"),
        (lambda r: r["decision"].update(evidence_sha256="0" * 64), "the evidence of run "),
        (lambda r: r["decision"].update(verdict="failed", reasons=["too bad"]), "the promotion record of version 1 of "),
        (lambda r: r["decision"].update(decided_at="2020-01-01T00:00:00+00:00"), "the run "),
    ],
)  # fmt: skip
def test_a_record_that_says_something_else_than_its_evidence_does_not_verify(
    edit: Callable[[dict[str, Any]], object], reason: str, lab: Lab, model: str
) -> None:
    assert rewritten(Entrant(lab, model), edit)[0].startswith(reason)


def test_a_record_of_another_version_that_had_the_number_does_not_verify(lab: Lab, model: str) -> None:
    (reason,) = rewritten(Entrant(lab, model), lambda record: record["version"].update(created_ms=1))
    assert reason.startswith(
        f"version 1 of {model!r}: its promotion record is for another version: version 1 is not the original version 1"
    )


def forged(of: Entrant, version: Entrant, number: int, outcome: Outcome) -> None:
    """Write the record of one version into its run once more, about another version, and claim the alias for that."""
    store, record = MlflowStore(of.lab.uri), record_of(of)
    record |= {"target": record["target"] | {"version": version.version}, "claim": number}
    record["version"] = asdict(store.version(of.name, version.version).id)
    content, path = json.dumps(record), "adk_eval_gate/forged.json"
    of.lab.client.log_text(of.run_id, content, path)
    digest = hashlib.sha256(content.encode()).hexdigest()
    place = f"{of.run_id} {path} {digest}"
    forge_claim(store, of.name, outcome, version=version.version, previous=of.version, record=place)
    of.lab.client.set_model_version_tag(of.name, version.version, "adk_eval.gate.record", place)


def test_a_record_on_the_run_of_another_agent_does_not_verify(lab: Lab, model: str) -> None:
    first, second = promoted(lab, model, 2)
    forged(second, first, 3, "done")
    first.set_by_hand()
    decision = first.verify()
    assert decision.verdict == "undecided"
    assert f"the run evaluated another agent version: {second.model_id}, not {first.model_id}" in decision.reasons


def test_a_record_whose_claim_was_refused_does_not_verify(lab: Lab, model: str) -> None:
    (champion,) = promoted(lab, model, 1)
    forged(champion, champion, 2, "refused")
    decision = champion.verify(version=1, alias=None)
    assert decision.verdict == "undecided"
    assert decision.reasons[0] == "the claim champion.0002 of its promotion record did not set the alias: it was refused"
    assert champion.verify().passed, "by the claim log, the first record is the one"


def test_a_record_of_another_schema_cannot_be_read(lab: Lab, model: str) -> None:
    entrant = Entrant(lab, model)
    (reason,) = rewritten(entrant, lambda record: record.update(schema=3))
    assert reason.endswith(f"its promotion record adk_eval_gate/edited.json in run {entrant.run_id} cannot be read")
    assert read_record(b"{}") is None
    assert read_record(b"{") is None


def check_of(**values: Any) -> Check:
    return replace(Check(measure="m", demand="min 1", verdict="passed", reason="", cases=3, value=1.0), **values)


def decision_of(*checks: Check, **scores: float | None) -> Decision:
    return Decision(verdict="passed", reasons=(), run_id="r", evidence_sha256="", policy_sha256="", scores=scores, checks=checks)


@pytest.mark.parametrize(
    ("then", "today", "said"),
    [
        (decision_of(m=0.5), decision_of(m=0.5 + 1e-12), []),
        (decision_of(m=None), decision_of(m=None), []),
        (decision_of(m=0.5), decision_of(), ["the promotion record says the score of m is 0.5, but the evidence gives missing"]),
        (decision_of(check_of()), decision_of(check_of(reason="in other words")), []),
        (decision_of(check_of()), decision_of(check_of(p_value=0.04)), ["the promotion record says the check m min 1 has the p value missing, but the evidence gives 0.04"]),
        (decision_of(check_of()), decision_of(check_of(cases=2)), ["the promotion record says the check m min 1 has the cases 3, but the evidence gives 2"]),
        (decision_of(check_of(slice="s")), decision_of(check_of(slice="s", verdict="failed")), ["the promotion record says the check m s min 1 passed, but the evidence gives failed"]),
        (decision_of(check_of()), decision_of(check_of(demand="min 2")), ["the promotion record lacks checks that its policy asks for"]),
    ],
)  # fmt: skip
def test_decisions_are_compared_by_their_numbers(then: Decision, today: Decision, said: list[str]) -> None:
    assert differences(then, today) == said


def test_who_uses_a_version_may_hold_it_to_a_policy_of_its_own(lab: Lab, model: str, tmp_path: Path) -> None:
    (champion,) = promoted(lab, model, 1)
    assert champion.verify(policy={"rules": {TRAJECTORY: {"min": 0.9}}}).passed
    stricter = {"name": "production", "min_cases": 50, "rules": {TRAJECTORY: {"min": 0.9}}}
    decision = champion.verify(policy=stricter)
    assert decision.verdict == "undecided"
    assert decision.reasons[0] == f"version 1 of {model!r} does not meet the policy 'production'"
    (tmp_path / "production.yaml").write_text(json.dumps(stricter))
    how = [model, "--policy", str(tmp_path / "production.yaml"), "--tracking-uri", lab.uri]
    assert CliRunner().invoke(cli, ["verify", *how]).exit_code == 2
