"""Setting an alias so that no two decisions about it can both be carried out.

MLflow has no compare-and-set for aliases. An `AliasLock` makes one of the claim log, whose entries can be written only once: claim the next
number, check that everything is as it was decided on, write the record, check again, confirm the claim, set the alias, and end the claim.
Of several who decided on the same claim log only one gets the number; the others get `AliasBusyError`. A claim whose owner seems to be
dead is cancelled by whoever comes next, through the same entry by which its owner would have confirmed it, so that only one of the two
can succeed. All times that somebody waits by are those of MLflow's server at that moment (`MlflowStore.now`): clocks of their own would
differ, and stop while a machine sleeps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mlflow_adk_eval.errors import AliasBusyError, UsageError
from mlflow_adk_eval.gating.mlflow_store import MlflowStore
from mlflow_adk_eval.gating.promotion.claim_log import Claim, ClaimLog, Confirmation, End, Entry, Outcome, key_of, read_claim, text_of
from mlflow_adk_eval.gating.promotion.record import Record, format_version

T = TypeVar("T")
WAIT_S = 60.0
"""For how long a promotion waits for others at the same alias, unless it is told otherwise."""
_LOOK_AGAIN_S, _LONGEST_LOOK_S = 0.5, 10.0
Problems = Callable[[], Iterable[str]]
"""Reads something again, and returns what is not as it was when it was decided."""


@dataclass(frozen=True, slots=True)
class ClaimTimeouts:
    """How long a claim is respected."""

    grace_s: float = 300.0
    """For how long others wait for a claim that has not ended, before they take its owner for dead."""
    lease_s: float = 30.0
    """For how long its owner may begin to set the alias after it has confirmed the claim; far less, since that request takes time, too."""


TIMEOUTS = ClaimTimeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasLock:
    """A claim to be made for a record, and what has to be checked before the alias is set."""

    store: MlflowStore
    record: Record
    claims: ClaimLog
    """As it was before the decision was made."""
    prechecks: Problems
    """Between the claim and the tag on the version; may take long."""
    prepare: Callable[[], None]
    """Writes what must be there before the alias is set."""
    final_checks: Problems
    """Right before the claim is confirmed; must not take long."""
    timeouts: ClaimTimeouts

    def set_alias(self, finish: Callable[[str], T]) -> T:
        """Set the alias under a claim.

        Args:
            finish: notes that the alias was set, or why it was not, before others may go on. It is called again if it turns out last that
                the claim had been given up.

        Raises:
            AliasBusyError: if it was not set since the claim went to somebody else.
        """
        self.store.open_claim_log(self.record.target.name)
        claim = self._claim(self._settled())
        try:
            problem = self._check_and_set(claim)
        except UsageError as error:  # what was there when it was decided is gone
            problem = f"{error}; it did when the decision was made"
        except Exception as error:
            self._give_up(claim, error)
            raise
        finished = finish(problem)
        outcome, by_others = self._end(claim, "refused" if problem else "done", problem)
        if by_others:
            self._give_back()
        if problem or outcome == "done":
            return finished
        return finish(f"MLflow took so long to set the alias {self.claims.alias} that somebody else gave the claim up as {outcome}")

    def _check_and_set(self, claim: Claim) -> str:
        """Return why the alias was not set; empty if it was.

        Raises:
            AliasBusyError: if that took so long that it might be somebody else's turn, which says nothing about the version.
        """
        if problem := next(iter(self.prechecks()), ""):
            return problem
        self.store.write(self.record)
        self.prepare()
        if problem := next(iter(self.final_checks()), ""):
            return problem
        target = self.record.target
        confirmed_at = self.store.now(target.name)
        mine = text_of(Confirmation(claim=claim.id, at=confirmed_at), self.store.signer)
        if self._write(claim, "go", mine) != mine:
            raise AliasBusyError(f"the claim to the alias {target.alias} took so long that somebody else cancelled it")
        took_s = (self.store.now(target.name) - confirmed_at).total_seconds()
        if took_s > self.timeouts.lease_s:
            slow = f"MLflow took {took_s:.0f} s to confirm the claim, so the alias {target.alias} was not set: others may no longer wait for it"
            self._end(claim, "refused", slow)
            raise AliasBusyError(slow)
        self.store.set_alias(target)
        found = self.store.holder(target.name, target.alias)
        moved = f"the alias {target.alias} was set on {target}, but at once moved to {format_version(found)}"
        return "" if found == self.record.version else moved

    def _give_up(self, claim: Claim, error: Exception) -> None:
        """End a claim whose owner failed, so that nobody has to wait until it seems to be dead.

        One that was confirmed is left as it is if the alias is where it wanted it: then the request arrived, whatever became of the answer.
        """
        if not self._cancel(claim) and self.store.holder(self.record.target.name, claim.alias) == self.record.previous:
            self._end(claim, "refused", f"it was not carried out: {type(error).__name__}")

    def _settled(self) -> ClaimLog:
        """Return the claim log in which the last claim has ended, if its owner seems to be dead by ending it.

        Raises:
            AliasBusyError: if somebody is at work, or somebody claimed since the decision was made.
        """
        name, last = self.record.target.name, self.claims.last
        if last is not None and last.pending:
            holder = self.store.holder(name, self.claims.alias)
            carried_out = last.carried_out(holder, self.record.version)
            if not carried_out and (problem := self.claims.in_progress(self.store.now(name), self.timeouts.grace_s)):
                raise AliasBusyError(problem)
            if last.state == "open":
                if not self._cancel(last.claim):
                    raise AliasBusyError(f"{last.claim} was confirmed at this very moment")
            else:
                self._end(last.claim, "done" if last.set_on(holder) else "lost", "its owner did not end it")
        elif self.claims.log:  # nothing can be added to the last claim any more, and of those that follow it only one can be written
            return self.claims
        found = self.store.claim_log(name, self.claims.alias)
        if found.next != self.claims.next:
            raise AliasBusyError(found.claimed_since(self.claims.next))
        return found

    def _claim(self, claims: ClaimLog) -> Claim:
        name = self.record.target.name
        claim = Claim.of(self.record, claims, self.store.now(name))
        mine = text_of(claim, self.store.signer)
        found = self.store.claim(name, key_of(claims.alias, claims.next), mine)
        if found != mine:
            raise AliasBusyError(f"the alias {claims.alias} was claimed in the meantime: {read_claim(found) or found}")
        return claim

    def _cancel(self, claim: Claim) -> bool:
        """Keep a claim from being confirmed; return whether it will not be, now and for ever."""
        self._write(claim, "go", text_of(Confirmation(claim=claim.id, cancelled=True, at=self.store.clock()), self.store.signer))
        entry = self._entry(claim)
        return entry is None or entry.state == "cancelled"

    def _end(self, claim: Claim, outcome: Outcome, reason: str) -> tuple[str, bool]:
        """End a claim, unless somebody has, and return what came of it by what the claim log says now, and whether others ended it.

        What cannot be read there stands in nobody's way: the claim was confirmed and not given up, so it was carried out.
        """
        mine = text_of(End(claim=claim.id, outcome=outcome, at=self.store.clock(), reason=reason), self.store.signer)
        if (found := self._write(claim, "end", mine)) == mine:  # nobody waits by the time of an end, and nothing follows it
            return outcome, False
        entry = self._entry(claim)
        return "lost" if entry is None else outcome if entry.state == "confirmed" else entry.state, found != mine

    def _entry(self, claim: Claim) -> Entry | None:
        return self.store.claim_log(self.record.target.name, claim.alias).entry(claim.number)

    def _write(self, claim: Claim, suffix: str, text: str) -> str:
        return self.store.claim(self.record.target.name, key_of(claim.alias, claim.number, suffix, claim.id), text)

    def _give_back(self) -> None:
        """Put the alias where the claim log has it, if it is where this claim set it too late and nobody is at work on it."""
        target = self.record.target
        with suppress(UsageError):  # the version that had it is gone
            claims, holder = self.store.claim_log(target.name, target.alias), self.store.holder(target.name, target.alias)
            rightful = claims.rightful_holder(holder)
            if rightful is None or not holder == self.record.version != rightful or claims.pending:
                return
            if self.store.version(target.name, rightful.number).id == rightful:
                self.store.set_alias(replace(target, version=rightful.number))


@dataclass(slots=True)
class Patience:
    """How long to wait for others at an alias, of which there is one for each promotion."""

    wait_s: float = WAIT_S
    _began: float = field(default_factory=time.monotonic)

    def wait(self, busy: AliasBusyError, is_over: Callable[[], bool]) -> None:
        """Wait until they seem to be done, which is cheap to find out, or so long that their owner may be dead.

        Raises:
            AliasBusyError: if there was enough of that.
        """
        deadline = self._began + self.wait_s
        if time.monotonic() >= deadline:
            raise busy
        looked = time.monotonic() + _LONGEST_LOOK_S
        while (now := time.monotonic()) < min(deadline, looked):
            time.sleep(min(deadline - now, _LOOK_AGAIN_S * (1 + random.random())))  # noqa: S311 - no secret
            if is_over():
                return


def changed_since(store: MlflowStore, record: Record) -> Iterator[str]:
    """Yield that the version, or who holds the alias, is not what it was when the record was decided."""
    target, model = record.target, store.model(record.target.name)
    version, holder = store.version(target.name, target.version, model), store.holder(target.name, target.alias, model)
    if version.status != "READY":
        yield f"{target} became {version.status} while the evidence was read"
    if difference := record.version.difference(version.id):
        yield f"{target} was replaced while the evidence was read: {difference}"
    if holder != record.previous:
        moved = f"moved from {format_version(record.previous)} to {format_version(holder)} while the evidence was read"
        yield f"the alias {target.alias} {moved}, so it was not set"
