"""Looking after aliases that were set: taking one back (`AliasRollback`), and finding those that somebody moved (`audit_in`).

Both go by the claim log of the alias, which says who set it where, and by `verify`, which says whether a version's record still holds. A
rollback is a claim like a promotion and goes through the same `AliasLock`, with the record by which the version once passed, as
that comes out today. An audit that restores is a rollback of each alias whose version has no record that verifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from mlflow_adk_eval.errors import AliasBusyError, UsageError
from mlflow_adk_eval.gating.evidence.integrity import few
from mlflow_adk_eval.gating.mlflow_store import MlflowStore
from mlflow_adk_eval.gating.promotion.alias_lock import (
    TIMEOUTS,
    AliasLock,
    ClaimTimeouts,
    Patience,
    changed_since,
)
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, ClaimLogError, ClaimParams, aliases_in
from mlflow_adk_eval.gating.promotion.record import (
    TAG,
    Record,
    RegisteredModel,
    Target,
    format_version,
    pass_tag,
    stamped,
    undecided,
    with_problems,
)
from mlflow_adk_eval.gating.promotion.verify import Verification, recreated, verify_version
from mlflow_adk_eval.gating.version_id import VersionId
from mlflow_adk_eval.results.decision import Decision

LAST_ROLLBACK = f"{TAG}.last_rollback"
"""Where a version says that the alias was taken back to it."""
RollbackKind = Literal["rollback", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """Where an alias was taken back to, or why it was not."""

    model: str
    alias: str
    kind: RollbackKind = "rollback"
    previous: str | None
    """The version that held the alias."""
    version: str | None
    """The version that it was taken back to, or in a dry run would be; ``None``: there is none, or it was not moved."""
    decision: Decision
    """*passed* if it was moved, or would be, with what speaks for the version; else why not."""

    def __str__(self) -> str:
        """Return what happened as a sentence."""
        if self.version is None:
            return f"{self.alias} of {self.model!r} stays at {format_version(self.previous)}"
        return f"{self.alias} of {self.model!r} goes back from {format_version(self.previous)} to version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasRollback:
    """How an alias is to be taken back."""

    store: MlflowStore
    name: str
    alias: str
    kind: RollbackKind
    reason: str
    timeouts: ClaimTimeouts = TIMEOUTS
    wait_s: float = 0.0
    """For how long to wait for others who are setting the alias, to look at everything anew then."""

    def run(self, to: str | None = None, *, dry_run: bool = False) -> RollbackResult:
        """Take the alias back to the last version before that verifies, or to a given one if that does.

        Raises:
            UsageError: if there is no such model.
            AliasBusyError: if others are still at it.
        """
        patience = Patience(self.wait_s)
        while True:
            try:
                return self._run(to, dry_run=dry_run)
            except AliasBusyError as busy:
                patience.wait(busy, lambda: not self.store.claim_log(self.name, self.alias).pending)

    def _run(self, to: str | None, *, dry_run: bool) -> RollbackResult:
        claims = self.store.claim_log(self.name, self.alias)  # first: whoever claims after this is noticed
        holder = self.store.holder(self.name, self.alias)
        if self.kind == "restore" and not self._proof(claims, holder):
            return self._stay(holder, [f"the alias {self.alias} is where its claim log has it by now, and nothing proves its record false"])
        problems: list[str] = []
        held = holder.number if holder else None
        former = dict.fromkeys(version.number for version in reversed(claims.former_holders(holder)) if version.number != held)
        for version in [to] if to else former:
            found = self._verify(version) if version != held else Verification(decision=undecided("it holds it already"))
            if found.record is not None and found.decision.passed:
                passed = replace(found.record, decision=stamped(found.decision, self.store.clock()))
                return self._set(claims, holder, passed, dry_run=dry_run)
            problems += [f"version {version} cannot hold the alias {self.alias}: {reason}" for reason in found.decision.reasons]
            if self.kind == "restore" and not found.disproven:
                break  # to go back further could be what somebody spoilt its evidence for
        nothing = f"no version of {self.name!r} that held the alias {self.alias} before is in its claim log"
        return self._stay(holder, problems or [nothing])

    def _verify(self, version: str) -> Verification:
        try:
            return verify_version(self.store, self.name, version, self.alias)
        except UsageError as error:
            return Verification(decision=undecided(str(error)), disproven=True)

    def _proof(self, claims: ClaimLog, holder: VersionId | None) -> bool:
        """Whether it is proven that the alias is not where it belongs: no claim set it there, or the record of that one is false.

        Evidence that was edited, deleted or merely tagged proves nothing: else whoever may edit it could move the alias back.
        """
        if claims.rightful_holder(holder) != holder:
            return True
        return holder is not None and self._verify(holder.number).disproven

    def _result(self, holder: VersionId | None, version: str | None, decision: Decision) -> RollbackResult:
        previous = holder.number if holder else None
        return RollbackResult(model=self.name, alias=self.alias, kind=self.kind, previous=previous, version=version, decision=decision)

    def _stay(self, holder: VersionId | None, problems: Sequence[str], decision: Decision | None = None) -> RollbackResult:
        return self._result(holder, None, stamped(with_problems(decision or undecided(), problems), self.store.clock()))

    def _set(self, claims: ClaimLog, holder: VersionId | None, passed: Record, *, dry_run: bool) -> RollbackResult:
        """Set the alias; the record of this holds what the record of the pass comes to today."""
        record = replace(passed, kind=self.kind, previous=holder, claim=claims.next, reason=self.reason)
        done = self._result(holder, record.target.version, record.decision)
        if dry_run:
            return done
        lock = AliasLock(
            store=self.store,
            record=record,
            claims=claims,
            prechecks=lambda: (),
            prepare=lambda: None,
            final_checks=lambda: changed_since(self.store, record),
            timeouts=self.timeouts,
        )
        return lock.set_alias(lambda problem: self._finish(record, problem) or done)

    def _finish(self, record: Record, problem: str) -> RollbackResult | None:
        """Note on both versions what happened; return what became of it, if not what was wanted."""
        if problem:
            return self._stay(record.previous, [problem], record.decision)
        with suppress(UsageError):  # a version that was deleted at once needs no tags
            self.store.tag(record.target, record.tags(LAST_ROLLBACK) | {f"{LAST_ROLLBACK}.reason": self.reason, LAST_ROLLBACK: self.kind})
        if self.kind == "rollback" and record.previous is not None:
            left = replace(record.target, version=record.previous.number)
            note = f"for version {record.target.version} by {record.decision.decided_by} at {record.decision.decided_at}: {self.reason}"
            with suppress(UsageError):
                self.store.tag(left, {f"{TAG}.given_up.{self.alias}": note})
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasAudit:
    """What was found about one alias."""

    model: str
    alias: str
    version: str | None
    """The version that holds it; ``None``: none does."""
    valid: bool
    """Whether that version's record verifies; also where no version holds an alias that nobody asked for."""
    reasons: tuple[str, ...]
    """Why it is valid, or why not."""
    set_by: str = ""
    """Who set it there, by its claim log; empty where it was moved without a claim."""
    set_at: str = ""
    kind: str = ""
    """``promotion``, ``rollback`` or ``restore``; empty where it was moved without a claim."""
    notes: tuple[str, ...] = ()
    """What else the claim log shows, such as moves in the past that it does not explain."""
    restored: str | None = None
    """The version that it was moved back to."""
    restorable: str | None = None
    """The version that it would be moved back to; only a dry run says so."""


