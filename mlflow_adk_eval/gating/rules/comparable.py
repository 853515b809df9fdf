"""What a run is compared with, and whether the two can be compared at all.

A `Baseline` is what the search has found: an examined run, or why there is none. `incomparable` says why two runs are not about the
same thing: other cases, other judges, other settings of a criterion that the policy compares. `resolve_baseline` makes of a baseline
what the rules need: its report, held to the candidate's thresholds so that passing means the same in both runs, or why they cannot
compare, or a note that they need not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.config.spec import CRITERIA, JudgedSettings
from mlflow_adk_eval.gating.attestation import attestation_problems
from mlflow_adk_eval.gating.drift import JudgeDrift
from mlflow_adk_eval.gating.policy.model import Policy, format_age
from mlflow_adk_eval.gating.promotion.record import VersionId
from mlflow_adk_eval.gating.rules.measures import criteria_behind
from mlflow_adk_eval.gating.rules.subset import WaivedSubset
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun
from mlflow_adk_eval.runs.manifest import key_of_criterion, prompt_keys
from mlflow_adk_eval.text import few

_NO_MATTER = frozenset({"threshold", "parallelism_limit"})
"""Settings that change no score: both runs are held to the thresholds of the candidate's."""
_CONDITIONS = ("user_simulator_config", "environment_simulation_config", "case_environments", "replay")
"""What a config says of the world that an agent is in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The run of the champion, or of whatever else the policy names; or that there is none."""

    name: str
    """How reasons call it, such as ``the champion, version 3 of 'home_automation'``."""
    run: ExaminedRun | None = None
    """``None``: there is no such version yet, or what there is cannot be used."""
    version: VersionId | None = None
    """Its version; ``None`` for a run that the policy names, and where there is none."""
    problems: tuple[str, ...] = ()
    """Why there is no run, although there is a baseline; empty where there is none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReevaluationRequest:
    """What is to be evaluated again, since nothing that is known of it can be compared with the candidate."""

    model_id: str
    """The LoggedModel of the baseline, which the new run must be about."""
    agent_version: str
    """How people call that, such as ``models:/home_automation/3``."""
    run_id: str
    """The run that is known of it and cannot be used; empty where none is."""
    candidate: ReadableRun
    """The run to compare with, whose eval set, config and number of runs the new one has."""
    policy: Policy
    """What it pins, and which cases it holds out."""
    reasons: tuple[str, ...]
    """Why what is known cannot be compared with the candidate."""


Reevaluate = Callable[[ReevaluationRequest], str]
"""Evaluates a baseline again and returns the id of the run. A `UsageError` says why that cannot be done."""


def incomparable(candidate: ExaminedRun, baseline: ExaminedRun, policy: Policy, drift: JudgeDrift | None = None) -> list[str]:
    """Return why the rules of a policy cannot compare a run with that of a baseline; nothing if the candidate cannot be read itself."""
    if not isinstance(candidate, ReadableRun):
        return []
    run_id = baseline.evidence.run_id
    doubts = (*baseline.problems, *attestation_problems(policy.attestation, baseline.evidence))
    problems = [f"run {run_id}: {problem}" for problem in doubts]
    if isinstance(baseline, ReadableRun):
        problems += [f"run {run_id} {difference}" for difference in _differences(candidate, baseline, policy, drift)]
    return problems


def _differences(candidate: ReadableRun, baseline: ReadableRun, policy: Policy, drift: JudgeDrift | None) -> Iterator[str]:
    """Yield how the baseline's run differs in what matters, each without its subject."""
    new, old = (run.evidence.params.get("adk_eval.eval_set_digest", "") for run in (candidate, baseline))
    if new != old:
        yield f"used a different eval set: its digest is {old[:19]}…, but the candidate's is {new[:19]}…"
    yield from _other_conditions(candidate, baseline)
    measures = list(dict.fromkeys(measure for _, measure, rule in policy.all_rules() if rule.max_drop is not None))
    for criterion in dict.fromkeys(found for measure in measures for found in criteria_behind(measure, candidate.report)):
        yield from _other_criterion(candidate, baseline, criterion)
    yield from dict.fromkeys(_drifted(candidate, baseline, policy, drift) if drift else ())
    runs, former_runs = candidate.report.num_runs, baseline.report.num_runs
    for measure in measures:
        if measure in ("case_pass_rate", "flaky_rate") and runs != former_runs:
            yield f"has {former_runs} runs of each case, but the candidate has {runs}, so {measure} is not comparable"


