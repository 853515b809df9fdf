"""An attested evaluation as a folder of files, which anybody can check who knows the key or identity that signed, years later without MLflow.

`export_attestation` writes what a run holds and what was signed about it, `verify_attestation` checks such a folder. A file that is not
what was signed, that nothing vouches for or that is missing is a problem with a sentence of its own; so is a signed file in any other spelling.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import value_at
from mlflow_adk_eval.gating.attestation import AGENT_SOURCE, BUNDLE_PATH, EVALUATION_PATH, Signers, open_evaluation, path_of
from mlflow_adk_eval.gating.named_runs import run_id_of
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.runs.files import StoredFiles, files_in
from mlflow_adk_eval.runs.manifest import FOLDER, GATE_FOLDER, MANIFEST, Evidence, integrity_problems
from mlflow_adk_eval.signing.identities import OidcIdentity, load_trust
from mlflow_adk_eval.signing.keys import DECISION, ENVELOPE, PAYLOAD_TYPE, VERIFY_KEY, Statement, Verifier, load_verifier, read_statement
from mlflow_adk_eval.writing import write_file

_LARGEST = 1024 * 1024 * 1024
_MANIFEST = f"{FOLDER}/{MANIFEST}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationCheck:
    """What a folder of attested files comes to."""

    problems: tuple[str, ...]
    """As sentences; empty only if every file is what was signed."""
    evaluation: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What was signed about the evaluation; empty if that does not verify."""
    decisions: tuple[Mapping[str, Any], ...] = ()
    """The signed decisions about it, oldest first."""
    files: int = 0

    @property
    def valid(self) -> bool:
        """Whether every file is what was signed."""
        return not self.problems

    @property
    def verdict(self) -> Verdict:
        """That of the last decision, or else of the evaluation; *undecided* if something does not verify."""
        said = self.decisions[-1]["decision"]["verdict"] if self.decisions else value_at(self.evaluation, "result", "verdict")
        return said if self.valid and said in ("passed", "failed") else "undecided"