def audit_in(
    store: MlflowStore,
    name: str,
    alias: str | None = None,
    *,
    restore: bool = False,
    dry_run: bool = False,
    required: bool = True,
    timeouts: ClaimTimeouts = TIMEOUTS,
) -> tuple[AliasAudit, ...]:
    """Look at an alias of a model, or at each that was ever promoted; `restore`: and move back what is proven to be wrong.

    Args:
        store: where everything is.
        name: the model.
        alias: the alias; ``None``: each that was ever promoted.
        restore: whether to move back an alias that no claim set where it is, or whose record is proven false.
        dry_run: whether to say only where it would be moved.
        required: whether the model was asked for by its name, so that an alias without any proof is worth telling.
        timeouts: how long claims of others are respected.

    Raises:
        UsageError: if there is no such model.
    """
    pinned = store.checkpoint.aliases(name) if store.checkpoint else set[str]()
    params = _claims(store, name)  # first: no alias is set before its claim
    try:
        model = store.model(name)
    except UsageError as error:
        if required:
            raise
        return tuple(_unproven(name, each, None, str(error)) for each in sorted(pinned))
    holders = model.aliases
    if isinstance(params, str) or (required and not params.params):
        known = set(holders)
    else:
        known = {*aliases_in(params.params), *(_promoted(store, name, holders) if alias is None else holders)}
    known |= pinned
    wanted = alias if required else None
    concerned = [each for each in sorted(known) if alias in (None, each)] or ([wanted] if wanted else [])
    if isinstance(params, str):  # without a claim log nothing is proven, and there is nothing to go back by
        return tuple(_unproven(name, each, holders.get(each), params) for each in concerned)
    found = [_audit(store, name, each, params, model, wanted=bool(wanted)) for each in concerned]
    return tuple(_restored(store, each, timeouts, dry_run=dry_run) if restore and not each.valid else each for each in found)


