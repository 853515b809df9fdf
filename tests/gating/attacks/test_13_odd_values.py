"""Attack 13: values that are spelt otherwise, too long, too large or no such values, where the gate reads what others wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.policy.load import load_policy, parse_policy
from mlflow_adk_eval.gating.registry import MlflowStore, claims_experiment
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import TRAJECTORY, Lab, changed, decide_on, eval_set_of, evidence_of, report_of
from tests.gating.promotion.claim_kit import forge_claim

slow = pytest.mark.slow


@slow
def test_an_alias_is_not_set_on_a_version_that_is_spelt_as_another_number(lab: Lab, model: str) -> None:
    (champion,), second = promoted(lab, model, 1), Entrant(lab, model)
    for spelling in ("02", "0002", "2" * 30, "²"):
        second.version = spelling
        with pytest.raises(UsageError, match="wanted a version number without leading zeros"):
            second.promote()
    assert lab.alias(model) == champion.version


@slow
def test_an_alias_of_many_letters_is_audited(lab: Lab, model: str) -> None:
    alias = "production_" * 20
    first, second = Entrant(lab, model), Entrant(lab, model)
    assert first.promote(alias).passed
    (found,) = audit(model, tracking_uri=lab.uri)
    assert (found.alias, found.valid) == (alias, True)
    second.set_by_hand(alias)
    (found,) = audit(model, tracking_uri=lab.uri)
    assert (found.alias, found.valid) == (alias, False)
    lab.client.delete_registered_model_alias(model, alias)
    (found,) = audit(model, tracking_uri=lab.uri)
    assert (found.alias, found.valid) == (alias, False)


@slow
def test_a_model_that_was_deleted_is_missed_by_the_checkpoint(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    promoted(lab, model, 1, checkpoint=checkpoint)
    lab.client.delete_registered_model(model)
    (found,) = (each for each in audit(checkpoint=checkpoint, tracking_uri=lab.uri) if each.model == model)
    assert (found.alias, found.version, found.valid) == ("champion", None, False)
    assert found.reasons == (f"the registered model {model!r} does not exist in this MLflow store",)


@pytest.mark.parametrize("num_runs", ["10000000", "9" * 15, "9" * 16, "9" * 5000])
def test_runs_are_not_counted_up_to_a_number_that_somebody_wrote(num_runs: str) -> None:
    evidence = changed(evidence_of(report_of()), "params", {"adk_eval.num_runs": num_runs})
    decision = decide_on(evidence)
    assert decision.verdict == "undecided"
    assert any(reason.startswith("the run's parameter adk_eval.num_runs is ") and len(reason) < 200 for reason in decision.reasons)


HOSTILE = "x\x1b[2J\x1b]0;title\x07\u202e [bold]valid[/bold]\r\n::error::stop\n"


@slow
def test_what_others_wrote_moves_nothing_on_a_terminal_and_commands_no_ci(lab: Lab, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)
    promoted(lab, model, 1)
    forge_claim(MlflowStore(lab.uri), model, version="7", by=HOSTILE, reason=HOSTILE)
    entrant = Entrant(lab, model)
    cases = eval_set_of({HOSTILE: [("Hello", "Hi", "greet")], "plain": [("Bye", "Bye", "greet")]})
    entrant.run_id = lab.log(evidence_of(report_of(eval_set=cases, wrong=[HOSTILE]), model_id=entrant.model_id))
    for args in (["audit", model], ["gate", entrant.run_id]):
        output = CliRunner().invoke(cli, [*args, "--tracking-uri", lab.uri]).output
        assert "x�[2J�]0;title" in output
        assert "[bold]valid[/bold] ::error::stop" in output
        assert not any(line.startswith("::") for line in output.splitlines())
        assert all(char.isprintable() or char == "\n" for char in output)


@slow
def test_what_is_promoted_in_the_claim_log_of_another_model_spoils_neither(lab: Lab, model: str) -> None:
    (champion,), other = promoted(lab, model, 1), f"{model}_other"
    entrants = [Entrant(lab, other) for _ in range(3)]
    experiment = lab.client.get_experiment_by_name(claims_experiment(model)).experiment_id
    lab.client.rename_experiment(experiment, claims_experiment(other))
    entrants[-1].promote(raise_on_failure=False)
    lab.client.rename_experiment(experiment, claims_experiment(model))
    assert champion.verify().passed
    (found,) = audit(model, tracking_uri=lab.uri)
    assert found.valid
    assert f"was written for another model ({other!r})" in found.notes[-1]
    second = Entrant(lab, model)
    second.promote(policy={"thresholds": True, "rules": {TRAJECTORY: {"min": 1.0}}, "baseline": {"alias": "champion"}})
    assert second.verify().passed


@slow
def test_a_record_of_many_bytes_is_not_read(lab: Lab, model: str) -> None:
    (champion,) = promoted(lab, model, 1)
    with (lab.artifacts(champion.run_id) / champion.record.path).open("r+b") as file:
        file.truncate(65 << 20)
    assert "was changed after the decision" in champion.verify().reasons[0]


@pytest.mark.parametrize(
    "name", ["response_match_sc\u043ere", "response_match_score\u200b", "\u200dresponse_match_score", "respo\u0144se_match_score"]
)
def test_a_metric_that_looks_like_a_criterion_is_told(name: str) -> None:
    config = {
        "criteria": {TRAJECTORY: 1.0, name: 0.0},
        "custom_metrics": {name: {"code_config": {"name": "tests.gating.attacks.test_04_policy.length_of"}}},
    }
    decision = decide_on(evidence_of(report_of(config=config)), parse_policy({"rules": {name: {"min": 0.9}}}, "policy"))
    assert decision.verdict == "undecided"
    assert decision.reasons[0] == f"the name of the custom metric {name!a} imitates the criterion response_match_score"


@pytest.mark.parametrize("name", ["response_match_score_für_kinder", "礼貌"])
def test_a_metric_with_a_name_of_its_own_in_any_script_is_none(name: str) -> None:
    config = {
        "criteria": {TRAJECTORY: 1.0, name: 0.5},
        "custom_metrics": {name: {"code_config": {"name": "tests.gating.attacks.test_04_policy.length_of"}}},
    }
    assert decide_on(evidence_of(report_of(config=config)), load_policy({"rules": {TRAJECTORY: {"min": 1.0}}})).passed


Edit = Callable[[dict[str, Any]], object]
EDITS: dict[str, Edit] = {
    "no time": lambda record: record["decision"].update(decided_at="yesterday"),
    "no such time": lambda record: record["decision"].update(decided_at="0001-01-01T00:00:00+23:59"),
    "a time after all": lambda record: record["decision"].update(decided_at="9999-12-31T23:59:59-12:00"),
    "no calibration": lambda record: record["policy"].update(calibration={"x": 1}),
    "a claim of thirty digits": lambda record: record.update(claim=10**30),
    "no alias": lambda record: record["target"].update(alias="latest"),
    "another run": lambda record: record["decision"].update(run_id="../.."),
    "nothing compared": lambda record: record.update(
        compared={"name": "", "version": None, "run_id": "../..", "sha256": "", "problems": []}
    ),
}


@slow
def test_a_record_that_somebody_wrote_is_refused_and_breaks_nothing(lab: Lab, model: str) -> None:
    (champion,) = promoted(lab, model, 1)
    content = MlflowStore(lab.uri).artifact(champion.run_id, champion.record.path) or b""
    for number, edit in enumerate(EDITS.values()):
        record, path = json.loads(content), f"adk_eval_gate/made_up_{number}.json"
        edit(record)
        text = json.dumps(record)
        lab.client.log_text(champion.run_id, text, path)
        place = f"{champion.run_id} {path} {hashlib.sha256(text.encode()).hexdigest()}"
        lab.client.set_model_version_tag(model, champion.version, "adk_eval.gate.record", place)
        assert champion.verify(alias=None, version=champion.version).verdict == "undecided"
    assert champion.verify().passed
