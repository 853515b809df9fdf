"""The gate's public functions: decide on a run, set an alias, check later that it was rightly set, and take it back.

Each of them reads its arguments, so that mistakes are found before MLflow is asked, opens the store (`store_at`) and leaves the work to
one function: `decide`, `promote_in`, `verify_in`, `audit_in`, `AliasRollback`. The package's docstring says how a decision flows through them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.attestation.keys import load_signer, load_verifier
from mlflow_adk_eval.gating.baseline.comparable import Reevaluate
from mlflow_adk_eval.gating.baseline.search import BaselineSearch, overridden
from mlflow_adk_eval.gating.evidence.examine import ExaminedRun, examine
from mlflow_adk_eval.gating.evidence.integrity import agent_problems
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.aliases import AliasAudit, AliasRollback, RollbackResult, audit_in
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import Target, check_alias, check_version, stamped, with_problems
from mlflow_adk_eval.gating.promotion.verify import verify_in
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.results.decision import Decision, GateFailed
from mlflow_adk_eval.results.report import Report


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
    """Return whether a run's evidence allows a promotion. Nothing is written, unless the baseline has to be evaluated again.

    Args:
        run: the id of the run, or the report that was logged as one.
        policy: what is demanded: the path of a YAML or JSON file, a dict or a `Policy`; ``None``: the thresholds of the run's own config,
            on every case.
        baseline: what the run is compared with, instead of the policy's baseline: ``runs:/<id>``, ``models:/<name>@<alias>`` or
            ``models:/<name>/<version>``.
        model: the registered model of the policy's baseline, where the policy names only an alias or a version.
        reevaluate: evaluates the baseline again where its runs are about other cases, judges or criteria, as
            `mlflow_adk_eval.reevaluation` does; ``None``: the gate is then undecided.
        raise_on_failure: whether anything but *passed* is an error.
        agent_version: the agent that the run must have evaluated: a LoggedModel id, ``models:/<name>/<version>``
            or ``models:/<name>@<alias>``.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if the decision is not *passed*.
        PolicyError: with every problem of the policy.
        UsageError: if there is no such run, or nothing that the policy's baseline could be.
        TrackingError: if MLflow cannot be reached.
    """
    run_id, demanded = run_id_of(run), overridden(load_policy(policy), baseline)
    with store_at(tracking_uri, registry_uri) as store:
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
    return stamped(with_problems(decide(run, search.policy, baseline=search(run)), problems))


def promote(  # noqa: PLR0913 - which version, on which evidence, in which store
    name: str,
    version: int | str,
    alias: str = "champion",
    *,
    run_id: str | Report,
    policy: Any = None,
    reevaluate: Reevaluate | None = None,
    dry_run: bool = False,
    raise_on_failure: bool = True,
    signing_key: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Set `alias` on a version of a registered model if the evidence of a run allows it, and record the decision either way.

    Args:
        name: the registered model.
        version: the version, which must be READY and made from the LoggedModel that the run evaluated.
        alias: the alias.
        run_id: the run, or the report that was logged as one.
        policy: what is demanded: the path of a YAML or JSON file, a dict or a `Policy`; ``None``: the thresholds of the run's own config,
            on every case. Its baseline belongs to the model `name` unless it says otherwise.
        reevaluate: evaluates the baseline again where its runs are about other cases, judges or criteria, as
            `mlflow_adk_eval.reevaluation` does, also in a dry run; ``None``: the decision is then *undecided*.
        dry_run: whether to decide only, and write nothing to the registry.
        raise_on_failure: whether anything but *passed* is an error.
        signing_key: signs the record: a PEM file with an ed25519 or ECDSA P-256 key, or its content; ``None``: what
            ``MLFLOW_ADK_EVAL_SIGNING_KEY`` says, or no signature.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if the alias was not set, or in a dry run would not be.
        PolicyError: with every problem of the policy.
        UsageError: if the run, the model or the version does not exist, the alias is no valid one, or the key is none.
        TrackingError: if MLflow cannot be reached.
    """
    target, demanded, signer = Target(name=name, version=str(version), alias=alias), load_policy(policy), load_signer(signing_key)
    with store_at(tracking_uri, registry_uri, signer=signer) as store:
        search = BaselineSearch(store=store, policy=demanded, model=name, reevaluate=reevaluate)
        decision = promote_in(store, target, run_id_of(run_id), demanded, dry_run=dry_run, baseline=search)
    return _answer(decision, raise_on_failure=raise_on_failure)


