"""Whether a promotion still stands: its claim and its record are unchanged, and the evidence says today what it said then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.baseline.baseline import Baseline
from mlflow_adk_eval.gating.evidence.integrity import Evidence, sha256
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY
from mlflow_adk_eval.gating.promotion.claims import ClaimLog, Entry, key_of, read_claim_log
from mlflow_adk_eval.gating.promotion.record import (
    TAG,
    Compared,
    Place,
    Record,
    doubted,
    find_record,
    place_of,
    read_record,
)
from mlflow_adk_eval.gating.promotion.signing import SIGNATURE, Verifier
from mlflow_adk_eval.gating.promotion.target import Target, Version, version_problems
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.gating.store import Store
from mlflow_adk_eval.results.decision import Check, Decision

_CLOSE = 1e-9
_WHAT = ("measure", "slice", "demand")
_NUMBERS = ("cases", "value", "low", "high", "baseline", "difference", "p_value", "needed")


def differences(then: Decision, today: Decision) -> list[str]:
    """Return where a decision does not come to the numbers of an earlier one on the same evidence."""
    return [*_score_differences(then, today), *_check_differences(then, today)]


def _score_differences(then: Decision, today: Decision) -> Iterator[str]:
    for name in dict.fromkeys((*then.scores, *today.scores)):
        recorded, found = then.scores.get(name), today.scores.get(name)
        if not _same(recorded, found):
            yield f"the record says that the score of {name} is {_told(recorded)}, but the evidence comes to {_told(found)}"


def _check_differences(then: Decision, today: Decision) -> Iterator[str]:
    if [_named(check) for check in then.checks] != [_named(check) for check in today.checks]:
        yield "the record does not hold the checks that its policy asks for"
        return
    for recorded, found in zip(then.checks, today.checks, strict=True):
        what = f"the record says that the check {' '.join(part for part in _named(found) if part)}"
        if recorded.verdict != found.verdict:
            yield f"{what} {recorded.verdict}, but the evidence comes to {found.verdict}"
        for name in _NUMBERS:
            before, now = getattr(recorded, name), getattr(found, name)
            if not _same(before, now):
                yield f"{what} has the {name.replace('_', ' ')} {_told(before)}, but the evidence comes to {_told(now)}"


def _named(check: Check) -> tuple[str, ...]:
    return tuple(getattr(check, name) for name in _WHAT)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _told(value: float | None) -> str:
    return "missing" if value is None else f"{value:.6g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a version's promotion comes to today."""

    decision: Decision
    record: Record | None = None
    """``None`` if there is none that can be read."""


def verify_in(store: Store, name: str, version: str | None, alias: str | None, *, verifier: Verifier | None = None) -> Decision:
    """Check the promotion of a version, or of the one that holds an alias.

    Raises:
        UsageError: if the model, the version or the alias does not exist.
    """
    aliases = store.aliases(name)
    chosen = aliases.get(alias or "") if version is None else version
    if chosen is None:
        raise UsageError(f"the registered model {name!r} has no alias {alias}")
    if alias is not None and aliases.get(alias) != chosen:
        store.version(name, chosen)
        return _refusal("", f"version {chosen} of {name!r} does not hold the alias {alias}")
    return standing(store, name, chosen, alias, verifier=verifier).decision


def standing(store: Store, name: str, version: str, alias: str | None, *, verifier: Verifier | None = None) -> Standing:
    """Return what the promotion of a version to an alias, or else its last decision, comes to today, whether or not it holds the alias.

    Raises:
        UsageError: if there is no such version.
    """
    found, what = store.version(name, version), f"version {version} of {name!r}"
    try:
        params, aliases = store.ledger(name), store.aliases(name)
        ledger = read_claim_log(params, alias) if alias else None
        place = _place(found, ledger, version, aliases.get(alias or ""), alias)
        if place is None:
            return _none(f"{what} has no record of " + (f"a passed gate for the alias {alias}" if alias else "a gate decision"))
        content, evidence = _content(store, place), store.evidence(place.run_id)
    except UsageError as error:
        return _none(f"the evidence for {what} is gone: {error}")
    if isinstance(content, str):
        return _none(f"{what}: {content}", place.run_id)
    record = read_record(content)
    if record is None:
        return _none(f"{what}: its record {place.path} in run {place.run_id} cannot be read", place.run_id)
    if record.target != Target(name=name, version=version, alias=alias or record.target.alias):
        return _none(f"{what}: its record is about {record.target} and the alias {record.target.alias}", place.run_id)
    claims = read_claim_log(params, record.target.alias)
    entry = claims.entry(record.claim)
    problems = [
        *_signature_problems(store, place, content, verifier),
        *_claim_problems(claims, record, place, aliases.get(record.target.alias)),
        *(() if entry and entry.pending else _tag_problems(record, place, found)),  # tags that are just being written
    ]
    return Standing(decision=_decide_again(store, record, found, evidence, problems), record=record)


def _none(reason: str, run_id: str = "") -> Standing:
    return Standing(decision=_refusal(run_id, reason))


