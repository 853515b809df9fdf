"""Choosing the run that speaks for a baseline; where none can be compared with the candidate, having it evaluated anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.baseline.baseline import Baseline, Reevaluate, ReevaluationRequest
from mlflow_adk_eval.gating.baseline.comparable import incomparable
from mlflow_adk_eval.gating.evidence.artifacts import read_documents
from mlflow_adk_eval.gating.evidence.integrity import Evidence, agent_problems, integrity_problems, state_problems
from mlflow_adk_eval.gating.policy.model import Policy, Rule
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.gating.store import Store

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MODEL_ID = re.compile(r"m-[\w-]+")
_WAY_OUT = (
    "reevaluate=adk_eval.reevaluation() judges again what it did then, and reevaluation(AGENT) has its conversations anew"
    " (on the command line: --reevaluate, --champion-agent AGENT)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRef:
    """What is known of a baseline before its runs are read."""

    called: str
    """How reasons call it."""
    model_id: str
    """Its LoggedModel; empty where its run does not say."""
    agent_version: str
    run_id: str
    """The run of its record, or the one that the policy names; empty where there is no record."""
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSelector:
    """A baseline, a candidate, and what may be done to compare them."""

    store: Store
    policy: Policy
    candidate: Evidence
    known: BaselineRef
    reevaluate: Reevaluate | None

    def baseline(self) -> Baseline:
        """Return the first run of the baseline that is evidence and can be compared: of its record, known otherwise, or made now."""
        known = self.known
        if state_problems(self.candidate) or integrity_problems(self.candidate):
            return self._without("it was not looked at, since the run is no evidence itself")
        found = self._recorded() if known.run_id else []
        if isinstance(found, Evidence):
            return self._with(found)
        if found and self._refuses:
            return self._without(*found)
        earlier = next(self._others(), None)
        if earlier:
            other = found and earlier.run_id != self.candidate.run_id
            return self._with(earlier, f" (by its later run {earlier.run_id})" if other else "")
        return self._anew(found or ["it has no complete run on this eval set"])

    @property
    def _refuses(self) -> bool:
        return self.policy.baseline is not None and self.policy.baseline.if_incomparable == "refuse"

    def _recorded(self) -> Evidence | list[str]:
        try:
            evidence = self.store.evidence(self.known.run_id)
        except UsageError as error:
            return [f"its evidence is gone: {error}"]
        return self._doubts(evidence) or evidence

    def _doubts(self, evidence: Evidence) -> list[str]:
        """Return why a run cannot speak for the baseline."""
        about = agent_problems(evidence, self.known.model_id) if self.known.model_id else []
        doubts = [f"run {evidence.run_id}: {doubt}" for doubt in (*state_problems(evidence), *integrity_problems(evidence), *about)]
        return doubts or incomparable(self.candidate, evidence, self.policy)

    def _others(self) -> Iterator[Evidence]:
        """Yield what else there is that can be compared, such as a run in which the baseline was evaluated anew before."""
        digest = self.candidate.params.get("adk_eval.eval_set_digest", "")
        if not _MODEL_ID.fullmatch(self.known.model_id) or not _DIGEST.fullmatch(digest):
            return  # a query is made of them
        for run_id in self.store.evaluations(self.known.model_id, digest, beside=self.candidate.run_id):
            if run_id != self.known.run_id and not self._doubts(evidence := self.store.evidence(run_id)):
                yield evidence

    def _anew(self, reasons: list[str]) -> Baseline:
        known = self.known
        documents, _ = read_documents(self.candidate)
        if documents is None or not known.model_id:
            return self._without(*reasons)
        if self.reevaluate is None or self._refuses:
            return self._without(*reasons, self._hint())
        if decide(self.candidate, absolute(self.policy)).verdict == "failed":
            return self._without(*reasons, "it was not evaluated anew, since the run fails without a comparison, too")
        rematch = ReevaluationRequest(
            model_id=known.model_id,
            agent_version=known.agent_version,
            run_id=known.run_id,
            candidate_run_id=self.candidate.run_id,
            eval_set=documents.eval_set,
            config=documents.config,
            num_runs=documents.num_runs,
            reasons=tuple(reasons),
        )
        try:
            evidence = self.store.evidence(self.reevaluate(rematch))
        except UsageError as error:
            return self._without(*reasons, f"it could not be evaluated anew: {error}")
        doubts = [f"it was evaluated anew, but {doubt}" for doubt in self._doubts(evidence)]
        return self._without(*doubts) if doubts else self._with(evidence, f" (evaluated anew as run {evidence.run_id})")

    def _hint(self) -> str:
        if self.known.run_id:
            return f"it can be evaluated anew: {_WAY_OUT}"
        return f"evaluate it: mlflow-adk-eval run AGENT EVAL_SET --agent_version {self.known.agent_version}"

    def _with(self, evidence: Evidence, how: str = "") -> Baseline:
        return Baseline(name=f"{self.known.called}{how}", version=self.known.version, evidence=evidence)

    def _without(self, *problems: str) -> Baseline:
        return Baseline(name=self.known.called, version=self.known.version, problems=problems)


def absolute(policy: Policy) -> Policy:
    """Return what a policy demands without a comparison."""
    slices = {name: part.model_copy(update={"rules": _alone(part.rules)}) for name, part in policy.slices.items()}
    return policy.model_copy(update={"rules": _alone(policy.rules), "slices": slices, "baseline": None})


def _alone(rules: dict[str, Rule]) -> dict[str, Rule]:
    kept = {name: rule.model_copy(update={"max_drop": None}) for name, rule in rules.items()}
    return {name: rule for name, rule in kept.items() if rule.min is not None or rule.max is not None}
