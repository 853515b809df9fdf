"""The claim log of an alias: numbered claims, each of which exists once, names the one before by its hash, and is signed where there is a key.

MLflow has no compare-and-set for aliases, but a parameter of a run can be written only once. So whoever would set an alias
claims the next number first, as a parameter of a run that all agree on; of several who decided at the same time one gets it.
Before the alias is set, the claim has to be confirmed, again by a parameter: so that a claim can be cancelled by others once
its owner seems to be dead, and the owner, should it live after all, finds out in time. What came of it is a third parameter.

A decision that sets no alias takes a number as well, since the next one depends on how many there were: its claim has another verdict than
*passed*, is complete with its first parameter, and never moves the alias nor keeps others waiting.

Whoever may write to MLflow can write parameters, too, or a whole other run of them. So a claim says in which run it is, under which number and after
which claim, and what followed says to which claim: nothing can be written in advance, copied or left out in between without being
seen. What is no such claim is named and skipped. That the last claims are missing, or that it is another log than yesterday, can only be seen by
a `Checkpoint`: CI keeps the last entry of each log beside the public key, in a file that those who may write to MLflow cannot write to. What is
read later must still hold that entry, at its number and with its hash, and may only have gone on from there. The file is JSON, by registered
model and alias::

    {"home_automation": {"champion": {"log": "4f1c…", "number": 7, "sha256": "9a0b…"}}}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.evalset.models import Strict
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion.record import Kind, VersionId
from mlflow_adk_eval.gating.rules.attempts import Attempt
from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.runs.files import replaced
from mlflow_adk_eval.signing.keys import Signer, Verifier
from mlflow_adk_eval.text import few

Outcome = Literal["done", "refused", "lost"]
State = Literal["open", "confirmed", "cancelled", "done", "refused", "lost"]

_NOUNS: Mapping[Kind, str] = {"promotion": "promotion", "rollback": "rollback", "restore": "restoration"}
_LONGEST_ALIAS, _SHORTENED = 190, 150
_MAX_NAME, _MAX_REASON = 200, 1000
"""How long what people wrote may be in a claim."""
_SKEW = timedelta(minutes=5)
T = TypeVar("T", "Claim", "Confirmation", "End")


class ClaimLogError(UsageError):
    """A model's claim log is missing or was replaced, so its aliases cannot be verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimParams:
    """The parameters that hold the claims to the aliases of a model."""

    log: str = ""
    """The run that they are parameters of; empty where nothing was ever claimed."""
    model: str = ""
    """The registered model."""
    params: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to set an alias, which its owner has as soon as the claim log holds it."""

    id: str
    log: str
    """The run that holds the claim log, so that a copy of it in another run is none."""
    model: str = ""
    """The registered model, so that the claim log of another one is none of this."""
    alias: str
    number: int
    before: str
    """The hash of the entry before; empty for the first."""
    kind: Kind
    version: VersionId
    """By what it is, not by its number alone, which the version of another registered model may get one day."""
    previous: VersionId | None
    """The version that held the alias when it was decided."""
    record: str
    """Where the record of the decision lies, and its hash."""
    by: str
    at: AwareDatetime
    """By the clock of MLflow's server."""
    reason: str = ""
    verdict: Verdict = "passed"
    """What was decided. Only what passed may set the alias."""
    champion: VersionId | None = None
    """The version that it was to do as well as."""
    run_id: str = ""
    champion_run_id: str = ""
    """The run that it was compared with; empty where there was none."""
    eval_set: str = ""
    """The digest of the eval set; empty where the evidence could not be read, so that the decision told nothing about the agent."""
    policy: str = ""
    """The digest of the policy."""
    holdout: str = ""
    """The digest of the held-out cases that are scored next; empty where none are."""
    signature: str = ""

    def __str__(self) -> str:
        """Return what it is as messages call it."""
        refused = "" if self.verdict == "passed" else "refused "
        return f"a {refused}{_NOUNS[self.kind]} to version {self.version.number}, by {self.by} at {self.at.isoformat(timespec='seconds')}"

    def key(self, suffix: str = "") -> str:
        """Return its key, or that of what followed."""
        return key_of(self.alias, self.number, suffix, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The last word before an alias is set: that of the claim's owner, or of somebody who cancels the claim."""

    claim: str
    """The id of the claim."""
    cancelled: bool = False
    at: AwareDatetime
    """By the clock of MLflow's server."""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What came of a claim."""

    claim: str
    """The id of the claim."""
    outcome: Outcome
    at: AwareDatetime
    reason: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A claim with all that followed."""

    claim: Claim
    confirmation: Confirmation | None = None
    end: End | None = None
    sha256: str = ""
    """The hash of its texts, by which the next claim names it; without the end of a cancelled claim, which comes late."""

    @property
    def number(self) -> int:
        """Its place in the claim log."""
        return self.claim.number

    @property
    def state(self) -> State:
        """How far it got."""
        if self.claim.verdict != "passed":
            return "refused"
        if self.confirmation is not None and self.confirmation.cancelled:
            return "cancelled"
        if self.end is not None:
            return self.end.outcome
        return "open" if self.confirmation is None else "confirmed"

    @property
    def pending(self) -> bool:
        """Whether something may still come of it."""
        return self.state in ("open", "confirmed")

    def carried_out(self, holder: VersionId | None, wanted: VersionId) -> bool:
        """Whether its owner set the alias where it is `wanted`, and has only not said so: nothing of what may still come changes that."""
        return self.state == "confirmed" and self.claim.version == holder == wanted

    def set_on(self, holder: VersionId | None) -> bool:
        """Whether the alias was set by this claim; of one that was confirmed and never ended, the `holder` of the alias tells."""
        return self.state == "done" or (self.state == "confirmed" and self.claim.version == holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLog:
    """All claims to an alias, in their order."""

    alias: str
    log: str = ""
    """The run that holds it; empty where nothing was ever claimed."""
    entries: tuple[Entry, ...] = ()
    next: int = 1
    """The number that nobody has claimed."""
    skipped: tuple[str, ...] = ()
    """What else the parameters hold, as sentences."""

    @property
    def head(self) -> str:
        """The hash of the last entry; empty where there is none."""
        return self.last.sha256 if self.last else ""

    @property
    def last(self) -> Entry | None:
        """The last claim."""
        return self.entries[-1] if self.entries else None

    @property
    def pending(self) -> bool:
        """Whether somebody is setting the alias."""
        return self.last is not None and self.last.pending

    def entry(self, number: int) -> Entry | None:
        """Return the claim of a number."""
        return next((entry for entry in self.entries if entry.number == number), None)

    def attempt(
        self, policy: Policy, champion: VersionId | None, runs: tuple[str, str], eval_set: str, *, before: int | None = None
    ) -> Attempt:
        """Return the place of a decision among all promotions that had to do as well as the same champion.

        The same runs that are decided on again, perhaps by another policy, are one attempt: nothing new was drawn. Decisions on all eval
        sets count where the policy has an error to spend and pins no eval set: else one changed case would begin a new count.

        Args:
            policy: what is demanded.
            champion: the version that it must do as well as: the baseline or, where nothing is compared, the holder of the alias.
            runs: the run that is decided on, and the one that it is compared with.
            eval_set: the digest of its eval set.
            before: the number of its own entry; ``None``: it has none yet.
        """
        anywhere = policy.attempts is not None and not (policy.eval_set and policy.eval_set.digest)
        submitted = {runs}
        for entry in self.entries:
            claim = entry.claim
            same = (claim.kind, claim.champion) == ("promotion", champion) and (anywhere or claim.eval_set == eval_set)
            if same and claim.eval_set and (before is None or claim.number < before):
                submitted.add((claim.run_id, claim.champion_run_id))
        return Attempt(len(submitted), anywhere, champion is not None, tuple(few(self.skipped)))

    def uses(self, holdout: str, *, before: int | None = None) -> int:
        """Return how often the held-out cases with a digest were scored, or were about to be; `before`: as for `attempt`."""
        return sum(entry.claim.holdout == holdout and (before is None or entry.number < before) for entry in self.entries)

    def moves(self, holder: VersionId | None) -> list[Entry]:
        """Return the claims by which the alias was set."""
        return [entry for entry in self.entries if entry.set_on(holder)]

    def rightful_holder(self, holder: VersionId | None) -> VersionId | None:
        """Return the version that the alias was set on last by a claim; ``None`` if it never was."""
        moves = self.moves(holder)
        return moves[-1].claim.version if moves else None

    def former_holders(self, holder: VersionId | None) -> list[VersionId]:
        """Return the versions that one can go back to, the last one last: those between were gone back over."""
        versions: list[VersionId] = []
        for entry in self.moves(holder):
            version = entry.claim.version
            if entry.claim.kind != "promotion" and version in versions:
                del versions[len(versions) - versions[::-1].index(version) :]
            elif versions[-1:] != [version]:
                versions.append(version)
        return versions

    def claimed_since(self, number: int) -> str:
        """Return that somebody claimed the alias under this number, which was free before."""
        latest = self.last if self.last and self.last.number >= number else None
        what = str(latest.claim) if latest else "something that is not a claim"
        return f"the alias {self.alias} was claimed in the meantime: {what}"

    def in_progress(self, now: datetime, grace_s: float) -> str:
        """Return why a claim must not be made yet; empty if it may."""
        last = self.last
        if last is None or not last.pending:
            return ""
        began = last.confirmation.at if last.confirmation else last.claim.at
        if abs((now - began).total_seconds()) > grace_s:
            return ""
        until = (began + timedelta(seconds=grace_s)).isoformat(timespec="seconds")
        return f"the alias {self.alias} is being set: {last.claim} is in progress; if that process died, try again after {until}"


def key_of(alias: str, number: int, suffix: str = "", claim: str = "") -> str:
    """Return the key of a claim, or of what followed, which ends with the begin of the claim's id: nobody can know that in advance.

    >>> key_of("champion", 7), key_of("champion", 7, "end", "0d1f9a2be27c4c5b")
    ('champion.0007', 'champion.0007.end.0d1f9a2b')
    """
    return f"{_stem(alias)}.{number:04d}" + (f".{suffix}.{claim[:8]}" if suffix else "")


def _stem(alias: str) -> str:
    if len(alias) <= _LONGEST_ALIAS:
        return alias
    return f"{alias[:_SHORTENED]}_{hashlib.sha256(alias.encode('utf-8', 'replace')).hexdigest()[:32]}"


def read_claim_log(found: ClaimParams, alias: str, verifier: Verifier | None = None) -> ClaimLog:
    """Return the claim log of an alias from the claims to all aliases of a model.

    Args:
        found: the claims as they were written.
        alias: the alias.
        verifier: checks the signatures that all of it must have; ``None``: it needs none.
    """
    params, entries, skipped, number = found.params, list[Entry](), list[str](), 1
    former = {""}
    while (text := params.get(key_of(alias, number))) is not None:
        key, head = key_of(alias, number), entries[-1].sha256 if entries else ""
        claim, problem = _part(Claim, text, verifier)
        if not problem and claim and entries and verifier and verifier.until and claim.at + _SKEW < entries[-1].claim.at:
            problem = "has an earlier date than the previous claim"  # where keys have a time: who has a former key could date a claim back
        heads = former if verifier else {head}  # with a key, one may follow what was signed by a key that is not given any more
        if problem := problem or _place_problem(claim, found, alias, number, heads):
            skipped.append(f"{key} in the claim log {problem}")
        elif claim:
            entry, problems = _entry(claim, text, params, verifier)
            entries.append(entry)
            skipped += problems
        if claim:  # what may be named by a claim that follows, whichever of its texts were signed with the keys of then
            go, end = (params.get(key, "") for key in _following(claim)) if claim.verdict == "passed" else ("", "")
            former |= {_hash_of([text, go, each]) for each in ("", end)}
        number += 1
    skipped += [f"{key} in the claim log belongs to no claim" for key in _strays(params, alias, number, entries)]
    return ClaimLog(alias=alias, log=found.log, entries=tuple(entries), next=number, skipped=tuple(skipped))


def _entry(claim: Claim, text: str, params: Mapping[str, str], verifier: Verifier | None) -> tuple[Entry, list[str]]:
    """Return a claim with what followed, and what was written there but is not part of it."""
    if claim.verdict != "passed":
        return Entry(claim=claim, sha256=_hash_of([text, "", ""])), []
    go_key, end_key = _following(claim)
    go_text, end_text = params.get(go_key), params.get(end_key)
    go, go_problem = _part(Confirmation, go_text, verifier, claim)
    end, end_problem = _part(End, end_text, verifier, claim)
    # Nothing else can be written where something is, so a claim with such a confirmation can be confirmed no more.
    confirmation = Confirmation(claim=claim.id, cancelled=True, at=claim.at) if go_problem else go
    cancelled = confirmation is not None and confirmation.cancelled
    texts = [text, go_text or "", "" if cancelled or end_problem else end_text or ""]
    entry = Entry(claim=claim, confirmation=confirmation, end=None if end_problem else end, sha256=_hash_of(texts))
    problems = {go_key: go_problem, end_key: end_problem}
    return entry, [f"{key} in the claim log {problem}" for key, problem in problems.items() if problem]


def _following(claim: Claim) -> tuple[str, str]:
    """Return the keys of the confirmation of a claim and of its end."""
    return claim.key("go"), claim.key("end")


def _part(kind: type[T], text: str | None, verifier: Verifier | None, claim: Claim | None = None) -> tuple[T | None, str]:
    """Return what a parameter holds, and why it is no part of the claim log, going by itself and the claim that it follows."""
    if text is None:
        return None, ""
    try:
        value: T = _ADAPTERS[kind].validate_json(text)
    except ValidationError:
        return None, f"is not {_WANTED[kind]}"
    if verifier and not verifier.verifies(*_signed_part(value), value.signature):
        return value, "is not signed with the key"
    if claim and not isinstance(value, Claim) and value.claim != claim.id:
        return value, "belongs to another claim"
    return value, ""


def _hash_of(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def _place_problem(claim: Claim | None, params: ClaimParams, alias: str, number: int, heads: set[str]) -> str:
    """Return why a claim does not belong where it is; empty if it does."""
    place = params.log, params.model, alias, number
    if claim is None or ((claim.log, claim.model, claim.alias, claim.number) == place and claim.before in heads):
        return ""
    if claim.model != params.model:
        return f"was written for another model ({claim.model!r})"
    if claim.log != params.log:
        return f"was written for another claim log (run {claim.log}): this is a copy"
    return "does not follow the previous claim" if (claim.alias, claim.number) == (alias, number) else "was written for another place"


def _strays(params: Mapping[str, str], alias: str, end: int, entries: list[Entry]) -> Iterator[str]:
    """Yield the keys that look like the alias's and belong to no entry, nor to what is skipped as a whole."""
    claims = {key_of(alias, entry.number) for entry in entries}
    known = claims | {key for entry in entries if entry.claim.verdict == "passed" for key in _following(entry.claim)}
    skipped = {key_of(alias, number) for number in range(1, end)} - claims
    stem = re.compile(rf"({re.escape(_stem(alias))}\.\d+)(\..*)?", re.DOTALL)
    for key in sorted(params):
        if key not in known and (found := stem.fullmatch(key)) and found[1] not in skipped:
            yield key


def aliases_in(params: Mapping[str, str]) -> list[str]:
    """Return the aliases that a model has claims to, in their order; one that is too long for a key is named by its claims."""
    claims = (read_claim(text) for key, text in params.items() if len(key) > _SHORTENED)
    long = {_stem(claim.alias): claim.alias for claim in claims if claim}
    found = (re.fullmatch(r"(.+)\.0001", key) for key in params)
    return sorted({long.get(match[1], match[1]) for match in found if match})


def text_of(value: Claim | Confirmation | End, signer: Signer | None = None) -> str:
    """Return what a parameter holds, with a signature where there is a signer."""
    if isinstance(value, Claim):
        value = replace(value, by=value.by[:_MAX_NAME], reason=value.reason[:_MAX_REASON])
    elif isinstance(value, End):
        value = replace(value, reason=value.reason[:_MAX_REASON])
    signed = replace(value, signature=signer.sign(*_signed_part(value))) if signer else value
    return _ADAPTERS[type(signed)].dump_json(signed).decode()


def _signed_part(value: Claim | Confirmation | End) -> tuple[bytes, str]:
    """Return what is signed of a part of the claim log, and the type of that."""
    kind = type(value)
    return _ADAPTERS[kind].dump_json(replace(value, signature="")), f"application/vnd.mlflow-adk-eval.{kind.__name__.lower()}+json"


def read_claim(text: str) -> Claim | None:
    """Return the claim that a parameter holds; ``None`` if it holds something else."""
    return _part(Claim, text, None)[0]


_WANTED = {Claim: "a claim", Confirmation: "a confirmation", End: "the end of a claim"}
_ADAPTERS: Mapping[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in _WANTED}


class Pin(Strict):
    """The entry of a claim log that must still be in it."""

    log: str
    """The run that holds the claim log."""
    number: int
    sha256: str


Pins = dict[str, dict[str, Pin]]
_PINS = TypeAdapter(Pins)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file of pins. What it does not name yet is taken up when it is seen first (`advance`)."""

    path: Path

    def __post_init__(self) -> None:
        """Refuse a file that is none before MLflow is asked.

        Raises:
            InputError: if it cannot be read, or holds something else.
        """
        self.pins()

    def pins(self) -> Pins:
        """Return the entries that are pinned, by registered model and alias."""
        return parse(Pins, read_text(self.path, error=InputError), str(self.path), error=InputError) if self.path.exists() else {}

    def check(self, model: str, claims: ClaimLog) -> None:
        """Refuse a claim log that does not hold what was pinned.

        Raises:
            ClaimLogError: if it does not.
        """
        pin = self.pins().get(model, {}).get(claims.alias)
        if pin is None:
            return
        what, where = f"the claim log of {model!r}", f"as pinned in {self.path}"
        entry = claims.entry(pin.number)
        if claims.log != pin.log:
            found = f"is in run {claims.log}" if claims.log else "is gone"
            raise ClaimLogError(f"{what} {found}, not in run {pin.log} {where}: it was replaced, renamed or deleted")
        if entry is None or entry.sha256 != pin.sha256:
            state = "is missing" if entry is None else "has changed"
            raise ClaimLogError(f"{what} was truncated or rewritten: its entry {key_of(claims.alias, pin.number)}, {where}, {state}")

    def advance(self, model: str, claims: ClaimLog) -> None:
        """Pin the last entry of a claim log that nothing can be added to any more.

        Raises:
            UsageError: if the file cannot be written.
        """
        self.check(model, claims)
        last = next((entry for entry in reversed(claims.entries) if not entry.pending), None)
        if last is None:
            return
        pins = self.pins()
        pins.setdefault(model, {})[claims.alias] = Pin(log=claims.log, number=last.number, sha256=last.sha256)
        try:
            replaced(self.path, lambda path: path.write_bytes(_PINS.dump_json(pins, indent=2) + b"\n"))
        except OSError as error:
            raise UsageError(f"the checkpoint {self.path} cannot be written: {error.strerror}") from None


def load_checkpoint(path: str | Path | None) -> Checkpoint | None:
    """Return the checkpoint in a file, which need not exist yet; ``None`` for no path.

    Raises:
        InputError: if it cannot be read, or holds something else.
    """
    return None if path is None else Checkpoint(Path(path))
