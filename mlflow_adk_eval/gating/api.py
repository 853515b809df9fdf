"""The gate's public functions: decide on a run, set an alias, check later that it was rightly set, and take it back.

Each of them reads its arguments, so that mistakes are found before MLflow is asked, opens the store (`store_at`) and leaves the work to
one function: `decide`, `promote_in`, `verify_in`, `audit_in`, `AliasRollback`. The package's docstring says how a decision flows through them.
`load_champion` is for those who deploy the version that holds an alias: it is refused where its promotion does not verify, or where the agent at
hand is another one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlflow_adk_eval.agents.protocol import Agent
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.attestation import AGENT_SOURCE
from mlflow_adk_eval.gating.named_runs import LATEST, run_id_of
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.aliases import AliasAudit, AliasRollback, RollbackResult, audit_in
from mlflow_adk_eval.gating.promotion.baseline_search import BaselineSearch, overridden
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLogError, load_checkpoint
from mlflow_adk_eval.gating.promotion.promote import WAIT_S, promote_in
from mlflow_adk_eval.gating.promotion.record import Target, check_alias, check_version, stamped, with_problems
from mlflow_adk_eval.gating.promotion.verify import decide_in, verify_in
from mlflow_adk_eval.gating.registry import MlflowStore, Trust, store_at
from mlflow_adk_eval.gating.rules.comparable import Reevaluate
from mlflow_adk_eval.gating.rules.holdout import HoldoutEvaluator
from mlflow_adk_eval.results.decision import Decision, GateFailed
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ExaminedRun, examine
from mlflow_adk_eval.runs.manifest import FOLDER, MANIFEST, Manifest, agent_problems, read_manifest, sha256
from mlflow_adk_eval.runtime import note, span
from mlflow_adk_eval.signing.keys import SIGNING_KEY, load_signer, load_verifier


@span("gate")
def gate(  # noqa: PLR0913 - which run, compared with what, in which store
    run: str | Report,
    policy: Any = None,
    *,
    baseline: str | None = None,
    model: str | None = None,
    reevaluate: Reevaluate | None = None,
    raise_on_failure: bool = True,
    agent_version: str | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Decide whether a run's evidence allows a promotion. Writes nothing, unless the baseline has to be evaluated again.

    Args:
        run: the run, by its id, the beginning of that, ``latest`` or ``champion``; or its logged report.
        policy: the path of a YAML or JSON file, a dict or a `Policy`; ``None``: the thresholds of the run's own config,
            on every case.
        baseline: the baseline, instead of the policy's: ``runs:/<id>``, ``models:/<name>@<alias>`` or
            ``models:/<name>/<version>``.
        model: the registered model of the policy's baseline, if the policy names only an alias or a version.
        reevaluate: evaluates the baseline again where the run of its promotion record is about other cases, judges or criteria, as
            `mlflow_adk_eval.make_reevaluator` does, unless `run` cannot pass anyway; ``None``: the gate is then undecided.
        raise_on_failure: whether to raise `GateFailed` unless the decision is *passed*.
        agent_version: the agent that the run must have evaluated: a LoggedModel id, ``models:/<name>/<version>``
            or ``models:/<name>@<alias>``.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.

    Raises:
        GateFailed: if the decision is not *passed*.
        PolicyError: with every problem of the policy.
        UsageError: if there is no such run or baseline.
        TrackingError: if MLflow is unreachable.
    """
    demanded = overridden(load_policy(policy), baseline)
    with store_at(tracking_uri, registry_uri) as store:
        run_id = run_id_of(run, store, model=model)
        if baseline and baseline.startswith("runs:/"):
            if baseline == f"runs:/{LATEST}":  # anybody who may write to the experiment could have left it there
                raise UsageError(f"baseline {baseline!r}: the author of the candidate could choose it; name an id or models:/NAME@ALIAS")
            demanded = overridden(demanded, f"runs:/{run_id_of(baseline, store, model=model)}")
        search = BaselineSearch(store=store, policy=demanded, model=model, reevaluate=reevaluate)
        decision = decided(examine(store.evidence(run_id)), search, agent_version)
    return _answer(decision, raise_on_failure=raise_on_failure)


