"""Finding what a run is compared with: the run by which the champion was promoted, or one about the same cases as the candidate's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.gating.baseline.baseline import Baseline, Reevaluate
from mlflow_adk_eval.gating.baseline.select import BaselineRef, BaselineSelector
from mlflow_adk_eval.gating.evidence.integrity import Evidence
from mlflow_adk_eval.gating.policy.model import BaselineSource, Policy
from mlflow_adk_eval.gating.promotion.record import find_record
from mlflow_adk_eval.gating.store import Store

_NAMED = re.compile(r"runs:/([^/@\s]+)|models:/([^/@]+)(?:/(\d+)|@([\w-]+))")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Finds what a policy compares a candidate with."""

    store: Store
    policy: Policy
    model: str | None = None
    """The registered model that an alias or a version belongs to where the policy names none."""
    reevaluate: Reevaluate | None = None
    """Evaluates the baseline anew where nothing known of it can be compared; ``None``: nobody does."""

    def __call__(self, candidate: Evidence) -> Baseline | None:
        """Return the baseline of a candidate; ``None`` if the policy compares nothing.

        Raises:
            UsageError: if the run, the version or the registered model that the policy names does not exist.
        """
        source = self.policy.baseline
        if source is None or not self.policy.compares:
            return None
        known = self._run(source.run) if source.run else self._version(source)
        if isinstance(known, Baseline):
            return known
        return BaselineSelector(
            store=self.store, policy=self.policy, candidate=candidate, known=known, reevaluate=self.reevaluate
        ).baseline()

    def _run(self, run_id: str) -> BaselineRef:
        model_id = self.store.evidence(run_id).params.get("adk_eval.model_id", "")
        return BaselineRef(called=f"run {run_id}", model_id=model_id, agent_version=model_id, run_id=run_id)

    def _version(self, source: BaselineSource) -> BaselineRef | Baseline:
        model = source.model or self.model
        if model is None:
            raise UsageError(
                "the policy compares with an alias or a version, but of which registered model? Name it as model=... or --model,"
                " or in the policy as baseline: {model: NAME, ...}"
            )
        number = str(source.version) if source.version else self._holder(model, source.alias or "")
        if number is None:
            return Baseline(name=f"the {source.alias} of {model!r}")
        version, agent_version = self.store.version(model, number), f"models:/{model}/{number}"
        called = (f"the {source.alias}, " if source.alias else "") + f"version {number} of {model!r}"
        if version.model_id is None:
            problem = f"it was made from {version.source!r}, not from a LoggedModel, so no run can be said to be about it"
            return Baseline(name=called, version=number, problems=(problem,))
        place = (find_record(version.tags, source.alias) if source.alias else None) or find_record(version.tags)
        run_id = place.run_id if place else ""
        return BaselineRef(called=called, model_id=version.model_id, agent_version=agent_version, run_id=run_id, version=number)

    def _holder(self, model: str, alias: str) -> str | None:
        try:
            return self.store.aliases(model).get(alias)
        except UsageError as error:
            hint = f"`mlflow-adk-eval run AGENT EVAL_SET --register {model}` registers its first version"
            raise UsageError(f"{error}, so there is nothing to compare with; {hint}") from None
