"""What is signed about an evaluation: complete, kept when MLflow is away, checked by other tools, and refused with one altered byte."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli.decide import attestation_group
from mlflow_adk_eval.errors import PolicyError, TrackingError, UsageError
from mlflow_adk_eval.gating.attestation import attestation_problems
from mlflow_adk_eval.gating.attested_files import export_attestation, verify_attestation
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import AttestationPin
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.signing.keys import EVALUATION, PAYLOAD_TYPE, Statement, load_signer, make_key, read_statement
from mlflow_adk_eval.tracking.agent_versions import register
from tests.gating.attestation.test_keys import ec_key
from tests.mlflow_kit import copied
from tests.tracking.small import CONFIG, answering, expected_of, rooms

EVALUATION_PATH = "adk_eval_gate/evaluation.dsse.json"
MANIFEST = "adk_eval/manifest.json"


class Attested:
    """A run that was evaluated with a key, a decision on it that was signed with the same one, and both as files."""

    def __init__(self, uri: str, folder: Path, key: Path, public: Path) -> None:
        self.uri, self.key, self.public = uri, key, public
        self.report = adk_eval.evaluate(
            rooms(), answering(rooms()), CONFIG, experiment="attested", tracking_uri=uri, signing_key=key, traces=False
        )
        self.run_id = str(self.report.run_id)
        version = register(self.report, "rooms", tracking_uri=uri)
        assert adk_eval.promote("rooms", version, run_id=self.run_id, signing_key=key, tracking_uri=uri, registry_uri=uri).passed
        self.folder = folder / "files"
        self.names = export_attestation(self.run_id, self.folder, tracking_uri=uri)

    @property
    def run(self) -> Any:
        return MlflowClient(self.uri).get_run(self.run_id)

    @property
    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / EVALUATION_PATH).read_text())
        return found

    @property
    def payload(self) -> bytes:
        return base64.b64decode(self.envelope["payload"])

    @property
    def evidence(self) -> Evidence:
        return MlflowStore(self.uri, self.uri).evidence(self.run_id)

    @property
    def pin(self) -> AttestationPin:
        return AttestationPin(keys=(self.public.read_text().strip(),))


@pytest.fixture(scope="module", params=["ed25519", pytest.param("ecdsa", marks=pytest.mark.slow)])
def attested(request: pytest.FixtureRequest, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Attested:
    folder = tmp_path_factory.mktemp("attested")
    key = folder / "key.pem"
    public = make_key(key) if request.param == "ed25519" else ec_key(key).with_suffix(".pub.pem")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("GITHUB_REPOSITORY", "acme/rooms")
        patched.setenv("GITHUB_SHA", "0" * 40)
        patched.setenv("GITHUB_TOKEN", "ghs_0123456789")
        return Attested(copied(template, folder), folder, key, public)


def test_the_statement_says_what_was_evaluated_with_what_and_what_came_of_it(attested: Attested) -> None:
    statement = read_statement(attested.payload, EVALUATION)
    assert statement is not None
    said, params = statement.predicate, attested.run.data.params
    assert (said["run_id"], said["model_id"]) == (attested.run_id, params["adk_eval.model_id"])
    assert said["materials"] == {"eval_set_id": "rooms", "parameters": params}
    assert said["result"]["manifest_sha256"] == params["adk_eval.manifest_sha256"]
    assert said["result"]["verdict"] == "passed"
    assert said["result"]["metrics"] == attested.run.data.metrics
    source = params["adk_eval.agent.source_sha256"]
    assert (said["agent"]["name"], said["agent"]["source_sha256"]) == ("agent", source)
    assert said["environment"]["ci"]["GITHUB_REPOSITORY"] == "acme/rooms"
    assert "ghs_0123456789" not in attested.payload.decode()
    assert said["started_at"] <= said["finished_at"]
    manifest = hashlib.sha256((attested.folder / MANIFEST).read_bytes()).hexdigest()
    assert statement.subjects == {MANIFEST: manifest, "agent:agent": source}
    assert hashlib.sha256((attested.folder / "adk_eval/agent_source.json").read_bytes()).hexdigest() == source


def test_what_was_signed_is_what_the_run_holds(attested: Attested) -> None:
    assert attestation_problems(attested.pin, attested.evidence) == []
    assert attestation_problems(None, attested.evidence) == []


def _params(**changed: str) -> Callable[[Evidence], Evidence]:
    names = {name.replace("__", "."): value for name, value in changed.items()}
    return lambda evidence: replace(evidence, params={**evidence.params, **names})


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda evidence: replace(evidence, run_id="other"), "is for run "),
        (lambda evidence: replace(evidence, manifest=b"{}"), "is for a different adk_eval/manifest.json"),
        (lambda evidence: replace(evidence, manifest=None), "is for a different adk_eval/manifest.json"),
        (_params(adk_eval__model_id="m-2"), "is for agent version m-"),
        (_params(adk_eval__eval_set_digest="sha256:0"), "parameter adk_eval.eval_set_digest is sha256:0, but the attestation says sha256:"),
        (_params(adk_eval__config_digest="0"), "parameter adk_eval.config_digest is 0, but the attestation says "),
        (_params(adk_eval__judge_model="me"), "parameter adk_eval.judge_model is me, but the attestation says none"),
        (_params(threshold__response_match_score="0"), "parameter threshold.response_match_score is 0, but the attestation says 0.5"),
        (_params(adk_eval__agent__source_sha256="0" * 64), "parameter adk_eval.agent.source_sha256 is 000000000000"),
        (lambda evidence: replace(evidence, model_params={}), "adk_eval.agent.source_sha256 of its LoggedModel is missing"),
        (
            lambda evidence: replace(evidence, model_params={"adk_eval.agent.source_sha256": "1" * 64}),
            "of its LoggedModel is 111111111111…, but the attestation says ",
        ),
        (lambda evidence: replace(evidence, artifacts={}), "the artifact adk_eval/agent_source.json is missing"),
        (lambda evidence: replace(evidence, attestation=None), "the run has no attestation"),
        (lambda evidence: replace(evidence, attestation=b"{}"), "is not signed with one of the policy's keys"),
    ],
)
def test_a_run_that_is_not_the_attested_one_is_found(attested: Attested, edit: Callable[[Evidence], Evidence], expected: str) -> None:
    problems = attestation_problems(attested.pin, edit(attested.evidence))
    assert any(expected in problem for problem in problems), problems


def test_a_signed_decision_is_no_attestation_of_an_evaluation(attested: Attested) -> None:
    (decision,) = (name for name in attested.names if name.endswith(".dsse.json") and name != EVALUATION_PATH)
    swapped = replace(attested.evidence, attestation=(attested.folder / decision).read_bytes())
    assert "does not describe an evaluation" in attestation_problems(attested.pin, swapped)[0]


def test_the_files_verify_and_say_who_passed(attested: Attested) -> None:
    found = verify_attestation(attested.folder, attested.public)
    assert (found.problems, found.verdict, found.files) == ((), "passed", len(attested.names))
    assert found.evaluation["run_id"] == attested.run_id
    (decision,) = found.decisions
    assert decision["decision"]["verdict"] == "passed"
    assert {MANIFEST, "adk_eval/eval_set.json", "adk_eval/invocations.json", EVALUATION_PATH} < set(attested.names)


def altered(attested: Attested, folder: Path, name: str, content: bytes | None) -> bool:
    """Whether the files verify with another content of one."""
    if not folder.exists():
        shutil.copytree(attested.folder, folder)
    path = folder / name
    before = path.read_bytes() if path.exists() else None
    path.unlink() if content is None else path.write_bytes(content)
    try:
        return verify_attestation(folder, attested.public).valid
    except UsageError:
        return False
    finally:
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)


def test_an_altered_byte_in_any_file_is_refused(attested: Attested, tmp_path: Path) -> None:
    for name in attested.names:
        content = (attested.folder / name).read_bytes()
        for position in {0, len(content) // 2, len(content) - 1} if content else set():
            edited = bytearray(content)
            edited[position] ^= 1
            assert not altered(attested, tmp_path / "files", name, bytes(edited)), (name, position)
        assert not altered(attested, tmp_path / "files", name, content + b"\n"), f"{name}, one byte longer"
        assert not altered(attested, tmp_path / "files", name, content[:-1]), f"{name}, one byte shorter"
        assert not altered(attested, tmp_path / "files", name, None), f"{name} removed"
    for name in ("adk_eval/more.json", "adk_eval_gate/more.json", "more.txt", "adk_eval_gate/more.dsse.json"):
        assert not altered(attested, tmp_path / "files", name, b"{}"), f"{name} added"
    assert verify_attestation(tmp_path / "files", attested.public).valid, "each edit was taken back"


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_altered_byte_is_refused(attested: Attested, tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(attested.names))
    content = (attested.folder / name).read_bytes()
    if not content:
        return
    position = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[position]))
    edited = content[:position] + bytes([byte]) + content[position + 1 :]
    assert not altered(attested, tmp_path / "files", name, edited)


def test_every_byte_of_the_envelope_counts(attested: Attested, tmp_path: Path) -> None:
    """Also those that no signature covers: spaces, the name of the key, the unused bits of Base64."""
    content = (attested.folder / EVALUATION_PATH).read_bytes()
    payload_at = content.index(b'"payload": "') + 100
    positions = [
        position for position in range(len(content)) if not payload_at < position < payload_at + len(attested.envelope["payload"]) - 200
    ]
    for position in positions:
        edited = bytearray(content)
        edited[position] ^= 1
        assert not altered(attested, tmp_path / "files", EVALUATION_PATH, bytes(edited)), position


@pytest.mark.parametrize("text", ["sig", "payload"])
def test_the_same_bytes_in_another_spelling_are_refused(attested: Attested, tmp_path: Path, text: str) -> None:
    """The last letter of Base64 has bits that mean nothing, in which anybody could leave a mark."""
    envelope = attested.envelope
    home = envelope["signatures"][0] if text == "sig" else envelope
    letters, padding = home[text].rstrip("="), "=" * home[text].count("=")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    spelt = letters[:-1] + alphabet[alphabet.index(letters[-1]) + 1] + padding if padding else f"{letters}\n"
    assert base64.b64decode(spelt) == base64.b64decode(home[text])
    home[text] = spelt
    assert not altered(attested, tmp_path / "files", EVALUATION_PATH, json.dumps(envelope).encode())


def test_another_key_or_an_unsigned_envelope_is_refused(attested: Attested, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other.pem")
    expected = (f"{EVALUATION_PATH} is not signed with the key, or was changed",)
    assert verify_attestation(attested.folder, other).problems == expected
    both = other.read_text() + attested.public.read_text()
    assert verify_attestation(attested.folder, both).valid
    unsigned = json.dumps({**attested.envelope, "signatures": []}).encode()
    assert not altered(attested, tmp_path / "files", EVALUATION_PATH, unsigned)


def test_the_attestation_of_another_run_does_not_fit(attested: Attested, tmp_path: Path) -> None:
    report = adk_eval.evaluate(
        rooms(), expected_of(rooms()), CONFIG, experiment="attested", tracking_uri=attested.uri, signing_key=attested.key, traces=False
    )
    export_attestation(str(report.run_id), tmp_path / "other", tracking_uri=attested.uri)
    assert verify_attestation(tmp_path / "other", attested.public).valid
    swapped = (tmp_path / "other" / EVALUATION_PATH).read_bytes()
    assert not altered(attested, tmp_path / "files", EVALUATION_PATH, swapped)
    for name in attested.names:
        if name.startswith("adk_eval_gate/rooms"):
            shutil.copy(attested.folder / name, tmp_path / "other" / name)
    found = verify_attestation(tmp_path / "other", attested.public)
    assert len(found.problems) == 2, "neither the record nor its envelope is about this run"
    assert "is for another run" in found.problems[0]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return what DSSE signs, as its specification says it: https://github.com/secure-systems-lab/dsse."""
    return b"DSSEv1 %d %s %d %s" % (len(payload_type), payload_type.encode(), len(payload), payload)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_openssl_verifies_the_envelopes(attested: Attested, tmp_path: Path) -> None:
    for name in [name for name in attested.names if name.endswith(".dsse.json")]:
        envelope = json.loads((attested.folder / name).read_text())
        signed, signature = tmp_path / "signed.bin", tmp_path / "signature.bin"
        signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
        payload = base64.b64decode(envelope["payload"])
        digest = ["-digest", "sha256"] if _is_ecdsa(attested) else []
        command = [
            "openssl",
            "pkeyutl",
            "-verify",
            "-rawin",
            *digest,
            "-pubin",
            "-inkey",
            attested.public,
            "-in",
            signed,
            "-sigfile",
            signature,
        ]
        signed.write_bytes(pae(envelope["payloadType"], payload))
        assert "Signature Verified Successfully" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        signed.write_bytes(pae(envelope["payloadType"], payload.replace(b"passed", b"failed")))
        assert subprocess.run(command, capture_output=True, text=True, check=False).returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None or shutil.which("jq") is None, reason="there is no openssl or no jq")
