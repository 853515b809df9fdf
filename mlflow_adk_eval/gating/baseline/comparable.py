"""Whether two runs can be compared at all: the same cases, judged by the same judges in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mlflow_adk_eval.config.criteria import CriterionSettings, JudgedSettings
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.gating.baseline.baseline import Baseline
from mlflow_adk_eval.gating.evidence.integrity import Evidence, few, key_of_criterion, prompt_keys
from mlflow_adk_eval.gating.evidence.read import Examined, examine
from mlflow_adk_eval.gating.policy.model import Policy
from mlflow_adk_eval.gating.rules.measures import compares_runs, criteria_behind
from mlflow_adk_eval.gating.rules.subset import WaivedSubset
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult
from mlflow_adk_eval.results.report import Report

_NO_MATTER = frozenset({"threshold", "parallelism_limit"})
"""Settings that change no score: both runs are held to the thresholds of the candidate's."""
_CONDITIONS = ("user_simulator_config", "environment_simulation_config", "case_environments")
"""What a config says of the world that an agent is in."""


def incomparable(candidate: Evidence, baseline: Evidence, policy: Policy) -> list[str]:
    """Return why the rules of a policy cannot compare a run with that of a baseline; nothing if the candidate itself is no evidence."""
    examined = examine(candidate)
    if isinstance(examined, tuple):
        return []
    other = examine(baseline)
    if isinstance(other, tuple):
        return [f"run {baseline.run_id}: {doubt}" for doubt in other]
    return differences(examined, other, policy)


def differences(candidate: Examined, baseline: Examined, policy: Policy) -> list[str]:
    """Return why the rules of a policy cannot compare two runs that could be read; as `incomparable`."""
    name = baseline.evidence.run_id
    doubts = [f"run {name}: {doubt}" for doubt in baseline.doubts]
    measures = list(dict.fromkeys(measure for _, measure, rule in policy.all_rules() if rule.max_drop is not None))
    criteria = dict.fromkeys(found for measure in measures for found in criteria_behind(measure, candidate.report))
    return [
        *doubts,
        *_other_set(candidate, baseline),
        *_other_conditions(candidate, baseline),
        *(problem for criterion in criteria for problem in _other_criterion(candidate, baseline, criterion)),
        *_other_runs(candidate, baseline, measures),
    ]


def held_to(config: EvalConfig, report: Report) -> Report:
    """Return the report of a baseline with the thresholds of another config, so that passing means the same in both runs."""
    cases = tuple(_held(config, case) for case in report.cases)
    return replace(report, config=config, cases=cases)


def _held(config: EvalConfig, case: CaseResult) -> CaseResult:
    criteria = config.criteria_of(case.eval_id)

    def held(result: CriterionResult) -> CriterionResult:
        settings = criteria.get(result.criterion)
        return replace(result, threshold=settings.threshold if settings else None)

    return replace(case, results=tuple(map(held, case.results)))


def _other_set(candidate: Examined, baseline: Examined) -> Iterator[str]:
    new, old = (side.evidence.params.get("adk_eval.eval_set_digest", "") for side in (candidate, baseline))
    if new != old:
        yield f"run {baseline.evidence.run_id} was on another eval set: its digest is {old[:19]}…, the candidate's is {new[:19]}…"


def _other_conditions(candidate: Examined, baseline: Examined) -> Iterator[str]:
    new, old = candidate.documents.config, baseline.documents.config
    simulated = any(case.conversation is None for case in candidate.documents.eval_set.eval_cases)
    for name in _CONDITIONS:
        if getattr(new, name) != getattr(old, name) and (simulated or name != "user_simulator_config"):
            yield f"run {baseline.evidence.run_id} was under other conditions: its config has another {name}"
    if simulated:
        yield from _other_params(candidate, baseline, ["adk_eval.user_simulator.model"], "had other simulated users")
        prompts = [key for key in candidate.evidence.params if key.startswith("adk_eval.prompt.user_simulator")]
        yield from _other_params(candidate, baseline, prompts, "had simulated users that were told something else")


def _other_criterion(candidate: Examined, baseline: Examined, criterion: str) -> Iterator[str]:
    new, old = candidate.documents.config, baseline.documents.config
    run_id = baseline.evidence.run_id
    if criterion not in baseline.report.criteria:
        yield f"run {run_id} has no {criterion}"
        return
    changed = [
        case.eval_id
        for case in candidate.report.cases
        if _settings(new, case.eval_id, criterion) != _settings(old, case.eval_id, criterion)
    ]
    metrics = [(config.custom_metrics or {}).get(criterion) for config in (new, old)]
    if changed or metrics[0] != metrics[1]:
        where = f" for {', '.join(few(dict.fromkeys(changed), limit=3))}" if changed and old.criteria.get(criterion) else ""
        yield f"run {run_id} has other settings of {criterion}{where}"
    if any(isinstance(settings, JudgedSettings) for settings in _all_settings(new, criterion)):
        yield from _other_judge(candidate, baseline, criterion)
    if criterion in CRITERIA and "baseline" in CRITERIA[criterion].needs and _all_settings(new, criterion):
        yield from _other_params(candidate, baseline, ["adk_eval.baseline"], f"has another baseline of {criterion}", both=False)