def decided(run: ExaminedRun, search: BaselineSearch, agent_version: str | None = None) -> Decision:
    """Return the decision on a run, compared with what `search` finds.

    Args:
        run: the run, examined.
        search: what is demanded, and where to look for the baseline.
        agent_version: the agent that the run must have evaluated; ``None``: any.
    """
    problems = agent_problems(run.evidence, search.store.model_id(agent_version)) if agent_version else []
    compared, now = search(run, problems), search.store.clock()
    decision = decide_in(search.store, run, search.policy, now=now, baseline=compared, attempt=search.attempt(run, compared))
    return stamped(with_problems(decision, problems), now)


@span("promote")
def promote(  # noqa: PLR0913 - which version, on which evidence, in which store
    name: str,
    version: int | str,
    alias: str = "champion",
    *,
    run_id: str | Report,
    policy: Any = None,
    reevaluate: Reevaluate | None = None,
    holdout: HoldoutEvaluator | None = None,
    dry_run: bool = False,
    wait_s: float = WAIT_S,
    raise_on_failure: bool = True,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    checkpoint: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Set `alias` on a version of a registered model if the evidence of a run allows it, and record the decision either way.

    Args:
        name: the registered model.
        version: the version, which must be READY and made from the LoggedModel that the run evaluated.
        alias: the alias.
        run_id: the run's id, or its logged report.
        policy: the path of a YAML or JSON file, a dict or a `Policy`; ``None``: the thresholds of the run's own config,
            on every case. Its baseline belongs to the model `name` by default.
        reevaluate: evaluates the baseline again where the run of its promotion record is about other cases, judges or criteria, as
            `mlflow_adk_eval.make_reevaluator` does, unless the run cannot pass anyway; also in a dry run. ``None``: the decision is
            then *undecided*.
        holdout: scores the cases that the policy holds out, as `mlflow_adk_eval.make_holdout_evaluator` does, if everything else passes;
            ``None``: with such a policy, the decision is then *undecided*.
        dry_run: whether to only decide, without writing to the registry.
        wait_s: the seconds to wait for another promotion to the same alias. Then everything is read and decided again.
        raise_on_failure: whether to raise `GateFailed` unless the decision is *passed*.
        signing_key: signs the promotion record and the claim: a PEM file with an ed25519 or ECDSA P-256 key, or its content; ``None``: what
            ``MLFLOW_ADK_EVAL_SIGNING_KEY`` says, or no signature.
        verify_key: public keys, one of which must have signed the earlier promotions; ``None``:
            ``MLFLOW_ADK_EVAL_VERIFY_KEY``, else that of `signing_key`.
        checkpoint: a file that pins the state of the claim log and is updated; ``None``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.

    Raises:
        GateFailed: if the alias was not set or, in a dry run, would not be.
        PolicyError: with every problem of the policy.
        UsageError: if the run, the model or the version does not exist, the alias is invalid, or the key is.
        AliasBusyError: if another promotion still holds the alias after that time. Nothing was decided; try again.
        TrackingError: if MLflow is unreachable.
    """
    target, demanded = Target(name=name, version=str(version), alias=alias), load_policy(policy)
    with store_at(tracking_uri, registry_uri, **_trust(signing_key, verify_key, checkpoint, writes=not dry_run)) as store:
        search = BaselineSearch(store=store, policy=demanded, model=name, candidate=target, reevaluate=reevaluate)
        chosen = run_id_of(run_id, store, model=name, version=str(version))
        decision = promote_in(store, target, chosen, demanded, dry_run=dry_run, baseline=search, holdout=holdout, wait_s=wait_s)
        if not dry_run:
            with suppress(ClaimLogError):  # which is what the decision says then
                _advance(store, name, alias)
    return _answer(decision, raise_on_failure=raise_on_failure)


@span("verify")
def verify(
    name: str,
    version: int | str | None = None,
    *,
    alias: str | None = None,
    policy: Any = None,
    verify_key: str | Path | None = None,
    checkpoint: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Return whether a promotion still stands: its promotion record is unchanged, and the evidence says today what it said then.

    Args:
        name: the registered model.
        version: the version; ``None``: the one that holds `alias`.
        alias: the alias whose promotion is checked; ``None``: the last decision on `version`.
        policy: your own policy, checked today in addition to the one used for the promotion; ``None``: none.
        verify_key: the public keys of which one must have signed the promotion record and the claim log; ``None``: what
            ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says, or they need no signature.
        checkpoint: a file that pins the state of the claim log; it is not changed. ``None``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.

    Raises:
        UsageError: if the model, the version or the alias does not exist, or the key is invalid.
        TrackingError: if MLflow is unreachable.
    """
    if version is None and alias is None:
        raise UsageError("verify: name a version or an alias")
    if version is not None:
        check_version(str(version))
    if alias is not None:
        check_alias(alias)
    demanded = None if policy is None else load_policy(policy)
    with store_at(tracking_uri, registry_uri, verifier=load_verifier(verify_key), checkpoint=load_checkpoint(checkpoint)) as store:
        return stamped(verify_in(store, name, None if version is None else str(version), alias, demanded), store.clock())


def audit(  # noqa: PLR0913 - which aliases, what to do about them, whom to trust, in which store
    name: str | None = None,
    alias: str | None = None,
    *,
    restore: bool = False,
    dry_run: bool = False,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    checkpoint: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> tuple[AliasAudit, ...]:
    """Return for each alias of a registered model who set it, on which promotion record, and whether that verifies today.

    Args:
        name: the registered model; ``None``: all of them.
        alias: the alias; ``None``: every alias that the gate ever set.
        restore: whether an alias that no claim set where it is, or whose promotion record is proven false, is moved back to where its claim log has it.
            One whose evidence was edited or deleted stays: that proves nothing.
        dry_run: with `restore`, whether to only report the moves.
        signing_key: signs the promotion records of what is moved back, as for `promote`.
        verify_key: public keys, one of which must have signed; ``None``: ``MLFLOW_ADK_EVAL_VERIFY_KEY``.
        checkpoint: a file that pins the state of each claim log and is updated; ``None``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such model, or a key is invalid.
        TrackingError: if MLflow is unreachable.
    """
    if alias is not None:
        check_alias(alias)
    with store_at(tracking_uri, registry_uri, **_trust(signing_key, verify_key, checkpoint, writes=restore and not dry_run)) as store:
        pinned = store.checkpoint.pins() if store.checkpoint else {}  # one that was deleted is not among those that there are
        names, required = [name] if name is not None else sorted({*store.models(), *pinned}), name is not None
        audits = tuple(one for each in names for one in audit_in(store, each, alias, restore=restore, dry_run=dry_run, required=required))
        for found in audits:
            if found.valid or found.restored:
                _advance(store, found.model, found.alias)
        return audits


@span("rollback")
def rollback(  # noqa: PLR0913 - which alias, where to, why, in which store
    name: str,
    alias: str = "champion",
    *,
    reason: str,
    to: int | str | None = None,
    dry_run: bool = False,
    wait_s: float = WAIT_S,
    raise_on_failure: bool = True,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    checkpoint: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> RollbackResult:
    """Take an alias back to the version that held it before and whose promotion record still verifies, and record that.

    A version that was rolled back does not verify until it is promoted again.

    Args:
        name: the registered model.
        alias: the alias.
        reason: why, for the promotion record.
        to: the version; ``None``: the last one before the present one whose promotion record verifies.
        dry_run: whether to only return that version, without moving the alias.
        wait_s: the seconds to wait for another promotion to the same alias. Then everything is read again.
        raise_on_failure: whether to raise `GateFailed` if the alias stays where it is.
        signing_key: signs the promotion record, as for `promote`.
        verify_key: public keys, one of which must have signed; ``None``: ``MLFLOW_ADK_EVAL_VERIFY_KEY``.
        checkpoint: a file that pins the state of the claim log and is updated; ``None``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.

    Raises:
        GateFailed: if there is no such version, or another process moved the alias meanwhile.
        UsageError: if the model does not exist, the reason is missing, or a key is invalid.
        AliasBusyError: if another promotion still holds the alias after that time. Try again.
        TrackingError: if MLflow is unreachable.
    """
    if not reason.strip():
        raise UsageError("rollback: give a reason")
    check_alias(alias)
    if to is not None:
        check_version(str(to))
    with store_at(tracking_uri, registry_uri, **_trust(signing_key, verify_key, checkpoint, writes=not dry_run)) as store:
        back = AliasRollback(store=store, name=name, alias=alias, kind="rollback", reason=reason.strip(), wait_s=wait_s)
        result = back.run(None if to is None else str(to), dry_run=dry_run)
        if result.decision.passed and not dry_run:
            _advance(store, name, alias)
    _answer(result.decision, raise_on_failure=raise_on_failure)
    return result


def _trust(signing_key: str | Path | None, verify_key: str | Path | None, checkpoint: str | Path | None, *, writes: bool) -> Trust:
    """Read the keys and the checkpoint; `writes`: whether a claim is to be made, which those who verify must believe.

    Raises:
        UsageError: if they would not.
    """
    signer, verifier = load_signer(signing_key), load_verifier(verify_key)
    if verifier and writes and (signer is None or signer.verifier.key_ids[0] not in verifier.key_ids):
        which = "no signing key is given" if signer is None else "the signing key is not one of the keys to verify with"
        raise UsageError(f"{which}, so the result would not verify; set --signing-key, signing_key= or {SIGNING_KEY}")
    return Trust(signer=signer, verifier=verifier, checkpoint=load_checkpoint(checkpoint))


def _advance(store: MlflowStore, name: str, alias: str) -> None:
    if store.checkpoint:
        store.checkpoint.advance(name, store.claim_log(name, alias))


def _answer(decision: Decision, *, raise_on_failure: bool) -> Decision:
    note({"adk_eval.verdict": decision.verdict, "adk_eval.run_id": decision.run_id})
    if raise_on_failure and not decision.passed:
        raise GateFailed(decision)
    return decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Champion:
    """A version whose promotion verifies."""

    name: str
    alias: str
    version: str
    model_id: str
    """Its LoggedModel."""
    decision: Decision
    """What its promotion record comes to today."""
    source_sha256: str
    """The digest of the evaluated source, in hex; empty if unknown."""
    agent: Agent | None = None
    """The agent that you passed, which has exactly that source; ``None``: none. For google-adk, the agent object is its `root`."""

    @property
    def uri(self) -> str:
        """The LoggedModel's URI, for MLflow's functions that load models."""
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
        agent: the agent to deploy, as for `evaluate`; it must have the evaluated source. ``None``: not checked.
        policy: your own policy, checked today in addition to the one used for the promotion; ``None``: none.
        verify_key: as for `verify`.
        checkpoint: as for `verify`.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        registry_uri: the model registry; ``None``: MLflow's own setting.

    Raises:
        GateFailed: if it does not verify, or the agent's source differs or is unknown.
        UsageError: if there is no such model or alias, or no such agent.
        TrackingError: if MLflow is unreachable.
    """
    from mlflow_adk_eval.agents.resolve import resolve_agent  # noqa: PLC0415 - only who deploys has an agent at hand
    from mlflow_adk_eval.agents.source import source_of  # noqa: PLC0415

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
        raise GateFailed(replace(decision, verdict="undecided", reasons=(f"{name!r} changed while it was being read: {difference}",)))
    if sha256(manifest) != decision.evidence_sha256:
        raise GateFailed(replace(decision, verdict="undecided", reasons=(f"run {decision.run_id} changed while it was being read",)))
    read = read_manifest(manifest)  # which was verified: to a run's parameters anybody may add one
    evaluated = str(read.artifacts.get(AGENT_SOURCE, "")) if isinstance(read, Manifest) else ""
    resolved = None if agent is None else resolve_agent(agent)
    source = None if resolved is None else source_of(resolved)
    if source is not None and (not evaluated or source.sha256 != evaluated):
        what, actual = f"version {version} of {name!r}", f"sha256 {source.sha256[:12]}…" if source.sha256 else source.description
        problem = f"the agent is not {what}: its source is {actual}, but sha256 {evaluated[:12]}… was evaluated"
        if not evaluated:
            problem = f"the run of {what} has no source digest, so no agent can be matched to that version"
        raise GateFailed(replace(decision, verdict="undecided", reasons=(problem,)))
    return Champion(name=name, alias=alias, version=version, model_id=model_id, decision=decision, source_sha256=evaluated, agent=resolved)
