"""Signed records: what is made up without the key does not verify, and no key is ever shown."""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.api import audit, rollback
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.signing.keys import DECISION, ENVELOPE, PAYLOAD_TYPE, Signer, load_signer, load_verifier, make_key, read_statement
from tests.gating.entrant import Entrant, promoted
from tests.gating.gate_kit import Lab
from tests.gating.promotion.claim_kit import forge_claim

pytestmark = pytest.mark.slow

NONSENSE = (
    "",
    "ed25519 AAAA",
    "{}",
    "[]",
    "null",
    '{"payload": 1}',
    '{"payload": "", "payloadType": "x", "signatures": [{"sig": "Ä"}]}',
    "[" * 99_999,
)
UNSIGNED = (
    "version 1 of {name!r} holds the alias champion, but its claim log does not show that promotion: it was set by hand"
    " (champion.0001 in the claim log is not signed with the key)"
)
SECRET = "correct horse battery staple"  # noqa: S105 - of no account


def ec_key(path: Path) -> Path:
    """Write an ECDSA key, as `cosign generate-key-pair` makes one, and return its path."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    key = generate_private_key(SECP256R1())
    path.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()))
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub.pem").write_bytes(public)
    return path


@pytest.fixture(params=["ed25519", "ecdsa", "pem variable", "rotated"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A key to sign with, and one to verify with."""
    key = tmp_path / "key.pem"
    public = ec_key(key).with_suffix(".pub.pem") if request.param == "ecdsa" else make_key(key)
    if request.param == "rotated":
        return str(key), make_key(tmp_path / "former.pem").read_text() + public.read_text()
    return (key.read_text(), public.read_text()) if request.param == "pem variable" else (str(key), str(public))


def signer_of_a_new_key() -> Signer:
    with TemporaryDirectory() as folder:
        signer = load_signer(make_key(Path(folder) / "key.pem").with_name("key.pem"))
    assert signer is not None
    return signer


SIGNERS = signer_of_a_new_key(), signer_of_a_new_key()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "key.pem", make_key(tmp_path / "key.pem")


def test_a_signed_promotion_verifies_with_the_key(lab: Lab, model: str, keys: tuple[str, str]) -> None:
    entrant = Entrant(lab, model)
    entrant.promote(signing_key=keys[0])
    assert entrant.verify(verify_key=keys[1]).passed
    assert entrant.verify(verify_key=keys[0]).passed
    assert entrant.verify().passed
    path, store = entrant.record.path, MlflowStore(lab.uri)
    verifier = load_verifier(keys[1])
    assert verifier is not None
    payload = verifier.opened(store.artifact(entrant.run_id, path + ENVELOPE) or b"", PAYLOAD_TYPE)
    statement = read_statement(payload or b"", DECISION)
    assert statement is not None
    record = store.artifact(entrant.run_id, path) or b""
    manifest = store.artifact(entrant.run_id, "adk_eval/manifest.json") or b""
    digests = {path: hashlib.sha256(record).hexdigest(), "adk_eval/manifest.json": hashlib.sha256(manifest).hexdigest()}
    assert statement.subjects == digests
    assert statement.predicate == json.loads(record)


