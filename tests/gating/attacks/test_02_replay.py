"""Attack 2: replace the claim log by a copy that leaves out what is in the way, or hide it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mlflow_adk_eval.gating.api import audit, rollback
from mlflow_adk_eval.gating.registry import claims_experiment
from mlflow_adk_eval.signing.keys import make_key
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import Lab

pytestmark = pytest.mark.slow

Edit = Callable[[str], str]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "key.pem", make_key(tmp_path / "key.pem")


def rolled_back(lab: Lab, model: str, key: Path | None = None, checkpoint: Path | None = None) -> tuple[Entrant, Entrant]:
    """Promote two versions and take the alias back from the second."""
    first, second = Entrant(lab, model), Entrant(lab, model)
    for entrant in (first, second):
        entrant.promote(signing_key=key, checkpoint=checkpoint)
    rollback(model, reason="it is rude", signing_key=key, checkpoint=checkpoint, tracking_uri=lab.uri)
    return first, second


def hide(lab: Lab, model: str) -> str:
    """Rename the experiment with the claim log; return the run in it."""
    experiment = lab.client.get_experiment_by_name(claims_experiment(model))
    lab.client.rename_experiment(experiment.experiment_id, f"old {model}")
    return str(experiment.tags["adk_eval.gate.claim_log"])


def remove_traces(lab: Lab, model: str, run_id: str) -> None:
    """Delete every tag that says that there was another claim log."""
    experiment = lab.client.get_run(run_id).info.experiment_id
    for key in ("adk_eval.gate.claim_log", "adk_eval.gate.model"):
        lab.client.delete_experiment_tag(experiment, key)
    lab.client.delete_registered_model_tag(model, "adk_eval.gate.claim_log")


def copy(lab: Lab, model: str, run_id: str, *, edit: Edit | None = None) -> None:
    """Make a claim log without the last claim; `edit`: change what it says, given the new run's id."""
    experiment = lab.client.create_experiment(claims_experiment(model))
    new = lab.client.create_run(experiment).info.run_id
    lab.client.set_experiment_tag(experiment, "adk_eval.gate.claim_log", new)
    for key, text in lab.client.get_run(run_id).data.params.items():
        if ".0003" not in key:
            lab.client.log_param(new, key, text.replace(run_id, new) if edit else text)


def test_a_hidden_claim_log_is_missed(lab: Lab, model: str) -> None:
    first, second = rolled_back(lab, model)
    run_id = hide(lab, model)
    second.set_by_hand()
    (reason,) = second.verify().reasons
    assert f"was in run {run_id}, but was renamed or deleted" in reason
    (found,) = audit(model, tracking_uri=lab.uri)
    assert not found.valid
    assert "was renamed or deleted" in found.reasons[0]
    refused = Entrant(lab, model).promote(raise_on_failure=False)
    assert refused.verdict == "undecided"
    assert "was renamed or deleted" in refused.reasons[0]
    assert first.version == "1"


def test_a_claim_log_that_was_hidden_without_a_trace_leaves_no_alias_valid(lab: Lab, model: str) -> None:
    _, second = rolled_back(lab, model)
    remove_traces(lab, model, hide(lab, model))
    second.set_by_hand()
    assert "is missing, although version " in second.verify().reasons[0]
    (found,) = audit(model, tracking_uri=lab.uri)
    assert not found.valid


def test_a_copy_of_the_claim_log_beside_the_real_one_is_seen(lab: Lab, model: str) -> None:
    _, second = rolled_back(lab, model)
    run_id = hide(lab, model)
    copy(lab, model, run_id, edit=str)
    second.set_by_hand()
    (reason,) = second.verify().reasons
    assert f"was in run {run_id}, but was replaced by run " in reason
    assert not audit(model, tracking_uri=lab.uri)[0].valid


def test_a_plain_copy_is_no_claim_log_even_without_a_trace_of_the_real_one(lab: Lab, model: str) -> None:
    _, second = rolled_back(lab, model)
    run_id = hide(lab, model)
    remove_traces(lab, model, run_id)
    copy(lab, model, run_id)
    second.set_by_hand()
    assert "this is a copy" in second.verify().reasons[0]
    (found,) = audit(model, tracking_uri=lab.uri)
    assert not found.valid
    assert any("this is a copy" in note for note in found.notes)


def test_with_a_key_a_copy_that_was_made_to_fit_is_none(lab: Lab, model: str, pair: tuple[Path, Path]) -> None:
    _, second = rolled_back(lab, model, key=pair[0])
    run_id = hide(lab, model)
    remove_traces(lab, model, run_id)
    copy(lab, model, run_id, edit=str)
    second.set_by_hand()
    assert "is not signed with the key" in second.verify(verify_key=pair[1]).reasons[0]
    (found,) = audit(model, verify_key=pair[1], tracking_uri=lab.uri)
    assert not found.valid
    regressed = Entrant(lab, model, good=False)
    compares = {"rules": {"tool_trajectory_avg_score": {"max_drop": 0.9, "use": "mean"}}, "baseline": {"alias": "champion"}}
    refused = regressed.promote(policy=compares, signing_key=pair[0], raise_on_failure=False)
    assert refused.verdict == "undecided"


