"""The cases that a policy holds out: what scores them, and what a decision makes of that. Nothing is read or written here.

They are decided on as a run of their own, by all that the policy demands of evidence, config and judges, and by one rule on the share of
cases that pass. The decision gets that one number, and nothing of a single case: what nobody knows, nobody can adapt to. Each of the uses
that the policy allows has an equal share of the error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from mlflow_adk_eval.gating.calibration import CheckedCalibration
from mlflow_adk_eval.gating.policy.model import Attempts, Holdout, Policy, Rule
from mlflow_adk_eval.gating.rules.attempts import Attempt
from mlflow_adk_eval.gating.rules.checks import format_number
from mlflow_adk_eval.gating.rules.comparable import Baseline
from mlflow_adk_eval.gating.rules.decide import UNSCORED, decide
from mlflow_adk_eval.gating.rules.subset import held_out
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun
from mlflow_adk_eval.runs.manifest import agent_problems
from mlflow_adk_eval.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldoutRequest:
    """Whose answers to the held-out cases are to be scored, and how."""

    holdout: Holdout
    model_id: str
    """The candidate's LoggedModel, whose source the agent must have."""
    candidate: ReadableRun
    """The run that is decided on, which says how often and by which config; and in which experiment."""
    begin: Callable[[str], None]
    """To be called with the digest of the held-out cases when all is ready, right before the agent is: refuses or enters the use."""


HoldoutEvaluator = Callable[[HoldoutRequest], str]
"""Scores held-out cases and returns the id of the run. A `UsageError` or an `AgentError` says why that cannot be done."""


Calibrated = Callable[[Policy, ExaminedRun], CheckedCalibration | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What the held-out cases came to."""

    run: ExaminedRun
    eval_set: str
    """The digest of these cases."""
    use: int
    """The place of this use among all of these cases, from 1."""
    champion: Baseline | None = None
    """The champion's run of them; ``None``: the policy does not compare them, or there is no champion."""


def with_holdout(
    decision: Decision, policy: Policy, candidate: ExaminedRun, held: HeldOut, *, now: datetime, calibration: Calibrated
) -> Decision:
    """Return a decision that is *passed* together with what the held-out cases came to, where the policy holds out any.

    Args:
        decision: what everything else came to.
        policy: what is demanded.
        candidate: the run that is decided on.
        held: the run of the held-out cases.
        now: as for `decide`.
        calibration: returns a policy's calibration, held against a run.
    """
    run, demanded = held.run, policy.holdout
    if demanded is None:
        return decision
    use = f"use {held.use} of {demanded.uses} of the held-out cases, in run {run.evidence.run_id}"
    notes = (*(note for note in decision.notes if note != UNSCORED), use)
    problems = agent_problems(run.evidence, candidate.evidence.params.get("adk_eval.model_id", ""))
    if isinstance(run, ReadableRun) and isinstance(candidate, ReadableRun):
        cases = run.eval_set
        if run.evidence.params.get("adk_eval.eval_set_digest") != held.eval_set or set(cases.eval_ids) - held_out(cases, demanded):
            problems.append("it has other cases than the policy holds out")
        if len({one.report.config.without(one.eval_set.eval_ids).digest() for one in (run, candidate)}) > 1:
            problems.append("it has another config than the candidate's run")
    if problems:
        reason = f"holdout: run {run.evidence.run_id} does not count: {problems[0]}"
        return replace(decision, verdict="undecided", reasons=(reason,), notes=notes)
    if demanded.min is None and held.champion is None:
        alone = "holdout: there is no champion to compare with, so the held-out cases decide nothing"
        return replace(decision, notes=(*notes, alone))
    kept = {name: getattr(policy, name) for name in ("name", "attestation", "max_age", "confidence", "power", "baseline", "calibration")}
    config = policy.config and policy.config.model_copy(update={"digest": None})  # what it says of single cases differs: compared above
    judge = policy.judge and policy.judge.model_copy(update={"max_drift": None, "max_apart": None})
    rules = {"case_pass_rate": Rule.model_construct(min=demanded.min, max_drop=demanded.max_drop)}
    own = Policy.model_construct(**kept, judge=judge, config=config, rules=rules, attempts=Attempts(spend=demanded.uses))
    champion, measured = held.champion or Baseline(name="the champion"), calibration(own, run)
    found = decide(run, own, now=now, baseline=champion, measured=measured, attempt=Attempt(held.use))
    checks = [replace(check, measure="holdout", reason=_reason(check, held.champion)) for check in found.checks]
    if found.passed:
        reasons = (*decision.reasons, *(check.reason for check in checks))
    else:
        reasons = tuple(check.reason for check in checks if check.verdict == found.verdict)
        reasons = reasons or (f"holdout: its run is no evidence that decides; `mlflow-adk-eval gate {run.evidence.run_id}` says why",)
    return replace(decision, verdict=found.verdict, reasons=reasons, checks=(*decision.checks, *checks), notes=notes)


def _reason(check: Check, champion: Baseline | None) -> str:
    """Return what is said of held-out cases: one number of each side."""
    if check.value is None:
        return f"holdout: {check.demand}: {check.verdict}"
    against = "" if check.baseline is None or champion is None else f", against {format_number(check.baseline)} of {champion.name}"
    more = f"; about {counted(check.needed, 'case')} would decide it" if check.needed else ""
    share = f"holdout: pass rate {format_number(check.value)} over {counted(check.cases, 'held-out case')}{against}"
    return f"{share}, {check.demand}: {check.verdict}{more}"
