"""The claim log of an alias: numbered claims, of which each number exists once and which nobody can change.

MLflow has no compare-and-set for aliases, but a parameter of a run can be written only once. So whoever would set an alias
claims the next number first, as a parameter of a run that all agree on; of several who decided at the same time one gets it.
Before the alias is set, the claim has to be confirmed, again by a parameter: so that a claim can be cancelled by others once
its owner seems to be dead, and the owner, should it live after all, finds out in time. What came of it is a third parameter.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeVar

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from mlflow_adk_eval.gating.promotion.record import Kind, Record

Outcome = Literal["done", "refused", "lost"]
State = Literal["open", "confirmed", "cancelled", "done", "refused", "lost"]

_NOUNS: Mapping[Kind, str] = {"promotion": "promotion", "rollback": "rollback", "restore": "restoration"}
_LONGEST_ALIAS = 200
_MAX_NAME, _MAX_REASON = 200, 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to set an alias, which its owner has as soon as the claim log holds it."""

    id: str
    kind: Kind
    version: str
    previous: str | None
    """The version that held the alias when it was decided."""
    record: str
    """Where the record of the decision lies, and its hash."""
    by: str
    at: AwareDatetime
    reason: str = ""

    @staticmethod
    def of(record: Record) -> Claim:
        """Return the claim for a record."""
        return Claim(
            id=uuid.uuid4().hex,
            kind=record.kind,
            version=record.target.version,
            previous=record.previous,
            record=str(record.location),
            by=record.decision.decided_by[:_MAX_NAME],
            at=datetime.now(UTC),
            reason=record.reason[:_MAX_REASON],
        )

    def __str__(self) -> str:
        """Return what it is as messages call it."""
        return f"a {_NOUNS[self.kind]} to version {self.version}, by {self.by} at {self.at.isoformat(timespec='seconds')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The last word before an alias is set: that of the claim's owner, or of somebody who cancels the claim."""

    id: str
    """The id of the claim, or another one: it was cancelled."""
    at: AwareDatetime


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What came of a claim."""

    outcome: Outcome
    at: AwareDatetime
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A claim with all that followed."""

    number: int
    claim: Claim
    confirmation: Confirmation | None = None
    end: End | None = None

    @property
    def state(self) -> State:
        """How far it got."""
        if self.confirmation is not None and self.confirmation.id != self.claim.id:
            return "cancelled"
        if self.end is not None:
            return self.end.outcome
        return "open" if self.confirmation is None else "confirmed"

    @property
    def pending(self) -> bool:
        """Whether something may still come of it."""
        return self.state in ("open", "confirmed")

    def set_on(self, holder: str | None) -> bool:
        """Whether the alias was set by this claim; of one that was confirmed and never ended, the `holder` of the alias tells."""
        return self.state == "done" or (self.state == "confirmed" and self.claim.version == holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLog:
    """All claims to an alias, in their order."""

    alias: str
    entries: tuple[Entry, ...] = ()
    next: int = 1
    """The number that nobody has claimed."""
    invalid: tuple[str, ...] = ()
    """The keys that hold something else than a claim."""

    @property
    def last(self) -> Entry | None:
        """The last claim."""
        return self.entries[-1] if self.entries else None

    def entry(self, number: int) -> Entry | None:
        """Return the claim of a number."""
        return next((entry for entry in self.entries if entry.number == number), None)

    def moves(self, holder: str | None) -> list[Entry]:
        """Return the claims by which the alias was set."""
        return [entry for entry in self.entries if entry.set_on(holder)]

    def former_holders(self, holder: str | None) -> list[str]:
        """Return the versions that one can go back to, the last one last: those between were gone back over."""
        versions: list[str] = []
        for entry in self.moves(holder):
            version = entry.claim.version
            if entry.claim.kind != "promotion" and version in versions:
                del versions[len(versions) - versions[::-1].index(version) :]
            elif versions[-1:] != [version]:
                versions.append(version)
        return versions

    def in_progress(self, now: datetime, grace_s: float) -> str:
        """Return why a claim must not be made yet; empty if it may."""
        last = self.last
        if last is None or not last.pending:
            return ""
        began = last.confirmation.at if last.confirmation else last.claim.at
        if abs((now - began).total_seconds()) > grace_s:
            return ""
        until = (began + timedelta(seconds=grace_s)).isoformat(timespec="seconds")
        return f"the alias {self.alias} is being set: {last.claim} is in progress; if it has died, try again after {until}"


def key_of(alias: str, number: int, suffix: str = "") -> str:
    """Return the key of a claim, or of what followed.

    >>> key_of("champion", 7), key_of("champion", 7, "end")
    ('champion.0007', 'champion.0007.end')
    """
    return f"{_stem(alias)}.{number:04d}" + (f".{suffix}" if suffix else "")


def _stem(alias: str) -> str:
    if len(alias) <= _LONGEST_ALIAS:
        return alias
    return f"{alias[: _LONGEST_ALIAS - 40]}_{hashlib.sha256(alias.encode('utf-8', 'replace')).hexdigest()[:32]}"


def read_claim_log(params: Mapping[str, str], alias: str) -> ClaimLog:
    """Return the claim log of an alias from the claims to all aliases of a model."""
    pattern = re.compile(rf"{re.escape(_stem(alias))}\.(\d{{4,9}})")
    numbers = sorted(int(found[1]) for key in params if (found := pattern.fullmatch(key)) and key == key_of(alias, int(found[1])))
    read = [(number, _read(_CLAIM, params[key_of(alias, number)])) for number in numbers]
    return ClaimLog(
        alias=alias,
        entries=tuple(
            Entry(
                number=number,
                claim=claim,
                confirmation=_read(_CONFIRMATION, params.get(key_of(alias, number, "go"))),
                end=_read(_END, params.get(key_of(alias, number, "end"))),
            )
            for number, claim in read
            if claim is not None
        ),
        next=numbers[-1] + 1 if numbers else 1,
        invalid=tuple(key_of(alias, number) for number, claim in read if claim is None),
    )


def aliases_in(params: Mapping[str, str]) -> list[str]:
    """Return the aliases that a model has claims to, in their order; those too long to be a key are left out."""
    found = (re.fullmatch(r"(.+)\.\d{4,9}", key) for key in params)
    return sorted({match[1] for match in found if match and len(match[1]) < _LONGEST_ALIAS - 7})


def text_of(value: Claim | Confirmation | End) -> str:
    """Return what a parameter holds."""
    match value:
        case Claim():
            return _CLAIM.dump_json(value).decode()
        case Confirmation():
            return _CONFIRMATION.dump_json(value).decode()
        case End():
            return _END.dump_json(replace(value, reason=value.reason[:_MAX_REASON])).decode()


def _read(adapter: TypeAdapter[T], text: str | None) -> T | None:
    try:
        return None if text is None else adapter.validate_json(text)
    except ValidationError:
        return None


def read_claim(text: str) -> Claim | None:
    """Return the claim that a parameter holds; ``None`` if it holds something else."""
    return _read(_CLAIM, text)


_CLAIM, _CONFIRMATION, _END = TypeAdapter(Claim), TypeAdapter(Confirmation), TypeAdapter(End)