def verify(
    name: str,
    version: int | str | None = None,
    *,
    alias: str | None = None,
    verify_key: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> Decision:
    """Return whether a promotion still stands: its record is unchanged, and the evidence says today what it said then.

    Args:
        name: the registered model.
        version: the version; ``None``: the one that holds `alias`.
        alias: the alias whose promotion is checked; ``None``: the last decision on `version`.
        verify_key: the key by which the record must be signed, as for `promote` or its public part; ``None``: what
            ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says, or records need no signature.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if the model, the version or the alias does not exist, or the key is none.
        TrackingError: if MLflow cannot be reached.
    """
    if version is None and alias is None:
        raise UsageError("verify: neither a version nor an alias is named")
    if version is not None:
        check_version(str(version))
    if alias is not None:
        check_alias(alias)
    number, verifier = None if version is None else str(version), load_verifier(verify_key)
    with store_at(tracking_uri, registry_uri) as store:
        return stamped(verify_in(store, name, number, alias, verifier=verifier))


def audit(
    name: str | None = None,
    alias: str | None = None,
    *,
    restore: bool = False,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> tuple[AliasAudit, ...]:
    """Return for each alias of a registered model who set it, on which record, and whether that verifies today.

    Args:
        name: the registered model; ``None``: all of them.
        alias: the alias; ``None``: each that was ever promoted by the gate.
        restore: whether an alias that is not valid is moved back to the last version in its claim log whose record verifies.
        signing_key: signs the records of what is moved back, as for `promote`.
        verify_key: the key by which records must be signed; ``None``: as ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such model, or a key is none.
        TrackingError: if MLflow cannot be reached.
    """
    if alias is not None:
        check_alias(alias)
    signer, verifier = load_signer(signing_key), load_verifier(verify_key)
    with store_at(tracking_uri, registry_uri, signer=signer) as store:
        names = [name] if name is not None else store.models()
        return tuple(
            found for each in names for found in audit_in(store, each, alias, restore=restore, required=name is not None, verifier=verifier)
        )


def rollback(  # noqa: PLR0913 - which alias, where to, why, in which store
    name: str,
    alias: str = "champion",
    *,
    reason: str,
    to: int | str | None = None,
    dry_run: bool = False,
    raise_on_failure: bool = True,
    signing_key: str | Path | None = None,
    verify_key: str | Path | None = None,
    tracking_uri: str | None = None,
    registry_uri: str | None = None,
) -> RollbackResult:
    """Take an alias back to the version that held it before and whose record still verifies, and record that.

    A version from which somebody went back does not verify until it is promoted again.

    Args:
        name: the registered model.
        alias: the alias.
        reason: why, for the record.
        to: the version; ``None``: the last one before the present one whose record verifies.
        dry_run: whether to say only which version that would be.
        raise_on_failure: whether it is an error if the alias stays where it is.
        signing_key: signs the record, as for `promote`.
        verify_key: the key by which the version's record must be signed; ``None``: as ``MLFLOW_ADK_EVAL_VERIFY_KEY`` says.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if there is no such version, or the alias was moved by somebody else meanwhile.
        UsageError: if the model does not exist, no reason is given, or a key is none.
        TrackingError: if MLflow cannot be reached.
    """
    if not reason.strip():
        raise UsageError("rollback: no reason is given")
    check_alias(alias)
    if to is not None:
        check_version(str(to))
    signer, verifier = load_signer(signing_key), load_verifier(verify_key)
    with store_at(tracking_uri, registry_uri, signer=signer) as store:
        back = AliasRollback(store=store, name=name, alias=alias, kind="rollback", reason=reason.strip(), verifier=verifier)
        result = back.run(None if to is None else str(to), dry_run=dry_run)
    _answer(result.decision, raise_on_failure=raise_on_failure)
    return result


def _answer(decision: Decision, *, raise_on_failure: bool) -> Decision:
    if raise_on_failure and not decision.passed:
        raise GateFailed(decision)
    return decision


def run_id_of(run: str | Report) -> str:
    """Return the id of a run.

    Raises:
        UsageError: for a report that was not logged.
    """
    run_id = run.run_id if isinstance(run, Report) else run
    if not run_id:
        raise UsageError(
            "the report was not logged in MLflow, so there is no run to decide on" if isinstance(run, Report) else "the run id is empty"
        )
    return run_id
