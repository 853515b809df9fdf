"""The attestation of an evaluation: what was evaluated, with what, and what came of it, signed where it ended.

`evaluation_statement` says it as an in-toto statement, which `sealed` signs, and which is kept beside the run's evidence: as `EVALUATION_PATH`,
or, where an identity signed it, as `BUNDLE_PATH`. It names the run's manifest, which has the hash of every artifact, and repeats all
parameters: who judged, by which prompts, with which packages.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mlflow_adk_eval.gating.attestation.identities import OidcIdentity, open_bundle
from mlflow_adk_eval.gating.attestation.identity_signer import IdentitySigner
from mlflow_adk_eval.gating.attestation.keys import ENVELOPE, Signer, Verifier
from mlflow_adk_eval.gating.attestation.statement import EVALUATION, PAYLOAD_TYPE, Statement, read_statement
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, GATE_FOLDER, MANIFEST
from mlflow_adk_eval.redact import redacted, secrets_of, without_credentials

EVALUATION_PATH = f"{GATE_FOLDER}/evaluation{ENVELOPE}"
"""Where a run has its attestation, if a key signed it."""
BUNDLE_PATH = f"{GATE_FOLDER}/evaluation.sigstore.json"
"""Where it has it, if an OIDC identity did."""
AGENT_SOURCE = "agent_source.json"
"""The artifact with the files that the agent is made of. Its hash is that of the agent's source."""
SOURCE_PARAM = "adk_eval.agent.source_sha256"
"""The parameter of a run and of a LoggedModel that says which source it is about."""
_CI = (
    "CI",
    "GITHUB_SERVER_URL",
    "GITHUB_REPOSITORY",
    "GITHUB_REF",
    "GITHUB_SHA",
    "GITHUB_WORKFLOW_REF",
    "GITHUB_RUN_ID",
    "GITHUB_RUN_ATTEMPT",
    "GITHUB_EVENT_NAME",
    "GITHUB_ACTOR",
    "RUNNER_ENVIRONMENT",
    "CI_SERVER_URL",
    "CI_PROJECT_PATH",
    "CI_COMMIT_REF_NAME",
    "CI_COMMIT_SHA",
    "CI_PIPELINE_ID",
    "CI_JOB_ID",
)
"""What GitHub Actions and GitLab say of a job; none of it is secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedAgent:
    """The agent, as an attestation names it."""

    name: str
    version: str
    """What people call it."""
    source_sha256: str
    """Empty where the source is not known."""
    source: str
    """The source in words."""
    models: tuple[str, ...] = ()
    git_commit: str = ""
    git_dirty: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFacts:
    """What is attested of an evaluation."""

    run_id: str
    experiment_id: str
    model_id: str
    agent: EvaluatedAgent
    eval_set_id: str
    parameters: Mapping[str, str]
    """All of the run, as MLflow has them."""
    manifest_sha256: str
    verdict: str
    status: str
    metrics: Mapping[str, float]
    started_ms: int


def evaluation_statement(facts: EvaluationFacts) -> Statement:
    """Return the statement about an evaluation that has just ended."""
    agent = facts.agent
    source = {f"agent:{agent.name}": agent.source_sha256} if agent.source_sha256 else {}
    predicate = {
        "run_id": facts.run_id,
        "experiment_id": facts.experiment_id,
        "model_id": facts.model_id,
        "agent": {
            "name": agent.name,
            "version": agent.version,
            "source": agent.source,
            "source_sha256": agent.source_sha256 or None,
            "models": list(agent.models),
            "git_commit": agent.git_commit or None,
            "git_dirty": agent.git_dirty,
        },
        "materials": {"eval_set_id": facts.eval_set_id, "parameters": dict(facts.parameters)},
        "environment": _environment(),
        "result": {
            "manifest_sha256": facts.manifest_sha256,
            "status": facts.status,
            "verdict": facts.verdict,
            "metrics": dict(facts.metrics),
        },
        "started_at": _time(datetime.fromtimestamp(facts.started_ms / 1000, tz=UTC)),
        "finished_at": _time(datetime.now(UTC)),
    }
    subjects = {f"{FOLDER}/{MANIFEST}": facts.manifest_sha256, **source}
    return Statement(subjects=subjects, predicate_type=EVALUATION, predicate=predicate)


def _environment() -> dict[str, Any]:
    """Return where the evaluation ran, without secrets."""
    secrets = secrets_of()
    ci = {name: redacted(without_credentials(value), secrets) for name in _CI if (value := os.environ.get(name))}
    return {"python": platform.python_version(), "system": platform.system(), "machine": platform.machine(), "ci": ci}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


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
        statement = read_evaluation(attestation, signers.verifier)
        return AttestedEvaluation(statement=statement, at=_end_of(statement)) if statement else ""
    if not signers.identities:
        return f"was signed by an OIDC identity; wanted {signers}"
    opened = open_bundle(attestation, signers.identities, signers.trust)
    if isinstance(opened, str):
        return opened
    statement = read_statement(opened.payload, EVALUATION)
    return AttestedEvaluation(statement=statement, at=opened.at) if statement else "is not about an evaluation"


def _end_of(statement: Statement) -> datetime | None:
    try:
        return datetime.fromisoformat(str(statement.predicate.get("finished_at"))).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read_evaluation(envelope: bytes, verifier: Verifier) -> Statement | None:
    """Return the statement about an evaluation that an envelope holds; ``None`` if no key signed it, or it is about something else."""
    payload = verifier.opened(envelope, PAYLOAD_TYPE)
    return None if payload is None else read_statement(payload, EVALUATION)
