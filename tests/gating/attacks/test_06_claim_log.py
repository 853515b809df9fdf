"""Attack 6: parameters in the claim log that stop an alias for ever, spoil a promotion, or have an audit move production."""

from __future__ import annotations

import pytest

from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.registry import MlflowStore, claims_experiment
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab

pytestmark = pytest.mark.slow


def write(lab: Lab, model: str, **params: str) -> None:
    run_id = lab.client.get_experiment_by_name(claims_experiment(model)).tags["adk_eval.gate.claim_log"]
    for key, text in params.items():
        lab.client.log_param(run_id, key, text)


@pytest.mark.parametrize(
    "key", ["champion.999999999", "champion.9999999999", "champion.0002", "champion.0003", "champion.0002.end", "champion.x"]
)
def test_no_parameter_stops_an_alias_or_makes_a_promotion_unverifiable(key: str, lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    write(lab, model, **{key: '{"outcome": "lost", "at": "2026-01-01T00:00:00Z"}'})
    second = Entrant(lab, model)
    assert second.promote().passed
    assert second.verify().passed
    (found,) = audit(model, restore=True, tracking_uri=lab.uri)
    assert found.valid
    assert found.version == second.version
    assert key == "champion.x" or any(note.startswith(f"{key} in the claim log ") for note in found.notes)
    third = Entrant(lab, model)
    assert third.promote().passed


@pytest.mark.parametrize("edit", ["tagged", "deleted", "artifact edited", "version tagged", "record edited"])
def test_an_audit_does_not_move_production_since_evidence_was_touched(edit: str, lab: Lab, model: str) -> None:
    _, champion = promoted(lab, model, 2)
    match edit:
        case "tagged":
            lab.client.set_tag(champion.run_id, "adk_eval.verdict", "failed")
        case "deleted":
            lab.client.delete_run(champion.run_id)
        case "artifact edited":
            lab.client.log_text(champion.run_id, "{}", "adk_eval/cells/part-00000.parquet")
        case "version tagged":
            lab.client.set_model_version_tag(model, champion.version, "adk_eval.gate.reason", "nobody")
        case _:
            lab.client.log_text(champion.run_id, "{}", champion.record.path)
    (found,) = audit(model, restore=True, tracking_uri=lab.uri)
    assert not found.valid
    assert found.restored is None
    assert "nothing disproves its promotion record" in found.notes[-1]
    assert lab.alias(model) == champion.version


def test_a_claim_that_was_made_up_and_not_carried_out_moves_nothing(lab: Lab, model: str) -> None:
    from tests.gating.promotion.claim_kit import forge_claim

    (champion,) = promoted(lab, model, 1)
    forge_claim(MlflowStore(lab.uri), model, "refused", version="7", previous="1")
    forge_claim(MlflowStore(lab.uri), model, "lost", version="7", previous="1")
    assert champion.verify().passed
    assert Entrant(lab, model).promote().passed