def _other_conditions(candidate: ReadableRun, baseline: ReadableRun) -> Iterator[str]:
    new, old = candidate.report.config, baseline.report.config
    simulated = candidate.simulated
    for name in _CONDITIONS:
        if getattr(new, name) != getattr(old, name) and (simulated or name != "user_simulator_config"):
            yield f"ran under different conditions: its config has another {name}"
    here, there = (run.report.world.digest if run.report.world else "" for run in (candidate, baseline))
    if here != there:
        met = [f"the world {digest[:19]}…" if digest else "no recorded world" for digest in (there, here)]
        yield f"met {met[0]}, but the candidate met {met[1]}: evaluate both with --replay of the same source, as --reevaluate --champion-agent AGENT does"
    if simulated:
        yield from _other_params(candidate, baseline, ["adk_eval.user_simulator.model"], "had different simulated users")
        prompts = [key for key in candidate.evidence.params if key.startswith("adk_eval.prompt.user_simulator")]
        yield from _other_params(candidate, baseline, prompts, "used different prompts for its simulated users")


def _other_criterion(candidate: ReadableRun, baseline: ReadableRun, criterion: str) -> Iterator[str]:
    new, old = candidate.report.config, baseline.report.config
    if criterion not in baseline.report.criteria:
        yield f"did not evaluate {criterion}"
        return
    changed = _changed(new, old, candidate.eval_set.eval_ids, criterion)
    if changed or (new.custom_metrics or {}).get(criterion) != (old.custom_metrics or {}).get(criterion):
        where = f" for {', '.join(few(changed, limit=3))}" if changed and old.criteria.get(criterion) else ""
        yield f"has different settings for {criterion}{where}"
    settings = new.by_criterion.get(criterion, [])
    if any(isinstance(one, JudgedSettings) for one in settings):
        # By what answered for the criterion in both runs, or else by who was to judge in all.
        answered = f"adk_eval.judge.{key_of_criterion(criterion)}"
        judge = answered if all(answered in run.evidence.params for run in (candidate, baseline)) else "adk_eval.judge_model"
        yield from _other_params(candidate, baseline, [judge], f"has a different judge for {criterion}", both=False)
        yield from _other_params(candidate, baseline, prompt_keys(criterion), f"used a different judge prompt for {criterion}")
    if settings and criterion in CRITERIA and "baseline" in CRITERIA[criterion].needs:
        yield from _other_params(candidate, baseline, ["adk_eval.baseline"], f"has a different baseline for {criterion}", both=False)


def _drifted(candidate: ReadableRun, baseline: ReadableRun, policy: Policy, drift: JudgeDrift) -> Iterator[str]:
    """Yield where a policy that compares two runs does not allow that judges changed between them, or that so much time lies between them."""
    judged = judged_criteria(candidate.report.config)
    for measure, rule in ((measure, rule) for _, measure, rule in policy.all_rules() if rule.max_drop is not None):
        demands = [demand for demand in (policy.judge, rule.judge) if demand and demand.minds_time]
        least = min((demand.max_drift for demand in demands if demand.max_drift is not None), default=None)
        most = min((demand.max_apart for demand in demands if demand.max_apart is not None), default=None)
        for criterion in criteria_behind(measure, candidate.report) if demands else ():
            moments = [*drift.moments(candidate, criterion), *drift.moments(baseline, criterion)]
            for change in drift.between(criterion, least, moments) if least is not None else ():
                yield f"has verdicts of {criterion} from the other side of a change: {change}; judge both afresh since then, with --ledger off"
            if most is None or criterion not in judged or not candidate.evidence.run_id:  # a run that has not ended has no time yet
                continue
            if (apart_ms := max(moments) - min(moments)) > most.total_seconds() * 1000:
                apart = f"{apart_ms / 3_600_000:,.1f} h apart" if min(moments) else "partly at a time that is not known"
                yield f"and the candidate have verdicts of {criterion} that were asked for {apart}; the policy allows {format_age(most)}: judge both again, with --ledger off"


