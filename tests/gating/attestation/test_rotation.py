"""Keys that are replaced, in time and after they were lost, and what who has a former key can still do."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mlflow_adk_eval.errors import PolicyError, UsageError
from mlflow_adk_eval.gating.api import audit
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.claim_log import Claim, Confirmation, End, key_of, text_of
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.signing.keys import PAYLOAD_TYPE, load_signer, load_verifier, make_key
from tests.gating.entrant import Entrant
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import version_of


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "old.pem", make_key(tmp_path / "old.pem").read_text()


@pytest.fixture
def new(tmp_path: Path) -> tuple[Path, str]:
    return tmp_path / "new.pem", make_key(tmp_path / "new.pem").read_text()


def until(moment: datetime, public: str) -> str:
    return f"Valid-Until: {moment.isoformat()}\n{public}"


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["both", "new"], ids=["with both keys", "with the new key alone"])
def test_a_key_is_replaced(seen: str, lab: Lab, model: str, old: tuple[Path, str], new: tuple[Path, str]) -> None:
    first, second, third = (Entrant(lab, model) for _ in range(3))
    first.promote(signing_key=old[0])
    both = until(datetime.now(UTC) + timedelta(seconds=1), old[1]) + new[1]
    assert first.verify(verify_key=both).passed
    trusted = both if seen == "both" else new[1]
    second.promote(signing_key=new[0], verify_key=trusted)
    for keys in (both, new[1], old[1] + new[1]):
        assert second.verify(verify_key=keys).passed
    third.promote(signing_key=new[0], verify_key=new[1])
    for keys in (both, new[1], old[1] + new[1]):
        assert third.verify(verify_key=keys).passed
    (found,) = audit(model, verify_key=both, tracking_uri=lab.uri)
    assert found.valid
    assert third.verify(verify_key=old[1]).verdict == "undecided"


@pytest.mark.slow
def test_a_key_that_was_replaced_signs_no_more(lab: Lab, model: str, old: tuple[Path, str], new: tuple[Path, str]) -> None:
    first, second = Entrant(lab, model), Entrant(lab, model)
    first.promote(signing_key=old[0])
    limited = until(datetime.now(UTC) - timedelta(hours=1), old[1]) + new[1]
    assert "champion.0001 in the claim log is not signed with the key" in first.verify(verify_key=limited).reasons[0]
    second.promote(signing_key=new[0], verify_key=limited)
    assert second.verify(verify_key=limited).passed
    first.promote(signing_key=old[0])  # by who has found the key
    assert "it was moved by hand" in first.verify(verify_key=limited).reasons[0]


@pytest.mark.slow
def test_who_has_a_former_key_dates_no_claim_back(lab: Lab, model: str, old: tuple[Path, str], new: tuple[Path, str]) -> None:
    first, second = Entrant(lab, model), Entrant(lab, model)
    first.promote(signing_key=old[0])
    replaced_at = datetime.now(UTC) - timedelta(hours=1)
    keys = until(replaced_at, old[1]) + new[1]
    second.promote(signing_key=new[0], verify_key=keys)
    store, signer, at = MlflowStore(lab.uri, verifier=load_verifier(keys)), load_signer(old[0]), replaced_at - timedelta(minutes=1)
    log = store.claim_log(model, "champion")
    versions = {"version": version_of(store, model, first.version), "previous": version_of(store, model, second.version)}
    values = {"kind": "promotion", **versions, "record": "r p 0", "by": "me", "at": at}
    claim = Claim(id="f" * 32, log=log.log, model=model, alias="champion", number=log.next, before=log.head, **values)
    store.claim(model, key_of("champion", log.next), text_of(claim, signer))
    for suffix, value in {"go": Confirmation(claim=claim.id, at=at), "end": End(claim=claim.id, outcome="done", at=at)}.items():
        store.claim(model, key_of("champion", log.next, suffix, claim.id), text_of(value, signer))
    seen = store.claim_log(model, "champion")
    assert [entry.number for entry in seen.entries] == [2]
    assert seen.skipped[-1] == "champion.0003 in the claim log has an earlier date than the previous claim"
    assert second.verify(verify_key=keys).passed


def test_what_a_key_signed_after_its_time_is_not_opened(old: tuple[Path, str]) -> None:
    signer, verifier = load_signer(old[0]), load_verifier(f"Valid-Until: 2027-01-31T00:00:00Z\n{old[1]}")
    assert signer is not None
    assert verifier is not None
    in_time, late = "2027-01-31T01:00:00+01:00", "2027-01-31T00:00:00.001+00:00"
    for wanted, time in ((True, in_time), (False, late), (False, "2027-01-30"), (False, None)):
        for said in ({"finished_at": time}, {"decision": {"decided_at": time}}):
            payload = json.dumps({"predicate": said}).encode()
            assert (verifier.opened(signer.seal(payload, PAYLOAD_TYPE).encode(), PAYLOAD_TYPE) == payload) is wanted


def test_a_time_that_is_none_is_refused(old: tuple[Path, str]) -> None:
    for text in ("", "2027-01-31", "tomorrow", "2027-01-31T00:00:00"):
        with pytest.raises(UsageError, match="has an invalid Valid-Until; wanted a time with a zone"):
            load_verifier(f"valid-until: {text}\n{old[1]}")
        with pytest.raises(PolicyError, match="an invalid Valid-Until"):
            load_policy({"thresholds": True, "attestation": {"keys": [f"Valid-Until: {text}\n{old[1]}"]}})
    limited = load_verifier(f"# of 2026\nValid-Until: 2027-01-31T00:00:00Z\n{old[1]}")
    assert limited is not None
    assert list(limited.until.values()) == [datetime(2027, 1, 31, tzinfo=UTC)]
