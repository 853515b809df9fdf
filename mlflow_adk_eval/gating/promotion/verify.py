"""Whether a promotion still holds: its claim and its record are unchanged, and the evidence says today what it said then.

The record is found by the claim log, then held against its own hash, its signature, its claim and the tags that repeat it (`recorded_pass`).
Then both runs are read and examined as they are today, and the recorded policy decides again as of the time of the decision
(`verify_version`). It must come to the same verdict and the same numbers; whatever does not is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.promotion import record as records
from mlflow_adk_eval.gating.promotion.claim_log import ClaimLog, key_of
from mlflow_adk_eval.gating.registry import MlflowStore
from mlflow_adk_eval.gating.rules.attempts import Attempt
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.gating.rules.holdout import HeldOut, with_holdout
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.runs.examined import ExaminedRun, examine
from mlflow_adk_eval.runs.manifest import sha256
from mlflow_adk_eval.signing.keys import DECISION, ENVELOPE, PAYLOAD_TYPE, read_statement

_NUMBERS = ("cases", "missing", "value", "low", "high", "baseline", "difference", "p_value", "needed")


def differences(then: Decision, today: Decision) -> list[str]:
    """Return where a decision does not come to the numbers of an earlier one on the same evidence."""
    problems: list[str] = []

    def compare(what: str, recorded: float | None, computed: float | None) -> None:
        same = recorded is computed if recorded is None or computed is None else math.isclose(recorded, computed, abs_tol=1e-9)
        if not same:
            before, now = ("missing" if value is None else f"{value:.6g}" for value in (recorded, computed))
            problems.append(f"the promotion record says {what} {before}, but the evidence gives {now}")

    for name in dict.fromkeys((*then.scores, *today.scores)):
        compare(f"the score of {name} is", then.scores.get(name), today.scores.get(name))
    subjects, computed = ([(check.measure, check.slice, check.demand) for check in decision.checks] for decision in (then, today))
    if subjects != computed:
        return [*problems, "the promotion record lacks checks that its policy asks for"]
    for subject, old, new in zip(subjects, then.checks, today.checks, strict=True):
        what = f"the check {' '.join(filter(None, subject))}"
        if old.verdict != new.verdict:
            problems.append(f"the promotion record says {what} {old.verdict}, but the evidence gives {new.verdict}")
        for name in _NUMBERS:
            compare(f"{what} has the {name.replace('_', ' ')}", getattr(old, name), getattr(new, name))
    return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a version's promotion comes to today."""

    decision: Decision
    record: records.Record | None = None
    """``None`` if there is none that can be read."""
    disproven: bool = False
    """Whether the record itself is false: its evidence is as it was, and comes to *failed*; or the version is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPass:
    """The record by which a version holds an alias, or held it, as it was written."""

    record: records.Record
    location: records.RecordLocation
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
        return records.undecided(f"version {chosen} of {name!r} does not hold the alias {alias}")
    if alias is not None and (moved := moved_by_hand(store, name, alias, holder)):
        return records.undecided(moved)
    return verify_version(store, name, chosen, alias, policy, found).decision


def moved_by_hand(store: MlflowStore, name: str, alias: str, holder: records.VersionId | None) -> str:
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
        found = f"{records.format_version(holder)} of {name!r} holds the alias {alias}, but its claim log does not show that promotion"
        return f"{found}: it was set by hand{skipped}"
    if problem := recreated(name, alias, rightful, store.model(name)):
        return problem
    if holder is not None and holder.number == rightful.number:
        return f"the alias {alias} of {name!r} does not point to the version in its claim log: {rightful.difference(holder)}"
    found = f"the alias {alias} of {name!r} points to {records.format_version(holder)}, but its claim log says {records.format_version(rightful)}"
    return f"{found}: it was moved by hand{skipped}"


def recreated(name: str, alias: str, promoted: records.VersionId, model: records.RegisteredModel) -> str:
    """Return that an alias was promoted in another registered model than the one that has the name, and how to go on; empty if not."""
    if model.created_ms == promoted.model_created_ms:
        return ""
    difference = promoted.difference(replace(promoted, model_created_ms=model.created_ms))
    remedy = "if you did that, promote a version with a policy that has no max_drop; the claim log keeps that policy"
    return f"the promotion to the alias {alias} of {name!r} belongs to an earlier model of that name: {difference}; {remedy}"


def verify_version(
    store: MlflowStore, name: str, version: str, alias: str | None, policy: Policy | None = None, found: records.Version | None = None
) -> Verification:
    """Return what the promotion of a version to an alias, or else its last decision, comes to today, whether or not it holds the alias.

    The steps are numbered in the order in which one rests on the other; the first six are those of `recorded_pass`.

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
        # (1) to (6) The record is the one that the claim log names, unchanged, signed, about this version, and nothing contradicts it.
        recorded = recorded_pass(store, name, version, alias, found)
        if isinstance(recorded, str):
            return Verification(decision=records.undecided(recorded))
        # (7) The evidence is there, and can be believed as it is today.
        run = examine(store.evidence(recorded.location.run_id))
    except UsageError as error:
        return Verification(decision=records.undecided(f"the evidence for version {version} of {name!r} is gone: {error}"))
    record, then = recorded.record, recorded.record.decision

    # (8) The record is of a pass, by the policy that it holds, on this very evidence, which is about this version.
    problems = list(recorded.problems)
    if not then.passed:
        problems.append(f"the promotion record of {record.target} says {then.verdict}: {next(iter(then.reasons), 'no reason is given')}")
    if then.policy_sha256 != record.policy.digest():
        other = "is not the one used for the decision: its digest differs"
        problems.append(f"the policy {record.policy.name!r} in the promotion record {other}")
    if then.evidence_sha256 != run.evidence.sha256:
        problems.append(f"the evidence of run {run.evidence.run_id} was changed after the decision")
    problems += records.version_problems(record.target, found, run.evidence)
    intact = not problems and not run.problems

    # (9) What it was compared with is as it was, too.
    try:
        baseline = _as_compared(store, record.compared)
    except UsageError as error:
        undecided = records.undecided(str(error), run_id=run.evidence.run_id)
        return Verification(decision=records.with_problems(undecided, problems), record=record)

    # (10) Decided again as of the time of the decision, it comes to the same verdict and the same numbers.
    at = datetime.fromisoformat(then.decided_at)
    place = Attempt(then.attempt) if then.attempt else None  # which the claim log confirmed in (5)
    today = decide_in(store, run, record.policy, now=at, baseline=baseline, attempt=place)
    try:
        if (held := _held_out_today(store, record)) and today.passed:
            today = with_holdout(today, record.policy, run, held, now=at, calibration=store.calibration)
    except UsageError as error:
        problems.append(str(error))
    if then.passed and today.passed:
        problems += differences(then, today)
    decision = records.with_problems(today, problems)

    # (11) Decided today by the policy of whoever uses the version, it passes as well.
    if decision.passed and policy is not None:
        decision = decide_in(store, run, policy, now=store.clock(), baseline=_baseline_for(policy, record, baseline), attempt=place)
        if policy.holdout and decision.passed and policy.holdout != record.policy.holdout:
            decision = records.with_problems(decision, ["it was promoted by another demand on held-out cases, or by none"])
        if not decision.passed:
            decision = replace(decision, reasons=(f"{record.target} does not meet the policy {policy.name!r}", *decision.reasons))
    if decision.passed:
        promoted = f"{record.target} became {record.target.alias} by {then.decided_by} at {then.decided_at}"
        decision = replace(decision, reasons=(promoted, *decision.reasons))
    return Verification(decision=decision, record=record, disproven=intact and policy is None and decision.verdict == "failed")


