"""Finding aliases that moved without a record, and moving them back, in a real MLflow store."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.promotion.aliases import AliasAudit, audit_in
from mlflow_adk_eval.gating.promotion.record import RegisteredModel
from mlflow_adk_eval.gating.registry import MlflowStore
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import claim_log_of, forge_claim


def forge_promotion(lab: Lab, champion: Entrant, target: Entrant) -> None:
    """Write a record and a claim as if `target` had been promoted: all that can be done without a key."""
    store = MlflowStore(lab.uri)
    record = json.loads(store.artifact(champion.run_id, champion.record.path) or b"")
    record["target"]["version"], record["version"] = target.version, asdict(store.version(target.name, target.version).id)
    record["claim"], record["previous"] = 2, asdict(store.version(champion.name, champion.version).id)
    record["decision"] |= {"run_id": target.run_id, "evidence_sha256": store.evidence(target.run_id).sha256}
    content, path = json.dumps(record), "adk_eval_gate/forged.json"
    lab.client.log_text(target.run_id, content, path)
    place = f"{target.run_id} {path} {hashlib.sha256(content.encode()).hexdigest()}"
    forge_claim(store, target.name, version=target.version, previous=champion.version, record=place)


def audited(lab: Lab, model: str, alias: str | None = "champion", **options: Any) -> AliasAudit:
    (found,) = audit(model, alias, tracking_uri=lab.uri, **options)
    return found


@pytest.mark.slow
def test_an_alias_that_the_gate_set_is_valid_and_the_claim_log_says_by_whom(lab: Lab, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTOR", "octocat")
    promoted(lab, model, 2)
    found = audited(lab, model, None)
    assert (found.alias, found.version, found.valid, found.set_by, found.kind, found.notes) == (
        "champion",
        "2",
        True,
        "octocat",
        "promotion",
        (),
    )
    assert found.reasons[0].startswith(f"version 2 of {model!r} became champion by octocat at 20")


@pytest.mark.slow
def test_an_alias_that_was_moved_by_hand_is_not_valid_and_is_restored(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    Entrant(lab, model, good=False).set_by_hand()
    found = audited(lab, model)
    assert not found.valid
    (reason,) = found.reasons
    assert reason.startswith("it was moved by hand from version 2 (by a promotion to version 2, by ")
    assert reason.endswith("to version 3: its claim log does not contain that change")
    assert lab.alias(model) == "3"

    shown = audited(lab, model, restore=True, dry_run=True)
    assert (shown.restored, shown.restorable, lab.alias(model)) == (None, "2", "3")
    restored = audited(lab, model, restore=True)
    assert not restored.valid
    assert restored.restored == lab.alias(model) == "2"
    again = audited(lab, model)
    assert again.valid
    assert again.kind == "restore"
    assert [note.partition(", by")[0] for note in again.notes] == ["before a restoration to version 2"]
    assert again.notes[0].endswith("it was moved by hand from version 2 to version 3")
    tags = lab.tags(model, "2")
    assert tags["mlflow.adk_eval.gate.last_rollback"] == "restore"
    assert tags["mlflow.adk_eval.gate.last_rollback.reason"].startswith("version 3: it was moved by hand")
    run_id, path, _ = tags["mlflow.adk_eval.gate.last_rollback.record"].split()
    record = json.loads(MlflowStore(lab.uri).artifact(run_id, path) or b"")
    assert (record["kind"], record["previous"]["number"], record["claim"], record["decision"]["verdict"]) == ("restore", "3", 3, "passed")


def test_what_has_no_version_to_go_back_to_stays_where_it_is(lab: Lab, model: str) -> None:
    Entrant(lab, model, good=False).set_by_hand()
    found = audited(lab, model, restore=True)
    assert found.restored is None
    assert found.notes[-1] == f"not restored: the claim log of {model!r} has no earlier holder of the alias champion"
    assert lab.alias(model) == "1"


def test_edited_evidence_proves_nothing_so_the_alias_stays(lab: Lab, model: str) -> None:
    _, _, third = promoted(lab, model, 3)
    lab.client.log_text(third.run_id, "{}", "adk_eval/cells/part-00000.parquet")
    found = audited(lab, model, restore=True)
    assert found.reasons == ("the artifact adk_eval/cells/part-00000.parquet was changed after the run",)
    stays = "not restored: the alias champion now agrees with its claim log, and nothing disproves its promotion record"
    assert found.notes == (stays,)
    assert lab.alias(model) == third.version


def test_an_alias_moved_by_hand_stays_if_the_evidence_of_where_it_belongs_was_edited(lab: Lab, model: str) -> None:
    first, second = promoted(lab, model, 2)
    lab.client.log_text(second.run_id, "{}", "adk_eval/cells/part-00000.parquet")
    Entrant(lab, model).set_by_hand()
    found = audited(lab, model, restore=True)
    assert found.notes[-1].startswith(
        "not restored: version 2 cannot hold the alias champion: the artifact adk_eval/cells/part-00000.parquet"
    )
    assert (found.restored, lab.alias(model)) == (None, "3")
    assert first.version == "1"


def test_a_version_whose_record_is_proven_false_is_gone_back_over(lab: Lab, model: str) -> None:
    """Without a key anybody can claim; but what was decided is decided again."""
    first, bad = Entrant(lab, model), Entrant(lab, model, good=False)
    first.promote()
    forge_promotion(lab, first, bad)
    bad.set_by_hand()
    found = audited(lab, model, restore=True)
    assert "below the threshold" in found.reasons[0]
    assert found.restored == lab.alias(model) == first.version


def test_an_alias_that_was_moved_by_hand_to_a_former_champion_is_not_valid(lab: Lab, model: str) -> None:
    first, _ = promoted(lab, model, 2)
    first.set_by_hand()
    found = audited(lab, model)
    assert not found.valid
    assert "it was moved by hand from version 2" in found.reasons[0]
    assert found.set_by == ""


def test_what_was_promoted_while_it_was_audited_is_not_restored(lab: Lab, model: str) -> None:
    first, second = (Entrant(lab, model) for _ in range(2))
    first.promote()
    Entrant(lab, model, good=False).set_by_hand()

    class Slow(MlflowStore):
        def model(self, name: str) -> RegisteredModel:
            found = super().model(name)
            if found.aliases["champion"] == "3":
                second.promote()
            return found

    (found,) = audit_in(Slow(lab.uri), model, "champion", restore=True)
    assert (found.version, found.valid, found.restored) == ("3", False, None)
    assert found.notes[-1].startswith("not restored: the alias champion now agrees with its claim log")
    assert lab.alias(model) == "2"


def test_a_deleted_alias_is_not_valid_and_is_restored(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    lab.client.delete_registered_model_alias(model, "champion")
    assert not audited(lab, model, None).valid
    found = audited(lab, model, restore=True)
    assert not found.valid
    assert found.reasons[0].startswith("no version holds it, although a promotion to version 2")
    assert lab.alias(model) == "2"


def test_a_deleted_champion_is_replaced_by_the_one_before(lab: Lab, model: str) -> None:
    promoted(lab, model, 2)
    lab.client.delete_model_version(model, "2")
    assert audited(lab, model, restore=True).restored == "1"


@pytest.mark.slow
def test_an_alias_at_a_version_that_is_gone_is_told_and_restored(lab: Lab, model: str) -> None:
    *_, last = promoted(lab, model, 3)
    lab.client.delete_model_version(model, last.version)
    with closing(sqlite3.connect(lab.uri.removeprefix("sqlite:///"))) as connection, connection:  # as MLflow does if both come at once
        connection.execute("INSERT INTO registered_model_aliases (name, alias, version) VALUES (?, 'champion', ?)", (model, last.version))
    found = audited(lab, model)
    assert (found.version, found.valid) == ("3", False)
    assert found.reasons == ("it points to version 3, but that was deleted",)
    assert [each.version for each in audit(None, None, tracking_uri=lab.uri) if each.model == model] == ["3"]
    with pytest.raises(UsageError, match=f"version 3 of the registered model '{model}' does not exist"):
        last.verify()
    assert audited(lab, model, restore=True).restored == "2"
    assert lab.alias(model) == "2"


def test_a_claim_in_the_claim_log_that_is_none_is_named_and_stands_in_nobodys_way(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    MlflowStore(lab.uri).claim(model, "champion.0002", "nonsense")
    assert audited(lab, model).notes == ("champion.0002 in the claim log is not a claim",)
    Entrant(lab, model).promote()
    assert [entry.number for entry in claim_log_of(MlflowStore(lab.uri), model).entries] == [1, 3]


def test_aliases_that_the_gate_never_set_are_nobodys_business(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    Entrant(lab, model).set_by_hand("dev")
    assert [found.alias for found in audit(model, tracking_uri=lab.uri)] == ["champion"]
    assert not audited(lab, model, "dev").valid


def test_without_its_claim_log_no_alias_is_valid(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    experiment = lab.client.get_experiment_by_name(f"adk_eval.gate/{model} promotions")
    lab.client.delete_experiment(experiment.experiment_id)
    found = audited(lab, model, None, restore=True)
    assert not found.valid
    assert "was deleted; restore it: mlflow experiments restore" in found.reasons[0]


@pytest.mark.slow
def test_all_models_are_audited_at_once(lab: Lab, model: str) -> None:
    promoted(lab, f"{model}_a", 1)
    promoted(lab, f"{model}_b", 1, alias="staging")
    found = {(each.model, each.alias) for each in audit(tracking_uri=lab.uri) if each.model.startswith(f"{model}_")}
    assert found == {(f"{model}_a", "champion"), (f"{model}_b", "staging")}
    found = {(each.model, each.alias) for each in audit(alias="staging", tracking_uri=lab.uri) if each.model.startswith(f"{model}_")}
    assert found == {(f"{model}_b", "staging")}


@pytest.mark.slow
def test_what_does_not_exist_is_a_usage_error(lab: Lab) -> None:
    with pytest.raises(UsageError, match="the registered model 'nothing' does not exist"):
        audit("nothing", tracking_uri=lab.uri)
    with pytest.raises(UsageError, match="wanted letters"):
        audit("nothing", "a b", tracking_uri=lab.uri)


def command(lab: Lab, *args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*args, "--tracking-uri", lab.uri])
    return result.exit_code, result.stdout


@pytest.mark.slow
def test_the_command_tells_and_exits_by_what_it_found(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    code, text = command(lab, "audit", model)
    assert code == 0
    assert text.startswith(f"VALID    champion of {model}: version 1\n  - set by ")
    assert text.rstrip().endswith("1 alias audited, all valid")
    Entrant(lab, model, good=False).set_by_hand()
    code, text = command(lab, "audit", model, "--restore", "--dry-run")
    assert code == 1
    assert "  - not restored (dry run): without --dry-run, it moves to version 1\n" in text
    code, text = command(lab, "audit", model, "--restore")
    assert code == 1
    assert "INVALID  champion of" in text
    assert "  - restored to version 1\n" in text
    code, text = command(lab, "audit", model, "--json")
    assert code == 0
    assert json.loads(text)["aliases"][0]["kind"] == "restore"
    code, text = command(lab, "audit", "--all", "--alias", "nobody")
    assert (code, text) == (0, "No alias was ever promoted by the gate.\n")
    assert isinstance(CliRunner().invoke(cli, ["audit"]).exception, UsageError)


@pytest.mark.slow
def test_a_run_is_all_that_gate_takes(lab: Lab, model: str) -> None:
    code, text = command(lab, "gate", Entrant(lab, model).run_id)
    assert code == 0
    assert "verdict: passed" in text
    assert isinstance(CliRunner().invoke(cli, ["gate", "verify", model]).exception, SystemExit), "a model is one argument too many"


@pytest.mark.slow
def test_both_commands_verify(lab: Lab, model: str) -> None:
    promoted(lab, model, 1)
    assert command(lab, "verify", model)[0] == 0
    assert command(lab, "verify", model, "1")[0] == 0
    code, text = command(lab, "verify", model, "1", "--alias", "staging")
    assert code == 2
    assert f"version 1 of '{model}' does not hold the alias staging" in text
    result = CliRunner().invoke(cli, ["verify", model, "1", "--tracking-uri", lab.uri, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"] == "passed"
