"""The version that holds an alias, for those who deploy it: refused where its promotion does not verify, or where the agent at hand is another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlflow_adk_eval.agents.protocol import Agent
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import source_of
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.api import verify
from mlflow_adk_eval.gating.attestation.evaluation import AGENT_SOURCE
from mlflow_adk_eval.gating.evidence.integrity import FOLDER, MANIFEST, Manifest, read_manifest, sha256
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.results.decision import Decision, GateFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """A version whose promotion verifies."""

    name: str
    alias: str
    version: str
    model_id: str
    """Its LoggedModel."""
    decision: Decision
    """What its record comes to today."""
    source_sha256: str
    """The digest of the source that was evaluated, in hex; empty where that is not known."""
    agent: Agent | None = None
    """The agent that was named, made of that very source; ``None``: none was. That of google-adk is its `root`."""

    @property
    def uri(self) -> str:
        """The LoggedModel, as MLflow's functions for loading models take it."""
        return f"models:/{self.model_id}"


def load_champion(
    name: str,
    alias: str = "champion",
    *,
    agent: Any = None,
    policy: Any = None,
    verify_key: str | Path | None = None,
    checkpoint: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Champion:
    """Return the version that holds an alias, if its promotion verifies.

    Args:
        name: the registered model.
        alias: the alias.
        agent: the agent that is to be deployed, as `evaluate` takes it: it must be made of the source that was evaluated. ``None``: that is
            not checked.
        policy: what the run must fulfil as of today, besides the policy by which it was promoted; ``None``: nothing.
        verify_key: as for `verify`.
        checkpoint: as for `verify`.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if it does not verify, or the agent is made of another source, or of one that is not known.
        UsageError: if there is no such model or alias, or no such agent.
        TrackingError: if MLflow cannot be reached.
    """
    where: dict[str, Any] = {"tracking_uri": tracking_uri, "registry_uri": registry_uri}
    with store_at(**where) as store:
        holder = store.holder(name, alias)
    if holder is None:
        raise UsageError(f"the registered model {name!r} has no alias {alias}")
    version, model_id = holder.number, holder.model_id or ""
    decision = verify(name, version, alias=alias, policy=policy, verify_key=verify_key, checkpoint=checkpoint, **where)
    if not decision.passed:
        raise GateFailed(decision)
    with store_at(**where) as store:
        manifest, today = store.artifact(decision.run_id, f"{FOLDER}/{MANIFEST}") or b"", store.version(name, version).id
    if difference := holder.difference(today):  # what was verified is whatever had the number in between
        raise GateFailed(replace(decision, verdict="undecided", reasons=(f"{name!r} was changed while it was read: {difference}",)))
    if sha256(manifest) != decision.evidence_sha256:
        raise GateFailed(replace(decision, verdict="undecided", reasons=(f"run {decision.run_id} was changed while it was read",)))
    evaluated, resolved = _evaluated(manifest), None if agent is None else resolve_agent(agent)
    if resolved is not None and (problem := _other_source(resolved, evaluated, f"version {version} of {name!r}")):
        raise GateFailed(replace(decision, verdict="undecided", reasons=(problem,)))
    return Champion(name=name, alias=alias, version=version, model_id=model_id, decision=decision, source_sha256=evaluated, agent=resolved)


def _evaluated(manifest: bytes) -> str:
    """Return the digest of the source that was evaluated, from a manifest that was verified: to a run's parameters anybody may add one."""
    found = read_manifest(manifest)
    return str(found.artifacts.get(AGENT_SOURCE, "")) if isinstance(found, Manifest) else ""


def _other_source(agent: Agent, evaluated: str, what: str) -> str:
    """Return why an agent is not what was evaluated; empty if it is."""
    source = source_of(agent)
    if not evaluated:
        return f"the run of {what} does not say which source it evaluated, so no agent can be said to be that version"
    if source.sha256 == evaluated:
        return ""
    found = f"sha256 {source.sha256[:12]}…" if source.sha256 else source.description
    return f"the agent is not {what}: its source is {found}, and sha256 {evaluated[:12]}… was evaluated"
