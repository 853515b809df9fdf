"""Whether a run is the one that an attestation is about: what a policy demands of a candidate and of what it is compared with.

Whoever may write to MLflow can make up a run with every artifact, parameter and hash in place, or tie a good run to another LoggedModel.
What was signed where the evaluation ended cannot be made up without the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from mlflow_adk_eval.gating.attestation.evaluation import (
    AGENT_SOURCE,
    EVALUATION_PATH,
    SOURCE_PARAM,
    AttestedEvaluation,
    Signers,
    open_evaluation,
    path_of,
)
from mlflow_adk_eval.gating.attestation.identities import OidcIdentity
from mlflow_adk_eval.gating.attestation.keys import load_verifier
from mlflow_adk_eval.gating.attestation.statement import Statement
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, MANIFEST, Evidence, few, sha256_of
from mlflow_adk_eval.gating.policy.model import AttestationPin

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
        return [f"the run has no attestation ({EVALUATION_PATH}), and the policy demands one; evaluate with --signing-key"]
    attested = _attested(pin, evidence.attestation)
    if isinstance(attested, str):
        problem = attested or "was not signed with a key of the policy, or is not about an evaluation"
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
        yield f"the run's attestation is about the run {said.get('run_id')}"
    if not evidence.sha256 or statement.subjects.get(f"{FOLDER}/{MANIFEST}") != evidence.sha256:
        yield f"the run's attestation is about another {FOLDER}/{MANIFEST}"
    signed = _mapping(said, "materials", "parameters")
    if said.get("model_id") != evidence.params.get("adk_eval.model_id"):
        yield f"the run's attestation is about the agent version {said.get('model_id')}, its parameter adk_eval.model_id says another"
    for name in sorted({*signed, *(name for name in evidence.params if name.startswith(_OURS))}):
        if signed.get(name) != evidence.params.get(name):
            yield f"the run's parameter {name} is {evidence.params.get(name, 'missing')}, but {signed.get(name, 'none')} was attested"


def _source_problems(pin: AttestationPin, statement: Statement, evidence: Evidence) -> Iterator[str]:
    """Yield where the agent's source is not the one of the LoggedModel, or not known although it must be."""
    agent = statement.predicate.get("agent")
    name = agent.get("name") if isinstance(agent, Mapping) else None
    attested = statement.subjects.get(f"agent:{name}", "")
    if not attested:
        if pin.source == "required":
            how = agent.get("source") if isinstance(agent, Mapping) else None
            yield f"the run's attestation does not say which source the agent is made of ({how}), and the policy demands that"
        return
    found = {
        f"the run's parameter {SOURCE_PARAM}": evidence.params.get(SOURCE_PARAM, ""),
        f"the parameter {SOURCE_PARAM} of its LoggedModel": evidence.model_params.get(SOURCE_PARAM, ""),
        f"the artifact {FOLDER}/{AGENT_SOURCE}": sha256_of(evidence.artifacts, AGENT_SOURCE) if AGENT_SOURCE in evidence.artifacts else "",
    }
    for what, digest in found.items():
        if digest != attested and (digest or pin.source == "required"):
            yield f"{what} {f'is {digest[:12]}…' if digest else 'is missing'}, but the source {attested[:12]}… was attested"


def _mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}