def decide_in(
    store: MlflowStore, run: ExaminedRun, policy: Policy, *, now: datetime, baseline: Baseline | None, attempt: Attempt | None = None
) -> Decision:
    """Decide by a policy, with what the store knows of the judges: their calibration, and whether they changed."""
    measured, drift = store.calibration(policy, run), store.drift(run, now, policy)
    return decide(run, policy, baseline=baseline, now=now, measured=measured, attempt=attempt, drift=drift)


def recorded_pass(store: MlflowStore, name: str, version: str, alias: str | None, found: records.Version) -> RecordedPass | str:
    """Return the record of a version's last promotion to an alias, as the claim log names it, or why there is none that can be read.

    Tags lead to it only where no alias is named: anybody could have them lead elsewhere.

    Raises:
        UsageError: if the model or the run of the record is gone, or its claim log.
    """
    what = f"version {version} of {name!r}"

    # (1) The claim log names the record of the last promotion of this very version to the alias.
    params, holder = store.claims(name), None if alias is None else store.holder(name, alias)
    if alias is None:
        location = records.read_location(found.tags.get(f"{records.TAG}.record", ""))
    else:
        moves = store.claim_log(name, alias, params).moves(holder)
        named = [entry.claim.record for entry in moves if (entry.claim.version, entry.claim.kind) == (found.id, "promotion")]
        location = records.read_location(named[-1]) if named else None
    if location is None:
        return f"{what} has no " + (f"promotion to the alias {alias} in the claim log" if alias else "promotion record")

    # (2) It is where it was kept, and what it was: its hash is named with it.
    content, place = store.artifact(location.run_id, location.path), f"run {location.run_id}"
    if content is None:
        return f"{what}: its promotion record {location.path} is missing from {place}"
    if sha256(content) != location.sha256:
        return f"{what}: its promotion record {location.path} in {place} was changed after the decision"
    record = records.read_record(content)
    if record is None:
        return f"{what}: its promotion record {location.path} in {place} cannot be read"

    # (3) It is about this version and alias, and not about another version that had the number.
    if record.target != records.Target(name=name, version=found.id.number, alias=alias or record.target.alias):
        return f"{what}: its promotion record is for {record.target} and the alias {record.target.alias}"
    if difference := record.version.difference(found.id):
        return f"{what}: its promotion record is for another version: {difference}"

    # (4) One of the keys has signed it, where there are keys.
    problems = list(_signature_problems(store, location, content))

    # (5) Its claim set the alias, and nobody went back from there.
    claims = store.claim_log(name, record.target.alias, params)
    holder = holder if alias else store.holder(name, record.target.alias)
    problems += _claim_problems(claims, record, location, holder)

    # (6) The tags that repeat it say the same, except while they are written and those of a later record; and a version that holds the
    # alias no more was not refused it since.
    entry, tags = claims.entry(record.claim), found.tags
    if not (entry and entry.pending) and location.path in tags.get(f"{records.TAG}.record", "").split():
        problems += [f"the tag {key} disagrees with the promotion record" for key, value in record.tags().items() if tags.get(key) != value]
    verdict = tags.get(records.TAG, "passed")
    if holder != found.id and verdict != "passed" and tags.get(f"{records.TAG}.alias") == record.target.alias:
        problems.append(f"{record.target} was refused the alias {record.target.alias} later: {tags.get(f'{records.TAG}.reason', verdict)}")
    return RecordedPass(record=record, location=location, problems=tuple(problems))


