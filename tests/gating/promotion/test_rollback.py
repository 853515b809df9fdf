"""Taking an alias back, in a real MLflow store."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.cli.decide import rollback_command
from mlflow_adk_eval.errors import AliasBusyError, UsageError
from mlflow_adk_eval.gating.api import rollback
from mlflow_adk_eval.gating.promotion.aliases import AliasRollback, RollbackResult
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.results.decision import GateFailed
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import claim_log_of


def rolled_back(lab: Lab, model: str, **options: object) -> RollbackResult:
    return rollback(model, **{"reason": "it answers in Latin", "tracking_uri": lab.uri, **options})  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_alias_goes_back_to_the_version_before_with_a_record(lab: Lab, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    promoted(lab, model, 3)
    monkeypatch.setenv("GITHUB_ACTOR", "octocat")
    move = rolled_back(lab, model)
    assert (move.previous, move.version, move.kind, move.decision.verdict) == ("3", "2", "rollback", "passed")
    assert str(move) == f"champion of {model!r} goes back from version 3 to version 2"
    assert lab.alias(model) == "2"
    claim = claim_log_of(MlflowStore(lab.uri), model).entries[-1].claim
    assert (claim.kind, claim.reason, claim.by) == ("rollback", "it answers in Latin", "octocat")
    assert (claim.previous and claim.previous.number, claim.version.number) == ("3", "2")
    tags = lab.tags(model, "2")
    assert tags["adk_eval.gate"] == "passed"
    assert tags["mlflow.adk_eval.gate.last_rollback.reason"] == "it answers in Latin"
    run_id, path, _ = tags["mlflow.adk_eval.gate.last_rollback.record"].split()
    record = json.loads(MlflowStore(lab.uri).artifact(run_id, path) or b"")
    assert (record["kind"], record["reason"], record["decision"]["decided_by"]) == ("rollback", "it answers in Latin", "octocat")
    assert lab.tags(model, "3")["mlflow.adk_eval.gate.given_up.champion"].startswith("for version 2 by octocat at 20")


@pytest.mark.slow
def test_each_rollback_goes_further_back_and_a_promotion_forward_again(lab: Lab, model: str) -> None:
    first, _, third = promoted(lab, model, 3)
    assert [rolled_back(lab, model).version for _ in range(2)] == ["2", "1"]
    assert first.verify().passed
    with pytest.raises(GateFailed, match=r"the claim log of .* has no earlier holder of the alias champion"):
        rolled_back(lab, model)
    assert lab.alias(model) == "1"
    third.promote()
    assert third.verify().passed
    assert rolled_back(lab, model).version == "1"


@pytest.mark.slow
def test_a_version_that_was_given_up_does_not_verify_until_it_is_promoted_anew(lab: Lab, model: str) -> None:
    _, second = promoted(lab, model, 2)
    rolled_back(lab, model)
    second.set_by_hand()
    assert "it was moved by hand" in second.verify().reasons[0]
    (reason,) = second.verify(version=2, alias=None).reasons
    assert reason.startswith(f"version 2 of {model!r} was rolled back: a rollback to version 1, by ")
    assert reason.endswith(": it answers in Latin")
    lab.client.set_registered_model_alias(model, "champion", "1")
    with pytest.raises(GateFailed, match="was rolled back"):
        rolled_back(lab, model, to=2)
    second.promote()
    assert second.verify().passed


@pytest.mark.slow
def test_a_former_champion_that_does_not_verify_is_gone_back_over(lab: Lab, model: str) -> None:
    _, second, _ = promoted(lab, model, 3)
    lab.client.log_text(second.run_id, "{}", "adk_eval/cells/part-00000.parquet")
    assert rolled_back(lab, model, dry_run=True).version == "1"
    assert lab.alias(model) == "3"
    with pytest.raises(
        GateFailed, match=r"version 2 cannot hold the alias champion: the artifact adk_eval/cells/part-00000\.parquet was changed"
    ):
        rolled_back(lab, model, to=2)
    assert rolled_back(lab, model).version == "1"


@pytest.mark.slow
def test_a_version_can_be_named_if_it_was_promoted(lab: Lab, model: str) -> None:
    promoted(lab, model, 3)
    Entrant(lab, model)
    for to, why in (("4", "has no promotion to the alias"), ("3", "it already holds the alias"), ("9", "does not exist")):
        move = rolled_back(lab, model, to=to, raise_on_failure=False)
        assert move.version is None
        assert why in move.decision.reasons[0]
        assert str(move) == f"champion of {model!r} stays at version 3"
    assert rolled_back(lab, model, to=1).version == "1"
    assert rolled_back(lab, model, to=1, raise_on_failure=False).version is None


def test_an_alias_that_was_moved_by_hand_goes_back_to_the_last_one_that_was_promoted(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    Entrant(lab, model, good=False).set_by_hand()
    assert rolled_back(lab, model).version == "2"


@pytest.mark.slow
def test_a_promotion_that_is_faster_wins(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    third = Entrant(lab, model)

    class Faster(MlflowStore):
        def claim(self, name: str, key: str, text: str) -> str:
            if key == "champion.0003" and lab.alias(model) == "2":
                third.promote()
            return super().claim(name, key, text)

    rollback_to = AliasRollback(store=Faster(lab.uri), name=model, alias="champion", kind="rollback", reason="too late")
    with pytest.raises(AliasBusyError, match="the alias champion was claimed in the meantime"):
        rollback_to.run()
    assert third.verify().passed


def test_an_alias_that_moves_meanwhile_is_left_where_it_is(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    third = Entrant(lab, model)

    class Moved(MlflowStore):
        def claim(self, name: str, key: str, text: str) -> str:
            third.set_by_hand()
            return super().claim(name, key, text)

    move = AliasRollback(store=Moved(lab.uri), name=model, alias="champion", kind="rollback", reason="too late").run()
    assert (
        move.decision.reasons[0]
        == "the alias champion moved from version 2 to version 3 while the evidence was being read, so it was not set"
    )
    assert lab.alias(model) == "3"


def test_a_rollback_needs_a_reason_and_a_model(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    with pytest.raises(UsageError, match="rollback: give a reason"):
        rolled_back(lab, model, reason=" ")
    with pytest.raises(UsageError, match="wanted a version number"):
        rolled_back(lab, model, to="last")
    with pytest.raises(UsageError, match="the registered model 'nothing' does not exist"):
        rolled_back(lab, "nothing")
    assert lab.alias(model) == "2"


@pytest.mark.slow
def test_the_command_tells_what_it_did(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    args = [model, "--reason", "it answers in Latin", "--tracking-uri", lab.uri]
    shown = CliRunner().invoke(rollback_command, [*args, "--dry-run"])
    assert shown.exit_code == 0
    assert f"champion of {model!r} goes back from version 2 to version 1 (dry run: it was not moved)" in shown.stdout
    assert lab.alias(model) == "2"
    done = json.loads(CliRunner().invoke(rollback_command, [*args, "--json"]).stdout)
    assert (done["verdict"], done["previous"], done["version"], done["moved"]) == ("passed", "2", "1", True)
    refused = CliRunner().invoke(rollback_command, args)
    assert refused.exit_code == 2
    assert f"champion of {model!r} stays at version 1" in refused.stdout
