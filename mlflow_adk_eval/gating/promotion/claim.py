"""Setting an alias so that no two decisions about it can both be carried out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.promotion.claims import (
    Claim,
    ClaimLog,
    Confirmation,
    End,
    Outcome,
    key_of,
    read_claim,
    text_of,
)
from mlflow_adk_eval.gating.promotion.record import Record
from mlflow_adk_eval.gating.promotion.target import named
from mlflow_adk_eval.gating.store import Store

T = TypeVar("T")
Looks = Callable[[], Iterable[str]]
"""Look again, and return what is not as it was when it was decided."""


class Overtaken(Exception):  # noqa: N818 - no error: somebody else was faster
    """The claim went to somebody else, who may be at work on the same version."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a claim is respected."""

    grace_s: float = 300.0
    """For how long others wait for a claim that has not ended, before they take its owner for dead."""
    lease_s: float = 30.0
    """For how long its owner may set the alias after it has confirmed the claim; far less, so that clocks may differ by the rest."""


PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasLock:
    """A claim to be made for a record, and what has to be looked at before it is carried out."""

    store: Store
    record: Record
    ledger: ClaimLog
    """As it was before the decision was made."""
    slow_looks: Looks
    """Between the claim and the tag on the version."""
    last_looks: Looks
    """Right before the claim is confirmed."""
    patience: Patience

    prepare: Callable[[], None]
    """Writes what must be there before the alias is set."""

    def carry_out(self, finish: Callable[[str], T]) -> T:
        """Set the alias under a claim.

        Args:
            finish: notes that the alias was set, or why it was not, before others may go on.

        Raises:
            Overtaken: if it was not set since the claim went to somebody else.
        """
        number, claim = self.ledger.next, Claim.of(self.record)
        if problem := self._settle() or self._claim(number, claim):
            raise Overtaken(problem)
        try:
            problem = self._carry_out(number, claim)
        except UsageError as error:  # what was there when it was decided is gone
            problem = f"{error}; it did when the decision was made"
        except Exception:
            self._call_off(number, claim)  # so that nobody has to wait until its owner seems to be dead
            raise
        finished = finish(problem)
        self._end(number, "refused" if problem else "done", problem)
        return finished

    def _carry_out(self, number: int, claim: Claim) -> str:
        if problem := next(iter(self.slow_looks()), ""):
            return problem
        self.store.write(self.record)
        self.prepare()
        if problem := next(iter(self.last_looks()), ""):
            return problem
        confirmed_at = time.monotonic()
        if problem := self._confirm(number, claim):
            return problem
        took_s = time.monotonic() - confirmed_at
        if took_s > self.patience.lease_s:
            return f"MLflow took {took_s:.0f} s to confirm the claim, so the alias {self.record.target.alias} was not set: others may not wait longer"
        return self._set()

    def _settle(self) -> str:
        """End the last claim if its owner seems to be dead; return why that cannot be, if so."""
        tip = self.ledger.tip
        if tip is None or not tip.pending:
            return ""
        if problem := self.ledger.under_way(datetime.now(UTC), self.patience.grace_s):
            return problem
        if tip.state == "open":
            return f"{tip.claim} went on at this very moment" if self._call_off(tip.number, tip.claim) else ""
        holder = self.store.aliases(self.record.target.name).get(self.ledger.alias)
        self._end(tip.number, "done" if tip.set_on(holder) else "lost", "its owner did not end it")
        return ""

    def _call_off(self, number: int, claim: Claim) -> bool:
        """Keep a claim from being confirmed; return whether it is already, so that the alias may be set."""
        return claim.id in self._write(number, "go", text_of(Confirmation(id=uuid.uuid4().hex, at=datetime.now(UTC))))

    def _claim(self, number: int, claim: Claim) -> str:
        mine = text_of(claim)
        found = self._write(number, "", mine)
        if found == mine:
            return ""
        other = read_claim(found)
        return f"the alias {self.ledger.alias} was claimed meanwhile, with the same version as champion: {other or found}"

    def _confirm(self, number: int, claim: Claim) -> str:
        mine = text_of(Confirmation(id=claim.id, at=datetime.now(UTC)))
        if self._write(number, "go", mine) == mine:
            return ""
        return f"the claim to the alias {self.ledger.alias} took so long that it was called off by somebody else"

    def _set(self) -> str:
        target = self.record.target
        self.store.set_alias(target)
        found = self.store.aliases(target.name).get(target.alias)
        if found == target.version:
            return ""
        return f"the alias {target.alias} was set on {target}, but at once moved to {named(found)}"

    def _end(self, number: int, outcome: Outcome, reason: str) -> None:
        self._write(number, "end", text_of(End(outcome=outcome, at=datetime.now(UTC), reason=reason)))

    def _write(self, number: int, suffix: str, text: str) -> str:
        return self.store.claim(self.record.target.name, key_of(self.ledger.alias, number, suffix), text)


def alias_moved(store: Store, record: Record) -> list[str]:
    """Return that the alias is not where it was when the record was decided, if so."""
    target = record.target
    found = store.aliases(target.name).get(target.alias)
    if found == record.previous:
        return []
    moved = f"moved from {named(record.previous)} to {named(found)} while the evidence was read"
    return [f"the alias {target.alias} {moved}, so it was not set"]


def version_changed(store: Store, record: Record) -> list[str]:
    """Return that the version is not what it was when the record was decided, if so."""
    target = record.target
    found = store.version(target.name, target.version)
    if found.status != "READY":
        return [f"{target} became {found.status} while the evidence was read"]
    return [] if found.source == record.source else [f"{target} was made from {found.source!r} now, not from {record.source!r}"]
