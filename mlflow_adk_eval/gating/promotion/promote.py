"""Setting an alias on evidence: decide, claim, check that everything is as it was, record, set it, look again.

`promote_in` has the whole way as numbered steps, in the order in which they make the promotion safe. It reads the claim log first and the
evidence after it, so that whoever claims in between is noticed, and decides on runs that were read and examined once. The cases that a
policy holds out are scored when everything else passes, and each use is an entry of the claim log before the agent is called. A refusal is
recorded, too: in the claim log, and on the version's tags, or beside them where those hold the record of an earlier pass.

MLflow has no compare-and-set for aliases. A `ClaimedAlias` makes one of the claim log, whose entries can be written only once: claim the next
number, check that everything is as it was decided on, write the record, check again, confirm the claim, set the alias, and end the claim.
Of several who decided on the same claim log only one gets the number; the others get `AliasBusyError`. A claim whose owner seems to be
dead is cancelled by whoever comes next, through the same entry by which its owner would have confirmed it, so that only one of the two
can succeed. All times that somebody waits by are those of MLflow's server at that moment (`MlflowStore.now`): clocks of their own would
differ, and stop while a machine sleeps.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import TypeVar

from mlflow_adk_eval.errors import AgentError, AliasBusyError, UsageError
from mlflow_adk_eval.gating.policy.model import Holdout, Policy
from mlflow_adk_eval.gating.promotion import record as records
from mlflow_adk_eval.gating.promotion.baseline_search import attempt_in, eval_set_of
from mlflow_adk_eval.gating.promotion.claim_log import Claim, ClaimLog, ClaimLogError, Confirmation, End, Outcome, read_claim, text_of
from mlflow_adk_eval.gating.promotion.verify import as_then, decide_in, recorded_pass
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.holdout import HeldOut, HoldoutEvaluator, HoldoutRequest, with_holdout
from mlflow_adk_eval.redact import message_of
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun, examine
from mlflow_adk_eval.runs.manifest import Evidence

T = TypeVar("T")
WAIT_S = 60.0
"""For how long a promotion waits for others at the same alias, unless it is told otherwise."""
_HOW_TO_SCORE = (
    "give the candidate's agent and the eval set: --agent AGENT --eval-set FILE, or holdout=make_holdout_evaluator(AGENT, eval_set=FILE)"
)
_PARTS = ("lifecycle_stage", "status", "end_time", "params", "tags", "metrics", "model_ids", "manifest", "artifacts")


def promote_in(
    store: MlflowStore,
    target: records.Target,
    run_id: str,
    policy: Policy,
    *,
    baseline: Callable[[ExaminedRun], Baseline | None] | Baseline | None = None,
    holdout: HoldoutEvaluator | None = None,
    dry_run: bool = False,
    wait_s: float = 0.0,
) -> Decision:
    """Decide on a promotion, record the decision, and set the alias if it is *passed*.

    Args:
        store: where everything is.
        target: the version and the alias.
        run_id: the run with the evidence.
        policy: what is demanded.
        baseline: what the run is compared with, or what finds it.
        holdout: scores the cases that the policy holds out; ``None``: nobody does, so that such a policy is never met.
        dry_run: whether to write nothing.
        wait_s: for how long to wait for others who are setting the alias. Then it is decided again: they may have changed it.

    Raises:
        AliasBusyError: if they are still at it; unless the evidence fails whatever they do.
    """
    examined = cache(lambda: examine(store.evidence(run_id)))  # read again under the claim, however often this is
    held = _HoldoutUse(store=store, policy=policy, holdout=policy.holdout, evaluator=holdout) if policy.holdout else None

    def attempt() -> Decision:
        # (1) Read the claim log before anything that is decided on: whoever claims after this is noticed.
        try:
            claims = store.claim_log(target.name, target.alias)
        except ClaimLogError as error:
            untold = "this refusal is not in the claim log, so it does not count as an attempt"
            return records.stamped(replace(records.undecided(str(error), run_id=run_id), notes=(untold,)), store.clock())

        # (2) Read the version, who holds the alias, the evidence and what it is compared with. Each run is examined once.
        model = store.model(target.name)
        version, holder = store.version(target.name, target.version, model), store.holder(target.name, target.alias, model)
        run = examined()
        compared = baseline(run) if callable(baseline) else baseline
        former = compared.run.evidence if compared and compared.run else None

        # (3) Decide by the policy. Whatever that comes to, the evidence must be about this very version, and what it is compared with
        # must be where its alias is.
        now, place = store.clock(), attempt_in(claims, policy, run, compared, holder)
        decision = decide_in(store, run, policy, now=now, baseline=compared, attempt=place)
        moved = list(_baseline_moved(store, target, policy, compared, holder))
        decision = records.stamped(records.with_problems(decision, [*records.version_problems(target, version, run.evidence), *moved]), now)

        # (4) Decide nothing while others are at the alias, or have been since (1), unless the evidence fails whatever they do.
        pending = claims.last is not None and claims.last.pending and not claims.last.carried_out(holder, version.id)
        in_progress = claims.in_progress(now, store.grace_s) if pending else ""  # the claim asks for the server's time again
        if in_progress and decision.verdict != "failed":
            raise AliasBusyError(in_progress)
        if moved and decision.verdict != "failed" and (since := store.claim_log(target.name, target.alias)).next != claims.next:
            raise AliasBusyError(since.claimed_since(claims.next))

        # (5) If everything else passes, have the held-out cases scored, once. The use is an entry of the claim log before the agent is
        # called: it counts whatever becomes of this process. That takes its time, so all is read and decided again afterwards.
        record = records.Record(
            target=target,
            version=version.id,
            previous=holder,
            claim=claims.next,
            policy=policy,
            compared=_recorded(compared),
            eval_set=eval_set_of(run),
            decision=decision,
        )
        if held and decision.passed and not dry_run and isinstance(run, ReadableRun):
            if held.score(run, record, claims):
                return attempt()
            record = held.decided(record, run, now)
            decision = record.decision

        # (6) Leave a record of what is refused, and go no further. It takes a number of the claim log, since the place of the next one
        # depends on it.
        if dry_run:
            return decision
        if not decision.passed and in_progress:
            told = f"this refusal is not in the claim log, so it does not count as an attempt: {in_progress}"
            return _refuse(store, replace(record, decision=replace(decision, notes=(*decision.notes, told))), beside=True)
        if not decision.passed:
            enter(store, record, claims)
            return _refuse(store, record)

        earlier = version.tags.get(records.pass_tag(target.alias))
        decided_on = (run.evidence, former, held.run.evidence if held and held.run else None)
        try:
            # (7) Claim the number that was free in (1): of all who decided on the same claim log, one gets it.
            with claimed(store, record, claims) as claim:
                # (8) Read every byte of the evidence again, since it may have been rewritten while this waited for the claim. It is
                # compared and not examined again: what is the same comes to the same decision, and what is not is refused
                # whatever it comes to.
                claim.require(_evidence_changed(store, {each.run_id: each for each in decided_on if each}.values()))

                # (9) Keep the record, and then what leads to it: should this process die right after the alias is set, the version has it.
                store.write(record)
                store.tag(target, {records.pass_tag(target.alias): str(record.location)})

                # (10) Look again at what may change with a single request each, so that it comes last; the evidence would take too long here.
                claim.require(changed_since(store, record))
                claim.require(_baseline_moved(store, target, policy, compared, holder))

                # (11) Confirm the claim, so that nobody can cancel it any more, and go on only if that was quick.
                claim.confirm()

                # (12) Set the alias, and look whether it is there.
                claim.set_alias()
        except AliasBusyError:
            _untag(store, record, earlier)
            raise

        # (13) Note what came of it before the claim ends and others may go on; again if they had given it up.
        noted = _finish(store, record, earlier, claim.problem)
        too_late = claim.end()
        return _finish(store, record, earlier, too_late) if too_late else noted

    return patiently(attempt, store, target.name, target.alias, wait_s)


def _recorded(compared: Baseline | None) -> records.RecordedBaseline | None:
    if compared is None:
        return None
    run = {"run_id": compared.run.evidence.run_id, "sha256": compared.run.evidence.sha256} if compared.run else {}
    return records.RecordedBaseline(name=compared.name, version=compared.version, problems=compared.problems, **run)


@dataclass(slots=True, kw_only=True)
class _HoldoutUse:
    """What comes of the held-out cases in one promotion, however often it is decided again: they are scored once."""

    store: MlflowStore
    policy: Policy
    holdout: Holdout
    evaluator: HoldoutEvaluator | None
    run: ExaminedRun | None = None
    problem: str = ""
    """Why there is no such run."""
    eval_set: str = ""
    use: int = 0

    def score(self, candidate: ReadableRun, record: records.Record, claims: ClaimLog) -> bool:
        """Have the cases scored, unless they were or cannot be; return whether that is an entry of the claim log now.

        Args:
            candidate: the run that is decided on.
            record: the decision so far.
            claims: the claim log, as it was before that.

        Raises:
            AliasBusyError: if others took the next number, so that nothing was scored.
        """
        if self.evaluator is None:
            self.problem = f"holdout: the policy holds out cases, and nobody scores them; {_HOW_TO_SCORE}"
        if self.run or self.problem or self.evaluator is None:
            return False

        def begin(digest: str) -> None:
            before, allowed = claims.uses(digest), self.holdout.uses
            self.eval_set, self.use = digest, before + 1
            if before >= allowed:
                raise UsageError(f"the held-out cases were scored {before} times, and the policy allows {allowed}: replace these cases")
            self._champion(record)
            enter(self.store, replace(record, decision=replace(record.decision, verdict="undecided")), claims, holdout=digest)

        request = HoldoutRequest(holdout=self.holdout, model_id=record.version.model_id or "", candidate=candidate, begin=begin)
        try:
            self.run = examine(self.store.evidence(self.evaluator(request)))
        except (UsageError, AgentError) as error:
            self.problem = f"holdout: {error}"
        except (SystemExit, BaseExceptionGroup) as error:
            if isinstance(error, Exception):
                raise
            # Code that was imported or called must not end the promotion, least of all with exit code 0.
            self.problem = f"holdout: {type(error).__name__}: {message_of(error)}"
        return self.store.claim_log(record.target.name, record.target.alias).next != claims.next

    def decided(self, record: records.Record, candidate: ExaminedRun, now: datetime) -> records.Record:
        """Return the record of a pass, decided together with what the cases came to."""
        if self.run is None:
            return replace(record, decision=records.with_problems(record.decision, [self.problem]))
        try:
            champion = self._champion(record)
        except UsageError as error:  # another one than when they were scored
            return replace(record, decision=records.with_problems(record.decision, [f"holdout: {error}"]))
        held, evidence = HeldOut(run=self.run, eval_set=self.eval_set, use=self.use, champion=champion), self.run.evidence
        decision = with_holdout(record.decision, self.policy, candidate, held, now=now, calibration=self.store.calibration)
        run = {"run_id": evidence.run_id, "sha256": evidence.sha256}
        recorded = records.RecordedHoldout(eval_set=self.eval_set, use=self.use, **run, compared=_recorded(champion))
        return replace(record, decision=decision, holdout=recorded)

    def _champion(self, record: records.Record) -> Baseline | None:
        """Return the champion's run of the held-out cases, by its promotion record; ``None`` where none is compared.

        Raises:
            UsageError: if it has none, or that changed.
        """
        champion, source = record.champion, self.policy.baseline
        if self.holdout.max_drop is None or champion is None or champion == record.version or source is None:
            return None
        model, alias = source.model or record.target.name, source.alias or record.target.alias
        name = record.compared.name if record.compared else f"version {champion.number} of {model!r}"
        found = recorded_pass(self.store, model, champion.number, alias, self.store.version(model, champion.number))
        if isinstance(found, str) or found.problems:
            raise UsageError(found if isinstance(found, str) else found.problems[0])
        then = found.record.holdout
        if then is None or then.eval_set != self.eval_set:
            again = "promote it again by this policy, with its agent, to score them"
            raise UsageError(f"the held-out cases were not scored when {name}, was promoted: {again}")
        return Baseline(name=name, version=champion, run=as_then(self.store, f"the held-out cases of {name},", then.run_id, then.sha256))


def _finish(store: MlflowStore, record: records.Record, earlier: str | None, problem: str) -> Decision:
    if not problem:
        _tag(store, record.target, {**record.tags(), records.pass_tag(record.target.alias): str(record.location)})
        with suppress(UsageError):  # a version or run that was deleted at once needs no description
            store.describe(record)
        return record.decision
    _untag(store, record, earlier)
    return _refuse(store, replace(record, decision=records.stamped(records.with_problems(record.decision, [problem]), store.clock())))


def _untag(store: MlflowStore, record: records.Record, earlier: str | None) -> None:
    """Have the tag of a version that leads to its record not lead to one that came to nothing."""
    target, key = record.target, records.pass_tag(record.target.alias)
    with suppress(UsageError):
        if store.tags(target).get(key) == str(record.location):
            if earlier:
                store.tag(target, {key: earlier})
            else:
                store.untag(target, key)


def _tag(store: MlflowStore, target: records.Target, tags: Mapping[str, str]) -> None:
    """Set tags, again if a refusal of the same version is being noted at the same time. The one that leads to the record is there already."""
    missing = {key: value for key, value in tags.items() if key != records.pass_tag(target.alias)}
    with suppress(UsageError):  # a version that was deleted at once needs no tags
        for _ in range(3):
            store.tag(target, missing)
            found = store.tags(target)
            if not (missing := {key: value for key, value in tags.items() if found.get(key) != value}):
                return


def _evidence_changed(store: MlflowStore, decided_on: Iterable[Evidence]) -> Iterator[str]:
    """Yield the runs that do not hold any more what was decided on."""
    for before in decided_on:
        today = store.evidence(before.run_id)
        if parts := [name for name in _PARTS if getattr(today, name) != getattr(before, name)]:
            yield f"run {before.run_id} changed during the decision: its {', '.join(parts).replace('_', ' ')}"


def _baseline_moved(
    store: MlflowStore, target: records.Target, policy: Policy, compared: Baseline | None, holder: records.VersionId | None
) -> Iterator[str]:
    """Yield that the alias whose version was compared with is somewhere else."""
    source = policy.baseline
    if compared is None or source is None or source.alias is None or compared.problems:
        return
    model = source.model or target.name
    found = holder if (model, source.alias) == (target.name, target.alias) else store.holder(model, source.alias)
    if found != compared.version:
        difference = compared.version.difference(found) if found and compared.version and found.number == compared.version.number else ""
        where = f"at {records.format_version(found)} now" + (f", a different version: {difference}" if difference else "")
        yield f"it was compared with {compared.name}, but the alias {source.alias} of {model!r} is {where}"


def _refuse(store: MlflowStore, record: records.Record, *, beside: bool = False) -> Decision:
    """Record a refusal; `beside`: leave the version's own tags alone, since somebody is at work on it.

    The same goes for a version that holds an alias by an earlier pass, whose record must stay.
    """
    target = record.target
    store.write(record)
    with suppress(UsageError):  # a version that was deleted needs no tags
        tags, aliases = store.tags(target), store.model(target.name).aliases
        if not beside and aliases.get(target.alias) != target.version and records.pass_tag(target.alias) in tags:
            store.untag(target, records.pass_tag(target.alias))
        holds_pass = tags.get(records.TAG) == "passed" and aliases.get(tags.get(f"{records.TAG}.alias", "")) == target.version
        prefix = records.REFUSAL if beside or holds_pass else records.TAG
        # The verdict goes first, so that no moment shows a pass with the details of a refusal.
        store.tag(target, dict(reversed(record.tags(prefix).items())))
        if prefix == records.TAG:
            store.describe(record)
    return record.decision


class _RefusedError(Exception):
    """An alias that was claimed is not set, and why."""


@dataclass(slots=True, kw_only=True)
class ClaimedAlias:
    """A claim that its owner has, and what is to come of it. `claimed` says in which order its methods are called."""

    store: MlflowStore
    record: records.Record
    claim: Claim
    problem: str = ""
    """Why the alias was not set; empty if it was."""

    def require(self, problems: Iterable[str]) -> None:
        """Go no further if there is a problem: something is not as it was when it was decided."""
        for problem in problems:
            raise _RefusedError(problem)

    def confirm(self) -> None:
        """Confirm the claim, after which it can be cancelled no more.

        Raises:
            AliasBusyError: if that took so long that it might be somebody else's turn, which says nothing about the version.
        """
        target = self.record.target
        confirmed_at = self.store.now(target.name)
        if not _stands(self.store, self.claim, "go", Confirmation(claim=self.claim.id, at=confirmed_at)):
            raise AliasBusyError(f"another process cancelled the claim to the alias {target.alias}, because it took too long")
        took_s = (self.store.now(target.name) - confirmed_at).total_seconds()
        if took_s > self.store.lease_s:
            slow = f"MLflow took {took_s:.0f} s to confirm the claim, so the alias {target.alias} was not set"
            _end(self.store, self.claim, "refused", f"{slow}: others may have stopped waiting")
            raise AliasBusyError(f"{slow}: others may have stopped waiting")

    def set_alias(self) -> None:
        """Set the alias, and look whether it is there."""
        target = self.record.target
        self.store.set_alias(target)
        holder = self.store.holder(target.name, target.alias)
        if holder != self.record.version:
            raise _RefusedError(f"the alias {target.alias} was set on {target}, but immediately moved to {records.format_version(holder)}")

    def end(self) -> str:
        """End the claim, and return why the alias was not set after all, if it turns out last that others gave the claim up.

        Then the alias is put where the claim log has it, if it is where this claim set it too late and nobody is at work on it.
        """
        outcome, by_others = _end(self.store, self.claim, "refused" if self.problem else "done", self.problem)
        if by_others:
            target = self.record.target
            with suppress(UsageError):  # the version that had it is gone
                claims, holder = self.store.claim_log(target.name, target.alias), self.store.holder(target.name, target.alias)
                rightful = claims.rightful_holder(holder)
                too_late = rightful is not None and holder == self.record.version != rightful and not claims.pending
                if rightful is not None and too_late and self.store.version(target.name, rightful.number).id == rightful:
                    self.store.set_alias(replace(target, version=rightful.number))
        if self.problem or outcome == "done":
            return ""
        return f"MLflow took so long to set the alias {self.claim.alias} that another process closed the claim as {outcome}"


def enter(store: MlflowStore, record: records.Record, claims: ClaimLog, *, holdout: str = "") -> Claim:
    """Enter a decision into the claim log, under the number that was free when it was made.

    Args:
        store: where everything is.
        record: the decision. One that is *passed* claims the alias; any other is complete with that.
        claims: the claim log, as it was before the decision was made.
        holdout: the digest of the held-out cases that are scored next; empty: none are.

    Raises:
        AliasBusyError: if somebody is at work, or somebody claimed since the decision was made.
    """
    name, alias, last = record.target.name, claims.alias, claims.last
    store.open_claim_log(name)
    settled = claims  # nothing can be added to its last claim any more, and of those that follow it only one can be written
    if not claims.log or claims.pending:
        if last is not None and last.pending:  # unless somebody is at work, its owner seems to be dead, and it is ended for them
            holder = store.holder(name, alias)
            carried_out = last.carried_out(holder, record.version)
            if not carried_out and (problem := claims.in_progress(store.now(name), store.grace_s)):
                raise AliasBusyError(problem)
            if last.state == "confirmed":
                _end(store, last.claim, "done" if last.set_on(holder) else "lost", "its owner did not close it")
            elif not _cancelled(store, last.claim):
                raise AliasBusyError(f"{last.claim} was confirmed just now")
        settled = store.claim_log(name, alias)
        if settled.next != claims.next:
            raise AliasBusyError(settled.claimed_since(claims.next))
    claim = Claim(
        id=uuid.uuid4().hex,
        log=settled.log,
        model=name,
        alias=alias,
        number=settled.next,
        before=settled.head,
        kind=record.kind,
        version=record.version,
        previous=record.previous,
        record=str(record.location),
        by=record.decision.decided_by,
        at=store.now(name),
        reason=record.reason,
        verdict=record.decision.verdict,
        champion=record.champion,
        run_id=record.decision.run_id,
        champion_run_id=record.compared.run_id if record.compared else "",
        eval_set=record.eval_set,
        policy=record.decision.policy_sha256,
        holdout=holdout,
    )
    mine = text_of(claim, store.signer)
    there = store.claim(name, claim.key(), mine)
    if there != mine:
        raise AliasBusyError(f"the alias {alias} was claimed in the meantime: {read_claim(there) or there}")
    return claim


@contextmanager
def claimed(store: MlflowStore, record: records.Record, claims: ClaimLog) -> Generator[ClaimedAlias, None, None]:
    """Claim the alias of a record, and leave to the block what is to be checked and written before it is confirmed and set.

    What the block refuses (`ClaimedAlias.require`), and what it misses, is the claim's `problem` afterwards. When that is noted, and
    before others may go on, the claim is ended (`ClaimedAlias.end`).

    Args:
        store: where everything is.
        record: what the alias is to be set by.
        claims: the claim log, as it was before the decision was made.

    Raises:
        AliasBusyError: if somebody is at work, or somebody claimed since the decision was made.
    """
    claim = enter(store, record, claims)
    owned = ClaimedAlias(store=store, record=record, claim=claim)
    try:
        yield owned
    except _RefusedError as refusal:
        owned.problem = str(refusal)
    except UsageError as error:  # what was there when it was decided is gone
        owned.problem = f"{error}; it existed when the decision was made"
    except Exception as error:
        # Nobody should have to wait until its owner seems to be dead. One that was confirmed is left as it is if the alias is where
        # it wanted it: then the request arrived, whatever became of the answer.
        if not _cancelled(store, claim) and store.holder(claim.model, claim.alias) == record.previous:
            _end(store, claim, "refused", f"it was not carried out: {type(error).__name__}")
        raise


def _stands(store: MlflowStore, claim: Claim, suffix: str, value: Confirmation | End) -> bool:
    """Write what follows a claim, and return whether that is what stands there, and not what somebody else wrote before."""
    text = text_of(value, store.signer)
    return store.claim(claim.model, claim.key(suffix), text) == text


def _cancelled(store: MlflowStore, claim: Claim) -> bool:
    """Keep a claim from being confirmed; return whether it will not be, now and for ever."""
    _stands(store, claim, "go", Confirmation(claim=claim.id, cancelled=True, at=store.clock()))
    entry = store.claim_log(claim.model, claim.alias).entry(claim.number)
    return entry is None or entry.state == "cancelled"


def _end(store: MlflowStore, claim: Claim, outcome: Outcome, reason: str) -> tuple[str, bool]:
    """End a claim, unless somebody has, and return what came of it by what the claim log says now, and whether others ended it.

    What cannot be read there stands in nobody's way: the claim was confirmed and not given up, so it was carried out.
    """
    if _stands(store, claim, "end", End(claim=claim.id, outcome=outcome, at=store.clock(), reason=reason)):
        return outcome, False  # nobody waits by the time of an end, and nothing follows it
    entry = store.claim_log(claim.model, claim.alias).entry(claim.number)
    return "lost" if entry is None else outcome if entry.state == "confirmed" else entry.state, True


def patiently(attempt: Callable[[], T], store: MlflowStore, name: str, alias: str, wait_s: float) -> T:
    """Return what an attempt to set an alias comes to, made again whenever others seem to be done, or their owner may be dead.

    Raises:
        AliasBusyError: if they are still at it after `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return attempt()
        except AliasBusyError:
            if time.monotonic() >= deadline:
                raise
        # Whether they are done is looked at once a second; after ten, all is attempted again.
        looked = min(deadline, time.monotonic() + 10)
        while (now := time.monotonic()) < looked:
            time.sleep(min(deadline - now, 0.5 * (1 + random.random())))  # noqa: S311 - no secret
            if not store.claim_log(name, alias).pending:  # which is cheap to find out
                break


def changed_since(store: MlflowStore, record: records.Record) -> Iterator[str]:
    """Yield that the version, or who holds the alias, is not what it was when the record was decided."""
    target, model = record.target, store.model(record.target.name)
    version, holder = store.version(target.name, target.version, model), store.holder(target.name, target.alias, model)
    if version.status != "READY":
        yield f"{target} became {version.status} while the evidence was being read"
    if difference := record.version.difference(version.id):
        yield f"{target} was replaced while the evidence was being read: {difference}"
    if holder != record.previous:
        moved = (
            f"moved from {records.format_version(record.previous)} to {records.format_version(holder)} while the evidence was being read"
        )
        yield f"the alias {target.alias} {moved}, so it was not set"
