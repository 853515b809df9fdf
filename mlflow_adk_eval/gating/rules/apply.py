"""The rules of a policy, each applied to what a run and its baseline came to.

For each rule its measure is computed from the report (`measures`). Where the measure has a value in every case, `min` and `max` are
checked at once (`min_max`). A `max_drop` is compared with the baseline's value of the same measure, case by case (`max_drop`); the tests of
all such rules are adjusted for how many they are, so their checks are made together at the end, and put back in the policy's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mlflow_adk_eval.gating.baseline.comparable import ResolvedBaseline
from mlflow_adk_eval.gating.evidence.examine import ReadableRun
from mlflow_adk_eval.gating.evidence.integrity import few
from mlflow_adk_eval.gating.policy.model import NO_EFFECT, Policy, Rule
from mlflow_adk_eval.gating.rules.checks import PIN_THE_CONFIG, RuleTarget, different, format_cases, format_exact, unmissable
from mlflow_adk_eval.gating.rules.judges import JudgeTrust, rule_problems
from mlflow_adk_eval.gating.rules.max_drop import Drop, check_drops, drop_of
from mlflow_adk_eval.gating.rules.measures import Measured, Source, format_missing, measure, passes_counted
from mlflow_adk_eval.gating.rules.min_max import carried_by_one, check_corrected, check_interval, check_mean, limits_of
from mlflow_adk_eval.gating.rules.subset import select
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.stored import chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What the rules came to."""

    checks: tuple[Check, ...] = ()
    """In the order of the policy, all cases before its slices."""
    uncompared: frozenset[Check] = frozenset()
    """Those among them that only lack something to compare with."""
    notes: tuple[str, ...] = ()


def apply_rules(policy: Policy, run: ReadableRun, report: Report, baseline: ResolvedBaseline, trust: JudgeTrust) -> RuleOutcome:
    """Return what each rule of the policy comes to.

    Args:
        policy: whose rules.
        run: the run that is decided on.
        report: its report without what is waived.
        baseline: what it is compared with.
        trust: what is known of its judges.
    """
    rules = _RuleRun(policy=policy, run=run, report=report, baseline=baseline, trust=trust)
    for name, rule in policy.rules.items():
        rules.apply(rules.target(name, rule), report, baseline.report)
    for name in policy.slices:
        rules.apply_to_slice(name)
    return rules.outcome()


