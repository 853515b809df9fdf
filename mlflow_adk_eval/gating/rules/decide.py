"""From an examined run and a policy to a decision. Pure: nothing is read or written here.

What waivers cover is left out first, of both runs. Then every demand of the policy becomes a check (`checks`, `apply`), and three
questions make the verdict: can the evidence be believed, and is it of the kind that the policy pins (else *undecided*); did a check
fail (then *failed*); is something missing or open (then *undecided*, else *passed*).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from mlflow_adk_eval.agents.scenarios import GENERATED
from mlflow_adk_eval.analysis.calibration.calibration import load_calibration
from mlflow_adk_eval.config.eval_config import Criteria
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import nearest
from mlflow_adk_eval.gating.attestation import attestation_problems, attested_end
from mlflow_adk_eval.gating.calibration import CheckedCalibration
from mlflow_adk_eval.gating.drift import JudgeDrift
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY, ConfigPin, Policy, ReplayPin, format_age
from mlflow_adk_eval.gating.rules.apply import apply_rules
from mlflow_adk_eval.gating.rules.attempts import Attempt, spent
from mlflow_adk_eval.gating.rules.checks import (
    check_min_cases,
    check_must_pass,
    check_thresholds,
    evaluated,
    unevaluated,
)
from mlflow_adk_eval.gating.rules.comparable import Baseline, resolve_baseline
from mlflow_adk_eval.gating.rules.judges import SKEW, JudgeTrust, judge_notes, judge_problems, judges_met, model_problems
from mlflow_adk_eval.gating.rules.sequential import look_at_threshold, sequence_problems
from mlflow_adk_eval.gating.rules.subset import select, waived_subset
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun
from mlflow_adk_eval.runs.ignored_calls import ignored_calls_of
from mlflow_adk_eval.runs.manifest import part_of
from mlflow_adk_eval.runs.replays import replays_of
from mlflow_adk_eval.text import counted, few

UNSCORED = "the cases that the policy holds out are scored only by promote, if everything else passes"


def decide(
    run: ExaminedRun,
    policy: Policy = DEFAULT_POLICY,
    *,
    now: datetime,
    baseline: Baseline | None = None,
    measured: CheckedCalibration | None = None,
    attempt: Attempt | None = None,
    drift: JudgeDrift | None = None,
    rounds: bool = True,
) -> Decision:
    """Return whether the run allows a promotion.

    *failed* if a demand of the policy was missed, else *undecided* if one cannot be decided or something was not evaluated, else
    *passed*; and *undecided* whatever the numbers are, if the evidence is incomplete, cannot be believed or is not of the kind that
    the policy decides on.

    Args:
        run: the run, as `examine` returns it.
        policy: what is demanded.
        now: when waivers must hold, and how old the run is: the time by the clock of whatever holds the run.
        baseline: what the policy compares with.
        measured: the policy's calibration, held against the runs that it was measured on; ``None``: those were not looked up.
        attempt: the place of this decision among all against the same champion; ``None``: they are not counted.
        drift: how its judges changed; ``None``: that was not looked up, or no judge decides.
        rounds: whether to look again at each round of a run until decided, or only at the results that there are, however it came to have no
            others.
    """
    result = partial(
        Decision,
        run_id=run.evidence.run_id,
        evidence_sha256=run.evidence.sha256,
        policy_sha256=policy.digest(),
        attempt=attempt.number if attempt else None,
    )
    if not isinstance(run, ReadableRun):
        return result(verdict="undecided", reasons=tuple(run.problems))
    if measured is None and policy.calibration is not None:
        measured = CheckedCalibration(calibration=load_calibration(policy.calibration))
    now = now.astimezone(UTC)
    trust = JudgeTrust(run=run, measured=measured, now=now, confidence=policy.confidence, drift=drift, ended=rounds)
    waived = waived_subset(policy, run.report, now)
    report, compared = waived.rest_of(run.report), resolve_baseline(run, policy, baseline, waived, drift)
    share, exhausted, of_attempt = spent(policy, attempt)
    rules = apply_rules(policy, run, report, compared, trust, share)
    left = len(run.eval_set.eval_ids) - len(run.report.eval_set.eval_ids)
    thresholds = [look_at_threshold(check, left) for check in (check_thresholds(report) if policy.thresholds else ())]
    enough = list(check_min_cases(policy, report, run.copies))
    checks = [*thresholds, *enough, *check_must_pass(policy, report, run.eval_set), *rules.checks]
    problems = [
        *run.problems,
        *_pin_problems(policy, run, now),
        *(attestation_problems(policy.attestation, run.evidence) if policy.attestation else ()),
        *judge_problems(policy, trust),
        *(_replay_problems(policy.replay, run.report) if policy.replay else ()),
        *exhausted,
    ]
    missing = [*unevaluated(report), *([] if any(check.cases for check in checks) else ["nothing in the policy applies to any case"])]
    missing += [f"not compared with {compared.name}: {problem}" for problem in compared.problems]
    more = {*rules.open, *(check for check in (*thresholds, *enough) if check.verdict == "undecided" and left)}
    verdicts = {check.verdict for check in checks}
    verdict: Verdict = "passed"
    if not problems and "failed" in verdicts:
        verdict = "failed"
    elif problems or missing or "undecided" in verdicts:
        verdict = "undecided"
    if verdict == "passed":
        reasons = [
            evaluated(report, len(waived.waived), run.coverage.gap, part_of(run.evidence.params)),
            *_pins_met(policy, trust),
            *_reasons(checks, "passed"),
        ]
    else:
        # What these checks lack is among `missing` already, in more words.
        repeated = {*rules.uncompared, *(check for check in thresholds if check.verdict == "undecided" and not left)}
        open_checks = [check for check in checks if check not in repeated]
        reasons = [*problems, *_reasons(open_checks, "failed"), *missing, *_reasons(open_checks, "undecided")]
        reasons = reasons or _reasons(checks, verdict)  # whatever is left out elsewhere, no refusal goes without a reason
    decision = result(
        verdict=verdict,
        reasons=tuple(reasons),
        scores=report.scores,
        checks=tuple(checks),
        open=() if missing or "failed" in verdicts else tuple(dict.fromkeys(check.title for check in checks if check in more)),
        waived=waived.waived,
        notes=(*waived.notes, *compared.notes, *rules.notes, *of_attempt, *judge_notes(trust), *run.coverage.notes, *_doubts(policy, run)),
        baseline_run_id=compared.run_id,
        baseline_sha256=compared.sha256,
    )
    if not rounds or (found := run.report.until_decided) is None:
        return decision
    again = partial(decide, policy=policy, now=now, baseline=baseline, measured=measured, rounds=False)
    wrong = list(sequence_problems(run, found, policy, decision.baseline_sha256, lambda earlier: again(earlier).open))
    note = f"the run has {found}; it stopped because of this: {found.stopped}"
    decision = replace(decision, notes=(note, *decision.notes))
    return replace(decision, verdict="undecided", reasons=(*wrong, *decision.reasons)) if wrong else decision


def _reasons(checks: Sequence[Check], verdict: Verdict) -> list[str]:
    return [check.reason for check in checks if check.verdict == verdict]


def _pin_problems(policy: Policy, run: ReadableRun, now: datetime) -> Iterator[str]:
    """Yield how a run is not the kind of run that the policy decides on: another eval set, other judges, too old."""
    if (part := part_of(run.evidence.params)) and not (policy.eval_set and policy.eval_set.digest):
        yield f"the run covers only {part}, so it is not evidence for the whole eval set"
    tagged = zip(run.eval_set.eval_ids, run.tags, strict=True)
    if generated := [eval_id for eval_id, tags in tagged if GENERATED in tags]:
        named = ", ".join(few(generated, limit=4))
        yield f"nobody has reviewed {counted(len(generated), 'case')} that a model wrote (tag {GENERATED!r}): {named}"
    if held := select(run.eval_set.eval_ids, run.tags, policy.holdout).eval_ids if policy.holdout else ():
        named = ", ".join(few(sorted(held), limit=4))
        yield f"the run scored {counted(len(held), 'case')} that the policy holds out ({named}); run it with --policy, which leaves them out"
    yield from _lookalikes(run.report.config.custom_metrics or ())
    if pin := policy.eval_set:
        eval_set_id, digest = run.eval_set.eval_set_id, run.evidence.params.get("adk_eval.eval_set_digest", "")
        if pin.id is not None and eval_set_id != pin.id:
            yield f"the run used the eval set {eval_set_id!r}, but the policy pins {pin.id!r}"
        if pin.digest is not None and digest != pin.digest:
            yield f"the eval set is not the pinned one: its digest is {digest[:19]}…, but the policy pins {pin.digest[:19]}…"
    if policy.config:
        yield from few(_config_problems(policy.config, run))
    if policy.judge and policy.judge.models:
        yield from model_problems(policy.judge.models, run)
    if policy.max_age:
        yield from _age_problems(policy.max_age, run.evidence.end_time, attested_end(policy.attestation, run.evidence), now)


def _replay_problems(pin: ReplayPin, report: Report) -> Iterator[str]:
    """Yield what a recording answered, or did not, although a policy does not allow it."""
    world, found = report.world, replays_of(report)
    tools, models = (
        f"{count} were answered from a recording" if world else "nothing was replayed" for count in (found.tools, found.models)
    )
    if pin.tools == "strict" and (world is None or world.tools != "strict" or found.live):
        lacking = f" in the mode {world.tools}" if world and world.tools != "strict" else f", not that of {found.live}" if world else ""
        yield f"{tools}{lacking}, but the policy requires it of every tool call, in strict mode: run it with --replay"
    if pin.tools == "never" and found.replayed:
        yield f"{tools}, but the policy allows it of none: run it without --replay"
    if pin.models == "always" and (world is None or found.requests != found.replayed_requests):
        yield f"{models}, but the policy requires it of every one: run it with --replay-models"
    if pin.models == "never" and found.replayed_requests:
        yield f"{models}, but a replayed model proves nothing about the model of today: run it without --replay-models"


def _lookalikes(names: Iterable[str]) -> Iterator[str]:
    """Yield the custom metrics whose name only looks like that of a built-in criterion, so that a rule on them looks like one on that."""
    for name in names:
        letters = [char for char in unicodedata.normalize("NFKD", name) if unicodedata.category(char) not in {"Cf", "Mn"}]
        alike = "" if name.isascii() else nearest("".join(letters), CRITERIA)
        if alike and len(alike) == len(letters):
            yield f"the name of the custom metric {name!a} imitates the criterion {alike}"


def _config_problems(pin: ConfigPin, run: ReadableRun) -> Iterator[str]:
    config = run.report.config
    if pin.digest is not None and (digest := config.digest()) != pin.digest:
        yield f"the config is not the pinned one: its digest is {digest[:19]}…, but the policy pins {pin.digest[:19]}…"
    if pin.criteria is None:
        return
    deciding: dict[int, tuple[str, Criteria]] = {}
    for eval_id in run.eval_set.eval_ids:
        deciding.setdefault(id(config.criteria_of(eval_id)), (eval_id, config.criteria_of(eval_id)))
    for eval_id, criteria in deciding.values():
        found, where = {name: settings.threshold for name, settings in criteria.items()}, f"case {eval_id!r} is decided"
        for name, threshold in pin.criteria.items():
            if name not in found:
                yield f"{where} without {name}, but the policy pins it at the threshold {threshold:.15g}"
            elif found[name] != threshold:
                yield f"{where} by {name} at the threshold {found[name]:.15g}, but the policy pins {threshold:.15g}"
        yield from (f"{where} by {name}, but the policy does not pin that criterion" for name in found if name not in pin.criteria)


def _doubts(policy: Policy, run: ReadableRun) -> Iterator[str]:
    """Yield what a decision rests on that the policy leaves open, and that whoever evaluates could choose."""
    if (pin := policy.eval_set) and pin.digest is None:
        digest = run.evidence.params.get("adk_eval.eval_set_digest", "")
        yield f"the eval set is not pinned: without a digest, any cases with the id {pin.id!r} would do; this run's digest is {digest}"
    if kept := run.evidence.params.get("adk_eval.from_ledger"):
        yield f"{kept} of the run's conversations come from the ledger: they took place before the evaluation was resumed"
    if run.copies:
        copies = ", ".join(few((f"{copy} = {first}" for copy, first in run.copies.items()), limit=4))
        yield f"{len(run.copies)} cases repeat the content of another case and count only once: {copies}"
    if policy.holdout:
        yield UNSCORED
    if ignored := str(ignored_calls_of(run.report)):
        yield ignored
    if not policy.replay and run.report.world and ((found := replays_of(run.report)).replayed or found.replayed_requests):
        yield f"{found.tools} and {found.models} were answered from a recording; no `replay` in the policy says whether that may be"
    if policy.config:
        return
    if run.report.world and (replay := run.report.config.replay) and replay.ignore:
        yield f"the run's config ignores {', '.join(few(replay.ignore, limit=4))} when it looks for the recorded call"
    if own := [eval_id for eval_id in run.eval_set.eval_ids if eval_id in run.report.config.case_criteria]:
        yield f"the run's config has separate criteria for {counted(len(own), 'case')}: {', '.join(few(own, limit=4))}"


def _age_problems(max_age: timedelta, end_time: int | None, attested: datetime | None, now: datetime) -> Iterator[str]:
    """Yield that a run is too old, by the earlier of what MLflow says, which can be edited, and what was signed."""
    if end_time is None:
        return  # which is a problem of its own
    try:
        ended = datetime.fromtimestamp(end_time / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        yield f"the run's end time {end_time} is not a valid time"
        return
    ended = min(ended, attested or ended)
    if ended > now + SKEW:
        yield f"the run ended at {_format_time(ended)}, but it is only {_format_time(now)} now"
    elif now - ended > max_age:
        yield f"the run ended at {_format_time(ended)}, more than {format_age(max_age)} before {_format_time(now)}"


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _pins_met(policy: Policy, trust: JudgeTrust) -> list[str]:
    """Return what a policy has pinned, for the reasons of a pass."""
    pin, config, report = policy.eval_set, policy.config, trust.run.report
    found = replays_of(report) if policy.replay and report.world else None
    replayed = f"{found.tools} and {found.models} were" if found else "nothing was"
    demanded = ", ".join(f"{name} {threshold:.15g}" for name, threshold in ((config and config.criteria) or {}).items())
    return [
        *([f"the eval set has the id {pin.id!r}, as the policy requires"] if pin and pin.id else []),
        *([f"the digest of the eval set is {pin.digest[:19]}…, as pinned"] if pin and pin.digest else []),
        *([f"the digest of the config is {config.digest[:19]}…, as pinned"] if config and config.digest else []),
        *([f"each case is decided by {demanded}, as pinned"] if demanded else []),
        *judges_met(policy, trust),
        *([f"{replayed} answered from a recording, as the policy demands"] if policy.replay else []),
        *([f"the run's attestation is signed with {policy.attestation.signers} from the policy"] if policy.attestation else []),
        *([f"the run ended within the last {format_age(policy.max_age)}"] if policy.max_age else []),
    ]