def test_with_a_checkpoint_a_copy_that_was_made_to_fit_is_none(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    _, second = rolled_back(lab, model, checkpoint=checkpoint)
    pinned = json.loads(checkpoint.read_text())[model]["champion"]
    assert pinned["number"] == 3
    run_id = hide(lab, model)
    remove_traces(lab, model, run_id)
    copy(lab, model, run_id, edit=str)
    second.set_by_hand()
    for reasons in (
        second.verify(checkpoint=checkpoint).reasons,
        audit(model, checkpoint=checkpoint, tracking_uri=lab.uri)[0].reasons,
        Entrant(lab, model).promote(checkpoint=checkpoint, raise_on_failure=False).reasons,
    ):
        assert f"not in run {run_id} as pinned in {checkpoint}: it was replaced, renamed or deleted" in reasons[0]
    assert json.loads(checkpoint.read_text())[model]["champion"] == pinned


def make_new(lab: Lab, model: str, *, tags: bool) -> None:
    """Hide the claim log without a trace and delete the alias; `tags`: and those of the versions."""
    remove_traces(lab, model, hide(lab, model))
    lab.client.delete_registered_model_alias(model, "champion")
    for version in ("1", "2") if tags else ():
        for key in lab.tags(model, version):
            lab.client.delete_model_version_tag(model, version, key)


COMPARES = {"rules": {"tool_trajectory_avg_score": {"min": 0.5, "max_drop": 0.05, "use": "mean"}}, "baseline": {"alias": "champion"}}


def test_a_model_that_was_made_to_look_new_is_told_by_the_tags_of_its_versions(lab: Lab, model: str) -> None:
    rolled_back(lab, model)
    make_new(lab, model, tags=False)
    refused = Entrant(lab, model, good=False).promote(policy=COMPARES, raise_on_failure=False)
    assert refused.verdict == "undecided"
    assert "is missing, although version " in refused.reasons[0]
    assert lab.alias(model) is None


def test_with_a_checkpoint_or_a_policy_that_refuses_without_a_champion_it_is_stopped(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    rolled_back(lab, model, checkpoint=checkpoint)
    make_new(lab, model, tags=True)
    bad = Entrant(lab, model, good=False)
    refused = bad.promote(policy=COMPARES, checkpoint=checkpoint, raise_on_failure=False)
    assert refused.verdict == "undecided"
    assert f"the claim log of {model!r} is gone, not in run " in refused.reasons[0]
    strict = COMPARES | {"baseline": {"alias": "champion", "if_missing": "refuse"}}
    refused = bad.promote(policy=strict, raise_on_failure=False)
    assert refused.verdict == "undecided"
    assert "the policy requires one (if_missing: refuse)" in refused.reasons[0]


def test_limit_a_model_of_which_every_trace_was_deleted_is_new(lab: Lab, model: str) -> None:
    """What docs/explanation/security.md says cannot be stopped without a checkpoint: nothing is left that says that there was a champion."""
    rolled_back(lab, model)
    make_new(lab, model, tags=True)
    assert Entrant(lab, model, good=False).promote(policy=COMPARES).passed


def test_limit_without_a_key_or_a_checkpoint_a_claim_log_that_was_made_up_as_a_whole_is_believed(lab: Lab, model: str) -> None:
    """What docs/explanation/security.md says cannot be stopped: whoever may write everything may write all of it anew."""
    _, second = rolled_back(lab, model)
    run_id = hide(lab, model)
    remove_traces(lab, model, run_id)
    made_up(lab, model, run_id)
    second.set_by_hand()
    assert second.verify().passed


def made_up(lab: Lab, model: str, run_id: str) -> None:
    """Write a claim log without the rollback whose hashes are right."""
    from mlflow_adk_eval.gating.registry import MlflowStore
    from tests.gating.promotion.claim_kit import forge_claim

    experiment = lab.client.create_experiment(claims_experiment(model))
    lab.client.set_experiment_tag(experiment, "adk_eval.gate.claim_log", lab.client.create_run(experiment).info.run_id)
    store, old = MlflowStore(lab.uri), lab.client.get_run(run_id).data.params
    for number in (1, 2):
        claim = json.loads(old[f"champion.{number:04d}"])
        forge_claim(
            store,
            model,
            version=claim["version"]["number"],
            previous=claim["previous"] and claim["previous"]["number"],
            record=claim["record"],
            by=claim["by"],
        )
