"""The other side of a comparison: the baseline's report, or why the rules that compare do not apply, or cannot be decided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mlflow_adk_eval.gating.baseline.baseline import Baseline
from mlflow_adk_eval.gating.baseline.comparable import differences, held_to
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.evidence.read import Examined, examine
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.subset import Waiving
from mlflow_adk_eval.results.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Opponent:
    """What a run is compared with."""

    name: str = "the baseline"
    report: Report | None = None
    """Held to the candidate's thresholds, without what is waived; ``None``: nothing is compared."""
    problems: tuple[str, ...] = ()
    """Why nothing can be compared, although the policy wants it; empty where nothing is to be."""
    notes: tuple[str, ...] = ()
    run_id: str = ""
    sha256: str = ""

    @property
    def state(self) -> Literal["ready", "needless", "impossible"]:
        """Whether rules that compare can be decided, do not apply, or cannot be decided."""
        if self.report is not None:
            return "ready"
        return "impossible" if self.problems else "needless"


def opponent_of(candidate: Examined, policy: Policy, baseline: Baseline | None, waived: Waiving) -> Opponent:
    """Return what a policy compares a run with."""
    source = policy.baseline
    if source is None:
        return Opponent()
    if not policy.compares:
        return Opponent(notes=("the policy names a baseline, but no rule has a max_drop, so nothing was compared",))
    if baseline is None:
        return Opponent(problems=("the policy compares with a baseline, and none was looked for",))
    if baseline.evidence is None:
        return _without_evidence(baseline, policy)
    if baseline.evidence.run_id == candidate.evidence.run_id:
        return _itself(candidate.evidence, policy, baseline)
    return _compared(candidate, policy, baseline.name, baseline.evidence, waived)


def _without_evidence(baseline: Baseline, policy: Policy) -> Opponent:
    name, source = baseline.name, policy.baseline
    if not baseline.absent:
        return Opponent(name=name, problems=baseline.problems)
    if source is not None and source.if_missing == "refuse":
        return Opponent(name=name, problems=("there is none yet, and the policy refuses without one (if_missing)",))
    return _needless(policy, name, f"there is no baseline yet ({name}), so nothing was compared: the absolute rules alone decide")


def _needless(policy: Policy, name: str, note: str) -> Opponent:
    """Return the end of a comparison that is not asked for, unless nothing else is."""
    if not policy.absolute:
        return Opponent(name=name, problems=("there is nothing to compare with, and the policy demands nothing else, so nothing decides",))
    return Opponent(name=name, notes=(note,))


def _itself(candidate: Evidence, policy: Policy, baseline: Baseline) -> Opponent:
    """Return the end of a comparison of a run with itself, which shows nothing; but the version that it is about need not beat itself."""
    if baseline.version is None:
        found = Opponent(name=baseline.name, problems=("it is the very run that is decided on, which shows nothing",))
    else:
        note = f"the run is that of {baseline.name}, itself, so nothing was compared: the absolute rules alone decide"
        found = _needless(policy, baseline.name, note)
    return replace(found, run_id=candidate.run_id, sha256=candidate.sha256)


def _compared(candidate: Examined, policy: Policy, name: str, evidence: Evidence, waived: Waiving) -> Opponent:
    found = Opponent(name=name, run_id=evidence.run_id, sha256=evidence.sha256)
    other = examine(evidence)
    if isinstance(other, tuple):
        return replace(found, problems=tuple(f"run {evidence.run_id}: {doubt}" for doubt in other))
    if problems := differences(candidate, other, policy):
        return replace(found, problems=tuple(problems))
    same = evidence.params.get("adk_eval.model_id") == candidate.evidence.params.get("adk_eval.model_id")
    notes = (f"{name}, is the same agent version: it was compared with its other run {evidence.run_id}",) if same else ()
    return replace(found, report=waived.rest_of(held_to(candidate.documents.config, other.report)), notes=notes)
