"""From a run's evidence to a decision. Pure: every number is computed anew from the per-invocation table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow_adk_eval.gate.cells import read_cases
from mlflow_adk_eval.gate.documents import read_documents
from mlflow_adk_eval.gate.evidence import Evidence, integrity_problems, state_problems
from mlflow_adk_eval.gate.logged import contradictions
from mlflow_adk_eval.gate.policy import DEFAULT_POLICY, Policy
from mlflow_adk_eval.gate.reasons import checked, missed, unevaluated
from mlflow_adk_eval.gate.votes import voteless
from mlflow_adk_eval.outcome import Decision, Report, Verdict


def decide(evidence: Evidence, policy: Policy = DEFAULT_POLICY) -> Decision:
    """Return whether the run allows a promotion.

    *failed* if a threshold was missed, else *undecided* if something was not evaluated, else *passed*; and *undecided*
    whatever the scores are, if the evidence is incomplete or cannot be believed.
    """
    state, integrity = state_problems(evidence), integrity_problems(evidence)
    if integrity:
        return decision_of(evidence, policy, "undecided", [*state, *integrity])
    documents, mismatches = read_documents(evidence)
    if documents is None:
        return decision_of(evidence, policy, "undecided", [*state, *mismatches])
    reading = read_cases(documents)
    if reading.problems:
        return decision_of(evidence, policy, "undecided", [*state, *mismatches, *reading.problems])
    report = Report(eval_set=documents.eval_set, config=documents.config, cases=reading.cases, num_runs=documents.num_runs)
    doubts = [*state, *mismatches, *contradictions(evidence, report), *voteless(evidence, documents, reading.cases)]
    too_low, lacking = missed(report), unevaluated(report)
    verdict: Verdict = "failed" if too_low and not doubts else "undecided"
    reasons = [*doubts, *too_low, *lacking]
    if not reasons:
        verdict, reasons = "passed", checked(report)
    return decision_of(evidence, policy, verdict, reasons, report.scores)


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
