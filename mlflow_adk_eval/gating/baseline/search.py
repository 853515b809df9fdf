"""Finding what a run is compared with: the run by which the champion was promoted, or another one about the candidate's cases.

A policy names an alias, a version or a run. `BaselineSearch` follows that name to a version and to the run of its record
(`BaselineRef`), then takes the first run that can be compared with the candidate: that of the record, a later complete one of the same
version on the same eval set, or one that is made now by evaluating the version again. Each run is read and examined at most once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.baseline.comparable import Baseline, Reevaluate, ReevaluationRequest, incomparable
from mlflow_adk_eval.gating.evidence.examine import ExaminedRun, ReadableRun, examine
from mlflow_adk_eval.gating.evidence.integrity import agent_problems, state_problems
from mlflow_adk_eval.gating.mlflow_store import MlflowStore
from mlflow_adk_eval.gating.policy.model import BaselineSource, Policy, Rule
from mlflow_adk_eval.gating.promotion.claim_log import aliases_in
from mlflow_adk_eval.gating.promotion.record import Record, Version
from mlflow_adk_eval.gating.promotion.verify import moved_by_hand, recorded_pass
from mlflow_adk_eval.gating.rules.decide import decide

_NAMED = re.compile(r"runs:/([^/@\s]+)|models:/([^/@]+)(?:/(\d+)|@([\w-]+))")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MODEL_ID = re.compile(r"m-[\w-]+")
_HOW_TO_REEVALUATE = (
    "reevaluate=adk_eval.reevaluation() judges again what it did then, and reevaluation(AGENT) runs its conversations again"
    " (on the command line: --reevaluate, --champion-agent AGENT)"
)


def overridden(policy: Policy, named: str | None) -> Policy:
    """Return the policy with another baseline.

    Args:
        policy: what is demanded.
        named: ``runs:/<id>``, ``models:/<name>/<version>`` or ``models:/<name>@<alias>``; ``None``: the policy's own baseline.

    Raises:
        UsageError: if it is nothing of the kind, or the policy compares nothing.
    """
    if named is None:
        return policy
    found = _NAMED.fullmatch(named)
    if found is None:
        raise UsageError(f"baseline {named!r}: wanted runs:/ID, models:/NAME/VERSION or models:/NAME@ALIAS")
    if not policy.compares:
        raise UsageError(f"baseline {named!r}: the policy {policy.name!r} compares nothing, since none of its rules has a max_drop")
    run, model, version, alias = found.groups()
    kept = policy.baseline.model_dump(include={"if_missing", "if_incomparable"}) if policy.baseline else {}
    source = BaselineSource(run=run, model=model, version=int(version) if version else None, alias=alias, **kept)
    return policy.model_copy(update={"baseline": source})


def absolute(policy: Policy) -> Policy:
    """Return what a policy demands without a comparison."""

    def alone(rules: dict[str, Rule]) -> dict[str, Rule]:
        kept = {name: rule.model_copy(update={"max_drop": None}) for name, rule in rules.items()}
        return {name: rule for name, rule in kept.items() if rule.min is not None or rule.max is not None}

    slices = {name: part.model_copy(update={"rules": alone(part.rules)}) for name, part in policy.slices.items()}
    return policy.model_copy(update={"rules": alone(policy.rules), "slices": slices, "baseline": None})


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRef:
    """What is known of a baseline before its runs are read."""

    name: str
    """How reasons call it."""
    model_id: str
    """Its LoggedModel; empty where its run does not say."""
    agent_version: str
    run_id: str
    """The run of its record, or the one that the policy names; empty where there is no record."""
    sha256: str = ""
    """The hash of the evidence that the record is about; empty where there is no record."""
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSearch:
    """Finds what a policy compares a candidate with."""

    store: MlflowStore
    policy: Policy
    model: str | None = None
    """The registered model that an alias or a version belongs to where the policy names none."""
    candidate: str | None = None
    """The number of the version that is to be promoted: one that was given its alias by hand may be promoted first."""
    reevaluate: Reevaluate | None = None
    """Evaluates the baseline again where nothing known of it can be compared; ``None``: nobody does."""
    _examined: dict[str, ExaminedRun] = field(init=False, default_factory=dict[str, ExaminedRun])
    """What was read already, by run id."""

    def __call__(self, candidate: ExaminedRun) -> Baseline | None:
        """Return the baseline of a candidate; ``None`` if the policy compares nothing.

        Raises:
            UsageError: if the run, the version or the registered model that the policy names does not exist.
        """
        source = self.policy.baseline
        if source is None or not self.policy.compares:
            return None
        if candidate.evidence.run_id:  # a report that was not logged has none
            self._examined[candidate.evidence.run_id] = candidate
        ref = self._run(source.run) if source.run else self._version(source)
        return ref if isinstance(ref, Baseline) else self._select(candidate, ref)

    def _examine(self, run_id: str) -> ExaminedRun:
        if run_id not in self._examined:
            self._examined[run_id] = examine(self.store.evidence(run_id))
        return self._examined[run_id]

    def _run(self, run_id: str) -> BaselineRef:
        model_id = self._examine(run_id).evidence.params.get("adk_eval.model_id", "")
        return BaselineRef(name=f"run {run_id}", model_id=model_id, agent_version=model_id, run_id=run_id)

    def _version(self, source: BaselineSource) -> BaselineRef | Baseline:
        model = source.model or self.model
        if model is None:
            raise UsageError(
                "the policy compares with an alias or a version, but of which registered model? Name it as model=... or --model,"
                " or in the policy as baseline: {model: NAME, ...}"
            )
        number = str(source.version) if source.version else self._holder(model, source.alias or "")
        if number is None:
            moved = moved_by_hand(self.store, model, source.alias or "", None)
            return Baseline(name=f"the {source.alias} of {model!r}", problems=(moved,) if moved else ())
        if number == self.candidate and not self._promoted_ever(model, source.alias):
            return Baseline(name=f"the {source.alias} of {model!r}", version=number)
        version, agent_version = self.store.version(model, number), f"models:/{model}/{number}"
        name = (f"the {source.alias}, " if source.alias else "") + f"version {number} of {model!r}"
        if version.model_id is None:
            problem = f"it was made from {version.source!r}, not from a LoggedModel, so no run can be said to be about it"
            return Baseline(name=name, version=number, problems=(problem,))
        recorded = self._recorded(model, number, source.alias, version)
        if isinstance(recorded, str):
            return Baseline(name=name, version=number, problems=(recorded,))
        run_id, sha256 = (recorded.decision.run_id, recorded.decision.evidence_sha256) if recorded else ("", "")
        return BaselineRef(name=name, model_id=version.model_id, agent_version=agent_version, run_id=run_id, sha256=sha256, version=number)

    def _recorded(self, model: str, number: str, alias: str | None, version: Version) -> Record | str | None:
        """Return the record by which a version holds an alias, or held one, or why that does not stand.

        ``None``: no alias is named, and it never held one.
        """
        try:
            if alias is not None:
                if moved := moved_by_hand(self.store, model, alias, number):
                    return f"{moved}; `mlflow-adk-eval gate audit {model}` says more"
            else:
                params, holders = self.store.claims(model), self.store.aliases(model)
                logs = (self.store.claim_log(model, each, params) for each in aliases_in(params.params))
                held = [log.alias for log in logs if any(entry.claim.version == number for entry in log.moves(holders.get(log.alias)))]
                if not held:
                    return None
                alias = held[0]
            found = recorded_pass(self.store, model, number, alias, version)
        except UsageError as error:
            return str(error)
        return found if isinstance(found, str) else found.problems[0] if found.problems else found.record

    def _promoted_ever(self, model: str, alias: str | None) -> bool:
        return alias is None or bool(self.store.claim_log(model, alias).entries)

    def _holder(self, model: str, alias: str) -> str | None:
        try:
            return self.store.aliases(model).get(alias)
        except UsageError as error:
            hint = f"`mlflow-adk-eval run AGENT EVAL_SET --register {model}` registers its first version"
            raise UsageError(f"{error}, so there is nothing to compare with; {hint}") from None

    def _select(self, candidate: ExaminedRun, ref: BaselineRef) -> Baseline:
        """Return the first run of a baseline that can be compared: that of its record, another one, or one that is made now."""
        if not isinstance(candidate, ReadableRun) or state_problems(candidate.evidence):
            return _none(ref, "it was not examined, since the run itself is not valid evidence")
        problems = self._recorded_problems(candidate, ref) if ref.run_id else ["it has no complete run on this eval set"]
        if not problems:
            return self._found(ref, ref.run_id)
        if ref.run_id and self._must_refuse:
            return _none(ref, *problems)
        if other := next(self._other_runs(candidate, ref), None):
            how = f" (by its later run {other})" if ref.run_id else f" (by its run {other}, which no promotion recorded)"
            return self._found(ref, other, "" if other == candidate.evidence.run_id else how)
        return self._reevaluated(candidate, ref, problems)

    @property
    def _must_refuse(self) -> bool:
        return self.policy.baseline is not None and self.policy.baseline.if_incomparable == "refuse"

    def _found(self, ref: BaselineRef, run_id: str, how: str = "") -> Baseline:
        return Baseline(name=f"{ref.name}{how}", version=ref.version, run=self._examine(run_id))

    def _recorded_problems(self, candidate: ExaminedRun, ref: BaselineRef) -> list[str]:
        try:
            found = self._examine(ref.run_id)
        except UsageError as error:
            return [f"its evidence is gone: {error}"]
        problems = self._problems(candidate, ref, ref.run_id)
        if not problems and ref.sha256 and found.evidence.sha256 != ref.sha256:
            return [f"run {ref.run_id}: its evidence was changed after it was promoted"]
        return problems

    def _problems(self, candidate: ExaminedRun, ref: BaselineRef, run_id: str) -> list[str]:
        """Return why a run cannot stand for the baseline."""
        run = self._examine(run_id)
        about = agent_problems(run.evidence, ref.model_id) if ref.model_id else []
        return [f"run {run_id}: {problem}" for problem in about] or incomparable(candidate, run, self.policy)

    def _other_runs(self, candidate: ExaminedRun, ref: BaselineRef) -> Iterator[str]:
        """Yield what else there is that can be compared, such as a run in which the baseline was evaluated again before."""
        digest = candidate.evidence.params.get("adk_eval.eval_set_digest", "")
        if not _MODEL_ID.fullmatch(ref.model_id) or not _DIGEST.fullmatch(digest):
            return  # a query is made of them
        for run_id in self.store.evaluations(ref.model_id, digest, beside=candidate.evidence.run_id):
            if run_id != ref.run_id and not self._problems(candidate, ref, run_id):
                yield run_id

    def _reevaluated(self, candidate: ReadableRun, ref: BaselineRef, reasons: list[str]) -> Baseline:
        if not ref.model_id:
            return _none(ref, *reasons)
        if self.reevaluate is None or self._must_refuse:
            return _none(ref, *reasons, _hint(ref))
        if decide(candidate, absolute(self.policy)).verdict == "failed":
            return _none(ref, *reasons, "it was not evaluated again, since the run fails even without a comparison")
        request = ReevaluationRequest(
            model_id=ref.model_id,
            agent_version=ref.agent_version,
            run_id=ref.run_id,
            candidate_run_id=candidate.evidence.run_id,
            eval_set=candidate.documents.eval_set,
            config=candidate.documents.config,
            num_runs=candidate.documents.num_runs,
            reasons=tuple(reasons),
        )
        try:
            run_id = self.reevaluate(request)
            self._examine(run_id)
        except UsageError as error:
            return _none(ref, *reasons, f"it could not be evaluated again: {error}")
        if problems := self._problems(candidate, ref, run_id):
            return _none(ref, *(f"it was evaluated again, but {problem}" for problem in problems))
        return self._found(ref, run_id, f" (evaluated again as run {run_id})")


def _hint(ref: BaselineRef) -> str:
    if ref.run_id:
        return f"it can be evaluated again: {_HOW_TO_REEVALUATE}"
    return f"evaluate it: mlflow-adk-eval run AGENT EVAL_SET --agent_version {ref.agent_version}"


def _none(ref: BaselineRef, *problems: str) -> Baseline:
    return Baseline(name=ref.name, version=ref.version, problems=problems)
