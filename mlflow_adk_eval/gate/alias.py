"""Setting an alias on evidence: decide, record, look whether the alias is still where it was, set it, look again."""

from __future__ import annotations

from mlflow_adk_eval.gate.decide import decide
from mlflow_adk_eval.gate.policy import Policy
from mlflow_adk_eval.gate.record import REFUSAL, TAG, Record, Target, doubted, holds_pass, pass_tag, signed, version_problems
from mlflow_adk_eval.gate.store import Store
from mlflow_adk_eval.outcome import Decision


def promote_in(store: Store, target: Target, run_id: str, policy: Policy, *, dry_run: bool = False) -> Decision:
    """Decide on a promotion, record the decision, and set the alias if it is *passed*."""
    version, holder = store.version(target.name, target.version), store.aliases(target.name).get(target.alias)
    evidence = store.evidence(run_id)
    decision = signed(doubted(decide(evidence, policy), version_problems(target, version, evidence)))
    record = Record(target=target, source=version.source, previous=holder, policy=policy, decision=decision)
    if dry_run:
        return decision
    if not decision.passed:
        return _refuse(store, record)
    # The record comes first: should this process die before the alias is set, there is no alias without a record.
    store.write(record)
    store.tag(target, {**record.tags(), pass_tag(target.alias): str(record.place)})
    return _set_alias(store, record)


def _set_alias(store: Store, record: Record) -> Decision:
    """Set the alias, which the registry cannot do on condition, so look at it right before and right after."""
    target = record.target
    found = store.aliases(target.name).get(target.alias)
    if found != record.previous:
        moved = f"moved from {_named(record.previous)} to {_named(found)} while the evidence was read"
        return _refuse(store, record.but(f"the alias {target.alias} {moved}, so it was not set"))
    store.set_alias(target)
    found = store.aliases(target.name).get(target.alias)
    if found != target.version:
        return _refuse(store, record.but(f"the alias {target.alias} was set on {target}, but at once moved to {_named(found)}"))
    return record.decision


def _named(version: str | None) -> str:
    return "no version" if version is None else f"version {version}"


def _refuse(store: Store, record: Record) -> Decision:
    """Record a refusal: on a version that holds an alias by an earlier pass, beside the record of that."""
    target = record.target
    store.write(record)
    tags, aliases = store.version(target.name, target.version).tags, store.aliases(target.name)
    if aliases.get(target.alias) != target.version and pass_tag(target.alias) in tags:
        store.untag(target, pass_tag(target.alias))
    kept = holds_pass(tags, aliases, target.version)
    # The verdict goes first, so that no moment shows a pass with the details of a refusal.
    store.tag(target, dict(reversed(record.tags(REFUSAL if kept else TAG).items())))
    return record.decision