@dataclass(slots=True, kw_only=True)
class _RuleRun:
    """What rules are applied to, and what they have come to so far."""

    policy: Policy
    run: ReadableRun
    report: Report
    baseline: ResolvedBaseline
    trust: JudgeTrust
    results: list[Check | Drop] = field(default_factory=list["Check | Drop"])
    """In the order of the policy; a `Drop` becomes a check at the end."""
    uncompared: list[Check] = field(default_factory=list[Check])
    notes: list[str] = field(default_factory=list[str])

    def outcome(self) -> RuleOutcome:
        compared = [found for found in self.results if isinstance(found, Drop)]
        drops = iter(check_drops(compared, power=self.policy.power, no_worse_from=self.policy.no_worse_from))
        checks = tuple(next(drops) if isinstance(found, Drop) else found for found in self.results)
        return RuleOutcome(checks=checks, uncompared=frozenset(self.uncompared), notes=tuple(dict.fromkeys(self.notes)))

    def target(self, name: str, rule: Rule, slice_name: str = "") -> RuleTarget:
        return RuleTarget(measure=name, slice=slice_name, rule=rule, confidence=rule.confidence or self.policy.confidence)

    def apply_to_slice(self, name: str) -> None:
        part = self.policy.slices[name]
        selected = select(self.run.documents.eval_set.eval_ids, self.run.documents.tags, part)
        report, before = selected.of(self.report), self.baseline.report
        if selected.eval_ids:
            self.notes += [f"slice {name}: {reason}" for reason in selected.unmatched]
        obstacle = ""
        if not report.cases:
            obstacle = "all of its cases are waived" if selected.eval_ids else f"it has no cases: {'; '.join(selected.unmatched)}"
        for measure_name, rule in part.rules.items():
            target = self.target(measure_name, rule, name)
            if obstacle:
                self._leave_undecided(target, obstacle, 0)
            else:
                self.apply(target, report, selected.of(before) if before else None)

    def apply(self, target: RuleTarget, report: Report, before: Report | None) -> None:
        """Add what one rule comes to over the cases of `report`; `before`: the same cases in the baseline's run, if any."""
        found = self._measured(target, report)
        if isinstance(found, str):
            if target.measure in self.run.report.criteria:
                found = "it applies to none of these cases"
            self._leave_undecided(target, found if report.cases else "all cases are waived", 0)
        elif obstacle := self._obstacle(target, found, report):
            self._leave_undecided(target, obstacle, len(found.values))
        else:
            self.notes += [*_surprises(target, found), *self._left_out(target, found, report)]
            self.results += self._limits(target, found, report)
            if target.rule.max_drop is not None:
                self._compare(target, found, before)

    def _obstacle(self, target: RuleTarget, found: Measured, report: Report) -> str:
        """Return why a rule decides nothing; empty where it does."""
        unknown = rule_problems(target.rule.judge, target.measure, self.trust)
        bounds = [f"{key} {given}: wanted {wanted}. {NO_EFFECT}" for key, given, wanted in target.rule.without_effect(*found.bounds)]
        return (
            _obstacle(found)
            or "; ".join(bounds)
            or self._shortfall(target, found)
            or self._empty_demand(target, report)
            or "; ".join(unknown)
        )

    def _measured(self, target: RuleTarget, report: Report) -> Measured | str:
        """Return a measure over the cases of a report: copies of a case as one, and no value beyond the rule's range."""
        found = measure(target.measure, Source(report=report, prices=self.policy.prices))
        return found if isinstance(found, str) else found.pooled(self.run.documents.copies).within(target.rule.range)

    def _shortfall(self, target: RuleTarget, found: Measured) -> str:
        """Return that a rule is about too few cases; empty where it is not, or where the run itself has too few, which is told once."""
        general = self.policy.slices[target.slice].min_cases if target.slice else self.policy.min_cases
        wanted, cases = target.rule.min_cases or general, len(found.values)
        told = not target.slice and different(self.report, self.run.documents.copies) < self.policy.min_cases
        if cases >= wanted or (told and target.rule.min_cases is None):
            return ""
        apart = " with different contents" if self.run.documents.copies else ""
        return f"it has {format_cases(cases)}{apart}, but needs at least {wanted}"

    def _empty_demand(self, target: RuleTarget, report: Report) -> str:
        """Return that passes are counted which nothing could have prevented; empty where that is not so, or the policy pins the config."""
        corrected = [target.measure] if target.rule.use == "corrected_ci_low" else []
        counted = passes_counted(target.measure, report) or corrected
        free = [] if self.policy.config or not counted else unmissable(report, counted)
        return f"{free[0]}, so passing shows nothing; {PIN_THE_CONFIG}" if free else ""

    def _left_out(self, target: RuleTarget, found: Measured, report: Report) -> Iterator[str]:
        """Yield that a measure is not about all cases, which the config of the run may have arranged."""
        copies = self.run.documents.copies
        every = different(report, copies)
        if len(found.values) == every:
            return
        known = set(found.values)
        lacking = sorted({original for case in report.cases if (original := copies.get(case.eval_id, case.eval_id)) not in known})
        if lacking:
            named = ", ".join(few(lacking, limit=4))
            yield f"{target.where}: {len(lacking)} of {format_cases(every)} do not have it and do not count: {named}"

    def _leave_undecided(self, target: RuleTarget, reason: str, cases: int) -> None:
        demands = [limit.demand for limit in limits_of(target)]
        if target.rule.max_drop is not None and self.baseline.state != "not needed":
            demands.append(f"max_drop {format_exact(target.rule.max_drop)}")
        self.results += [target.check(demand, "undecided", reason, cases) for demand in demands]

    def _limits(self, target: RuleTarget, found: Measured, report: Report) -> Iterator[Check]:
        for limit in limits_of(target):
            carried = "" if limit.use == "corrected_ci_low" else carried_by_one(limit, found, config_pinned=self.policy.config is not None)
            if carried:
                yield target.check(limit.demand, "undecided", carried, len(found.values), value=found.value)
                continue
            match limit.use:
                case "mean":
                    yield check_mean(target, limit, found)
                case "corrected_ci_low":
                    yield check_corrected(target, limit, _originals(report, self.run.documents.copies), self.trust)
                case _:
                    yield check_interval(target, limit, found)

    def _compare(self, target: RuleTarget, found: Measured, report: Report | None) -> None:
        """Add the comparison with the baseline's `report`, where one is asked for."""
        baseline, demand, cases = self.baseline, f"max_drop {format_exact(target.rule.max_drop or 0.0)}", len(found.values)
        lead = f"not compared with {baseline.name}: "
        if baseline.state == "impossible":
            check = target.check(demand, "undecided", lead + baseline.problems[0], cases)
            self.results.append(check)
            self.uncompared.append(check)
        elif report is not None:
            before = self._measured(target, report)
            obstacle = before if isinstance(before, str) else _obstacle(before) or _untested(target, found)
            drop = None if obstacle or isinstance(before, str) else drop_of(target, before, found, baseline.name)
            reason = lead + (obstacle or "no case has a value in both runs")
            self.results.append(drop or target.check(demand, "undecided", reason, cases))


def _originals(report: Report, copies: Mapping[str, str]) -> Report:
    """Return a report with one case of each content."""
    if not copies:
        return report
    first: dict[str, str] = {}
    for case in report.cases:
        first.setdefault(copies.get(case.eval_id, case.eval_id), case.eval_id)
    kept = set(first.values())
    return replace(report, cases=chosen(report.cases, lambda case: case if case.eval_id in kept else None))


def _obstacle(found: Measured) -> str:
    """Return why a measure decides nothing; empty where it does."""
    if found.missing:
        return format_missing(found)
    return "" if found.values else "it applies to none of these cases"


def _untested(target: RuleTarget, found: Measured) -> str:
    """Return why the mean of a difference decides nothing without a test; empty where it does, or where it is tested."""
    best = found.bounds[1] if found.greater_is_better else found.bounds[0]
    if target.rule.use != "mean" or not math.isinf(best):
        return ""
    return "it has no best value, so one case could make up for all others; test the drop (without use: mean), or give the rule a range"


def _surprises(target: RuleTarget, found: Measured) -> Iterator[str]:
    """Yield what a rule demands against the direction of its measure, which may be meant, or not."""
    rule = target.rule
    if found.greater_is_better and rule.max is not None and rule.min is None:
        yield f"{target.where}: higher is better, but the rule has a max and no min"
    if not found.greater_is_better and rule.min is not None and rule.max is None:
        yield f"{target.where}: lower is better, but the rule has a min and no max"
