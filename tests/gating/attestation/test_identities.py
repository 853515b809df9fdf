"""Evaluations that a CI job signs as its OIDC identity: sigstore's own client, on a Sigstore of the loopback interface."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import AttestationError, PolicyError, UsageError
from mlflow_adk_eval.gating.attestation import BUNDLE_PATH, attestation_problems, attested_end
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.policy.model import AttestationPin
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.runs.manifest import Evidence
from mlflow_adk_eval.signing.identities import IdentitySigner, OidcIdentity, Opened, load_attester, load_trust, open_bundle
from mlflow_adk_eval.signing.keys import EVALUATION, Statement, make_key
from mlflow_adk_eval.tracking.agent_versions import register
from tests.gating.attestation.sigstore_kit import GITHUB, IDENTITY, Sigstore, running
from tests.mlflow_kit import copied
from tests.tracking.small import CONFIG, answering, expected_of, rooms

pytestmark = pytest.mark.slow

ME = OidcIdentity(IDENTITY, GITHUB)
STATEMENT = Statement(subjects={"adk_eval/manifest.json": "0" * 64}, predicate_type=EVALUATION, predicate={"run_id": "r"}).to_json()
FULCIO, REKOR = "/api/v2/signingCert", "/api/v1/log/entries"


def trust_of(service: Sigstore, folder: Path) -> Path:
    file = folder / "trust.json"
    file.write_text(json.dumps(service.config))
    return file


@pytest.fixture
def sigstore(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sigstore]:
    with running() as service:
        service.in_github(monkeypatch)
        yield service


@pytest.fixture
def trust(sigstore: Sigstore, tmp_path: Path) -> Path:
    return trust_of(sigstore, tmp_path)


def signed(service: Sigstore, folder: Path) -> bytes:
    signer = load_attester(f"sigstore:{trust_of(service, folder)}")
    assert isinstance(signer, IdentitySigner)
    return signer.seal(STATEMENT).encode()


def policy_of(trust: Path, identity: str = IDENTITY, issuer: str = GITHUB, **more: Any) -> dict[str, Any]:
    pin = {"identities": [{"identity": identity, "issuer": issuer}], "trust": str(trust), **more}
    return {"thresholds": True, "attestation": pin}


class Attested:
    """A run that a workflow evaluated and signed, while Sigstore could be reached; it cannot any more."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri, self.folder = uri, folder
        with running() as service, pytest.MonkeyPatch.context() as patched:
            patched.chdir(folder)
            service.in_github(patched)
            self.trust = trust_of(service, folder)
            patched.setenv("MLFLOW_ADK_EVAL_SIGNING_KEY", f"sigstore:{self.trust}")
            self.report = self.evaluated(answering(rooms()))
            self.other = self.evaluated(expected_of(rooms()))
            self.requests = service.requests

    def evaluated(self, agent: Any) -> Any:
        return adk_eval.evaluate(rooms(), agent, CONFIG, experiment="signed", tracking_uri=self.uri, traces=False)

    def evidence(self, report: Any = None) -> Evidence:
        return MlflowStore(self.uri, self.uri).evidence(str((report or self.report).run_id))

    def gate(self, policy: Any, report: Any = None) -> Any:
        return adk_eval.gate(str((report or self.report).run_id), policy, tracking_uri=self.uri, raise_on_failure=False)

    @property
    def pin(self) -> AttestationPin:
        pin = load_policy(policy_of(self.trust)).attestation
        assert pin is not None
        return pin