def _all_settings(config: EvalConfig, criterion: str) -> list[CriterionSettings]:
    return [criteria[criterion] for criteria in (config.criteria, *config.case_criteria.values()) if criterion in criteria]


def _settings(config: EvalConfig, eval_id: str, criterion: str) -> Any:
    """Return all that a config says of a criterion on a case that can change a score; ``None`` where it does not decide."""
    settings = config.criteria_of(eval_id).get(criterion)
    return None if settings is None else _without(settings.model_dump(mode="json"), _NO_MATTER)


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner, names) for name, inner in value.items() if name not in names}
    return value


def _other_judge(candidate: Examined, baseline: Examined, criterion: str) -> Iterator[str]:
    """Yield other judges and prompts, by what answered for the criterion in both runs, or else by who was to judge in all."""
    params, key = (candidate.evidence.params, baseline.evidence.params), key_of_criterion(criterion)
    answered = f"adk_eval.judge.{key}"
    judge = answered if all(answered in side for side in params) else "adk_eval.judge_model"
    yield from _other_params(candidate, baseline, [judge], f"has another judge of {criterion}", both=False)
    yield from _other_params(candidate, baseline, prompt_keys(criterion), f"asked the judge of {criterion} something else")


def _other_params(candidate: Examined, baseline: Examined, keys: Iterable[str], what: str, *, both: bool = True) -> Iterator[str]:
    """Yield parameters that differ; `both`: only where both runs have them, since what was never asked for is not written down."""
    for key in keys:
        new, old = candidate.evidence.params.get(key), baseline.evidence.params.get(key)
        if new != old and not (both and None in (new, old)):
            yield f"run {baseline.evidence.run_id} {what}: {key} is {_quoted(old)} there and {_quoted(new)} here"


def _quoted(value: str | None) -> str:
    return "absent" if value is None else repr(value)


def _other_runs(candidate: Examined, baseline: Examined, measures: Iterable[str]) -> Iterator[str]:
    new, old = candidate.documents.num_runs, baseline.documents.num_runs
    for measure in measures:
        if compares_runs(measure) and new != old:
            yield f"run {baseline.evidence.run_id} has {old} runs of each case, and the candidate {new}, so {measure} is not the same measure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBaseline:
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


def resolve_baseline(candidate: Examined, policy: Policy, baseline: Baseline | None, waived: WaivedSubset) -> ResolvedBaseline:
    """Return what a policy compares a run with."""
    source = policy.baseline
    if source is None:
        return ResolvedBaseline()
    if not policy.compares:
        return ResolvedBaseline(notes=("the policy names a baseline, but no rule has a max_drop, so nothing was compared",))
    if baseline is None:
        return ResolvedBaseline(problems=("the policy compares with a baseline, and none was looked for",))
    if baseline.evidence is None:
        return _without_evidence(baseline, policy)
    if baseline.evidence.run_id == candidate.evidence.run_id:
        return _itself(candidate.evidence, policy, baseline)
    return _compared(candidate, policy, baseline.name, baseline.evidence, waived)


def _without_evidence(baseline: Baseline, policy: Policy) -> ResolvedBaseline:
    name, source = baseline.name, policy.baseline
    if not baseline.absent:
        return ResolvedBaseline(name=name, problems=baseline.problems)
    if source is not None and source.if_missing == "refuse":
        return ResolvedBaseline(name=name, problems=("there is none yet, and the policy refuses without one (if_missing)",))
    return _needless(policy, name, f"there is no baseline yet ({name}), so nothing was compared: the absolute rules alone decide")


def _needless(policy: Policy, name: str, note: str) -> ResolvedBaseline:
    """Return the end of a comparison that is not asked for, unless nothing else is."""
    if not policy.absolute:
        return ResolvedBaseline(
            name=name, problems=("there is nothing to compare with, and the policy demands nothing else, so nothing decides",)
        )
    return ResolvedBaseline(name=name, notes=(note,))


def _itself(candidate: Evidence, policy: Policy, baseline: Baseline) -> ResolvedBaseline:
    """Return the end of a comparison of a run with itself, which shows nothing; but the version that it is about need not beat itself."""
    if baseline.version is None:
        found = ResolvedBaseline(name=baseline.name, problems=("it is the very run that is decided on, which shows nothing",))
    else:
        note = f"the run is that of {baseline.name}, itself, so nothing was compared: the absolute rules alone decide"
        found = _needless(policy, baseline.name, note)
    return replace(found, run_id=candidate.run_id, sha256=candidate.sha256)


def _compared(candidate: Examined, policy: Policy, name: str, evidence: Evidence, waived: WaivedSubset) -> ResolvedBaseline:
    found = ResolvedBaseline(name=name, run_id=evidence.run_id, sha256=evidence.sha256)
    other = examine(evidence)
    if isinstance(other, tuple):
        return replace(found, problems=tuple(f"run {evidence.run_id}: {doubt}" for doubt in other))
    if problems := differences(candidate, other, policy):
        return replace(found, problems=tuple(problems))
    same = evidence.params.get("adk_eval.model_id") == candidate.evidence.params.get("adk_eval.model_id")
    notes = (f"{name}, is the same agent version: it was compared with its other run {evidence.run_id}",) if same else ()
    return replace(found, report=waived.rest_of(held_to(candidate.documents.config, other.report)), notes=notes)