def export_attestation(run_id: str, folder: str | Path, *, tracking_uri: str | None = None) -> tuple[str, ...]:
    """Write an attested run into a folder: its manifest and artifacts, the attestation, and each signed promotion record of it.

    Args:
        run_id: a run that was evaluated with a signing key.
        folder: a folder that is empty or does not exist.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Returns:
        The files, by their paths in the folder.

    Raises:
        UsageError: if there is no such run, it has no attestation, or the folder is not empty or cannot be written.
        TrackingError: if MLflow is unreachable.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} already exists; name an empty or a new folder")
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id_of(run_id, store))
        said = store.attested(evidence.run_id)
    if evidence.attestation is None or evidence.manifest is None:
        raise UsageError(f"run {evidence.run_id} has no attestation ({EVALUATION_PATH}): it was evaluated without a signing key")
    files = {_MANIFEST: evidence.manifest} | said
    written: list[str] = []
    try:
        # The artifacts one after the other: all of a large run are more than fits into memory.
        for name, content in chain(files.items(), ((f"{FOLDER}/{name}", content) for name, content in evidence.artifacts.items())):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content)
            written.append(name)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from None
    return tuple(sorted(written))


def verify_attestation(
    folder: str | Path,
    verify_key: str | Path | None = None,
    *,
    identity: str | None = None,
    issuer: str | None = None,
    trust: str | Path | Mapping[str, Any] | None = None,
) -> AttestationCheck:
    """Check the files in a folder against their signatures. This needs only the files and the key, or Sigstore's trusted root.

    Args:
        folder: what `export_attestation` wrote.
        verify_key: one or several public keys: a PEM file or its content; ``None``: ``MLFLOW_ADK_EVAL_VERIFY_KEY``.
        identity: the OIDC identity that must have signed the evaluation: a workflow's URL or an email address.
        issuer: the URL of the identity's OIDC issuer.
        trust: Sigstore's TrustedRoot or ClientTrustConfig, as a file or its content; ``None``: the public Sigstore's, from the
            network.

    Raises:
        UsageError: if the folder cannot be read or holds no attestation, there is neither key nor identity, or the extra is missing.
        AttestationError: if the public Sigstore's trusted root cannot be downloaded.
    """
    verifier = load_verifier(verify_key)
    if (identity is None) != (issuer is None):
        raise UsageError("give an identity together with its issuer")
    if verifier is None and identity is None:
        raise UsageError(f"no public key to verify with; name one, set {VERIFY_KEY}, or name an identity and its issuer")
    identities = (OidcIdentity(identity, issuer),) if identity and issuer else ()
    files = _read(Path(folder))
    attestation = next((name for name in (EVALUATION_PATH, BUNDLE_PATH) if name in files), "")
    if not attestation:
        raise UsageError(f"{folder} contains no attestation: neither {EVALUATION_PATH} nor {BUNDLE_PATH} exists")
    signers = Signers(verifier=verifier, identities=identities, trust=None if trust is None else load_trust(trust))
    content = files[attestation]
    opened = open_evaluation(content, signers) if path_of(content) == attestation else "has the other format than its name says"
    if attestation == EVALUATION_PATH and not isinstance(opened, str) and not (verifier and _is_exact(content, verifier)):
        opened = ""
    if isinstance(opened, str):
        return AttestationCheck(problems=(f"{attestation} {opened or 'is not signed with the key, or was changed'}",), files=len(files))
    evaluation = opened.statement
    problems = list(_evaluation_problems(files.below(FOLDER), evaluation))
    signed = sorted(name for name in files if name.endswith(ENVELOPE) and name != attestation)
    found = [_decision(files, name, verifier, evaluation) for name in signed]
    problems += [problem for problem in found if isinstance(problem, str)]
    decisions = [decision for decision in found if not isinstance(decision, str)]
    known = {attestation, *(name for statement in (evaluation, *decisions) for name in statement.subjects)}
    known |= {name for name in files if name.endswith(ENVELOPE) or name.startswith(f"{FOLDER}/")}
    problems += [f"{name} is not covered by any signature" for name in sorted(files) if name not in known]
    said = sorted((statement.predicate for statement in decisions), key=lambda record: str(record["decision"].get("decided_at")))
    return AttestationCheck(problems=tuple(problems), evaluation=evaluation.predicate, decisions=tuple(said), files=len(files))


def _read(folder: Path) -> StoredFiles:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    try:
        found = files_in(folder)
        if any((folder / name).stat().st_size > _LARGEST for name in found):
            raise UsageError(f"{folder} contains a file larger than {_LARGEST >> 20} MiB")
        for name in found:
            found.sha256(name)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
    return found


def _evaluation_problems(files: StoredFiles, statement: Statement) -> Iterator[str]:
    """Yield where the files of the run are not those of the evaluation, or the statement contradicts itself."""
    attested = statement.subjects.get(_MANIFEST, "")
    params = {"adk_eval.manifest_sha256": attested}
    run_id, artifacts, manifest = str(statement.predicate.get("run_id")), files.without(MANIFEST), files.get(MANIFEST)
    yield from integrity_problems(Evidence(run_id=run_id, status="FINISHED", params=params, artifacts=artifacts, manifest=manifest))
    said = (value_at(statement.predicate, "result", "manifest_sha256"), value_at(statement.predicate, "materials", "parameters", *params))
    if said != (attested, attested):
        yield "the attestation contains two different hashes of the manifest"
    sources = [digest for name, digest in statement.subjects.items() if name.startswith("agent:")]
    if sources != ([files.sha256(AGENT_SOURCE)] if AGENT_SOURCE in files else []):
        yield f"{FOLDER}/{AGENT_SOURCE} is not the attested source of the agent"


def _decision(files: StoredFiles, name: str, verifier: Verifier | None, evaluation: Statement) -> Statement | str:
    """Return the signed statement about a record, or why it is none."""
    if verifier is None:
        return f"{name} needs a public key to verify it, but none is given"
    payload, record = verifier.opened(files[name], PAYLOAD_TYPE), name.removesuffix(ENVELOPE)
    statement = None if payload is None else read_statement(payload, DECISION)
    if statement is None or not _is_exact(files[name], verifier):
        return f"{name} is not signed with the key, or was changed"
    if record not in statement.subjects:
        return f"{name} is not for {record}"
    if value_at(statement.predicate, "decision", "run_id") != evaluation.predicate.get("run_id"):
        return f"{name} is for another run"
    for subject, digest in statement.subjects.items():
        if subject.partition("/")[0] not in (FOLDER, GATE_FOLDER):
            continue
        if subject not in files:
            return f"{subject} is missing, but {name} covers it"
        if files.sha256(subject) != digest:
            return f"{subject} was changed after {name} was signed"
    return statement


def _is_exact(envelope: bytes, verifier: Verifier) -> bool:
    """Whether an envelope is spelt as it was written. What is not signed (spaces, the name of the key) could be altered unseen otherwise."""
    value = json.loads(envelope)
    (signature,) = value["signatures"] if len(value["signatures"]) == 1 else ({},)
    parts = set(value) == {"payload", "payloadType", "signatures"} and set(signature) == {"keyid", "sig"}
    if not parts or signature["keyid"] not in verifier.key_ids or json.dumps(value).encode() != envelope:
        return False
    return all(base64.b64encode(base64.b64decode(text)).decode() == text for text in (value["payload"], signature["sig"]))
