"""The rules of a policy, each held against what a run and its baseline came to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlflow_adk_eval.gating.baseline.comparable import ResolvedBaseline
from mlflow_adk_eval.gating.evidence.read import Examined
from mlflow_adk_eval.gating.policy.model import Policy, Rule
from mlflow_adk_eval.gating.rules.checks import RuleTarget, cases_told, exact
from mlflow_adk_eval.gating.rules.max_drop import Drop, check_drops, drop_of
from mlflow_adk_eval.gating.rules.measures import Measured, Source, measure, missing_told
from mlflow_adk_eval.gating.rules.min_max import check_corrected, check_interval, check_mean, limits_of
from mlflow_adk_eval.gating.rules.subset import select
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What the rules came to."""

    checks: tuple[Check, ...] = ()
    """In the order of the policy, all cases before its slices."""
    uncompared: frozenset[Check] = frozenset()
    """Those among them that only lack something to compare with."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What rules are held against."""

    policy: Policy
    candidate: Examined
    report: Report
    """Without what is waived."""
    opponent: ResolvedBaseline


@dataclass(slots=True)
class _RuleResults:
    """Checks in the order of the policy, and the comparisons whose checks are made together at the end."""

    checks: list[Check | Drop] = field(default_factory=list["Check | Drop"])
    uncompared: list[Check] = field(default_factory=list[Check])
    notes: list[str] = field(default_factory=list[str])


def apply_rules(bench: RuleContext) -> RuleOutcome:
    """Return what each rule of the policy comes to."""
    docket, policy = _RuleResults(), bench.policy
    for name, rule in policy.rules.items():
        _apply(bench, docket, _subject(policy, name, rule), bench.report, bench.opponent.report)
    for slice_name in policy.slices:
        _apply_to_slice(bench, docket, slice_name)
    compared = iter(check_drops([entry for entry in docket.checks if isinstance(entry, Drop)], power=policy.power))
    checks = tuple(next(compared) if isinstance(entry, Drop) else entry for entry in docket.checks)
    return RuleOutcome(checks=checks, uncompared=frozenset(docket.uncompared), notes=tuple(dict.fromkeys(docket.notes)))


def _subject(policy: Policy, name: str, rule: Rule, slice_name: str = "") -> RuleTarget:
    return RuleTarget(measure=name, slice=slice_name, rule=rule, confidence=rule.confidence or policy.confidence)


def _apply_to_slice(bench: RuleContext, docket: _RuleResults, name: str) -> None:
    part = bench.policy.slices[name]
    chosen = select(bench.candidate.documents.eval_set, part)
    report, opponent = chosen.of(bench.report), bench.opponent.report
    docket.notes += [f"slice {name}: {said}" for said in chosen.unmatched] if chosen.eval_ids else []
    cases = len({case.eval_id for case in report.cases})
    few = _too_few(cases, part.min_cases, waived=bool(chosen.eval_ids), unmatched="; ".join(chosen.unmatched))
    for measure_name, rule in part.rules.items():
        subject = _subject(bench.policy, measure_name, rule, name)
        if few:
            docket.checks += [subject.check(demand, "undecided", few, cases) for demand in _demands(bench, subject)]
        else:
            _apply(bench, docket, subject, report, chosen.of(opponent) if opponent else None)


def _too_few(cases: int, wanted: int, *, waived: bool, unmatched: str) -> str:
    """Return why the cases of a slice are too few to decide; empty where they are not."""
    if not cases:
        return "all of its cases are waived" if waived else f"it has no cases: {unmatched}"
    return "" if cases >= wanted else f"it has {cases_told(cases)}, and at least {wanted} are wanted"


def _demands(bench: RuleContext, subject: RuleTarget) -> Iterator[str]:
    yield from (limit.demand for limit in limits_of(subject))
    if subject.rule.max_drop is not None and bench.opponent.state != "needless":
        yield f"max_drop {exact(subject.rule.max_drop)}"


def _apply(bench: RuleContext, docket: _RuleResults, subject: RuleTarget, report: Report, opponent: Report | None) -> None:
    """Add what one rule comes to."""
    found = measure(subject.measure, Source(report=report, prices=bench.policy.prices))
    if isinstance(found, str) and subject.measure in bench.candidate.report.criteria:
        found = "it applies to none of these cases"
    obstacle = _obstacle(found, report)
    if obstacle or isinstance(found, str):
        cases = 0 if isinstance(found, str) else len(found.values)
        docket.checks += [subject.check(demand, "undecided", obstacle, cases) for demand in _demands(bench, subject)]
        return
    docket.notes += _surprises(subject, found)
    docket.checks += _limits(bench, subject, found, report)
    if subject.rule.max_drop is not None:
        _compare(bench, docket, subject, found, opponent)


def _obstacle(found: Measured | str, report: Report) -> str:
    """Return why a measure decides nothing; empty where it does."""
    if isinstance(found, str):
        return found if report.cases else "all cases are waived"
    if found.missing:
        return missing_told(found)
    return "" if found.values else "it applies to none of these cases"


def _limits(bench: RuleContext, subject: RuleTarget, found: Measured, report: Report) -> Iterator[Check]:
    for limit in limits_of(subject):
        match limit.use:
            case "mean":
                yield check_mean(subject, limit, found)
            case "corrected_ci_low":
                yield check_corrected(subject, limit, report, bench.candidate, bench.policy)
            case _:
                yield check_interval(subject, limit, found)


def _compare(bench: RuleContext, docket: _RuleResults, subject: RuleTarget, found: Measured, other: Report | None) -> None:
    """Add the comparison with the baseline, where one is asked for."""
    opponent, demand = bench.opponent, f"max_drop {exact(subject.rule.max_drop or 0.0)}"
    if opponent.state == "impossible":
        check = subject.check(demand, "undecided", f"not compared with {opponent.name}: {opponent.problems[0]}", len(found.values))
        docket.checks.append(check)
        docket.uncompared.append(check)
    elif other is not None:
        before = measure(subject.measure, Source(report=other, prices=bench.policy.prices))
        obstacle = _obstacle(before, other)
        drop = None if obstacle or isinstance(before, str) else drop_of(subject, before, found, opponent.name)
        why = f"not compared with {opponent.name}: {obstacle or 'no case has a value in both runs'}"
        docket.checks.append(drop or subject.check(demand, "undecided", why, len(found.values)))


def _surprises(subject: RuleTarget, found: Measured) -> Iterator[str]:
    """Yield what a rule demands against the direction of its measure, which may be meant, or not."""
    rule = subject.rule
    if found.greater_is_better and rule.max is not None and rule.min is None:
        yield f"{subject.where}: higher is better, but the rule has a max and no min"
    if not found.greater_is_better and rule.min is not None and rule.max is None:
        yield f"{subject.where}: lower is better, but the rule has a min and no max"