def _changed(new: EvalConfig, old: EvalConfig, eval_ids: Iterable[str], criterion: str) -> list[str]:
    """Return the cases for which two configs have other settings of a criterion that can change a score; most cases have those of all others."""
    known: dict[tuple[int, int], bool] = {}

    def differ(eval_id: str) -> bool:
        both = [config.criteria_of(eval_id) for config in (new, old)]
        key = id(both[0]), id(both[1])
        if key not in known:
            settings = [criteria.get(criterion) for criteria in both]
            mine, former = (None if one is None else _without_idle(one.model_dump(mode="json")) for one in settings)
            known[key] = mine != former
        return known[key]

    return [eval_id for eval_id in eval_ids if differ(eval_id)]


def _without_idle(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_idle(inner) for name, inner in value.items() if name not in _NO_MATTER}


def _other_params(candidate: ReadableRun, baseline: ReadableRun, keys: Iterable[str], what: str, *, both: bool = True) -> Iterator[str]:
    """Yield parameters that differ; `both`: only where both runs have them, since what was never asked for is not written down."""
    for key in keys:
        new, old = candidate.evidence.params.get(key), baseline.evidence.params.get(key)
        if new != old and not (both and None in (new, old)):
            there, here = ("absent" if value is None else repr(value) for value in (old, new))
            yield f"{what}: {key} is {there} there, but {here} here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedBaseline:
    """What the rules of a policy compare a run with."""

    name: str = "the baseline"
    report: Report | None = None
    """Held to the candidate's thresholds, without what is waived; ``None``: nothing is compared."""
    problems: tuple[str, ...] = ()
    """Why nothing can be compared, although the policy wants it; empty where nothing is to be."""
    notes: tuple[str, ...] = ()
    run_id: str = ""
    sha256: str = ""


def resolve_baseline(
    candidate: ReadableRun, policy: Policy, baseline: Baseline | None, waived: WaivedSubset, drift: JudgeDrift | None = None
) -> ResolvedBaseline:
    """Return what a policy compares a run with."""
    if policy.baseline is None or not policy.compares:
        idle = "the policy names a baseline, but no rule has a max_drop, so nothing was compared"
        return ResolvedBaseline(notes=(idle,) if policy.baseline else ())
    if baseline is None:
        return ResolvedBaseline(problems=("the policy requires a baseline, but none was given",))
    run = baseline.run
    if run is None:
        resolved = ResolvedBaseline(name=baseline.name, problems=baseline.problems)
        if resolved.problems:
            return resolved
        if policy.baseline.if_missing == "refuse":
            return replace(resolved, problems=("there is none yet, and the policy requires one (if_missing: refuse)",))
        reason = f"there is no baseline yet ({resolved.name})"
    else:
        resolved = ResolvedBaseline(name=baseline.name, run_id=run.evidence.run_id, sha256=run.evidence.sha256)
        if resolved.run_id != candidate.evidence.run_id:
            problems = incomparable(candidate, run, policy, drift)
            if problems or not isinstance(run, ReadableRun):
                return replace(resolved, problems=tuple(problems))
            same_agent = candidate.evidence.params.get("adk_eval.model_id") == run.evidence.params.get("adk_eval.model_id")
            note = f"{resolved.name}, is the same agent version, so its other run {resolved.run_id} was compared"
            report = waived.rest_of(_with_thresholds(candidate.report.config, run.report))
            scope = f"{resolved.name}, has {run.report.until_decided}, and only these are compared"
            return replace(resolved, report=report, notes=(*([note] * same_agent), *([scope] if run.report.until_decided else [])))
        # A comparison of a run with itself shows nothing; but the version that it is about need not beat itself.
        if baseline.version is None:
            return replace(resolved, problems=("it is the candidate run itself, so comparing shows nothing",))
        reason = f"the run belongs to {resolved.name}, the baseline itself"
    if policy.absolute:
        return replace(resolved, notes=(f"{reason}, so nothing was compared: only the absolute rules decide",))
    return replace(resolved, problems=("there is nothing to compare with, and the policy has no other rules",))


def _with_thresholds(config: EvalConfig, report: Report) -> Report:
    """Return a report with the thresholds of another config, so that passing means the same in both runs."""

    def held(case: CaseResult) -> CaseResult:
        criteria = config.criteria_of(case.eval_id)
        thresholds = {name: config.threshold_of(name, settings) for name, settings in criteria.items()}
        if all(planned.threshold == thresholds.get(planned.criterion) for planned in case.planned):
            return case
        results = tuple(replace(result, threshold=thresholds.get(result.criterion)) for result in case.results)
        return replace(case, results=results)

    return replace(report, config=config, cases=report.cases.changed(held))
