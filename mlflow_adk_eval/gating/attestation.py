"""The attestation of an evaluation: what was evaluated, with what, and what came of it, signed where it ended.

`evaluation_statement` says it as an in-toto statement, which `sealed` signs, and which is kept beside the run's evidence: as `EVALUATION_PATH`,
or, where an identity signed it, as `BUNDLE_PATH`. It names the run's manifest, which has the hash of every artifact, and repeats all
parameters: who judged, by which prompts, with which packages.

`attestation_problems` holds it against a run, as a policy demands of a candidate and of what it is compared with: whoever may write to MLflow can
make up a run with every artifact, parameter and hash in place, or tie a good run to another LoggedModel, but not what was signed where the
evaluation ended.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.evalset.models import value_at
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials
from mlflow_adk_eval.runs.manifest import FOLDER, GATE_FOLDER, MANIFEST, Evidence, sha256_of
from mlflow_adk_eval.signing.identities import IdentitySigner, OidcIdentity, open_bundle
from mlflow_adk_eval.signing.keys import ENVELOPE, EVALUATION, PAYLOAD_TYPE, Signer, Statement, Verifier, load_verifier, read_statement
from mlflow_adk_eval.text import few

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.policy.model import AttestationPin  # which those who only sign do not need

EVALUATION_PATH = f"{GATE_FOLDER}/evaluation{ENVELOPE}"
"""Where a run has its attestation, if a key signed it."""
BUNDLE_PATH = f"{GATE_FOLDER}/evaluation.sigstore.json"
"""Where it has it, if an OIDC identity did."""
AGENT_SOURCE = "agent_source.json"
"""The artifact with the files that the agent is made of. Its hash is that of the agent's source."""
SOURCE_PARAM = "adk_eval.agent.source_sha256"
"""The parameter of a run and of a LoggedModel that says which source it is about."""
_CI = (
    *("CI", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_REF", "GITHUB_SHA", "GITHUB_WORKFLOW_REF", "GITHUB_RUN_ID"),
    *("GITHUB_RUN_ATTEMPT", "GITHUB_EVENT_NAME", "GITHUB_ACTOR", "RUNNER_ENVIRONMENT", "CI_SERVER_URL", "CI_PROJECT_PATH"),
    *("CI_COMMIT_REF_NAME", "CI_COMMIT_SHA", "CI_PIPELINE_ID", "CI_JOB_ID"),
)
"""What GitHub Actions and GitLab say of a job; none of it is secret."""


def evaluation_statement(
    run: Mapping[str, str], *, agent: Mapping[str, Any], materials: Mapping[str, Any], result: Mapping[str, Any], started_ms: int
) -> Statement:
    """Return the statement about an evaluation that has just ended.

    Args:
        run: its ``run_id``, its ``experiment_id``, and the ``model_id`` of the LoggedModel that it evaluated.
        agent: ``name``, ``version`` (what people call it), ``source`` (in words), ``source_sha256`` and ``git_commit``, each ``None`` if
            unknown, ``models`` and ``git_dirty``.
        materials: ``eval_set_id`` and all ``parameters`` of the run, as MLflow has them.
        result: ``manifest_sha256``, ``status``, ``verdict`` and ``metrics`` of the run.
        started_ms: when it began, in milliseconds since 1970.
    """
    secrets = secrets_of()
    ci = {name: redacted(without_credentials(value), secrets) for name in _CI if (value := os.environ.get(name))}
    predicate = {
        **run,
        "agent": agent,
        "materials": materials,
        "environment": {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine(), "ci": ci},
        "result": result,
        "started_at": datetime.fromtimestamp(started_ms / 1000, tz=UTC).isoformat(timespec="milliseconds"),
        "finished_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    source = {f"agent:{agent['name']}": str(agent["source_sha256"])} if agent["source_sha256"] else {}
    subjects = {f"{FOLDER}/{MANIFEST}": result["manifest_sha256"]} | source
    return Statement(subjects=subjects, predicate_type=EVALUATION, predicate=predicate)


def sealed(statement: Statement, signer: Signer | IdentitySigner) -> str:
    """Return the signed form of a statement: a DSSE envelope, or a Sigstore bundle.

    Raises:
        AttestationError: if an identity was to sign, and could not.
    """
    payload = statement.to_json()
    return signer.seal(payload, PAYLOAD_TYPE) if isinstance(signer, Signer) else signer.seal(payload)


def path_of(attestation: str | bytes) -> str:
    """Return where an attestation is kept. A DSSE envelope has no such word in it: its payload is in Base64."""
    content = attestation.encode() if isinstance(attestation, str) else attestation
    return BUNDLE_PATH if b'"verificationMaterial"' in content else EVALUATION_PATH


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """Of whom one must have signed an evaluation."""

    verifier: Verifier | None
    """The keys."""
    identities: Sequence[OidcIdentity] = ()
    trust: Mapping[str, Any] | None = None
    """Sigstore's TrustedRoot; ``None``: that of the public services."""

    def __str__(self) -> str:
        """Return them as a part of a sentence."""
        return " or ".join([*(["a key"] if self.verifier else []), *map(str, self.identities)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestedEvaluation:
    """What was signed about an evaluation."""

    statement: Statement
    at: datetime | None
    """When it was signed, by a log or a timestamp authority; with a key, when the evaluation ended by its own clock."""


def open_evaluation(attestation: bytes, signers: Signers) -> AttestedEvaluation | str:
    """Return what an attestation says, or why it does not count, as the end of a sentence about it.

    Raises:
        UsageError: if an identity signed it, and the extra to check that is missing.
        AttestationError: if an identity signed it, and Sigstore's trusted root cannot be had.
    """
    if path_of(attestation) == EVALUATION_PATH:
        if signers.verifier is None:
            return f"was not signed by an OIDC identity; wanted {signers}"
        payload = signers.verifier.opened(attestation, PAYLOAD_TYPE)
        statement = None if payload is None else read_statement(payload, EVALUATION)
        if statement is None:
            return ""
        try:
            ended = datetime.fromisoformat(str(statement.predicate.get("finished_at"))).astimezone(UTC)
        except (ValueError, OverflowError):
            ended = None
        return AttestedEvaluation(statement=statement, at=ended)
    if not signers.identities:
        return f"was signed by an OIDC identity; wanted {signers}"
    opened = open_bundle(attestation, signers.identities, signers.trust)
    if isinstance(opened, str):
        return opened
    statement = read_statement(opened.payload, EVALUATION)
    return AttestedEvaluation(statement=statement, at=opened.at) if statement else "does not describe an evaluation"


_OURS = ("adk_eval.", "threshold.")


def attestation_problems(pin: AttestationPin | None, evidence: Evidence) -> list[str]:
    """Return why a run is not attested as a policy demands; nothing where it demands nothing.

    Args:
        pin: what is demanded.
        evidence: what the run holds.
    """
    if pin is None:
        return []
    if evidence.attestation is None:
        return [f"the run has no attestation ({EVALUATION_PATH}), but the policy requires one; evaluate with --signing-key"]
    attested = _attested(pin, evidence.attestation)
    if isinstance(attested, str):
        problem = attested or "is not signed with one of the policy's keys, or does not describe an evaluation"
        return [f"the run's attestation {path_of(evidence.attestation)} {problem}"]
    return few([*_subject_problems(attested.statement, evidence), *_source_problems(pin, attested.statement, evidence)])


def attested_end(pin: AttestationPin | None, evidence: Evidence) -> datetime | None:
    """Return when an evaluation ended by its signature, or what was signed; ``None`` where no signature is demanded, or none says so."""
    attested = _attested(pin, evidence.attestation) if pin and evidence.attestation else ""
    return None if isinstance(attested, str) else attested.at


def _attested(pin: AttestationPin, attestation: bytes) -> AttestedEvaluation | str:
    verifier = load_verifier("\n".join(pin.keys)) if pin.keys else None
    identities = [OidcIdentity(one.identity, one.issuer) for one in pin.identities or ()]
    return open_evaluation(attestation, Signers(verifier=verifier, identities=identities, trust=pin.trust))


def _subject_problems(statement: Statement, evidence: Evidence) -> Iterator[str]:
    """Yield where the statement is about another run, another result, or other circumstances than the run says."""
    said = statement.predicate
    if said.get("run_id") != evidence.run_id:
        yield f"the run's attestation is for run {said.get('run_id')}"
    if not evidence.sha256 or statement.subjects.get(f"{FOLDER}/{MANIFEST}") != evidence.sha256:
        yield f"the run's attestation is for a different {FOLDER}/{MANIFEST}"
    parameters = value_at(said, "materials", "parameters")
    signed = parameters if isinstance(parameters, Mapping) else {}
    if said.get("model_id") != evidence.params.get("adk_eval.model_id"):
        yield f"the run's attestation is for agent version {said.get('model_id')}, but the run's parameter adk_eval.model_id differs"
    for name in sorted({*signed, *(name for name in evidence.params if name.startswith(_OURS))}):
        if signed.get(name) != evidence.params.get(name):
            yield f"the run's parameter {name} is {evidence.params.get(name, 'missing')}, but the attestation says {signed.get(name, 'none')}"


def _source_problems(pin: AttestationPin, statement: Statement, evidence: Evidence) -> Iterator[str]:
    """Yield where the agent's source is not the one of the LoggedModel, or not known although it must be."""
    attested = statement.subjects.get(f"agent:{value_at(statement.predicate, 'agent', 'name')}", "")
    if not attested:
        if pin.source == "required":
            how = value_at(statement.predicate, "agent", "source")
            yield f"the run's attestation has no digest of the agent's source ({how}), but the policy requires one"
        return
    found = {
        f"the run's parameter {SOURCE_PARAM}": evidence.params.get(SOURCE_PARAM, ""),
        f"the parameter {SOURCE_PARAM} of its LoggedModel": evidence.model_params.get(SOURCE_PARAM, ""),
        f"the artifact {FOLDER}/{AGENT_SOURCE}": sha256_of(evidence.artifacts, AGENT_SOURCE) if AGENT_SOURCE in evidence.artifacts else "",
    }
    for what, digest in found.items():
        if digest != attested and (digest or pin.source == "required"):
            yield f"{what} {f'is {digest[:12]}…' if digest else 'is missing'}, but the attestation says {attested[:12]}…"
