"""Whether a promotion still holds: its claim and its record are unchanged, and the evidence says today what it said then.

The record is found by the claim log, then held against its own hash, its signature, its claim and the tags that repeat it (`recorded_pass`). Then both runs are read and examined as they are today, and the recorded policy decides again as of the time of the
decision. It must come to the same verdict and the same numbers; whatever does not is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.attestation.keys import ENVELOPE
from mlflow_adk_eval.gating.attestation.statement import DECISION, PAYLOAD_TYPE, read_statement
from mlflow_adk_eval.gating.baseline.comparable import Baseline
from mlflow_adk_eval.gating.evidence.examine import ExaminedRun, examine
from mlflow_adk_eval.gating.evidence.integrity import sha256
from mlflow_adk_eval.gating.mlflow_store import MlflowStore
from mlflow_adk_eval.gating.policy.model import BaselineSource, Policy
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, Entry, key_of
from mlflow_adk_eval.gating.promotion.record import (
    TAG,
    Record,
    RecordedBaseline,
    RecordLocation,
    RegisteredModel,
    Target,
    Version,
    decision_statement,
    find_record,
    format_version,
    read_location,
    read_record,
    undecided,
    version_problems,
    with_problems,
)
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.gating.version_id import VersionId
from mlflow_adk_eval.results.decision import Check, Decision

_CLOSE = 1e-9
_NUMBERS = ("cases", "value", "low", "high", "baseline", "difference", "p_value", "needed")


def differences(then: Decision, today: Decision) -> list[str]:
    """Return where a decision does not come to the numbers of an earlier one on the same evidence."""
    return [*_score_differences(then, today), *_check_differences(then, today)]


def _score_differences(then: Decision, today: Decision) -> Iterator[str]:
    for name in dict.fromkeys((*then.scores, *today.scores)):
        yield from _difference(f"the score of {name} is", then.scores.get(name), today.scores.get(name))


def _check_differences(then: Decision, today: Decision) -> Iterator[str]:
    if [_subject(check) for check in then.checks] != [_subject(check) for check in today.checks]:
        yield "the record does not hold the checks that its policy asks for"
        return
    for recorded, found in zip(then.checks, today.checks, strict=True):
        what = f"the check {' '.join(part for part in _subject(found) if part)}"
        if recorded.verdict != found.verdict:
            yield f"the record says that {what} {recorded.verdict}, but the evidence comes to {found.verdict}"
        for name in _NUMBERS:
            yield from _difference(f"{what} has the {name.replace('_', ' ')}", getattr(recorded, name), getattr(found, name))


def _subject(check: Check) -> tuple[str, ...]:
    return check.measure, check.slice, check.demand


def _difference(what: str, then: float | None, today: float | None) -> Iterator[str]:
    same = then is today if then is None or today is None else math.isclose(then, today, rel_tol=_CLOSE, abs_tol=_CLOSE)
    if not same:
        recorded, found = ("missing" if value is None else f"{value:.6g}" for value in (then, today))
        yield f"the record says that {what} {recorded}, but the evidence comes to {found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a version's promotion comes to today."""

    decision: Decision
    record: Record | None = None
    """``None`` if there is none that can be read."""
    disproven: bool = False
    """Whether the record itself is false: its evidence is as it was, and comes to *failed*; or the version is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPass:
    """The record by which a version holds an alias, or held it, as it was written."""

    record: Record
    location: RecordLocation
    problems: tuple[str, ...]
    """Why it does not stand, going by the claim log and the signatures alone; the evidence is not read."""


def verify_in(store: MlflowStore, name: str, version: str | None, alias: str | None, policy: Policy | None = None) -> Decision:
    """Check the promotion of a version, or of the one that holds an alias.

    Args:
        store: where everything is.
        name: the registered model.
        version: the version; ``None``: the one that holds `alias`.
        alias: the alias; ``None``: the last decision on `version` is checked.
        policy: what the run must fulfil besides, as of today; ``None``: nothing.

    Raises:
        UsageError: if the model, the version or the alias does not exist.
    """
    holder = None if alias is None else store.holder(name, alias)
    chosen = version or (holder.number if holder else None)
    if chosen is None:
        raise UsageError(f"the registered model {name!r} has no alias {alias}")
    found = store.version(name, chosen)
    if alias is not None and holder != found.id:
        return undecided(f"version {chosen} of {name!r} does not hold the alias {alias}")
    if alias is not None and (moved := moved_by_hand(store, name, alias, holder)):
        return undecided(moved)
    return verify_version(store, name, chosen, alias, policy, found).decision


def moved_by_hand(store: MlflowStore, name: str, alias: str, holder: VersionId | None) -> str:
    """Return that an alias is not where its claim log has it; empty if it is."""
    try:
        claims = store.claim_log(name, alias)
    except UsageError as error:
        return str(error)
    rightful = claims.rightful_holder(holder)
    if rightful == holder:
        return ""
    skipped = f" ({claims.skipped[-1]})" if claims.skipped else ""
    if rightful is None:
        found = f"{format_version(holder)} of {name!r} holds the alias {alias}, but its claim log has no such promotion"
        return f"{found}: it was set by hand{skipped}"
    if problem := recreated(name, alias, rightful, store.model(name)):
        return problem
    if holder is not None and holder.number == rightful.number:
        return f"the alias {alias} of {name!r} is not at what its claim log names: {rightful.difference(holder)}"
    found = f"the alias {alias} of {name!r} is at {format_version(holder)}, but at {format_version(rightful)} by its claim log"
    return f"{found}: it was moved by hand{skipped}"


def recreated(name: str, alias: str, promoted: VersionId, model: RegisteredModel) -> str:
    """Return that an alias was promoted in another registered model than the one that has the name, and how to go on; empty if not."""
    if model.created_ms == promoted.model_created_ms:
        return ""
    difference = promoted.difference(replace(promoted, model_created_ms=model.created_ms))
    remedy = "if you did that, promote a version by a policy whose rules have no max_drop, which the claim log keeps"
    return f"the alias {alias} of {name!r} was promoted in another model of that name: {difference}; {remedy}"


def verify_version(
    store: MlflowStore, name: str, version: str, alias: str | None, policy: Policy | None = None, found: Version | None = None
) -> Verification:
    """Return what the promotion of a version to an alias, or else its last decision, comes to today, whether or not it holds the alias.

    Args:
        store: where everything is.
        name: the registered model.
        version: the number of the version.
        alias: the alias; ``None``: the last decision on the version counts.
        policy: what the run must fulfil besides, as of today; ``None``: nothing.
        found: the version, where it is read already.

    Raises:
        UsageError: if there is no such version.
    """
    found = found or store.version(name, version)
    try:
        recorded = recorded_pass(store, name, version, alias, found)
        if isinstance(recorded, str):
            return Verification(decision=undecided(recorded))
        run = examine(store.evidence(recorded.location.run_id))
    except UsageError as error:
        return Verification(decision=undecided(f"the evidence for version {version} of {name!r} is gone: {error}"))
    record = recorded.record
    problems = [*recorded.problems, *_decision_problems(record, run), *version_problems(record.target, found, run.evidence)]
    decision = _decide_again(store, record, run, problems, policy)
    intact = not problems and not run.problems and policy is None
    return Verification(decision=decision, record=record, disproven=intact and decision.verdict == "failed")


def recorded_pass(store: MlflowStore, name: str, version: str, alias: str | None, found: Version) -> RecordedPass | str:
    """Return the record of a version's last promotion to an alias, as the claim log names it, or why there is none that can be read.

    Tags lead to it only where no alias is named: anybody could have them lead elsewhere.

    Raises:
        UsageError: if the model or the run of the record is gone, or its claim log.
    """
    what = f"version {version} of {name!r}"
    params, holder = store.claims(name), None if alias is None else store.holder(name, alias)
    location = find_record(found.tags) if alias is None else _promotion(store.claim_log(name, alias, params), found.id, holder)
    if location is None:
        return f"{what} has no record of " + (f"a passed gate for the alias {alias} in the claim log" if alias else "a gate decision")
    content = store.artifact(location.run_id, location.path)
    record = _read(content, location, name, found.id, alias)
    if isinstance(record, str):
        return f"{what}: {record}"
    claims = store.claim_log(name, record.target.alias, params)
    entry, holder = claims.entry(record.claim), holder if alias else store.holder(name, record.target.alias)
    problems = [
        *_signature_problems(store, location, content or b""),
        *_claim_problems(claims, record, location, holder),
        *(() if entry and entry.pending else _tag_problems(record, location, found)),  # tags that are just being written
        *(() if holder == found.id else _refused_since(record, found)),
    ]
    return RecordedPass(record=record, location=location, problems=tuple(problems))


def _promotion(claims: ClaimLog, version: VersionId, holder: VersionId | None) -> RecordLocation | None:
    """Return where the record of the last promotion of a version is."""
    mine = [entry.claim.record for entry in claims.moves(holder) if (entry.claim.version, entry.claim.kind) == (version, "promotion")]
    return read_location(mine[-1]) if mine else None


def _read(content: bytes | None, location: RecordLocation, name: str, version: VersionId, alias: str | None) -> Record | str:
    """Return a record as it was written for the version, or why it is none."""
    what = f"its record {location.path}"
    if content is None:
        return f"{what} is missing from run {location.run_id}"
    if sha256(content) != location.sha256:
        return f"{what} in run {location.run_id} was changed after the decision"
    record = read_record(content)
    if record is None:
        return f"{what} in run {location.run_id} cannot be read"
    if record.target != Target(name=name, version=version.number, alias=alias or record.target.alias):
        return f"its record is about {record.target} and the alias {record.target.alias}"
    if difference := record.version.difference(version):
        return f"its record is about another version: {difference}"
    return record


def _signature_problems(store: MlflowStore, location: RecordLocation, content: bytes) -> Iterator[str]:
    if store.verifier is None:
        return
    envelope = store.artifact(location.run_id, location.path + ENVELOPE)
    if envelope is None:
        yield f"its record {location.path} is not signed"
        return
    payload = store.verifier.opened(envelope, PAYLOAD_TYPE)
    if payload is None:
        yield f"its record {location.path} was not signed with the key"
    elif read_statement(payload, DECISION) != decision_statement(location, content):
        yield f"what was signed beside its record {location.path} is about something else"


def _claim_problems(claims: ClaimLog, record: Record, location: RecordLocation, holder: VersionId | None) -> Iterator[str]:
    """Yield why a record of a pass is not that of a claim that set the alias, or one from which somebody went back."""
    entry, what = claims.entry(record.claim), f"the claim {key_of(claims.alias, record.claim)} of its record"
    if not record.decision.passed:
        return
    if entry is None:
        yield f"{what} is not in the claim log"
    elif entry.claim.record != str(location):
        yield f"{what} went to another record: {entry.claim}"
    elif not entry.set_on(holder):
        state = "is in progress" if entry.pending else f"was {entry.state}"
        yield f"{what} did not set the alias: it {state}" + (f": {entry.end.reason}" if entry.end and entry.end.reason else "")
    elif back := _rollback_from(claims, entry, holder):
        yield f"{record.target} was given up: {back.claim}" + (f": {back.claim.reason}" if back.claim.reason else "")


def _rollback_from(claims: ClaimLog, entry: Entry, holder: VersionId | None) -> Entry | None:
    """Return the first rollback from the version of a claim after it."""
    later = (found for found in claims.moves(holder) if found.number > entry.number and found.claim.kind == "rollback")
    return next((found for found in later if found.claim.previous == entry.claim.version), None)


def _tag_problems(record: Record, location: RecordLocation, version: Version) -> Iterator[str]:
    """Yield the tags that repeat the record and say something else; those of another, later record are not compared."""
    if version.tags.get(f"{TAG}.record") == location.path:
        for key, value in record.tags().items():
            if version.tags.get(key) != value:
                yield f"the tag {key} is not what the record says"


def _refused_since(record: Record, version: Version) -> Iterator[str]:
    """Yield that a version that holds the alias no more was refused it later."""
    verdict, alias = version.tags.get(TAG, "passed"), version.tags.get(f"{TAG}.alias")
    if verdict != "passed" and alias == record.target.alias:
        yield f"{record.target} was refused the alias {alias} since: {version.tags.get(f'{TAG}.reason', verdict)}"


def _decision_problems(record: Record, run: ExaminedRun) -> Iterator[str]:
    """Yield why a record holds no pass, or one by another policy or on other evidence."""
    then = record.decision
    if not then.passed:
        yield f"the record of {record.target} says {then.verdict}: {next(iter(then.reasons), 'no reason is given')}"
    if then.policy_sha256 != record.policy.digest():
        yield f"the policy {record.policy.name!r} in the record is not the one that decided: its digest differs"
    if then.evidence_sha256 != run.evidence.sha256:
        yield f"the evidence of run {run.evidence.run_id} was changed after the decision"


def _decide_again(store: MlflowStore, record: Record, run: ExaminedRun, problems: list[str], policy: Policy | None) -> Decision:
    then, baseline = record.decision, _baseline_today(store, record.compared)
    if isinstance(baseline, str):
        return with_problems(undecided(baseline, run_id=run.evidence.run_id), problems)
    measured = store.calibration(record.policy, run)
    today = decide(run, record.policy, baseline=baseline, now=datetime.fromisoformat(then.decided_at), measured=measured)
    if then.passed and today.passed:
        problems = [*problems, *differences(then, today)]
    if problems or not today.passed:
        return with_problems(today, problems)
    if policy is not None:
        compared = baseline if _same_baseline(policy, record) else Baseline(name="its baseline", problems=(_other_baseline(record),))
        today = decide(run, policy, baseline=compared, now=store.clock(), measured=store.calibration(policy, run))
        if not today.passed:
            return replace(today, reasons=(f"{record.target} does not meet the policy {policy.name!r}", *today.reasons))
    promoted = f"{record.target} became {record.target.alias} by {then.decided_by} at {then.decided_at}"
    return replace(today, reasons=(promoted, *today.reasons))


def _same_baseline(policy: Policy, record: Record) -> bool:
    """Whether a policy would compare with what the promotion was compared with: whoever promotes chooses that by their own policy."""
    wanted, found = policy.baseline, record.policy.baseline
    if wanted is None or not policy.compares:
        return True
    name = record.target.name
    return found is not None and _named(wanted, name) == _named(found, name)


def _named(source: BaselineSource, name: str) -> BaselineSource:
    """Return what a policy compares with, whatever it says for when that is missing."""
    return BaselineSource(alias=source.alias, version=source.version, run=source.run, model=None if source.run else source.model or name)


def _other_baseline(record: Record) -> str:
    source = record.policy.baseline
    kept = {} if source is None else source.model_dump(include={"alias", "version", "run", "model"}, exclude_none=True)
    found = ", ".join(f"{key} {value}" for key, value in kept.items()) or "nothing"
    return f"the policy {record.policy.name!r}, by which {record.target} was promoted, compared with another baseline ({found})"


def _baseline_today(store: MlflowStore, compared: RecordedBaseline | None) -> Baseline | str | None:
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
    return Baseline(name=compared.name, version=compared.version, run=examine(evidence))
