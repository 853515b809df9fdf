"""Refusals in the claim log: they count, whoever wrote them, and move nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import AliasBusyError
from mlflow_adk_eval.gating.api import audit, gate, rollback
from mlflow_adk_eval.gating.policy.load import parse_policy
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, key_of
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target
from mlflow_adk_eval.gating.registry import MlflowStore, claims_experiment
from mlflow_adk_eval.gating.rules.attempts import Attempt
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.signing.keys import make_key
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import TRAJECTORY, Lab, eval_set_of, evidence_of, report_of
from tests.gating.promotion.claim_kit import claim_log_of

SPEND: dict[str, Any] = {
    "rules": {TRAJECTORY: {"min": 0.9}, "case_pass_rate": {"min": 0.3, "use": "ci_low", "confidence": 0.9}},
    "attempts": {"spend": 3},
    "config": {"criteria": {TRAJECTORY: 1.0, "response_match_score": 0.5}},
}


def refused(lab: Lab, name: str, count: int, **options: Any) -> list[Entrant]:
    entrants = [Entrant(lab, name, good=False) for _ in range(count)]
    for entrant in entrants:
        assert not entrant.promote(raise_on_failure=False, **options).passed
    return entrants


def test_a_refusal_takes_a_number_and_moves_nothing(lab: Lab, model: str) -> None:
    first, second = promoted(lab, model, 2)
    (bad,) = refused(lab, model, 1)
    again = bad.promote(raise_on_failure=False)
    assert again.attempt == 1, "the same run tells nothing new"
    assert not Entrant(lab, model).promote(policy={**SPEND, "min_cases": 4}, raise_on_failure=False).passed
    log = claim_log_of(MlflowStore(lab.uri), model)
    assert [(entry.state, entry.claim.verdict, entry.claim.version.number) for entry in log.entries] == [
        ("done", "passed", first.version),
        ("done", "passed", second.version),
        ("refused", "failed", bad.version),
        ("refused", "failed", bad.version),
        ("refused", "undecided", "4"),
    ]
    claim = log.entries[2].claim
    assert claim.champion == claim.previous == log.entries[1].claim.version
    assert (claim.run_id, claim.policy) == (bad.run_id, again.policy_sha256)
    assert claim.eval_set == lab.client.get_run(bad.run_id).data.params["adk_eval.eval_set_digest"]
    assert (log.skipped, log.pending, log.next) == ((), False, 6)
    third = Entrant(lab, model)
    assert str(log.entries[2].claim).startswith(f"a refused promotion to version {bad.version}, by ")
    # What reads moves reads past refusals.
    assert second.verify().passed
    assert [found.valid for found in audit(model, tracking_uri=lab.uri)] == [True]
    assert rollback(model, reason="slow", tracking_uri=lab.uri).version == first.version
    assert third.promote().passed
    assert rollback(model, reason="slow", tracking_uri=lab.uri).version == first.version
    assert gate("champion", model=model, tracking_uri=lab.uri).run_id == first.run_id


def test_a_first_version_that_was_refused_is_no_holder(lab: Lab, model: str) -> None:
    (bad,) = refused(lab, model, 1)
    (found,) = audit(model, tracking_uri=lab.uri)
    assert (found.version, found.valid) == (None, True)
    bad.set_by_hand()
    assert "it was moved by hand" in audit(model, tracking_uri=lab.uri)[0].reasons[0]
    assert not bad.verify().passed
    good = Entrant(lab, model)
    good.set_by_hand()  # and may be promoted first, since nobody was before
    compared = {"rules": {TRAJECTORY: {"min": 0.9, "max_drop": 0.5}}, "baseline": {"alias": "champion"}}
    assert good.promote(policy=compared).passed


def test_the_place_is_told_wherever_the_decision_is(lab: Lab, model: str) -> None:
    (champion,) = promoted(lab, model, 1)
    demanded = {**SPEND, "attempts": None}
    refused(lab, model, 3)
    fourth = Entrant(lab, model)
    dry = fourth.promote(policy=demanded, dry_run=True)
    assert dry.notes == fourth.promote(policy=demanded).notes
    note = next(note for note in dry.notes if "attempt" in note)
    assert note.startswith("the 4th attempt against this champion on this eval set: with a chance of up to 0.4, one of 4 candidates")
    (record,) = [lab.client.download_artifacts(fourth.run_id, fourth.record.path)]
    assert json.loads(Path(record).read_text())["decision"]["attempt"] == 4
    assert ", attempt 4" in lab.client.get_model_version(model, fourth.version).description.splitlines()[0]
    assert fourth.tags["adk_eval.gate.reason"].startswith("attempt 4; ")
    assert fourth.verify().passed
    # The fourth is the champion now, and nobody was refused against it; the first one's count goes on.
    assert Entrant(lab, model).promote(dry_run=True).attempt == 1
    rollback(model, reason="slow", tracking_uri=lab.uri)
    assert champion.verify().passed
    assert Entrant(lab, model).promote(dry_run=True).attempt == 5


def test_gate_says_the_place_that_a_promotion_would_have(lab: Lab, model: str) -> None:
    demanded = {"rules": {TRAJECTORY: {"max_drop": 0.5, "use": "mean"}}, "baseline": {"alias": "champion"}}
    promoted(lab, model, 1)
    refused(lab, model, 2)
    entrant = Entrant(lab, model)
    assert gate(entrant.run_id, demanded, model=model, tracking_uri=lab.uri).attempt == 3
    assert gate(entrant.run_id, tracking_uri=lab.uri).attempt is None


def test_an_error_that_is_spent_leaves_the_next_one_undecided(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    other = report_of(eval_set=eval_set_of({"lights": [("Turn on the light.", "The light is on.", "set_light")]}), wrong=["lights"])
    bad = refused(lab, model, 2, policy=SPEND)
    bad[0].run_id = lab.log(evidence_of(other, model_id=bad[0].model_id))
    bad[0].promote(policy=SPEND, raise_on_failure=False)
    late = Entrant(lab, model)
    # A changed eval set begins no new count, unless the policy pins its digest.
    (reason, *_) = late.promote(policy=SPEND, raise_on_failure=False).reasons
    assert reason.startswith(
        "it is the 4th attempt against this champion on any eval set (the policy pins none by its digest), but the policy allows 3: "
    )
    digest = lab.client.get_run(late.run_id).data.params["adk_eval.eval_set_digest"]
    pinned = late.promote(policy={**SPEND, "eval_set": {"digest": digest}}, raise_on_failure=False, dry_run=True)
    assert (pinned.attempt, "the 3rd attempt against this champion on this eval set, of 3" in str(pinned.notes)) == (3, True)
    replaced = Entrant(lab, model)
    assert replaced.promote().passed
    assert late.promote(policy=SPEND, raise_on_failure=False, dry_run=True).attempt == 1


class Before(MlflowStore):
    """A store in which something happens before a run is read for the first time."""

    def __init__(self, lab: Lab, happens: Callable[[], object]) -> None:
        super().__init__(lab.uri)
        self.happens: Callable[[], object] | None = happens

    def evidence(self, run_id: str) -> Evidence:
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return super().evidence(run_id)


def test_of_two_decisions_for_one_number_the_loser_decides_again(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    entrant, policy = Entrant(lab, model, good=False), parse_policy(SPEND, "policy")

    def decided(wait_s: float) -> Any:
        store = Before(lab, lambda: refused(lab, model, 1))
        return promote_in(store, Target(name=model, version=entrant.version, alias="champion"), entrant.run_id, policy, wait_s=wait_s)

    with pytest.raises(AliasBusyError, match="the alias champion was claimed in the meantime: a refused promotion to version 3, by "):
        decided(0)
    assert not entrant.tags
    assert decided(30).attempt == 3
    assert [entry.claim.version.number for entry in claim_log_of(MlflowStore(lab.uri), model).entries] == ["1", "3", "4", "2"]


# What an attacker who may write to MLflow can do about the count.


def test_an_understated_attempt_does_not_verify(lab: Lab, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    promoted(lab, model, 1)
    refused(lab, model, 1)
    late = Entrant(lab, model)
    with monkeypatch.context() as patched:
        patched.setattr(ClaimLog, "attempt", lambda *_, **__: Attempt(1))
        assert late.promote(policy=SPEND).passed
    assert "its promotion record says attempt 1, but by the claim log it was attempt 2" in late.verify().reasons


def test_deleted_runs_and_versions_still_count(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    for entrant in refused(lab, model, 2):
        lab.client.delete_run(entrant.run_id)
        lab.client.delete_model_version(model, entrant.version)
    assert Entrant(lab, model).promote(dry_run=True).attempt == 3


def test_a_refusal_that_was_deleted_or_hidden_is_missed(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    promoted(lab, model, 1)
    refused(lab, model, 2, checkpoint=checkpoint)
    log = claim_log_of(MlflowStore(lab.uri), model)
    assert json.loads(checkpoint.read_text())[model]["champion"]["number"] == 3
    late = Entrant(lab, model)
    experiment = lab.client.get_experiment_by_name(claims_experiment(model))
    lab.client.rename_experiment(experiment.experiment_id, f"aside {model}")
    decision = late.promote(raise_on_failure=False)
    assert "was renamed or deleted" in decision.reasons[0]
    assert decision.notes == ("this refusal is not in the claim log, so it does not count as an attempt",)
    lab.client.rename_experiment(experiment.experiment_id, experiment.name)
    lab.execute("DELETE FROM params WHERE run_uuid = ? AND key = ?", log.log, key_of("champion", 3))
    decision = late.promote(raise_on_failure=False, checkpoint=checkpoint)
    assert "was truncated or rewritten: its entry champion.0003" in decision.reasons[0]


def test_only_refusals_that_are_signed_count_and_others_are_told(lab: Lab, model: str, tmp_path: Path) -> None:
    key = tmp_path / "gate.pem"
    make_key(key)
    Entrant(lab, model).promote(signing_key=key)
    refused(lab, model, 1)  # by somebody without the key, to use up the attempts of others
    refused(lab, model, 1, signing_key=key)
    decision = Entrant(lab, model).promote(signing_key=key, dry_run=True)
    assert decision.attempt == 2
    assert "not counted as an attempt: champion.0002 in the claim log is not signed with the key" in decision.notes
    # And nobody adds to a refusal what would break the chain.
    store, log = MlflowStore(lab.uri), claim_log_of(MlflowStore(lab.uri), model)
    refusal = log.entries[-1]
    store.claim(model, key_of("champion", refusal.number, "go", refusal.claim.id), "{}")
    after = claim_log_of(store, model)
    assert (after.head, after.last and after.last.state) == (log.head, "refused")
    assert "belongs to no claim" in after.skipped[-1]
