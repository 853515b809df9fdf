"""From a run's evidence and a policy to a decision. Pure: every number is computed anew from the per-invocation table and the votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from mlflow_adk_eval.gating.baseline.baseline import Baseline
from mlflow_adk_eval.gating.baseline.comparable import resolve_baseline
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.evidence.read import Examined, examine
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY, Policy
from mlflow_adk_eval.gating.rules.apply import RuleContext, RuleOutcome, apply_rules
from mlflow_adk_eval.gating.rules.pins import pin_problems, pins_told
from mlflow_adk_eval.gating.rules.reasons import check_min_cases, check_must_pass, check_thresholds, evaluated, unevaluated
from mlflow_adk_eval.gating.rules.subset import waiving
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.results.report import Report


def decide(
    evidence: Evidence, policy: Policy = DEFAULT_POLICY, *, baseline: Baseline | None = None, now: datetime | None = None
) -> Decision:
    """Return whether the run allows a promotion.

    *failed* if a demand of the policy was missed, else *undecided* if one cannot be decided or something was not evaluated, else
    *passed*; and *undecided* whatever the numbers are, if the evidence is incomplete, cannot be believed or is not of the kind that
    the policy decides on.

    Args:
        evidence: what the run holds.
        policy: what is demanded.
        baseline: what the policy compares with.
        now: when waivers must hold, and how old the run is; ``None``: the clock's time.
    """
    examined = examine(evidence)
    if isinstance(examined, tuple):
        return decision_of(evidence, policy, "undecided", examined)
    return _decide(examined, policy, baseline, (now or datetime.now(UTC)).astimezone(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grounds:
    """What a decision rests on."""

    doubts: Sequence[str]
    """Why the evidence decides nothing."""
    lacking: Sequence[str]
    """What is not there, besides the checks."""
    thresholds: Sequence[Check] = ()
    others: Sequence[Check] = ()
    untold: frozenset[Check] = frozenset()
    """Checks whose reason is among what is lacking."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {check.verdict for check in (*self.thresholds, *self.others)}
        if self.doubts:
            return "undecided"
        if "failed" in verdicts:
            return "failed"
        return "undecided" if self.lacking or "undecided" in verdicts else "passed"

    def told(self, verdict: Verdict) -> list[str]:
        """Return the sentences of the checks with a verdict."""
        return [check.reason for check in (*self.thresholds, *self.others) if check.verdict == verdict and check not in self.untold]


def _decide(examined: Examined, policy: Policy, baseline: Baseline | None, now: datetime) -> Decision:
    waived = waiving(policy, examined.report, now)
    report, opponent = waived.rest_of(examined.report), resolve_baseline(examined, policy, baseline, waived)
    ruling = apply_rules(RuleContext(policy=policy, candidate=examined, report=report, opponent=opponent))
    grounds = _grounds(examined, policy, report, ruling, now)
    lacking = [*grounds.lacking, *(f"not compared with {opponent.name}: {problem}" for problem in opponent.problems)]
    grounds = replace(grounds, lacking=lacking)
    reasons = [*grounds.doubts, *grounds.told("failed"), *grounds.lacking, *grounds.told("undecided")]
    if grounds.verdict == "passed":
        reasons = [evaluated(report, len(waived.waived)), *pins_told(policy), *grounds.told("passed")]
    return replace(
        decision_of(examined.evidence, policy, grounds.verdict, reasons, report.scores),
        checks=(*grounds.thresholds, *grounds.others),
        waived=waived.waived,
        notes=(*waived.notes, *opponent.notes, *ruling.notes),
        baseline_run_id=opponent.run_id,
        baseline_sha256=opponent.sha256,
    )


def _grounds(examined: Examined, policy: Policy, report: Report, ruling: RuleOutcome, now: datetime) -> _Grounds:
    """Return what a decision rests on; `report`: without what is waived."""
    documents = examined.documents
    thresholds = list(check_thresholds(report)) if policy.thresholds else []
    others = [*check_min_cases(policy, report), *check_must_pass(policy, report, documents.eval_set), *ruling.checks]
    return _Grounds(
        doubts=[*examined.doubts, *pin_problems(policy, examined.evidence, documents, now)],
        lacking=[*unevaluated(report), *_nothing([*thresholds, *others])],
        thresholds=thresholds,
        others=others,
        untold=ruling.uncompared | {check for check in thresholds if check.verdict == "undecided"},
    )


def _nothing(checks: Sequence[Check]) -> list[str]:
    """Return that nothing is left to decide on, where waivers or the policy leave nothing."""
    return [] if any(check.cases for check in checks) else ["no demand of the policy is left that any case could meet"]


def decision_of(
    evidence: Evidence, policy: Policy, verdict: Verdict, reasons: Sequence[str], scores: Mapping[str, float | None] | None = None
) -> Decision:
    """Return a decision on `evidence`."""
    return Decision(
        verdict=verdict,
        reasons=tuple(reasons),
        run_id=evidence.run_id,
        evidence_sha256=evidence.sha256,
        policy_sha256=policy.digest(),
        scores=scores or {},
    )