def _refusal(run_id: str, reason: str) -> Decision:
    return Decision(verdict="undecided", reasons=(reason,), run_id=run_id, evidence_sha256="", policy_sha256=DEFAULT_POLICY.digest())


def _place(version: Version, ledger: ClaimLog | None, number: str, holder: str | None, alias: str | None) -> Place | None:
    """Return where the record is: by the tags, but of what the ledger knows of, where the last claim that was carried out says."""
    tagged = find_record(version.tags, alias)
    if tagged is None or ledger is None:
        return tagged
    mine = [entry for entry in ledger.entries if entry.claim.version == number and entry.claim.kind == "promotion"]
    moves = [entry.claim.record for entry in mine if entry.set_on(holder)]
    known = str(tagged) in {entry.claim.record for entry in mine}
    return (place_of(moves[-1]) if known and moves else None) or tagged


def _content(store: Store, place: Place) -> bytes | str:
    """Return a record as it is kept, or why it is none."""
    content = store.artifact(place.run_id, place.path)
    if content is None:
        return f"its record {place.path} is missing from run {place.run_id}"
    return content if sha256(content) == place.sha256 else f"its record {place.path} in run {place.run_id} was changed after the decision"


def _signature_problems(store: Store, place: Place, content: bytes, verifier: Verifier | None) -> Iterator[str]:
    if verifier is None:
        return
    signature = store.artifact(place.run_id, place.path + SIGNATURE)
    if signature is None:
        yield f"its record {place.path} is not signed"
    elif not verifier.fits(content, signature.decode("utf-8", "replace")):
        yield f"its record {place.path} was not signed with the key"


def _claim_problems(ledger: ClaimLog, record: Record, place: Place, holder: str | None) -> Iterator[str]:
    """Yield why a record of a pass is not that of a claim that was carried out, or one from which somebody went back."""
    entry, what = ledger.entry(record.claim), f"the claim {key_of(ledger.alias, record.claim)} of its record"
    if not record.decision.passed:
        return
    if entry is None:
        yield f"{what} is not in the ledger"
    elif entry.claim.record != str(place):
        yield f"{what} went to another record in the ledger: {entry.claim}"
    elif not entry.set_on(holder):
        yield f"{what} was not carried out: it {_fate(entry)}"
    elif back := _gone_back(ledger, entry, holder):
        yield f"{record.target} was given up: {back.claim}" + (f": {back.claim.reason}" if back.claim.reason else "")


def _fate(entry: Entry) -> str:
    told = "is under way" if entry.pending else f"was {entry.state}"
    return told + (f": {entry.end.reason}" if entry.end and entry.end.reason else "")


def _gone_back(ledger: ClaimLog, entry: Entry, holder: str | None) -> Entry | None:
    """Return the rollback from the version of a claim."""
    back = [later for later in ledger.moves(holder) if later.number > entry.number and later.claim.kind == "rollback"]
    return next((later for later in back if later.claim.previous == entry.claim.version), None)


def _tag_problems(record: Record, place: Place, version: Version) -> Iterator[str]:
    """Yield the tags that repeat the record and say something else; those of another, later record are not compared."""
    if version.tags.get(f"{TAG}.record") == place.path:
        for key, value in record.tags().items():
            if version.tags.get(key) != value:
                yield f"the tag {key} is not what the record says"


def _decide_again(store: Store, record: Record, version: Version, evidence: Evidence, found: list[str]) -> Decision:
    then, problems = record.decision, list(found)
    if not then.passed:
        problems.append(f"the record of {record.target} says {then.verdict}: {then.reasons[0]}")
    if then.policy_sha256 != record.policy.digest():
        problems.append(f"the policy {record.policy.name!r} in the record is not the one that was decided by: its digest is another one")
    if then.evidence_sha256 != evidence.sha256:
        problems.append(f"the evidence of run {evidence.run_id} was changed after the decision")
    problems += version_problems(record.target, version, evidence)
    baseline = _baseline(store, record.compared)
    if isinstance(baseline, str):
        return doubted(_refusal(evidence.run_id, baseline), problems)
    today = decide(evidence, record.policy, baseline=baseline, now=datetime.fromisoformat(then.decided_at))
    if then.passed and today.passed:
        problems += differences(then, today)
    if problems or not today.passed:
        return doubted(today, problems)
    return replace(
        today, reasons=(f"{record.target} became {record.target.alias} by {then.decided_by} at {then.decided_at}", *today.reasons)
    )


def _baseline(store: Store, compared: Compared | None) -> Baseline | str | None:
    """Return what a record was compared with, as it is today, or why that cannot be had."""
    if compared is None:
        return None
    if not compared.run_id:
        return Baseline(name=compared.name, version=compared.version, problems=compared.problems)
    try:
        evidence = store.evidence(compared.run_id)
    except UsageError as error:
        return f"the evidence of what it was compared with, {compared.name}, is gone: {error}"
    if evidence.sha256 != compared.sha256:
        return f"the evidence of what it was compared with, {compared.name} (run {compared.run_id}), was changed after the decision"
    return Baseline(name=compared.name, version=compared.version, evidence=evidence)