def _signature_problems(store: MlflowStore, location: records.RecordLocation, content: bytes) -> Iterator[str]:
    if store.verifier is None:
        return
    envelope = store.artifact(location.run_id, location.path + ENVELOPE)
    if envelope is None:
        yield f"its promotion record {location.path} is not signed"
        return
    payload = store.verifier.opened(envelope, PAYLOAD_TYPE)
    if payload is None:
        yield f"its promotion record {location.path} is not signed with the key"
    elif read_statement(payload, DECISION) != records.decision_statement(location, content):
        yield f"the signature of its promotion record {location.path} covers something else"


def _claim_problems(
    claims: ClaimLog, record: records.Record, location: records.RecordLocation, holder: records.VersionId | None
) -> Iterator[str]:
    """Yield why a record of a pass is not that of a claim that set the alias, or one from which somebody went back."""
    entry, what = claims.entry(record.claim), f"the claim {key_of(claims.alias, record.claim)} of its promotion record"
    if not record.decision.passed:
        return
    if entry is None:
        yield f"{what} is not in the claim log"
        return
    if entry.claim.record != str(location):
        yield f"{what} names another promotion record: {entry.claim}"
        return
    runs = record.decision.run_id, record.compared.run_id if record.compared else ""
    counted = claims.attempt(record.policy, record.champion, runs, record.eval_set, before=entry.number).number
    recorded = record.decision.attempt
    if entry.claim.kind == "promotion" and (recorded is None or recorded < counted):
        yield f"its promotion record says attempt {recorded}, but by the claim log it was attempt {counted}"
    held, allowed = record.holdout, record.policy.holdout
    if held and allowed and (uses := claims.uses(held.eval_set, before=entry.number)) > allowed.uses:
        yield f"its held-out cases had {uses} uses by then, and its policy allows {allowed.uses}"
    if held and not any((used.claim.holdout, used.claim.run_id) == (held.eval_set, entry.claim.run_id) for used in claims.entries):
        yield "the claim log does not show that its held-out cases were scored"
    if not entry.set_on(holder):
        state = "is in progress" if entry.pending else f"was {entry.state}"
        yield f"{what} did not set the alias: it {state}" + (f": {entry.end.reason}" if entry.end and entry.end.reason else "")
        return
    for later in claims.moves(holder):
        if later.number > entry.number and later.claim.kind == "rollback" and later.claim.previous == entry.claim.version:
            yield f"{record.target} was rolled back: {later.claim}" + (f": {later.claim.reason}" if later.claim.reason else "")
            return


