"""Setting an alias on evidence: decide, claim, check that everything is as it was, record, set it, look again.

`promote_in` reads the claim log first and the evidence after it, so that whoever claims in between is noticed. It decides on runs that were
read and examined once, and hands the decision to an `AliasLock`, which sets the alias. A refusal is recorded, too: on the
version's tags, or beside them where those hold the record of an earlier pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

from mlflow_adk_eval.errors import AliasBusyError, UsageError
from mlflow_adk_eval.gating.baseline.comparable import Baseline
from mlflow_adk_eval.gating.evidence.examine import ExaminedRun, examine
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.mlflow_store import MlflowStore
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.alias_lock import (
    TIMEOUTS,
    AliasLock,
    ClaimTimeouts,
    Patience,
    changed_since,
)
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, ClaimLogError
from mlflow_adk_eval.gating.promotion.record import (
    REFUSAL,
    TAG,
    Record,
    RecordedBaseline,
    Target,
    format_version,
    holds_pass,
    pass_tag,
    stamped,
    undecided,
    version_problems,
    with_problems,
)
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.gating.version_id import VersionId
from mlflow_adk_eval.results.decision import Decision

FindBaseline = Callable[[ExaminedRun], Baseline | None]
_ATTEMPTS = 3
_PARTS = ("lifecycle_stage", "status", "end_time", "params", "tags", "metrics", "model_ids", "manifest", "artifacts")


def promote_in(
    store: MlflowStore,
    target: Target,
    run_id: str,
    policy: Policy,
    *,
    baseline: FindBaseline | Baseline | None = None,
    dry_run: bool = False,
    timeouts: ClaimTimeouts = TIMEOUTS,
    wait_s: float = 0.0,
) -> Decision:
    """Decide on a promotion, record the decision, and set the alias if it is *passed*.

    Args:
        store: where everything is.
        target: the version and the alias.
        run_id: the run with the evidence.
        policy: what is demanded.
        baseline: what the run is compared with, or what finds it.
        dry_run: whether to write nothing.
        timeouts: how long claims of others are respected.
        wait_s: for how long to wait for others who are setting the alias. Then it is decided anew: they may have changed it.

    Raises:
        AliasBusyError: if they are still at it; unless the evidence fails whatever they do.
    """
    patience = Patience(wait_s)
    examined = cache(lambda: examine(store.evidence(run_id)))  # read again under the claim, however often this is
    while True:
        try:
            claims = store.claim_log(target.name, target.alias)  # first: whoever claims after this is noticed
        except ClaimLogError as error:
            return stamped(undecided(str(error), run_id=run_id), store.clock())
        try:
            return _promoted(store, target, claims, examined, policy, baseline=baseline, dry_run=dry_run, timeouts=timeouts)
        except AliasBusyError as busy:
            patience.wait(busy, lambda: not store.claim_log(target.name, target.alias).pending)


def _promoted(
    store: MlflowStore,
    target: Target,
    claims: ClaimLog,
    examined: Callable[[], ExaminedRun],
    policy: Policy,
    *,
    baseline: FindBaseline | Baseline | None,
    dry_run: bool,
    timeouts: ClaimTimeouts,
) -> Decision:
    model = store.model(target.name)
    version, holder = store.version(target.name, target.version, model), store.holder(target.name, target.alias, model)
    run = examined()
    compared = baseline(run) if callable(baseline) else baseline
    now = store.clock()
    decision = decide(run, policy, baseline=compared, now=now, measured=store.calibration(policy, run))
    last = claims.last
    pending = last is not None and last.pending and not last.carried_out(holder, version.id)
    in_progress = claims.in_progress(now, timeouts.grace_s) if pending else ""  # the lock asks for the server's time again
    moved = list(_baseline_moved(store, target, policy, compared, holder))
    problems = [*version_problems(target, version, run.evidence), *moved]
    record = Record(
        target=target,
        version=version.id,
        previous=holder,
        claim=claims.next,
        policy=policy,
        compared=RecordedBaseline.of(compared),
        decision=stamped(with_problems(decision, problems), now),
    )
    if in_progress and record.decision.verdict != "failed":
        raise AliasBusyError(in_progress)
    if moved and record.decision.verdict != "failed" and (since := store.claim_log(target.name, target.alias)).next != claims.next:
        raise AliasBusyError(since.claimed_since(claims.next))
    if dry_run:
        return record.decision
    if not record.decision.passed:
        return _refuse(store, record, beside=bool(in_progress))
    evidence = {found.evidence.run_id: found.evidence for found in (run, compared and compared.run) if found}
    return _set_alias(store, record, claims, list(evidence.values()), timeouts, version.tags.get(pass_tag(target.alias)))


def _set_alias(
    store: MlflowStore, record: Record, claims: ClaimLog, decided_on: Sequence[Evidence], timeouts: ClaimTimeouts, earlier: str | None
) -> Decision:
    """Set the alias; `earlier`: where the record of an earlier pass of the version is."""
    target = record.target
    lock = AliasLock(
        store=store,
        record=record,
        claims=claims,
        # Every byte is read again, since it may have been rewritten while this waited for the claim. It is compared and not
        # examined again: what is the same comes to the same decision, and what is not is refused whatever it comes to.
        prechecks=lambda: _evidence_changed(store, decided_on),
        # Should this process die right after the alias is set, the version has what leads to its record.
        prepare=lambda: store.tag(target, {pass_tag(target.alias): str(record.location)}),
        # These may change with a single request each, so they come last; the evidence would take too long here.
        final_checks=lambda: [
            *changed_since(store, record),
            *_baseline_moved(store, target, record.policy, record.compared, record.previous),
        ],
        timeouts=timeouts,
    )
    try:
        return lock.set_alias(lambda problem: _finish(store, record, earlier, problem))
    except AliasBusyError:
        _untag(store, record, earlier)
        raise


def _finish(store: MlflowStore, record: Record, earlier: str | None, problem: str) -> Decision:
    target, key = record.target, pass_tag(record.target.alias)
    if not problem:
        signed = {f"{TAG}.signed_by": store.signer.verifier.key_ids[0]} if store.signer else {}
        _tag(store, target, {**record.tags(), **signed, key: str(record.location)})
        with suppress(UsageError):  # a version or run that was deleted at once needs no description
            store.describe(record)
        return record.decision
    _untag(store, record, earlier)
    return _refuse(store, record.refused(problem, store.clock()))


def _untag(store: MlflowStore, record: Record, earlier: str | None) -> None:
    """Have the tag of a version that leads to its record not lead to one that came to nothing."""
    target, key = record.target, pass_tag(record.target.alias)
    with suppress(UsageError):
        if store.tags(target).get(key) == str(record.location):
            store.tag(target, {key: earlier}) if earlier else store.untag(target, key)


def _tag(store: MlflowStore, target: Target, tags: Mapping[str, str]) -> None:
    """Set tags, again if a refusal of the same version is being noted at the same time. The one that leads to the record is there already."""
    missing = {key: value for key, value in tags.items() if key != pass_tag(target.alias)}
    with suppress(UsageError):  # a version that was deleted at once needs no tags
        for _ in range(_ATTEMPTS):
            store.tag(target, missing)
            found = store.tags(target)
            if not (missing := {key: value for key, value in tags.items() if found.get(key) != value}):
                return


def _evidence_changed(store: MlflowStore, decided_on: Sequence[Evidence]) -> Iterator[str]:
    """Yield the runs that do not hold any more what was decided on."""
    for before in decided_on:
        today = store.evidence(before.run_id)
        if parts := [name for name in _PARTS if getattr(today, name) != getattr(before, name)]:
            yield f"run {before.run_id} was changed while it was decided on: its {', '.join(parts).replace('_', ' ')}"


def _baseline_moved(
    store: MlflowStore, target: Target, policy: Policy, compared: Baseline | RecordedBaseline | None, holder: VersionId | None
) -> Iterator[str]:
    """Yield that the alias whose version was compared with is somewhere else."""
    source = policy.baseline
    if compared is None or source is None or source.alias is None or compared.problems:
        return
    model = source.model or target.name
    found = holder if (model, source.alias) == (target.name, target.alias) else store.holder(model, source.alias)
    if found != compared.version:
        difference = compared.version.difference(found) if found and compared.version and found.number == compared.version.number else ""
        where = f"at {format_version(found)} now" + (f", which is another one: {difference}" if difference else "")
        yield f"it was compared with {compared.name}, but the alias {source.alias} of {model!r} is {where}"


def _refuse(store: MlflowStore, record: Record, *, beside: bool = False) -> Decision:
    """Record a refusal; `beside`: leave the version's own tags alone, since somebody is at work on it.

    The same goes for a version that holds an alias by an earlier pass, whose record must stay.
    """
    target = record.target
    store.write(record)
    with suppress(UsageError):  # a version that was deleted needs no tags
        tags, aliases = store.tags(target), store.model(target.name).aliases
        if not beside and aliases.get(target.alias) != target.version and pass_tag(target.alias) in tags:
            store.untag(target, pass_tag(target.alias))
        prefix = REFUSAL if beside or holds_pass(tags, aliases, target.version) else TAG
        # The verdict goes first, so that no moment shows a pass with the details of a refusal.
        store.tag(target, dict(reversed(record.tags(prefix).items())))
        if prefix == TAG:
            store.describe(record)
    return record.decision
