"""Setting an alias so that no two decisions about it can both be carried out.

MLflow has no compare-and-set for aliases. An `AliasLock` makes one of the claim log, whose entries can be written only once: claim the next
number, check that everything is as it was decided on, write the record, check again, confirm the claim, set the alias, and end the claim.
Of several who decided on the same claim log only one gets the number; the others get `ClaimLost`. A claim whose owner seems to be
dead is cancelled by whoever comes next, through the same entry by which its owner would have confirmed it, so that only one of the two
can succeed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.mlflow_store import MlflowStore
from mlflow_adk_eval.gating.promotion.claim_log import Claim, ClaimLog, Confirmation, End, Outcome, key_of, read_claim, text_of
from mlflow_adk_eval.gating.promotion.record import Record, format_version

T = TypeVar("T")
Problems = Callable[[], Iterable[str]]
"""Reads something again, and returns what is not as it was when it was decided."""


class ClaimLost(Exception):  # noqa: N818 - no error: somebody else was faster
    """The claim went to somebody else, who may be at work on the same version."""


@dataclass(frozen=True, slots=True)
class ClaimTimeouts:
    """How long a claim is respected."""

    grace_s: float = 300.0
    """For how long others wait for a claim that has not ended, before they take its owner for dead."""
    lease_s: float = 30.0
    """For how long its owner may set the alias after it has confirmed the claim; far less, so that clocks may differ by the rest."""


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
            finish: notes that the alias was set, or why it was not, before others may go on.

        Raises:
            ClaimLost: if it was not set since the claim went to somebody else.
        """
        number, claim = self.claims.next, Claim.of(self.record)
        if problem := self._settle_last() or self._claim(number, claim):
            raise ClaimLost(problem)
        try:
            problem = self._check_and_set(number, claim)
        except UsageError as error:  # what was there when it was decided is gone
            problem = f"{error}; it did when the decision was made"
        except Exception:
            self._cancel(number, claim)  # so that nobody has to wait until its owner seems to be dead
            raise
        finished = finish(problem)
        self._end(number, "refused" if problem else "done", problem)
        return finished

    def _check_and_set(self, number: int, claim: Claim) -> str:
        """Return why the alias was not set; empty if it was."""
        if problem := next(iter(self.prechecks()), ""):
            return problem
        self.store.write(self.record)
        self.prepare()
        if problem := next(iter(self.final_checks()), ""):
            return problem
        confirmed_at = time.monotonic()
        if problem := self._confirm(number, claim):
            return problem
        took_s, target = time.monotonic() - confirmed_at, self.record.target
        if took_s > self.timeouts.lease_s:
            return f"MLflow took {took_s:.0f} s to confirm the claim, so the alias {target.alias} was not set: others may no longer wait for it"
        self.store.set_alias(target)
        found = self.store.aliases(target.name).get(target.alias)
        return (
            "" if found == target.version else f"the alias {target.alias} was set on {target}, but at once moved to {format_version(found)}"
        )

    def _settle_last(self) -> str:
        """End the last claim if its owner seems to be dead; return why that cannot be, if so."""
        last = self.claims.last
        if last is None or not last.pending:
            return ""
        if problem := self.claims.in_progress(datetime.now(UTC), self.timeouts.grace_s):
            return problem
        if last.state == "open":
            return f"{last.claim} was confirmed at this very moment" if self._cancel(last.number, last.claim) else ""
        holder = self.store.aliases(self.record.target.name).get(self.claims.alias)
        self._end(last.number, "done" if last.set_on(holder) else "lost", "its owner did not end it")
        return ""

    def _cancel(self, number: int, claim: Claim) -> bool:
        """Keep a claim from being confirmed; return whether it is already, so that the alias may be set."""
        return claim.id in self._write(number, "go", text_of(Confirmation(id=uuid.uuid4().hex, at=datetime.now(UTC))))

    def _claim(self, number: int, claim: Claim) -> str:
        mine = text_of(claim)
        found = self._write(number, "", mine)
        if found == mine:
            return ""
        return f"the alias {self.claims.alias} was claimed in the meantime: {read_claim(found) or found}"

    def _confirm(self, number: int, claim: Claim) -> str:
        mine = text_of(Confirmation(id=claim.id, at=datetime.now(UTC)))
        if self._write(number, "go", mine) == mine:
            return ""
        return f"the claim to the alias {self.claims.alias} took so long that somebody else cancelled it"

    def _end(self, number: int, outcome: Outcome, reason: str) -> None:
        self._write(number, "end", text_of(End(outcome=outcome, at=datetime.now(UTC), reason=reason)))

    def _write(self, number: int, suffix: str, text: str) -> str:
        return self.store.claim(self.record.target.name, key_of(self.claims.alias, number, suffix), text)


def alias_moved(store: MlflowStore, record: Record) -> list[str]:
    """Return that the alias is not where it was when the record was decided, if so."""
    target = record.target
    found = store.aliases(target.name).get(target.alias)
    if found == record.previous:
        return []
    moved = f"moved from {format_version(record.previous)} to {format_version(found)} while the evidence was read"
    return [f"the alias {target.alias} {moved}, so it was not set"]


def version_changed(store: MlflowStore, record: Record) -> list[str]:
    """Return that the version is not what it was when the record was decided, if so."""
    target = record.target
    found = store.version(target.name, target.version)
    if found.status != "READY":
        return [f"{target} became {found.status} while the evidence was read"]
    return [] if found.source == record.source else [f"{target} is made from {found.source!r} now, not from {record.source!r}"]
