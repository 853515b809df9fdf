"""Deciding on a run in MLflow, setting an alias in the model registry, and checking later that it was rightly set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.baseline.baseline import Reevaluate
from mlflow_adk_eval.gating.baseline.find import Search, overridden
from mlflow_adk_eval.gating.evidence.integrity import Evidence, agent_problems
from mlflow_adk_eval.gating.mlflow_store import MlflowStore, reaching_mlflow
from mlflow_adk_eval.gating.policy.load import load_policy
from mlflow_adk_eval.gating.promotion.promote import promote_in
from mlflow_adk_eval.gating.promotion.record import (
    Target,
    check_alias,
    check_version,
    doubted,
    signed,
)
from mlflow_adk_eval.gating.promotion.signing import load_signer, load_verifier
from mlflow_adk_eval.gating.promotion.verify import verify_in
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.results.decision import Decision, GateFailed
from mlflow_adk_eval.results.report import Report

__all__ = ["MlflowStore", "decided", "gate", "promote", "reaching_mlflow", "run_id_of", "verify"]


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
    """Return whether a run's evidence allows a promotion. Nothing is written, unless the baseline has to be evaluated anew.

    Args:
        run: the id of the run, or the report that was logged as one.
        policy: what is demanded: the path of a YAML or JSON file, a dict or a `Policy`; ``None``: the thresholds of the run's own config,
            on every case.
        baseline: what the run is compared with, instead of the policy's baseline: ``runs:/<id>``, ``models:/<name>@<alias>`` or
            ``models:/<name>/<version>``.
        model: the registered model of the policy's baseline, where the policy names only an alias or a version.
        reevaluate: evaluates the baseline anew where its runs are about other cases, judges or criteria, as
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
    with reaching_mlflow():
        store = MlflowStore(tracking_uri, registry_uri)
        search = Search(store=store, policy=demanded, model=model, reevaluate=reevaluate)
        decision = decided(store.evidence(run_id), search, agent_version)
    return _answer(decision, raise_on_failure=raise_on_failure)


def decided(evidence: Evidence, search: Search, agent_version: str | None = None) -> Decision:
    """Return the decision on a run, compared with what `search` finds.

    Args:
        evidence: what the run holds.
        search: what is demanded, and where to look for the baseline.
        agent_version: the agent that the run must have evaluated; ``None``: any.
    """
    problems = agent_problems(evidence, search.store.model_id(agent_version)) if agent_version else []
    found = search(evidence)
    return signed(doubted(decide(evidence, search.policy, baseline=found), problems))


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
        reevaluate: evaluates the baseline anew where its runs are about other cases, judges or criteria, as
            `mlflow_adk_eval.reevaluation` does, also in a dry run; ``None``: the decision is then *undecided*.
        dry_run: whether to decide only, and write nothing to the registry.
        raise_on_failure: whether anything but *passed* is an error.
        signing_key: signs the record: a PEM file with an ed25519 key or its content, ``hmac:<path>`` for a file with a secret, or
            ``hmac:$<name>`` for a variable that holds one; ``None``: what ``MLFLOW_ADK_EVAL_SIGNING_KEY`` says, or no signature.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.
        registry_uri: where the registry is; ``None``: as MLflow is configured.

    Raises:
        GateFailed: if the alias was not set, or in a dry run would not be.
        PolicyError: with every problem of the policy.
        UsageError: if the run, the model or the version does not exist, the alias is no valid one, or the key is none.
        TrackingError: if MLflow cannot be reached.
    """
    target, demanded, signer = Target(name=name, version=str(version), alias=alias), load_policy(policy), load_signer(signing_key)
    with reaching_mlflow():
        store = MlflowStore(tracking_uri, registry_uri, signer=signer)
        search = Search(store=store, policy=demanded, model=name, reevaluate=reevaluate)
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
    with reaching_mlflow():
        return signed(verify_in(MlflowStore(tracking_uri, registry_uri), name, number, alias, verifier=verifier))


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