def test_the_environment_can_name_the_keys(lab: Lab, model: str, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ADK_EVAL_VERIFY_KEY", str(pair[1]))
    first, second = Entrant(lab, model), Entrant(lab, model)
    with pytest.raises(UsageError, match="no signing key is given, so the result would not verify"):
        first.promote()
    assert first.promote(dry_run=True).passed
    monkeypatch.delenv("MLFLOW_ADK_EVAL_VERIFY_KEY")
    first.promote()
    monkeypatch.setenv("MLFLOW_ADK_EVAL_VERIFY_KEY", str(pair[1]))
    assert first.verify().reasons == (UNSIGNED.format(name=model),)
    monkeypatch.setenv("MLFLOW_ADK_EVAL_SIGNING_KEY", str(pair[0]))
    second.promote()
    assert second.verify().passed
    (found,) = audit(model, tracking_uri=lab.uri)
    assert found.valid


def test_what_another_key_signed_does_not_verify(lab: Lab, model: str, pair: tuple[Path, Path], tmp_path: Path) -> None:
    entrant = Entrant(lab, model)
    other = make_key(tmp_path / "other.pem").with_name("other.pem")
    with pytest.raises(UsageError, match="the signing key is not one of the keys to verify with"):
        entrant.promote(signing_key=other, verify_key=pair[1])
    entrant.promote(signing_key=other)
    assert entrant.verify(verify_key=pair[1]).reasons == (UNSIGNED.format(name=model),)
    entrant = Entrant(lab, f"{model}_signed")
    entrant.promote(signing_key=pair[0])
    path = entrant.record.path
    for nonsense in NONSENSE:
        lab.client.log_text(entrant.run_id, nonsense, path + ENVELOPE)
        assert entrant.verify(verify_key=pair[1]).reasons == (f"its promotion record {path} is not signed with the key",)


def forge(lab: Lab, champion: Entrant, target: Entrant) -> None:
    """Write record, tags and claim log as if `target` had been promoted, and move the alias: all that can be done without the key."""
    store = MlflowStore(lab.uri)
    record: dict[str, Any] = json.loads(store.artifact(champion.run_id, champion.record.path) or b"")
    record["target"]["version"], record["version"] = target.version, asdict(store.version(target.name, target.version).id)
    record["claim"], record["previous"] = 2, asdict(store.version(champion.name, champion.version).id)
    evidence = store.evidence(target.run_id)
    record["decision"] |= {"run_id": target.run_id, "evidence_sha256": evidence.sha256, "decided_by": "the boss"}
    content, path = json.dumps(record), "adk_eval_gate/forged.json"
    lab.client.log_text(target.run_id, content, path)
    signature = store.artifact(champion.run_id, champion.record.path + ENVELOPE) or b""
    lab.client.log_text(target.run_id, signature.decode(), path + ENVELOPE)
    place = f"{target.run_id} {path} {hashlib.sha256(content.encode()).hexdigest()}"
    lab.client.set_model_version_tag(target.name, target.version, "mlflow.adk_eval.gate.passed.champion", place)
    forge_claim(store, target.name, version=target.version, previous="1", record=place, by="the boss")
    target.set_by_hand()


def test_a_forged_promotion_of_a_good_version_is_found_by_its_signature_alone(lab: Lab, model: str, pair: tuple[Path, Path]) -> None:
    champion, forged = Entrant(lab, model), Entrant(lab, model)
    champion.promote(signing_key=pair[0])
    forge(lab, champion, forged)
    assert forged.verify().passed, "the forgery is complete"
    unsigned = "(champion.0002 in the claim log is not signed with the key)"
    (reason,) = forged.verify(verify_key=pair[1]).reasons
    assert reason.endswith(f"points to version 2, but its claim log says version 1: it was moved by hand {unsigned}")
    keys = {"signing_key": pair[0], "verify_key": pair[1]}
    (found,) = audit(model, "champion", restore=True, dry_run=True, tracking_uri=lab.uri, **keys)
    assert (found.valid, found.restorable, found.restored) == (False, "1", None)
    (found,) = audit(model, "champion", restore=True, tracking_uri=lab.uri, **keys)
    assert found.reasons[0].startswith("it was moved by hand from version 1")
    assert found.restored == lab.alias(model) == "1"
    assert champion.verify(verify_key=pair[1]).passed


def test_a_forged_promotion_of_a_bad_version_is_found_without_a_key(lab: Lab, model: str, pair: tuple[Path, Path]) -> None:
    champion, forged = Entrant(lab, model), Entrant(lab, model, good=False)
    champion.promote(signing_key=pair[0])
    forge(lab, champion, forged)
    decision = forged.verify()
    assert decision.verdict == "failed"
    assert "below the threshold" in decision.reasons[0]


def test_a_rollback_wants_signed_records_and_signs_its_own(lab: Lab, model: str, pair: tuple[Path, Path]) -> None:
    first, second, _ = (Entrant(lab, model) for _ in range(3))
    first.promote(signing_key=pair[0])
    second.promote()
    promoted_last = promoted(lab, model, 1, signing_key=pair[0])[0]
    move = rollback(model, reason="slow", signing_key=pair[0], verify_key=pair[1], tracking_uri=lab.uri)
    assert (move.previous, move.version) == (promoted_last.version, first.version)
    run_id, path, _ = first.tags["mlflow.adk_eval.gate.last_rollback.record"].split()
    assert run_id == first.run_id
    signature = MlflowStore(lab.uri).artifact(run_id, path + ENVELOPE)
    content = MlflowStore(lab.uri).artifact(run_id, path)
    verifier = load_verifier(pair[1])
    assert verifier is not None
    payload = verifier.opened(signature or b"", PAYLOAD_TYPE)
    statement = read_statement(payload or b"", DECISION)
    assert statement is not None
    assert statement.predicate == json.loads(content or b"")


@given(payload=st.binary(max_size=200), other=st.binary(max_size=200), kind=st.text(max_size=20), other_kind=st.text(max_size=20))
def test_a_signature_fits_its_payload_and_type_alone(payload: bytes, other: bytes, kind: str, other_kind: str) -> None:
    kind, other_kind = (text.encode("utf-8", "replace").decode() for text in (kind, other_kind))
    signer, stranger = SIGNERS
    signature = signer.sign(payload, kind)
    assert signer.verifier.verifies(payload, kind, signature)
    assert signer.verifier.verifies(other, other_kind, signature) == ((payload, kind) == (other, other_kind))
    assert not stranger.verifier.verifies(payload, kind, signature)
    assert signer.verifier.opened(signer.seal(payload, kind).encode(), kind) == payload
    assert signer.verifier.opened(stranger.seal(payload, kind).encode(), kind) is None


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_an_envelope_with_one_altered_bit_opens_to_what_was_signed_or_not_at_all(at: int, bit: int) -> None:
    signer, payload = SIGNERS[0], b'{"_type": "https://in-toto.io/Statement/v1"}'
    envelope = bytearray(signer.seal(payload, PAYLOAD_TYPE).encode())
    envelope[at % len(envelope)] ^= 1 << bit
    assert signer.verifier.opened(bytes(envelope), PAYLOAD_TYPE) in (None, payload)


def test_a_key_is_in_no_text(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key.pem").with_name("key.pem")
    signer = load_signer(key)
    assert signer is not None
    secret = key.read_text().splitlines()[1]
    assert repr(signer) == "Signer()"
    assert secret not in signer.seal(b"record", "text") + repr(signer.verifier)


@pytest.fixture
def spoilt(tmp_path: Path) -> dict[str, str]:
    """Keys that are none."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ec import SECP521R1, generate_private_key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    locked = form.BestAvailableEncryption(SECRET.encode())
    pem, pkcs8 = form.Encoding.PEM, form.PrivateFormat.PKCS8
    (tmp_path / "locked.pem").write_bytes(Ed25519PrivateKey.generate().private_bytes(pem, pkcs8, locked))
    (tmp_path / "ec.pem").write_bytes(generate_private_key(SECP521R1()).private_bytes(pem, pkcs8, form.NoEncryption()))
    (tmp_path / "text.pem").write_text(SECRET)
    return {
        "missing": str(tmp_path / "missing.pem"),
        "locked": str(tmp_path / "locked.pem"),
        "of another kind": str(tmp_path / "ec.pem"),
        "no key": str(tmp_path / "text.pem"),
        "a secret itself": SECRET * 20,
        "spoilt text": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n",
        "empty": "",
        "blank": " \n",
    }


@pytest.mark.parametrize("load", [load_signer, load_verifier])
def test_what_is_no_key_is_a_usage_error_that_shows_none_of_it(load: Any, spoilt: dict[str, str]) -> None:
    for what, spec in spoilt.items():
        with pytest.raises(UsageError, match="wanted a PEM file") as caught:
            load(spec)
        assert SECRET not in str(caught.value), what


@pytest.mark.parametrize(("load", "name"), [(load_signer, "MLFLOW_ADK_EVAL_SIGNING_KEY"), (load_verifier, "MLFLOW_ADK_EVAL_VERIFY_KEY")])
def test_a_variable_that_is_set_but_empty_is_an_error(load: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "")
    with pytest.raises(UsageError, match=f"{name} is empty; .* or unset it"):
        load()


def test_without_a_key_nothing_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_ADK_EVAL_SIGNING_KEY", "MLFLOW_ADK_EVAL_VERIFY_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert load_signer() is None
    assert load_verifier() is None


def test_the_public_part_alone_cannot_sign(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="does not name a private key"):
        load_signer(pair[1])


def test_the_command_makes_a_key_that_only_its_owner_can_read(tmp_path: Path) -> None:
    key = tmp_path / "gate.pem"
    made = CliRunner().invoke(cli, ["keygen", "-o", str(key)])
    assert made.exit_code == 0
    assert made.output.splitlines() == [
        f"MLFLOW_ADK_EVAL_SIGNING_KEY={key}   for processes that promote; keep it secret",
        f"MLFLOW_ADK_EVAL_VERIFY_KEY={tmp_path / 'gate.pub.pem'}   for processes that verify and audit",
    ]
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    signer, verifier = load_signer(key), load_verifier(tmp_path / "gate.pub.pem")
    assert signer is not None
    assert verifier is not None
    assert verifier.verifies(b"record", "text", signer.sign(b"record", "text"))
    assert not verifier.verifies(b"records", "text", signer.sign(b"record", "text"))
    before = key.read_text()
    again = CliRunner().invoke(cli, ["keygen", "-o", str(key)])
    assert isinstance(again.exception, UsageError)
    assert key.read_text() == before