def _baseline_for(policy: Policy, record: records.Record, baseline: Baseline | None) -> Baseline | None:
    """Return what a policy compares with today: what the promotion was compared with, if that is what it names.

    Whoever promotes chooses that by their own policy. What is to be done where it is missing is no matter.
    """
    wanted, recorded = policy.baseline, record.policy.baseline
    if wanted is None or not policy.compares:
        return baseline
    parts = {"alias", "version", "run", "model"}
    given, then = ({} if each is None else each.model_dump(include=parts, exclude_none=True) for each in (wanted, recorded))
    model = {} if wanted.run else {"model": record.target.name}  # by default
    if model | given == model | then:
        return baseline
    other = ", ".join(f"{key} {value}" for key, value in then.items()) or "nothing"
    problem = f"{record.target} was promoted with the policy {record.policy.name!r}, but that compared with another baseline ({other})"
    return Baseline(name="its baseline", problems=(problem,))


def _held_out_today(store: MlflowStore, record: records.Record) -> HeldOut | None:
    """Return what the held-out cases came to, as it is today; ``None`` where nothing holds them out.

    Raises:
        UsageError: if that cannot be had.
    """
    then, what = record.holdout, "its held-out cases"
    if record.policy.holdout is None or not record.decision.passed:
        return None
    if then is None:
        raise UsageError(f"the promotion record has no run of {what}")
    run, champion = as_then(store, what, then.run_id, then.sha256), _as_compared(store, then.compared, what)
    return HeldOut(run=run, eval_set=then.eval_set, use=then.use, champion=champion)


def _as_compared(store: MlflowStore, compared: records.RecordedBaseline | None, what: str = "") -> Baseline | None:
    """Return what a run was compared with, as it is today; `what`: as for `as_then`, which may raise."""
    if compared is None:
        return None
    what = what or f"its baseline, {compared.name},"
    run = as_then(store, what, compared.run_id, compared.sha256) if compared.run_id else None
    return Baseline(name=compared.name, version=compared.version, run=run, problems=() if run else compared.problems)


def as_then(store: MlflowStore, what: str, run_id: str, sha256: str) -> ExaminedRun:
    """Return a run, examined, that holds what it held when it was decided on.

    Raises:
        UsageError: if it does not; `what`: what it is the evidence of.
    """
    try:
        evidence = store.evidence(run_id)
    except UsageError as error:
        raise UsageError(f"the evidence of {what} is gone: {error}") from None
    if evidence.sha256 != sha256:
        raise UsageError(f"the evidence of {what} in run {run_id} was changed after the decision")
    return examine(evidence)