@pytest.fixture(scope="module")
def attested(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Attested:
    folder = tmp_path_factory.mktemp("signed")
    return Attested(copied(template, folder), folder)


def test_a_run_that_a_workflow_signed_passes_the_gate_and_verifies_without_network(attested: Attested, tmp_path: Path) -> None:
    decision = attested.gate(policy_of(attested.trust))
    assert decision.passed
    assert "the run's attestation is signed with an identity from the policy" in decision.reasons
    once = ["/token", FULCIO, "/timestamp", REKOR]
    assert attested.requests == ["/token", *once] * 2, "a token is asked for when the evaluation begins, and again when it is signed"
    adk_eval.export_attestation(str(attested.report.run_id), tmp_path / "out", tracking_uri=attested.uri)
    assert (tmp_path / "out" / BUNDLE_PATH).is_file()
    assert not (tmp_path / "out/adk_eval_gate/evaluation.dsse.json").exists()
    found = adk_eval.verify_attestation(tmp_path / "out", identity=IDENTITY, issuer=GITHUB, trust=attested.trust)
    assert (found.problems, found.verdict, found.evaluation["run_id"]) == ((), "passed", attested.report.run_id)
    (tmp_path / "out/adk_eval/config.json").write_text("{}")
    changed = adk_eval.verify_attestation(tmp_path / "out", identity=IDENTITY, issuer=GITHUB, trust=attested.trust)
    assert changed.problems == ("the artifact adk_eval/config.json was changed after the run",)


def test_a_promotion_with_a_key_and_the_champion_rest_on_a_run_that_a_workflow_signed(attested: Attested, tmp_path: Path) -> None:
    public, where = make_key(tmp_path / "key.pem"), {"tracking_uri": attested.uri, "registry_uri": attested.uri}
    version, policy = register(attested.report, "rooms", tracking_uri=attested.uri), policy_of(attested.trust)
    run_id = str(attested.report.run_id)
    assert adk_eval.promote("rooms", version, run_id=run_id, policy=policy, signing_key=tmp_path / "key.pem", **where).passed
    assert adk_eval.verify("rooms", alias="champion", policy=policy, verify_key=public, **where).passed
    other = policy_of(attested.trust, issuer="https://gitlab.com")
    assert not adk_eval.verify("rooms", alias="champion", policy=other, verify_key=public, **where).passed
    adk_eval.export_attestation(run_id, tmp_path / "out", tracking_uri=attested.uri)
    trusted: dict[str, Any] = {"identity": IDENTITY, "issuer": GITHUB, "trust": attested.trust}
    whole = adk_eval.verify_attestation(tmp_path / "out", public, **trusted)
    assert (whole.problems, len(whole.decisions)) == ((), 1)
    problem, beside = adk_eval.verify_attestation(tmp_path / "out", **trusted).problems
    assert "is not covered by any signature" in beside
    assert problem.endswith("needs a public key to verify it, but none is given")


@pytest.mark.parametrize(
    ("identity", "issuer", "expected"),
    [
        (
            "https://github.com/mallory/rooms/.github/workflows/evaluate.yml@refs/heads/main",
            GITHUB,
            f"was signed as {IDENTITY} (issuer {GITHUB}); wanted https://github.com/mallory/rooms/.github/workflows/evaluate.yml@refs/heads/main",
        ),
        (IDENTITY.replace("main", "mai"), GITHUB, f"was signed as {IDENTITY} (issuer {GITHUB}); wanted "),
        (IDENTITY, "https://gitlab.com", f"was signed as {IDENTITY}, but the issuer is {GITHUB}; wanted https://gitlab.com"),
    ],
)
def test_another_identity_or_issuer_is_refused_with_both_names(attested: Attested, identity: str, issuer: str, expected: str) -> None:
    refused = attested.gate(policy_of(attested.trust, identity, issuer))
    assert refused.verdict == "undecided"
    assert expected in refused.reasons[0]


def test_the_bundle_of_another_run_is_refused(attested: Attested) -> None:
    assert attestation_problems(attested.pin, attested.evidence()) == []
    swapped = replace(attested.evidence(), attestation=attested.evidence(attested.other).attestation)
    problems = attestation_problems(attested.pin, swapped)
    assert f"the run's attestation is for run {attested.other.run_id}" in problems
    assert "the run's attestation is for a different adk_eval/manifest.json" in problems


def test_a_policy_with_keys_takes_no_bundle_and_one_with_identities_no_envelope(attested: Attested, tmp_path: Path) -> None:
    public = make_key(tmp_path / "key.pem")
    keys = {"thresholds": True, "attestation": {"keys": [str(public)], "source": "optional"}}
    refused = attested.gate(keys)
    assert refused.verdict == "undecided"
    assert refused.reasons[0] == f"the run's attestation {BUNDLE_PATH} was signed by an OIDC identity; wanted a key"
    report = adk_eval.evaluate(
        rooms(), expected_of(rooms()), CONFIG, tracking_uri=attested.uri, signing_key=tmp_path / "key.pem", traces=False
    )
    assert attested.gate(keys, report).passed
    refused = attested.gate(policy_of(attested.trust, source="optional"), report)
    assert refused.verdict == "undecided"
    wanted = f"wanted {IDENTITY} (issuer {GITHUB})"
    assert refused.reasons[0] == f"the run's attestation adk_eval_gate/evaluation.dsse.json was not signed by an OIDC identity; {wanted}"
    both = policy_of(attested.trust, keys=[str(public)], source="optional")
    assert attested.gate(both).passed
    assert attested.gate(both, report).passed
    assert "signed with a key or an identity from the policy" in " ".join(attested.gate(both).reasons)


@pytest.mark.parametrize("kind", [{}, {"stamps": False}, {"rekor": 2}], ids=["log and stamp", "log", "rekor v2"])
def test_an_altered_byte_anywhere_is_refused(kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what nobody signs: the name of an algorithm within a timestamp; with Rekor v2 the end of the log's id, and what a witness adds."""
    with running(**kind) as service:
        service.in_github(monkeypatch)
        content = signed(service, tmp_path)
    root = load_trust(tmp_path / "trust.json")
    whole = open_bundle(content, [ME], root)
    assert isinstance(whole, Opened)
    assert whole.payload == STATEMENT
    value = json.loads(content)["verificationMaterial"]
    stamps = [each["signedTimestamp"] for each in value["timestampVerificationData"]["rfc3161Timestamps"]]
    unsigned = [*stamps, *([value["tlogEntries"][0]["logId"]["keyId"], service.witness] if "rekor" in kind else [])]
    spans = [(start := content.index(text.encode()), start + len(text)) for text in unsigned]
    unseen = []
    for position in range(len(content)):
        edited = bytearray(content)
        edited[position] ^= 1
        found = open_bundle(bytes(edited), [ME], root)
        if not isinstance(found, str):
            assert found == whole
            unseen.append(position)
    assert all(any(start <= position < end for start, end in spans) for position in unseen)
    assert len(unseen) <= 10 * len(stamps) + (170 if "rekor" in kind else 0)


def _edited(path: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], Any]:
    def edit(bundle: dict[str, Any]) -> Any:
        at: Any = bundle
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value(at[path[-1]]) if callable(value) else value
        return bundle

    return edit


ENTRY = ("verificationMaterial", "tlogEntries", 0)
CHECKPOINT = (*ENTRY, "inclusionProof", "checkpoint", "envelope")


def _longer(size: str) -> str:
    return str(int(size) + 1)


@pytest.mark.parametrize(
    "edit",
    [
        _edited(("dsseEnvelope", "payload"), base64.b64encode(STATEMENT.replace(b'"r"', b'"s"')).decode()),
        _edited(("dsseEnvelope", "payloadType"), "application/json"),
        _edited(("dsseEnvelope", "signatures", 0, "keyid"), "me"),
        _edited(("dsseEnvelope", "signatures"), lambda signatures: signatures * 2),
        _edited(("mediaType",), "application/vnd.dev.sigstore.bundle+json;version=0.3"),
        _edited((*ENTRY, "inclusionProof", "treeSize"), _longer),
        _edited((*ENTRY, "logIndex"), _longer),
        _edited((*ENTRY, "integratedTime"), _longer),
        _edited((*ENTRY, "inclusionPromise"), None),
        _edited((*ENTRY, "inclusionProof", "hashes"), lambda hashes: hashes[:-1]),
        _edited(CHECKPOINT, lambda text: text.replace("\u2014 rekor.test", "\u2014 rekor.best")),
        _edited(CHECKPOINT, lambda text: text + "\u2014 witness AAAAAAAA\n"),
        _edited(CHECKPOINT, lambda text: text + "something\n"),
        _edited(("verificationMaterial", "tlogEntries"), lambda entries: entries * 2),
        _edited(("verificationMaterial", "timestampVerificationData", "rfc3161Timestamps"), lambda stamps: stamps * 2),
        _edited(("more",), 1),
        lambda bundle: json.dumps(bundle, indent=1),
        lambda bundle: json.dumps(bundle, separators=(",", ":"))[:-1] + ',"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}',
        lambda _: "{}",
        lambda _: "[" * 99_999,
        lambda _: "",
    ],
)
def test_an_edited_bundle_is_refused(edit: Callable[[dict[str, Any]], Any], sigstore: Sigstore, tmp_path: Path) -> None:
    content = signed(sigstore, tmp_path)
    root = load_trust(tmp_path / "trust.json")
    same = json.dumps(json.loads(content), separators=(",", ":"), ensure_ascii=False)
    assert isinstance(open_bundle(same.encode(), [ME], root), Opened)
    edited = edit(json.loads(content))
    text = edited if isinstance(edited, str) else json.dumps(edited, separators=(",", ":"), ensure_ascii=False)
    assert str(open_bundle(text.encode(), [ME], root)).startswith("does not verify: ")


def test_another_sigstore_is_not_believed(sigstore: Sigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = signed(sigstore, tmp_path)
    with running() as other:
        foreign = load_trust(other.config)
    assert str(open_bundle(content, [ME], foreign)).startswith("does not verify: failed to build timestamp certificate chain")
    mixed = {**load_trust(sigstore.config), "tlogs": foreign["tlogs"]}
    assert str(open_bundle(content, [ME], mixed)).startswith("does not verify: invalid log entry")
    mixed = {**load_trust(sigstore.config), "ctlogs": foreign["ctlogs"]}
    assert str(open_bundle(content, [ME], mixed)).startswith("does not verify: failed to verify SCT")
    mixed = {**load_trust(sigstore.config), "timestampAuthorities": foreign["timestampAuthorities"]}
    assert str(open_bundle(content, [ME], mixed)).startswith("does not verify: ")


def test_without_a_trust_file_the_root_of_the_public_sigstore_is_fetched(
    sigstore: Sigstore, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is out of reach here, on any machine."""
    content = signed(sigstore, tmp_path)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = "^the public Sigstore's trusted root could not be downloaded: .*tuf-repo-cdn.*; a trust file needs no network$"
    with pytest.raises(AttestationError, match=expected):
        open_bundle(content, [ME])
    with pytest.raises(AttestationError, match=expected):
        adk_eval.evaluate(rooms(), never, CONFIG, tracking_uri=store, signing_key="sigstore")


def test_a_bundle_beside_an_envelope_is_vouched_for_by_nothing(attested: Attested, tmp_path: Path) -> None:
    report = adk_eval.evaluate(
        rooms(), expected_of(rooms()), CONFIG, tracking_uri=attested.uri, signing_key=make_key(tmp_path / "key.pem").with_name("key.pem")
    )
    adk_eval.export_attestation(str(report.run_id), tmp_path / "out", tracking_uri=attested.uri)
    (tmp_path / "out" / BUNDLE_PATH).write_bytes(attested.evidence().attestation or b"")
    both: dict[str, Any] = {"identity": IDENTITY, "issuer": GITHUB, "trust": attested.trust}
    (problem,) = adk_eval.verify_attestation(tmp_path / "out", tmp_path / "key.pub.pem", **both).problems
    assert problem == f"{BUNDLE_PATH} is not covered by any signature"
    (tmp_path / "out" / BUNDLE_PATH).rename(tmp_path / "out/adk_eval_gate/evaluation.dsse.json")
    (problem,) = adk_eval.verify_attestation(tmp_path / "out", tmp_path / "key.pub.pem", **both).problems
    assert problem == "adk_eval_gate/evaluation.dsse.json has the other format than its name says"
    adk_eval.export_attestation(str(report.run_id), tmp_path / "again", tracking_uri=attested.uri)
    (tmp_path / "again/adk_eval_gate/evaluation.dsse.json").rename(tmp_path / "again" / BUNDLE_PATH)
    (problem,) = adk_eval.verify_attestation(tmp_path / "again", tmp_path / "key.pub.pem", **both).problems
    assert problem == f"{BUNDLE_PATH} has the other format than its name says"


def never(text: str) -> str:
    raise AssertionError("the agent was called")


def _outside(patched: pytest.MonkeyPatch, _: Sigstore) -> None:
    patched.delenv("GITHUB_ACTIONS")


def _without_permission(patched: pytest.MonkeyPatch, _: Sigstore) -> None:
    patched.delenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_outside, r"this is not a CI job with an identity \(GitHub Actions, GitLab"),
        (_without_permission, "missing or insufficient OIDC token permissions"),
        (lambda _, service: service.faults.update({"/token": ["503"]}), r"OIDC token request failed \(code=503"),
        (lambda _, service: service.faults.update({"/token": ["html"]}), "malformed or incomplete JSON"),
        (lambda _, service: service.faults.update({"/token": ["expired"]}), r"Identity token is malformed .* \(Signature has expired\)"),
        (lambda _, service: service.claims.update(aud="somebody"), r"Token audience claim mismatch \(expected sigstore, got somebody\)"),
    ],
)
def test_that_there_is_no_identity_is_found_before_the_agent_is_called(
    spoil: Callable[[pytest.MonkeyPatch, Sigstore], None],
    expected: str,
    store: str,
    sigstore: Sigstore,
    trust: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GITLAB_CI", "BUILDKITE", "CIRCLECI", "GOOGLE_SERVICE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    spoil(monkeypatch, sigstore)
    with pytest.raises(UsageError, match=f"^no OIDC identity to sign with: .*{expected}.*id-token: write"):
        adk_eval.evaluate(rooms(), never, CONFIG, experiment="x", tracking_uri=store, signing_key=f"sigstore:{trust}")
    assert MlflowClient(store).get_experiment_by_name("x") is None, "nothing was begun"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read as JSON; wanted JSON of Sigstore's ClientTrustConfig or TrustedRoot"),
        ("-----BEGIN", "cannot be read as JSON"),
        ("[]", "does not say where to sign; wanted JSON of Sigstore's ClientTrustConfig"),
        ("root", "does not say where to sign; wanted JSON of Sigstore's ClientTrustConfig"),
        ('{"mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json"}', "cannot be used to sign: "),
    ],
)
def test_a_trust_file_that_cannot_be_signed_with_is_found_before_the_agent_is_called(
    content: str | None, expected: str, store: str, sigstore: Sigstore, tmp_path: Path
) -> None:
    file = tmp_path / "other.json"
    if content is not None:
        file.write_text(json.dumps(sigstore.config["trustedRoot"]) if content == "root" else content)
    with pytest.raises(UsageError, match=rf"other\.json {expected}"):
        adk_eval.evaluate(rooms(), never, CONFIG, tracking_uri=store, signing_key=f"sigstore:{file}")


def test_a_token_is_shown_nowhere(sigstore: Sigstore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "mlflow_adk_eval")
    content = signed(sigstore, tmp_path)
    sigstore.faults[FULCIO] = ["503"] * 3
    with pytest.raises(AttestationError) as refused:
        signed(sigstore, tmp_path)
    head = sigstore.token().split(".")[0]
    assert head not in content.decode() + caplog.text + str(refused.value)


@pytest.mark.parametrize(
    ("path", "fault", "expected"),
    [
        (FULCIO, "503", r"503 Server Error: .*/api/v2/signingCert"),
        (REKOR, "503", r"503 Server Error: .*/api/v1/log/entries"),
        (REKOR, "lost", "Connection aborted"),
        (REKOR, "html", "Expecting value"),
        ("/token", "expired", "Identity token is malformed"),
    ],
)
def test_what_could_not_be_signed_is_logged_and_says_so(
    path: str, fault: Any, expected: str, store: str, sigstore: Sigstore, trust: Path, tmp_path: Path
) -> None:
    def first(text: str, session: Any) -> Any:
        sigstore.faults[path] = [fault] * 3
        return answering(rooms())(text, session)

    with pytest.raises(AttestationError, match=f"^Sigstore could not sign the evaluation: .*({expected})") as refused:
        adk_eval.evaluate(rooms(), first, CONFIG, experiment="x", tracking_uri=store, signing_key=f"sigstore:{trust}")
    assert refused.value.exit_code == 3
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("x").experiment_id])
    assert f"run {run.info.run_id} is complete but has no attestation" in str(refused.value)
    tags = run.data.tags
    assert (run.info.status, tags["adk_eval.status"], tags["adk_eval.verdict"]) == ("FINISHED", "complete", "passed")
    assert run.data.params["adk_eval.unattested"].startswith("Sigstore could not sign")
    assert tags["mlflow.note.content"].startswith("This evaluation is not attested. Sigstore could not sign")
    assert not (tmp_path / "adk_eval_pending").exists()
    where: dict[str, Any] = {"tracking_uri": store, "raise_on_failure": False}
    assert adk_eval.gate(run.info.run_id, {"thresholds": True}, **where).passed
    refusal = adk_eval.gate(run.info.run_id, policy_of(trust), **where)
    assert refusal.verdict == "undecided"
    assert "the run has no attestation" in refusal.reasons[0]


@pytest.mark.parametrize("path", [FULCIO, REKOR, "/timestamp"])
def test_an_answer_that_is_lost_is_asked_for_again(path: str, sigstore: Sigstore, trust: Path) -> None:
    sigstore.faults[path] = ["lost"]
    assert isinstance(open_bundle(signed(sigstore, trust.parent), [ME], load_trust(trust)), Opened)


def test_a_service_that_never_answers_is_given_up(sigstore: Sigstore, trust: Path) -> None:
    signer = load_attester(f"sigstore:{trust}")
    assert isinstance(signer, IdentitySigner)
    sigstore.faults[FULCIO] = ["hang"] * 3
    with pytest.raises(AttestationError, match=r"no answer within 0\.2 seconds"):
        replace(signer, limit_s=0.2).seal(STATEMENT)


def test_a_log_that_answers_with_anothers_key_attests_nothing(sigstore: Sigstore, trust: Path) -> None:
    with running() as other:
        sigstore.log_key = other.log_key
    signer = load_attester(f"sigstore:{trust}")
    assert isinstance(signer, IdentitySigner)
    with pytest.raises(AttestationError, match="what it answered does not verify: invalid log entry"):
        signer.seal(STATEMENT)


def test_the_time_of_the_log_counts_and_not_that_of_the_machine(store: str, sigstore: Sigstore, trust: Path) -> None:
    sigstore.offset = timedelta(minutes=-5)
    report = adk_eval.evaluate(rooms(), answering(rooms()), CONFIG, tracking_uri=store, signing_key=f"sigstore:{trust}", traces=False)
    evidence, pin = MlflowStore(store, store).evidence(str(report.run_id)), load_policy(policy_of(trust)).attestation
    ended = attested_end(pin, evidence)
    assert ended is not None
    assert timedelta(minutes=4) < datetime.now(UTC) - ended < timedelta(minutes=8)
    young = {**policy_of(trust), "max_age": "2m"}
    refused = adk_eval.gate(str(report.run_id), young, tracking_uri=store, raise_on_failure=False)
    assert "more than 2m before" in refused.reasons[0]
    assert adk_eval.gate(str(report.run_id), {**young, "max_age": "1h"}, tracking_uri=store).passed


def test_records_and_claims_need_a_key(attested: Attested, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ADK_EVAL_SIGNING_KEY", "sigstore")
    with pytest.raises(UsageError, match="sigstore signs only evaluations; promotion records and claims need a key"):
        adk_eval.promote("rooms", 1, run_id=str(attested.report.run_id), tracking_uri=attested.uri, registry_uri=attested.uri)


def test_a_bundle_is_kept_while_mlflow_cannot_take_the_run(store: str, sigstore: Sigstore, trust: Path, tmp_path: Path) -> None:
    place = tmp_path / "artifacts"
    MlflowClient(store).create_experiment("away", artifact_location=place.as_uri())
    model = MlflowClient(store).create_logged_model(MlflowClient(store).create_experiment("models"), name="agent").model_id

    def agent(text: str, session: Any) -> Any:
        place.exists() or place.write_text("no folder: nothing can be kept here")
        return answering(rooms())(text, session)

    with pytest.raises(adk_eval.TrackingError, match="mlflow-adk-eval upload"):
        adk_eval.evaluate(
            rooms(), agent, CONFIG, experiment="away", agent_version=model, tracking_uri=store, signing_key=f"sigstore:{trust}"
        )
    place.unlink()
    (pending,) = (tmp_path / "adk_eval_pending").iterdir()
    run_id = adk_eval.upload(pending, tracking_uri=store)
    pin = load_policy(policy_of(trust, source="optional")).attestation
    assert attestation_problems(pin, MlflowStore(store, store).evidence(run_id)) == []


def test_a_policy_holds_the_trusted_root_that_its_file_names(sigstore: Sigstore, trust: Path, tmp_path: Path) -> None:
    written = policy_of(Path(trust.name))
    (tmp_path / "gate.json").write_text(json.dumps(written))
    policy = load_policy(tmp_path / "gate.json")
    assert policy.attestation is not None
    assert policy.attestation.trust == sigstore.config["trustedRoot"], "where to sign is nothing to a policy"
    (tmp_path / "root.json").write_text(json.dumps(sigstore.config["trustedRoot"]))
    assert load_policy(policy_of(tmp_path / "root.json")).digest() == policy.digest()
    assert load_policy(policy.to_json()).digest() == policy.digest()
    with running() as other:
        assert load_policy(policy_of(trust_of(other, tmp_path))).digest() != policy.digest()


def test_a_policy_with_keys_alone_has_the_digest_that_it_had_before_there_were_identities(tmp_path: Path) -> None:
    pin = load_policy({"thresholds": True, "attestation": {"keys": [str(make_key(tmp_path / "key.pem"))]}}).to_json()["attestation"]
    assert set(pin) == {"keys", "source"}


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        ({}, "found neither keys nor identities; wanted at least one of keys and identities"),
        ({"identities": []}, "$.attestation.identities"),
        ({"identities": [{"identity": "me"}]}, "$.attestation.identities[0].issuer"),
        ({"identities": [{"identity": "me", "issuer": "x"}] * 2}, "found 'me of x' twice; wanted each identity once"),
        ({"identities": [{"identity": "me", "issuer": "x"}], "trust": "missing.json"}, "$.attestation.trust"),
        ({"identities": [{"identity": "me", "issuer": "x"}], "trust": {"mediaType": "x"}}, "is not a trusted root"),
        ({"keys": ["key.pub.pem"], "trust": "trust.json"}, "found trust without identities"),
    ],
)
def test_what_is_no_demand_is_an_error_with_its_place(pin: dict[str, Any], expected: str, trust: Path, tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    (tmp_path / "gate.json").write_text(json.dumps({"thresholds": True, "attestation": pin}))
    with pytest.raises(PolicyError) as refused:
        load_policy(tmp_path / "gate.json")
    assert expected in str(refused.value)


def test_what_cannot_be_verified_is_one_sentence(attested: Attested, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_ADK_EVAL_VERIFY_KEY", raising=False)
    out, key = tmp_path / "out", make_key(tmp_path / "key.pem")
    adk_eval.export_attestation(str(attested.report.run_id), out, tracking_uri=attested.uri)
    with pytest.raises(UsageError, match=r"no public key to verify with; .* or name an identity and its issuer"):
        adk_eval.verify_attestation(out)
    with pytest.raises(UsageError, match="give an identity together with its issuer"):
        adk_eval.verify_attestation(out, identity=IDENTITY)
    with pytest.raises(UsageError, match=r"out is not a trusted root|out cannot be read as JSON"):
        adk_eval.verify_attestation(out, identity=IDENTITY, issuer=GITHUB, trust=out)
    assert f"{BUNDLE_PATH} was signed by an OIDC identity; wanted a key" in adk_eval.verify_attestation(out, key).problems
    unusable = {"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}
    with pytest.raises(UsageError, match="the trusted root cannot be used"):
        adk_eval.verify_attestation(out, identity=IDENTITY, issuer=GITHUB, trust=unusable)


def test_the_commands_sign_and_verify_as_an_identity(store: str, sigstore: Sigstore, trust: Path, tmp_path: Path) -> None:
    (tmp_path / "rooms.evalset.json").write_text(rooms().model_dump_json())
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG))
    shutil.copy(trust, tmp_path / "pinned.json")
    code = "from tests.tracking.small import answering, rooms\nagent = answering(rooms())\n"
    (tmp_path / "kit_agent.py").write_text(code)

    def command(*arguments: Any) -> subprocess.CompletedProcess[str]:
        listed = [sys.executable, "-m", "mlflow_adk_eval", *map(str, arguments)]
        return subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)

    options = ("--tracking-uri", store, "--json", "--signing-key", f"sigstore:{trust}")
    done = command("run", "kit_agent:agent", "rooms.evalset.json", *options)
    assert done.returncode == 0, done.stderr
    run_id = json.loads(done.stdout)["run_id"]
    made = command("attestation", "export", run_id, "-o", "out", "--tracking-uri", store)
    assert "--identity IDENTITY --issuer ISSUER" in made.stdout + made.stderr
    verify = ("attestation", "verify", "out", "--trust", "pinned.json", "--identity", IDENTITY, "--issuer")
    assert command(*verify, GITHUB).returncode == 0
    other = command(*verify, "https://gitlab.com")
    assert other.returncode == 2
    assert f"was signed as {IDENTITY}, but the issuer is {GITHUB}; wanted https://gitlab.com" in other.stdout
    sigstore.faults[FULCIO] = ["503"] * 3
    failed = command("run", "kit_agent:agent", "rooms.evalset.json", *options)
    assert failed.returncode == 3
    assert "error: Sigstore could not sign the evaluation" in failed.stderr
    assert "Traceback" not in failed.stderr