def test_the_commands_of_the_documentation_verify(attested: Attested, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/how_to/sign.md").read_text()
    script = "set -euo pipefail\n" + page[page.index("cd attested\n") :].partition("```")[0]
    if _is_ecdsa(attested):
        script = script.replace("-rawin", "-rawin -digest sha256")
    shutil.copytree(attested.folder, tmp_path / "attested")
    shutil.copy(attested.public, tmp_path / "evaluation.pub.pem")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Signature Verified Successfully" in done.stdout
    assert "adk_eval/manifest.json: OK" in done.stdout
    assert "adk_eval/invocations.json: OK" in done.stdout
    assert verify_attestation(tmp_path / "attested", attested.public).valid, "the commands leave a file in the folder"
    with (tmp_path / "attested/adk_eval/invocations.json").open("a") as file:
        file.write(" ")
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False).returncode != 0


def _is_ecdsa(attested: Attested) -> bool:
    signer = load_signer(attested.key)
    return signer is not None and signer.key.public_key.keytype == "ecdsa"


def test_in_totos_own_library_takes_the_statements(attested: Attested) -> None:
    pytest.importorskip("in_toto_attestation", reason="of the group dev, not of what `make matrix` installs")
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement as InToto

    for name in [name for name in attested.names if name.endswith(".dsse.json")]:
        envelope = json.loads((attested.folder / name).read_text())
        assert envelope["payloadType"] == "application/vnd.in-toto+json"
        found = json_format.Parse(base64.b64decode(envelope["payload"]), statement_pb2.Statement())
        InToto.copy_from_pb(found).validate()
        for subject in found.subject:
            if (attested.folder / subject.name).is_file():
                assert subject.digest["sha256"] == hashlib.sha256((attested.folder / subject.name).read_bytes()).hexdigest()


