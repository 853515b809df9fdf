"""A file that pins the claim log: what it takes up, what it refuses, and what it leaves as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.gating.api import audit, rollback
from mlflow_adk_eval.gating.registry import MlflowStore
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import claim_log_of, forge_claim


def pinned(checkpoint: Path, model: str) -> int:
    number: int = json.loads(checkpoint.read_text())[model]["champion"]["number"]
    return number


@pytest.mark.slow
def test_each_promotion_and_rollback_is_pinned(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    for number, _ in enumerate(promoted(lab, model, 2, checkpoint=checkpoint), start=1):
        assert number <= pinned(checkpoint, model) == 2
    rollback(model, reason="slow", checkpoint=checkpoint, tracking_uri=lab.uri)
    log = claim_log_of(MlflowStore(lab.uri), model)
    assert json.loads(checkpoint.read_text()) == {model: {"champion": {"log": log.log, "number": 3, "sha256": log.head}}}


@pytest.mark.slow
def test_an_audit_takes_up_what_was_set_meanwhile(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    promoted(lab, model, 1, checkpoint=checkpoint)
    second = promoted(lab, model, 1)[0]
    assert second.verify(checkpoint=checkpoint).passed
    assert pinned(checkpoint, model) == 1, "verifying changes nothing"
    assert audit(model, checkpoint=checkpoint, tracking_uri=lab.uri)[0].valid
    assert pinned(checkpoint, model) == 2


def test_a_dry_run_pins_nothing_and_a_refusal_its_entry(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    assert Entrant(lab, model).promote(checkpoint=checkpoint, dry_run=True).passed
    assert not checkpoint.exists()
    assert not Entrant(lab, model, good=False).promote(checkpoint=checkpoint, raise_on_failure=False).passed
    assert pinned(checkpoint, model) == 1


def test_a_claim_that_is_in_progress_is_not_pinned(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    promoted(lab, model, 1)
    forge_claim(MlflowStore(lab.uri), model, None, version="7", previous="1")
    assert audit(model, checkpoint=checkpoint, tracking_uri=lab.uri)[0].valid
    assert pinned(checkpoint, model) == 1


def test_an_entry_that_was_rewritten_in_the_database_is_refused(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    (champion,) = promoted(lab, model, 1, checkpoint=checkpoint)
    lab.execute(
        "UPDATE params SET value = replace(value, '\"by\":\"', '\"by\":\"not ') WHERE key = 'champion.0001' AND value LIKE ?",
        f"%{champion.run_id}%",
    )
    assert champion.verify().passed, "nothing else tells"
    reason = f"the claim log of {model!r} was truncated or rewritten: its entry champion.0001, as pinned in {checkpoint}, has changed"
    assert champion.verify(checkpoint=checkpoint).reasons == (reason,)
    assert Entrant(lab, model).promote(checkpoint=checkpoint, raise_on_failure=False).reasons == (reason,)
    (found,) = audit(model, checkpoint=checkpoint, tracking_uri=lab.uri)
    assert (found.valid, found.reasons) == (False, (reason,))


def test_a_model_whose_claim_log_is_gone_is_audited_by_what_is_pinned(lab: Lab, model: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    checkpoint.write_text(json.dumps({model: {"champion": {"log": "a" * 32, "number": 2, "sha256": "0" * 64}}}))
    Entrant(lab, model)
    (found,) = audit(model, checkpoint=checkpoint, tracking_uri=lab.uri)
    assert (found.alias, found.valid) == ("champion", False)
    assert found.reasons[0].startswith(f"the claim log of {model!r} is gone, not in run ")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"m": {"champion": {}}}', '{"m": {"champion": {"log": "r", "number": "x", "sha256": ""}}}']
)
@pytest.mark.slow
def test_a_file_that_is_no_checkpoint_is_an_error_before_mlflow_is_asked(text: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "claims.json"
    checkpoint.write_text(text)
    with pytest.raises(InputError, match=r"claims\.json"):
        audit("any", checkpoint=checkpoint, tracking_uri="http://127.0.0.1:1")


def test_a_folder_that_cannot_be_written_is_told(lab: Lab, model: str, tmp_path: Path) -> None:
    promoted(lab, model, 1)
    with pytest.raises(UsageError, match="cannot be written"):
        audit(model, checkpoint=tmp_path / "nowhere" / "claims.json", tracking_uri=lab.uri)


@pytest.mark.slow
def test_the_commands_take_it(lab: Lab, model: str, tmp_path: Path) -> None:
    promoted(lab, model, 1)
    checkpoint = tmp_path / "claims.json"
    how = ["--checkpoint", str(checkpoint), "--tracking-uri", lab.uri]
    assert CliRunner().invoke(cli, ["audit", model, *how]).exit_code == 0
    assert pinned(checkpoint, model) == 1
    assert CliRunner().invoke(cli, ["verify", model, *how]).exit_code == 0
    checkpoint.write_text(checkpoint.read_text().replace('"number": 1', '"number": 2'))
    result = CliRunner().invoke(cli, ["verify", model, *how])
    assert result.exit_code == 2
    assert "its entry champion.0002" in result.stdout