def _claims(store: MlflowStore, name: str) -> ClaimParams | str:
    try:
        return store.claims(name)
    except ClaimLogError as error:
        return str(error)


def _unproven(name: str, alias: str, holder: str | None, reason: str) -> AliasAudit:
    return AliasAudit(model=name, alias=alias, version=holder, valid=False, reasons=(reason,))


def _promoted(store: MlflowStore, name: str, holders: Mapping[str, str]) -> list[str]:
    """Return the aliases whose holder has a record for them, or was deleted."""

    def was_promoted(alias: str, version: str) -> bool:
        try:
            return pass_tag(alias) in store.tags(Target(name=name, version=version, alias=alias))
        except UsageError:  # it was deleted in the moment that the alias was set, which MLflow does not prevent
            return True

    return [alias for alias, version in holders.items() if was_promoted(alias, version)]


def _audit(store: MlflowStore, name: str, alias: str, params: ClaimParams, model: RegisteredModel, *, wanted: bool) -> AliasAudit:
    holder = store.holder(name, alias, model)
    try:
        claims = store.claim_log(name, alias, params)
    except ClaimLogError as error:
        return _unproven(name, alias, holder.number if holder else None, str(error))
    moves, notes = claims.moves(holder), tuple(_notes(claims, holder))
    last = moves[-1] if moves else None
    if last and (problem := recreated(name, alias, last.claim.version, model)):
        return replace(_unproven(name, alias, holder.number if holder else None, problem), notes=notes)
    if holder is None:
        reason = f"no version holds it, though {last.claim} set it" if last else "no version holds it, and by its claim log none ever did"
        valid = last is None and not wanted
        return AliasAudit(model=name, alias=alias, version=None, valid=valid, reasons=(reason,), notes=notes)
    if not holder.source:
        reason = f"version {holder.number}, which holds it, was deleted"
        return replace(_unproven(name, alias, holder.number, reason), notes=notes)
    if last is None or last.claim.version != holder:
        before = f"from version {last.claim.version.number} (by {last.claim}) " if last else ""
        reason = f"it was moved by hand {before}to version {holder.number}: its claim log has no such claim"
        if last and last.claim.version.number == holder.number:
            reason = last.claim.version.difference(holder)
        return replace(_unproven(name, alias, holder.number, reason), notes=notes)
    decision, claim = verify_version(store, name, holder.number, alias).decision, last.claim
    return AliasAudit(
        model=name,
        alias=alias,
        version=holder.number,
        valid=decision.passed,
        reasons=decision.reasons,
        set_by=claim.by,
        set_at=claim.at.isoformat(timespec="seconds"),
        kind=claim.kind,
        notes=notes,
    )


def _notes(claims: ClaimLog, holder: VersionId | None) -> Iterator[str]:
    """Yield what else the claim log shows: moves that it does not explain, a claim that has not ended, and what is no claim."""
    for before, after in pairwise(claims.moves(holder)):
        then, now = before.claim.version, after.claim.version
        if now.model_created_ms != then.model_created_ms:
            yield f"before {after.claim}, {then.difference(now)}"
        elif after.claim.previous != then:
            yield f"before {after.claim}, it was moved by hand from version {then.number} to {format_version(after.claim.previous)}"
    last = claims.last
    if last is not None and last.pending:
        yield f"{last.claim} has not ended"
    yield from few(claims.skipped)


def _restored(store: MlflowStore, found: AliasAudit, timeouts: ClaimTimeouts, *, dry_run: bool) -> AliasAudit:
    reason = f"{format_version(found.version)}: {next(iter(found.reasons), 'it does not verify')}"
    way_back = AliasRollback(store=store, name=found.model, alias=found.alias, kind="restore", reason=reason, timeouts=timeouts)
    try:
        back = way_back.run(dry_run=dry_run)
    except (UsageError, AliasBusyError) as error:  # the claim log is gone by now, or somebody moves the alias
        return replace(found, notes=(*found.notes, f"not restored: {error}"))
    if back.version is None:
        return replace(found, notes=(*found.notes, *(f"not restored: {problem}" for problem in back.decision.reasons)))
    return replace(found, restorable=back.version) if dry_run else replace(found, restored=back.version)