def test_securesystemslib_verifies_the_envelopes(attested: Attested) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    key = SSlibKey.from_crypto(load_pem_public_key(attested.public.read_bytes()))
    envelope = Envelope.from_dict(attested.envelope)
    assert list(envelope.verify([key], 1)) == [key.keyid]
    forged = Envelope.from_dict({**attested.envelope, "payload": base64.b64encode(attested.payload + b" ").decode()})
    with pytest.raises(VerificationError):
        forged.verify([key], 1)


def test_the_files_are_verified_without_mlflow(attested: Attested) -> None:
    code = (
        "import sys; sys.modules['mlflow'] = None\n"
        "from mlflow_adk_eval import verify_attestation\n"
        "print(verify_attestation(sys.argv[1], sys.argv[2]).verdict)"
    )
    done = subprocess.run([sys.executable, "-c", code, attested.folder, attested.public], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "passed"


def cli(*arguments: Any) -> Any:
    return CliRunner().invoke(attestation_group, [str(each) for each in arguments])


def test_the_commands_export_and_verify(attested: Attested, tmp_path: Path) -> None:
    made = cli("export", attested.run_id, "-o", tmp_path / "out", "--tracking-uri", attested.uri)
    assert made.exit_code == 0
    assert f"{len(attested.names)} files" in made.output
    good = cli("verify", tmp_path / "out", "--verify-key", attested.public)
    assert good.exit_code == 0
    assert "every file matches its signature" in good.output
    assert "promotion of " in good.output
    told = json.loads(cli("verify", tmp_path / "out", "--verify-key", attested.public, "--json").output)
    assert (told["valid"], told["verdict"], told["evaluation"]["run_id"]) == (True, "passed", attested.run_id)
    (tmp_path / "out/adk_eval/config.json").write_text("{}")
    bad = cli("verify", tmp_path / "out", "--verify-key", attested.public)
    assert bad.exit_code == 2
    assert "the artifact adk_eval/config.json was changed after the run" in bad.output


def test_a_failed_evaluation_verifies_and_does_not_exit_as_a_pass(store: str, tmp_path: Path) -> None:
    public = make_key(tmp_path / "key.pem")
    report = adk_eval.evaluate(
        rooms(), answering(rooms(), heat="no"), CONFIG, experiment="x", tracking_uri=store, signing_key=tmp_path / "key.pem", traces=False
    )
    assert report.verdict == "failed"
    export_attestation(str(report.run_id), tmp_path / "out", tracking_uri=store)
    assert cli("verify", tmp_path / "out", "--verify-key", public).exit_code == 1


def test_what_cannot_be_exported_or_verified_is_one_sentence(attested: Attested, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ADK_EVAL_SIGNING_KEY", raising=False)
    monkeypatch.delenv("MLFLOW_ADK_EVAL_VERIFY_KEY", raising=False)
    unsigned = adk_eval.evaluate(rooms(), expected_of(rooms()), CONFIG, experiment="attested", tracking_uri=attested.uri, traces=False)
    with pytest.raises(UsageError, match=r"has no attestation .* it was evaluated without a signing key"):
        export_attestation(str(unsigned.run_id), tmp_path / "out", tracking_uri=attested.uri)
    with pytest.raises(UsageError, match="already exists; name an empty"):
        export_attestation(attested.run_id, attested.folder, tracking_uri=attested.uri)
    with pytest.raises(UsageError, match="is not a folder"):
        verify_attestation(tmp_path / "nowhere", attested.public)
    with pytest.raises(UsageError, match=r"contains no attestation: neither adk_eval_gate/evaluation\.dsse\.json"):
        verify_attestation(tmp_path, attested.public)
    with pytest.raises(UsageError, match="no public key to verify with"):
        verify_attestation(attested.folder)


@pytest.mark.slow
def test_an_attestation_is_kept_while_mlflow_cannot_take_the_run(store: str, tmp_path: Path) -> None:
    public, place = make_key(tmp_path / "key.pem"), tmp_path / "artifacts"
    MlflowClient(store).create_experiment("away", artifact_location=place.as_uri())

    def agent(text: str, session: Any) -> Any:
        place.exists() or place.write_text("no folder: nothing can be kept here")
        return answering(rooms())(text, session)

    with pytest.raises(TrackingError, match="mlflow-adk-eval upload"):
        adk_eval.evaluate(
            rooms(), agent, CONFIG, experiment="away", agent_version=_model(store), tracking_uri=store, signing_key=tmp_path / "key.pem"
        )
    place.unlink()
    (pending,) = (tmp_path / "adk_eval_pending").iterdir()
    run_id = adk_eval.upload(pending, tracking_uri=store)
    export_attestation(run_id, tmp_path / "out", tracking_uri=store)
    assert verify_attestation(tmp_path / "out", public).valid
    pin = AttestationPin(keys=(public.read_text().strip(),), source="optional")
    assert attestation_problems(pin, MlflowStore(store, store).evidence(run_id)) == []


def _model(store: str) -> str:
    client = MlflowClient(store)
    return str(client.create_logged_model(client.create_experiment("models"), name="agent").model_id)


@pytest.mark.slow
def test_the_environment_can_name_the_key_and_an_empty_one_stops_before_the_agent(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = make_key(tmp_path / "key.pem")
    monkeypatch.setenv("MLFLOW_ADK_EVAL_SIGNING_KEY", str(tmp_path / "key.pem"))
    report = adk_eval.evaluate(rooms(), expected_of(rooms()), CONFIG, tracking_uri=store, traces=False)
    export_attestation(str(report.run_id), tmp_path / "out", tracking_uri=store)
    assert verify_attestation(tmp_path / "out", public).valid
    monkeypatch.setenv("MLFLOW_ADK_EVAL_SIGNING_KEY", "")

    def never(text: str) -> str:
        raise AssertionError("the agent was called")

    with pytest.raises(UsageError, match="MLFLOW_ADK_EVAL_SIGNING_KEY is empty"):
        adk_eval.evaluate(rooms(), never, CONFIG, tracking_uri=store)


def test_a_statement_about_a_statement_is_none() -> None:
    statement = Statement(subjects={}, predicate_type=EVALUATION, predicate={})
    assert read_statement(statement.to_json(), EVALUATION) == statement
    assert read_statement(statement.to_json(), PAYLOAD_TYPE) is None


def policy_file(folder: Path, keys: list[str]) -> Path:
    (folder / "gate.json").write_text(json.dumps({"thresholds": True, "attestation": {"keys": keys}}))
    return folder / "gate.json"


def test_a_policy_holds_the_keys_that_its_file_names(tmp_path: Path) -> None:
    public = make_key(tmp_path / "key.pem")
    policy = load_policy(policy_file(tmp_path, [public.name]))
    assert policy.attestation == AttestationPin(keys=(public.read_text().strip(),))
    assert load_policy(policy_file(tmp_path, [public.read_text()])).digest() == policy.digest()
    assert load_policy(policy.to_json()).digest() == policy.digest()
    other = make_key(tmp_path / "other.pem")
    shutil.copy(other, public)
    assert load_policy(policy_file(tmp_path, [public.name])).digest() != policy.digest()


def test_a_private_key_in_a_policy_is_refused_and_never_shown(tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    secret = (tmp_path / "key.pem").read_text().splitlines()[1]
    for keys in (["key.pem"], [(tmp_path / "key.pem").read_text()]):
        with pytest.raises(PolicyError) as refused:
            load_policy(policy_file(tmp_path, keys))
        assert "a private key: keep it only where you evaluate or promote" in str(refused.value)
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["missing.pem"], "$.attestation.keys[0]: found 'missing.pem'; wanted a PEM file, relative to the policy, or PEM text"),
        (["gate.json"], "wanted the PEM text of public ed25519 or ECDSA P-256 keys"),
        ([], "$.attestation.keys"),
        ("key.pub.pem", "$.attestation.keys"),
    ],
)
def test_what_is_no_public_key_is_an_error_with_its_place(tmp_path: Path, keys: Any, expected: str) -> None:
    with pytest.raises(PolicyError) as refused:
        load_policy(policy_file(tmp_path, keys))
    assert expected in str(refused.value)


def test_an_end_that_was_edited_makes_an_attested_run_no_younger(attested: Attested) -> None:
    later = datetime.now(UTC) + timedelta(days=8)
    run = examine(replace(attested.evidence, end_time=int(later.timestamp() * 1000)))
    young: dict[str, Any] = {"thresholds": True, "max_age": "7d"}
    assert decide(run, load_policy(young), now=later).passed
    refused = decide(run, load_policy({**young, "attestation": {"keys": [attested.public.read_text()], "source": "optional"}}), now=later)
    assert refused.verdict == "undecided"
    assert "more than 1w before" in refused.reasons[0]
