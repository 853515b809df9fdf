"""What the gate decided about a run, and the error that carries a refusal.

A policy makes *demands*, such as ``min 0.8`` of a criterion or ``max_drop 0.02`` against the baseline. Each becomes a `Check` with its
numbers and its own verdict; the `Decision` sums them up with everything else that a promotion needs (pins, age, evidence). It lives
here, below the gate, so that pages and the command line can show one without loading the gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.results.outcomes import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one demand of a policy, with its numbers; ``None`` where a number does not apply."""

    measure: str
    """A criterion, or another measure such as ``case_pass_rate``."""
    slice: str = ""
    """The name of the slice; empty for all cases."""
    demand: str
    """Such as ``min 0.8`` or ``max_drop 0.02``."""
    verdict: Verdict
    reason: str
    """A sentence with the numbers."""
    cases: int
    """The number of cases it rests on."""
    missing: int = 0
    """The number of cases that should count as well and have no score."""
    value: float | None = None
    low: float | None = None
    """The confidence interval of the value or, in a comparison, of the difference; there, each bound holds at the confidence."""
    high: float | None = None
    baseline: float | None = None
    """The baseline's value over the same cases."""
    difference: float | None = None
    """The value minus the baseline's."""
    p_value: float | None = None
    """The p-value of a drop from the baseline, adjusted for the number of comparisons."""
    needed: int | None = None
    """The number of cases that would decide it."""

    @property
    def title(self) -> str:
        """The demand and its measure, in a few words."""
        return " ".join(filter(None, (self.slice, self.measure, self.demand)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the gate decided about a run, with the numbers it decided on."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """Sentences with numbers; for a pass, the checks."""
    run_id: str
    evidence_sha256: str
    """The hash of the run's manifest, which covers every artifact behind the decision; empty if there is none."""
    policy_sha256: str
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """The case mean of each criterion, recomputed from the run's table."""
    decided_at: str = ""
    """ISO 8601, UTC."""
    decided_by: str = ""
    """The caller, as ``user@host`` or the CI job."""
    checks: tuple[Check, ...] = ()
    """The result of each demand of the policy."""
    open: tuple[str, ...] = ()
    """The demands that more cases or runs could decide; of a run until decided that cannot fail or stay undecided for another reason."""
    waived: tuple[str, ...] = ()
    """The waivers that were used, as sentences."""
    notes: tuple[str, ...] = ()
    """Further notes, such as that there was no champion to compare with."""
    baseline_run_id: str = ""
    """The run that it was compared with; empty if none."""
    baseline_sha256: str = ""
    """The hash of that run's manifest."""
    attempt: int | None = None
    """The place of the decision among all against the same champion, from 1; ``None``: not counted."""

    @property
    def passed(self) -> bool:
        """Whether the promotion may go ahead."""
        return self.verdict == "passed"


class GateFailed(AdkEvalError):  # noqa: N818 - a verdict, not a mishap
    """The decision was not *passed*."""

    def __init__(self, decision: Decision) -> None:
        """Carry the `decision` with its reasons."""
        self.decision = decision
        self.exit_code = 1 if decision.verdict == "failed" else 2
        reasons = "\n".join(f"  - {reason}" for reason in decision.reasons)
        super().__init__(f"gate {decision.verdict}:\n{reasons}")
