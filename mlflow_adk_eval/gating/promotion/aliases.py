"""Looking after aliases that were set: taking one back (`AliasRollback`), and finding those that somebody moved (`audit_in`).

Both go by the claim log of the alias, which says who set it where, and by `verify`, which says whether a version's record still holds. A
rollback is a claim like a promotion and goes through the same steps under the claim, with the record by which the version once passed, as
that comes out today. An audit that restores is a rollback of each alias whose version has no record that verifies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

from mlflow_adk_eval.errors import AliasBusyError, UsageError
from mlflow_adk_eval.gating.promotion import record as records
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, ClaimLogError, ClaimParams, aliases_in
from mlflow_adk_eval.gating.promotion.promote import changed_since, claimed, patiently
from mlflow_adk_eval.gating.promotion.verify import Verification, recreated, verify_version
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.text import few

LAST_ROLLBACK = f"{records.HIDDEN}.last_rollback"
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
            return f"{self.alias} of {self.model!r} stays at {records.format_version(self.previous)}"
        return f"{self.alias} of {self.model!r} goes back from {records.format_version(self.previous)} to version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasRollback:
    """How an alias is to be taken back."""

    store: MlflowStore
    name: str
    alias: str
    kind: RollbackKind
    reason: str
    wait_s: float = 0.0
    """For how long to wait for others who are setting the alias, to look at everything again then."""

    def run(self, to: str | None = None, *, dry_run: bool = False) -> RollbackResult:
        """Take the alias back to the last version before that verifies, or to a given one if that does.

        Raises:
            UsageError: if there is no such model.
            AliasBusyError: if others are still at it.
        """
        store, name, alias = self.store, self.name, self.alias

        def attempt() -> RollbackResult:
            # (1) Read the claim log before anything that is decided on: whoever claims after this is noticed.
            claims = store.claim_log(name, alias)
            holder = store.holder(name, alias)
            held = holder.number if holder else None

            # (2) To restore, it must be proven that the alias is not where it belongs: no claim set it there, or the record of that one is
            # false. Evidence that was edited, deleted or merely tagged proves nothing: else whoever may edit it could move the alias back.
            rightful = claims.rightful_holder(holder) == holder
            if self.kind == "restore" and rightful and not (held and self._verify(held).disproven):
                return self._stay(holder, [f"the alias {alias} now agrees with its claim log, and nothing disproves its promotion record"])

            # (3) Find the last version that held the alias and whose record comes to a pass today.
            problems: list[str] = []
            passed: records.Record | None = None
            former = dict.fromkeys(version.number for version in reversed(claims.former_holders(holder)) if version.number != held)
            for version in [to] if to else former:
                found = self._verify(version) if version != held else Verification(decision=records.undecided("it already holds the alias"))
                if found.record is not None and found.decision.passed:
                    passed = replace(found.record, decision=records.stamped(found.decision, store.clock()))
                    break
                problems += [f"version {version} cannot hold the alias {alias}: {reason}" for reason in found.decision.reasons]
                if self.kind == "restore" and not found.disproven:
                    break  # to go back further could be what somebody spoilt its evidence for
            if passed is None:
                return self._stay(holder, problems or [f"the claim log of {name!r} has no earlier holder of the alias {alias}"])
            record = replace(passed, kind=self.kind, previous=holder, claim=claims.next, reason=self.reason)
            to_version, decision = record.target.version, record.decision
            done = RollbackResult(model=name, alias=alias, kind=self.kind, previous=held, version=to_version, decision=decision)
            if dry_run:
                return done

            # (4) Claim the alias, keep the record of what the pass comes to today, look again, confirm the claim and set the alias.
            with claimed(store, record, claims) as claim:
                store.write(record)
                claim.require(changed_since(store, record))
                claim.confirm()
                claim.set_alias()

            # (5) Note on both versions what happened before the claim ends and others may go on.
            if not claim.problem:
                self._note(record)
            problem = claim.end() or claim.problem
            return self._stay(holder, [problem], record.decision) if problem else done

        return patiently(attempt, store, name, alias, self.wait_s)

    def _verify(self, version: str) -> Verification:
        try:
            return verify_version(self.store, self.name, version, self.alias)
        except UsageError as error:
            return Verification(decision=records.undecided(str(error)), disproven=True)

    def _stay(self, holder: records.VersionId | None, problems: Sequence[str], decision: Decision | None = None) -> RollbackResult:
        decision = records.stamped(records.with_problems(decision or records.undecided(), problems), self.store.clock())
        previous = holder.number if holder else None
        return RollbackResult(model=self.name, alias=self.alias, kind=self.kind, previous=previous, version=None, decision=decision)

    def _note(self, record: records.Record) -> None:
        """Note on both versions that the alias was taken back."""
        with suppress(UsageError):  # a version that was deleted at once needs no tags
            self.store.tag(record.target, record.tags(LAST_ROLLBACK) | {f"{LAST_ROLLBACK}.reason": self.reason, LAST_ROLLBACK: self.kind})
        if self.kind == "rollback" and record.previous is not None:
            left = replace(record.target, version=record.previous.number)
            note = f"for version {record.target.version} by {record.decision.decided_by} at {record.decision.decided_at}: {self.reason}"
            with suppress(UsageError):
                self.store.tag(left, {f"{records.HIDDEN}.given_up.{self.alias}": note})


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
    store: MlflowStore, name: str, alias: str | None = None, *, restore: bool = False, dry_run: bool = False, required: bool = True
) -> tuple[AliasAudit, ...]:
    """Look at an alias of a model, or at each that was ever promoted; `restore`: and move back what is proven to be wrong.

    Args:
        store: where everything is.
        name: the model.
        alias: the alias; ``None``: each that was ever promoted.
        restore: whether to move back an alias that no claim set where it is, or whose record is proven false.
        dry_run: whether to say only where it would be moved.
        required: whether the model was asked for by its name, so that an alias without any proof is worth telling.

    Raises:
        UsageError: if there is no such model.
    """
    pinned = set(store.checkpoint.pins().get(name, {})) if store.checkpoint else set[str]()
    params, gone = ClaimParams(params={}), ""
    try:
        params = store.claims(name)  # first: no alias is set before its claim
    except ClaimLogError as error:
        gone = str(error)
    try:
        model = store.model(name)
    except UsageError as error:
        if required:
            raise
        return tuple(AliasAudit(model=name, alias=each, version=None, valid=False, reasons=(str(error),)) for each in sorted(pinned))
    holders = model.aliases

    def was_promoted(alias: str, version: str) -> bool:
        try:
            return records.pass_tag(alias) in store.tags(records.Target(name=name, version=version, alias=alias))
        except UsageError:  # it was deleted in the moment that the alias was set, which MLflow does not prevent
            return True

    if gone or (required and not params.params):
        known = set(holders)
    else:
        promoted = (each for each, version in holders.items() if alias is not None or was_promoted(each, version))
        known = {*aliases_in(params.params), *promoted}
    known |= pinned
    wanted = alias if required else None
    concerned = [each for each in sorted(known) if alias in (None, each)] or ([wanted] if wanted else [])
    if gone:  # without a claim log nothing is proven, and there is nothing to go back by
        return tuple(AliasAudit(model=name, alias=each, version=holders.get(each), valid=False, reasons=(gone,)) for each in concerned)
    found = [_audit(store, name, each, params, model, wanted=bool(wanted)) for each in concerned]
    return tuple(_restored(store, each, dry_run=dry_run) if restore and not each.valid else each for each in found)


def _audit(store: MlflowStore, name: str, alias: str, params: ClaimParams, model: records.RegisteredModel, *, wanted: bool) -> AliasAudit:
    holder = store.holder(name, alias, model)
    result = partial(AliasAudit, model=name, alias=alias, version=holder.number if holder else None)
    try:
        claims = store.claim_log(name, alias, params)
    except ClaimLogError as error:
        return result(valid=False, reasons=(str(error),))
    moves = claims.moves(holder)
    last, result = moves[-1] if moves else None, partial(result, notes=tuple(_notes(claims, holder)))
    if last and (problem := recreated(name, alias, last.claim.version, model)):
        return result(valid=False, reasons=(problem,))
    if holder is None:
        why = f"although {last.claim} set it" if last else "and according to its claim log none ever did"
        return result(valid=last is None and not wanted, reasons=(f"no version holds it, {why}",))
    if not holder.source:
        return result(valid=False, reasons=(f"it points to version {holder.number}, but that was deleted",))
    if last is None or last.claim.version != holder:
        before = f"from version {last.claim.version.number} (by {last.claim}) " if last else ""
        reason = f"it was moved by hand {before}to version {holder.number}: its claim log does not contain that change"
        if last and last.claim.version.number == holder.number:
            reason = last.claim.version.difference(holder)
        return result(valid=False, reasons=(reason,))
    decision, claim = verify_version(store, name, holder.number, alias).decision, last.claim
    set_at = claim.at.isoformat(timespec="seconds")
    return result(valid=decision.passed, reasons=decision.reasons, set_by=claim.by, set_at=set_at, kind=claim.kind)


def _notes(claims: ClaimLog, holder: records.VersionId | None) -> Iterator[str]:
    """Yield what else the claim log shows: moves that it does not explain, a claim that has not ended, and what is no claim."""
    for before, after in pairwise(claims.moves(holder)):
        then, now = before.claim.version, after.claim.version
        if now.model_created_ms != then.model_created_ms:
            yield f"before {after.claim}, {then.difference(now)}"
        elif after.claim.previous != then:
            yield f"before {after.claim}, it was moved by hand from version {then.number} to {records.format_version(after.claim.previous)}"
    if claims.last and claims.last.pending:
        yield f"{claims.last.claim} is not finished"
    yield from few(claims.skipped)


def _restored(store: MlflowStore, found: AliasAudit, *, dry_run: bool) -> AliasAudit:
    reason = f"{records.format_version(found.version)}: {next(iter(found.reasons), 'it does not verify')}"
    way_back = AliasRollback(store=store, name=found.model, alias=found.alias, kind="restore", reason=reason)
    try:
        back = way_back.run(dry_run=dry_run)
    except (UsageError, AliasBusyError) as error:  # the claim log is gone by now, or somebody moves the alias
        return replace(found, notes=(*found.notes, f"not restored: {error}"))
    if back.version is None:
        return replace(found, notes=(*found.notes, *(f"not restored: {problem}" for problem in back.decision.reasons)))
    return replace(found, restorable=back.version) if dry_run else replace(found, restored=back.version)
