"""Attack 17: delete a registered model and create it again, so that another version gets the number of the champion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

from mlflow_adk_eval.gating.api import audit, gate, load_champion, promote, rollback
from mlflow_adk_eval.results.decision import GateFailed
from mlflow_adk_eval.signing.keys import make_key
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import TRAJECTORY, Lab

COMPARES: dict[str, Any] = {"rules": {TRAJECTORY: {"min": 0.5, "max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}
REFUSES = COMPARES | {"baseline": {"alias": "champion", "if_missing": "refuse"}}
FIRST = {"name": "first of a new model", "rules": {TRAJECTORY: {"min": 0.5}}}
AGAIN = "was deleted and recreated, or another model was renamed to its name"


@pytest.fixture(params=["no key", pytest.param("key", marks=pytest.mark.slow), pytest.param("key and checkpoint", marks=pytest.mark.slow)])
def trust(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "no key":
        return {}
    key = tmp_path / "key.pem"
    make_key(key)
    return {"signing_key": key} | ({"checkpoint": tmp_path / "claims.json"} if "checkpoint" in request.param else {})


def to_verify(trust: dict[str, Any]) -> dict[str, Any]:
    """Return the options of those who verify."""
    named = {"checkpoint": trust["checkpoint"]} if "checkpoint" in trust else {}
    return named | ({"verify_key": Path(trust["signing_key"]).with_suffix(".pub.pem")} if trust else {})


def recreated(lab: Lab, model: str, *, good: bool = False) -> Entrant:
    """Delete the model and return a version of the new one, which has number 1 and the alias."""
    lab.client.delete_registered_model(model)
    entrant = Entrant(lab, model, good=good)
    entrant.set_by_hand()
    return entrant


@pytest.mark.parametrize("policy", [COMPARES, pytest.param(REFUSES, marks=pytest.mark.slow)], ids=["", "if_missing"])
def test_the_number_of_the_champion_makes_no_champion(lab: Lab, model: str, trust: dict[str, Any], policy: Any) -> None:
    champion = Entrant(lab, model)
    champion.promote(**trust)
    worse = recreated(lab, model)
    assert worse.version == champion.version == "1"
    refused = worse.promote(policy=policy, raise_on_failure=False, **trust)
    assert refused.verdict == "undecided"
    assert AGAIN in refused.reasons[0]
    assert "promote a version with a policy that has no max_drop" in refused.reasons[0]
    for decision in (
        worse.verify(**to_verify(trust)),
        worse.verify(alias=None, version="1", **to_verify(trust)),
        gate(worse.run_id, policy, model=model, tracking_uri=lab.uri, raise_on_failure=False),
    ):
        assert decision.verdict == "undecided"
    assert AGAIN in worse.verify(**to_verify(trust)).reasons[0]
    (found,) = audit(model, tracking_uri=lab.uri, **to_verify(trust))
    assert (found.valid, found.version) == (False, "1")
    assert AGAIN in found.reasons[0]
    with pytest.raises(GateFailed, match=AGAIN):
        load_champion(model, tracking_uri=lab.uri, **to_verify(trust))


def test_the_same_agent_in_a_model_that_was_created_again_is_another_version(lab: Lab, model: str) -> None:
    champion = Entrant(lab, model)
    champion.promote()
    lab.client.delete_registered_model(model)
    assert lab.register(model, f"models:/{champion.model_id}") == "1"
    champion.set_by_hand()
    assert AGAIN in champion.verify().reasons[0]
    assert not audit(model, tracking_uri=lab.uri)[0].valid


def test_its_former_tags_and_record_lead_to_nothing(lab: Lab, model: str) -> None:
    """The new version gets all tags of the champion, so that `verify` without an alias finds its record."""
    champion = Entrant(lab, model)
    champion.promote()
    tags = champion.tags
    lab.client.delete_registered_model(model)
    assert lab.register(model, f"models:/{champion.model_id}") == "1"
    for key, value in tags.items():
        lab.client.set_model_version_tag(model, "1", key, value)
    decision = champion.verify(alias=None, version="1")
    assert decision.verdict == "undecided"
    assert AGAIN in " ".join(decision.reasons)


def test_a_model_that_was_renamed_to_the_name_is_another_one(lab: Lab, model: str) -> None:
    champion, worse = Entrant(lab, model), Entrant(lab, f"{model}_of_mine", good=False)
    champion.promote()
    worse.set_by_hand()
    lab.client.rename_registered_model(model, f"{model}_old")
    lab.client.rename_registered_model(worse.name, model)
    worse.name = model
    assert worse.promote(policy=COMPARES, raise_on_failure=False).verdict == "undecided"
    assert AGAIN in worse.verify().reasons[0]
    assert not audit(model, tracking_uri=lab.uri)[0].valid
    lab.client.rename_registered_model(model, worse_name := f"{model}_of_mine")
    lab.client.rename_registered_model(f"{model}_old", model)
    assert champion.verify().passed, "the one that it was has its name again"
    assert lab.alias(worse_name) == "1"


def test_no_rollback_goes_to_the_number_of_a_former_champion(lab: Lab, model: str) -> None:
    first, second = Entrant(lab, model), Entrant(lab, model)
    first.promote()
    second.promote()
    lab.client.delete_registered_model(model)
    worse, held = Entrant(lab, model, good=False), Entrant(lab, model, good=False)
    held.set_by_hand()
    for to in (None, worse.version):
        result = rollback(model, reason="it is rude", to=to, tracking_uri=lab.uri, raise_on_failure=False)
        assert result.version is None
    (found,) = audit(model, restore=True, tracking_uri=lab.uri)
    assert (found.valid, found.restored) == (False, None)
    assert lab.alias(model) == held.version


def test_whoever_deleted_the_model_goes_on_by_a_policy_that_compares_nothing(lab: Lab, model: str, trust: dict[str, Any]) -> None:
    Entrant(lab, model).promote(**trust)
    lab.client.delete_registered_model(model)
    new, worse, better = Entrant(lab, model), Entrant(lab, model, good=False), Entrant(lab, model)
    assert new.promote(policy=COMPARES, raise_on_failure=False, **trust).verdict == "undecided"
    assert new.promote(policy=FIRST, **trust).passed
    assert new.verify(**to_verify(trust)).passed
    assert not new.verify(policy=COMPARES, **to_verify(trust)).passed, "who deploys by a comparison is not led by it"
    assert load_champion(model, tracking_uri=lab.uri, **to_verify(trust)).version == "1"
    (found,) = audit(model, tracking_uri=lab.uri, **to_verify(trust))
    assert found.valid
    assert any(AGAIN in note for note in found.notes), "an audit tells it for ever"
    assert worse.promote(policy=COMPARES, raise_on_failure=False, **trust).verdict == "failed"
    assert better.promote(policy=COMPARES, **trust).passed


def test_the_number_of_another_model_is_not_that_of_the_candidate(lab: Lab, model: str) -> None:
    """The policy compares with the alias of another model, which has version 1, too, and was never promoted."""
    worse, other = Entrant(lab, model, good=False), Entrant(lab, f"{model}_other")
    other.set_by_hand()
    against = COMPARES | {"baseline": {"alias": "champion", "model": other.name}}
    refused = worse.promote(policy=against, raise_on_failure=False)
    assert refused.verdict == "undecided"
    assert "it was set by hand" in refused.reasons[0]


def test_the_other_model_that_a_policy_compares_with_is_deleted_and_created_again(lab: Lab, model: str) -> None:
    other = Entrant(lab, f"{model}_other")
    other.promote()
    poor = recreated(lab, other.name)
    worse = Entrant(lab, model, good=False)
    against = COMPARES | {"baseline": {"alias": "champion", "model": other.name}}
    refused = worse.promote(policy=against, raise_on_failure=False)
    assert refused.verdict == "undecided"
    assert AGAIN in refused.reasons[0]
    assert poor.version == "1"


def test_a_version_alone_is_never_given_its_number_again(lab: Lab, model: str) -> None:
    """MLflow goes on counting, which the identity of a version does not rely on."""
    champion = Entrant(lab, model)
    champion.promote()
    lab.client.delete_model_version(model, champion.version)
    assert Entrant(lab, model, good=False).version == "2"


def test_a_copy_of_a_version_was_not_evaluated(lab: Lab, model: str) -> None:
    champion = Entrant(lab, model)
    champion.promote()
    lab.client.delete_registered_model(model)
    Entrant(lab, f"{model}_other")
    copy = lab.client.copy_model_version(f"models:/{model}_other/1", model)
    lab.client.set_registered_model_alias(model, "champion", copy.version)
    assert AGAIN in champion.verify().reasons[0]
    refused = promote(model, copy.version, run_id=champion.run_id, tracking_uri=lab.uri, raise_on_failure=False)
    assert refused.verdict == "undecided"


def test_the_api_edits_no_source_and_a_stage_changes_nothing(lab: Lab, model: str) -> None:
    champion = Entrant(lab, model)
    champion.promote()
    with pytest.raises((MlflowException, TypeError)):
        lab.client.update_model_version(model, champion.version, source="models:/m-another")
    with pytest.warns(FutureWarning):
        lab.client.transition_model_version_stage(model, champion.version, "Archived")
    assert champion.verify().passed


def test_a_source_that_was_edited_in_the_database_is_told(lab: Lab, model: str) -> None:
    champion, worse = Entrant(lab, model), Entrant(lab, model, good=False)
    champion.promote()
    lab.execute("UPDATE model_versions SET source = ? WHERE name = ? AND version = 1", f"models:/{worse.model_id}", model)
    assert f"is now made from 'models:/{worse.model_id}', not from 'models:/{champion.model_id}'" in champion.verify().reasons[0]
    assert not audit(model, tracking_uri=lab.uri)[0].valid
