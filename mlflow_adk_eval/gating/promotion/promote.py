"""Setting an alias on evidence: decide, claim, look whether everything is as it was, record, set it, look again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.baseline.baseline import Baseline
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.claim import (
    PATIENCE,
    AliasLock,
    Overtaken,
    Patience,
    alias_moved,
    version_changed,
)
from mlflow_adk_eval.gating.promotion.claims import ClaimLog, read_claim_log
from mlflow_adk_eval.gating.promotion.record import (
    REFUSAL,
    TAG,
    Compared,
    Record,
    doubted,
    holds_pass,
    pass_tag,
    signed,
)
from mlflow_adk_eval.gating.promotion.target import Target, named, version_problems
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.gating.store import Store
from mlflow_adk_eval.results.decision import Decision

FindBaseline = Callable[[Evidence], Baseline | None]
_ATTEMPTS = 3
_PARTS = ("lifecycle_stage", "status", "end_time", "params", "tags", "metrics", "model_ids", "manifest", "artifacts")


def promote_in(
    store: Store,
    target: Target,
    run_id: str,
    policy: Policy,
    *,
    baseline: FindBaseline | Baseline | None = None,
    dry_run: bool = False,
    patience: Patience = PATIENCE,
) -> Decision:
    """Decide on a promotion, record the decision, and set the alias if it is *passed*.

    Args:
        store: where everything is.
        target: the version and the alias.
        run_id: the run with the evidence.
        policy: what is demanded.
        baseline: what the run is compared with, or what finds it.
        dry_run: whether to write nothing.
        patience: how long claims of others are respected.
    """
    ledger = read_claim_log(store.ledger(target.name), target.alias)  # first: whoever claims after this is noticed
    version, holder = store.version(target.name, target.version), store.aliases(target.name).get(target.alias)
    evidence = store.evidence(run_id)
    compared = baseline(evidence) if callable(baseline) else baseline
    now = datetime.now(UTC)
    decision = decide(evidence, policy, baseline=compared, now=now)
    problems = [*version_problems(target, version, evidence), *_baseline_moved(store, target, policy, compared, holder)]
    if under_way := ledger.under_way(now, patience.grace_s):
        problems.append(under_way)
    record = Record(
        target=target,
        source=version.source,
        previous=holder,
        claim=ledger.next,
        policy=policy,
        compared=Compared.of(compared),
        decision=signed(doubted(decision, problems), now),
    )
    if dry_run:
        return record.decision
    if not record.decision.passed:
        return _refuse(store, record, overtaken=bool(under_way))
    found = [evidence, *([compared.evidence] if compared and compared.evidence else [])]
    return _carry_out(store, record, ledger, found, patience, version.tags.get(pass_tag(target.alias)))


def _carry_out(
    store: Store, record: Record, ledger: ClaimLog, found: Sequence[Evidence], patience: Patience, earlier: str | None
) -> Decision:
    """Set the alias; `earlier`: where the record of an earlier pass of the version is."""
    target, key = record.target, pass_tag(record.target.alias)
    fence = AliasLock(
        store=store,
        record=record,
        ledger=ledger,
        slow_looks=lambda: _evidence_changed(store, found),
        last_looks=lambda: [
            *version_changed(store, record),
            *alias_moved(store, record),
            *_baseline_moved(store, target, record.policy, record.compared, record.previous),
        ],
        # Should this process die right after the alias is set, the version has what leads to its record.
        prepare=lambda: store.tag(target, {key: str(record.place)}),
        patience=patience,
    )
    try:
        return fence.carry_out(lambda problem: _finish(store, record, earlier, problem))
    except Overtaken as other:
        return _refuse(store, record.but(str(other)), overtaken=True)


def _finish(store: Store, record: Record, earlier: str | None, problem: str) -> Decision:
    target, key = record.target, pass_tag(record.target.alias)
    if not problem:
        signature = {f"{TAG}.signature": found} if (found := store.signature(record)) else {}
        _tag(store, target, {**record.tags(), **signature, key: str(record.place)})
        return record.decision
    with suppress(UsageError):
        if store.version(target.name, target.version).tags.get(key) == str(record.place):
            store.tag(target, {key: earlier}) if earlier else store.untag(target, key)
    return _refuse(store, record.but(problem))


def _tag(store: Store, target: Target, tags: Mapping[str, str]) -> None:
    """Set tags, again if a refusal of the same version is being noted at the same time."""
    with suppress(UsageError):  # a version that was deleted at once needs no tags
        for _ in range(_ATTEMPTS):
            store.tag(target, tags)
            found = store.version(target.name, target.version).tags
            if all(found.get(key) == value for key, value in tags.items()):
                return


def _evidence_changed(store: Store, found: Sequence[Evidence]) -> Iterator[str]:
    """Yield the runs that do not hold any more what was decided on."""
    for before in found:
        today = store.evidence(before.run_id)
        if parts := [name for name in _PARTS if getattr(today, name) != getattr(before, name)]:
            yield f"run {before.run_id} was changed while it was decided on: its {', '.join(parts).replace('_', ' ')}"


def _baseline_moved(
    store: Store, target: Target, policy: Policy, compared: Baseline | Compared | None, holder: str | None
) -> Iterator[str]:
    """Yield that the alias whose version was compared with is somewhere else."""
    source = policy.baseline
    if compared is None or source is None or source.alias is None or compared.problems:
        return
    model = source.model or target.name
    found = holder if (model, source.alias) == (target.name, target.alias) else store.aliases(model).get(source.alias)
    if found != compared.version:
        yield f"it was compared with {compared.name}, but the alias {source.alias} of {model!r} is at {named(found)} now"


def _refuse(store: Store, record: Record, *, overtaken: bool = False) -> Decision:
    """Record a refusal: on a version that holds an alias by an earlier pass, or is just being given one, beside the record of that."""
    target = record.target
    store.write(record)
    with suppress(UsageError):  # a version that was deleted needs no tags
        tags, aliases = store.version(target.name, target.version).tags, store.aliases(target.name)
        beside = overtaken or holds_pass(tags, aliases, target.version)
        if not overtaken and aliases.get(target.alias) != target.version and pass_tag(target.alias) in tags:
            store.untag(target, pass_tag(target.alias))
        # The verdict goes first, so that no moment shows a pass with the details of a refusal.
        store.tag(target, dict(reversed(record.tags(REFUSAL if beside else TAG).items())))
    return record.decision
