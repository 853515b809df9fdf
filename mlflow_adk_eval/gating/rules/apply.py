"""The rules of a policy, each applied to what a run and its baseline came to.

For each rule its measure is computed from the report (`measures`). Where the measure has a value in every case, `min` and `max` are
checked at once. A `max_drop` is compared with the baseline's value of the same measure, case by case (`limits`); the tests of
all such rules are adjusted for how many they are, so their checks are made together at the end, and put back in the policy's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mlflow_adk_eval.gating.policy.model import CORRECTED, NO_EFFECT, Policy, Rule
from mlflow_adk_eval.gating.rules.checks import RuleTarget, different, format_exact
from mlflow_adk_eval.gating.rules.comparable import ResolvedBaseline
from mlflow_adk_eval.gating.rules.judges import JudgeTrust, rule_problems
from mlflow_adk_eval.gating.rules.limits import Drop, carried_by_one, check_corrected, check_drops, check_limit, drop_of, limits_of
from mlflow_adk_eval.gating.rules.measures import Measured, information_only, measure
from mlflow_adk_eval.gating.rules.sequential import Progress, look_at_drops, look_at_limit, progress_of
from mlflow_adk_eval.gating.rules.subset import select
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runs.examined import ReadableRun
from mlflow_adk_eval.text import counted, few

_MAX_NAMED = 3


def apply_rules(
    policy: Policy, run: ReadableRun, report: Report, baseline: ResolvedBaseline, trust: JudgeTrust, share: float = 1.0
) -> AppliedRules:
    """Return what each rule of the policy comes to.

    Args:
        policy: whose rules.
        run: the run that is decided on.
        report: its report without what is waived.
        baseline: what it is compared with.
        trust: what is known of its judges.
        share: how much of its error (one less the confidence) each rule may spend.
    """
    progress = progress_of(run, policy) if run.report.until_decided else None
    rules = AppliedRules(policy=policy, run=run, report=report, baseline=baseline, trust=trust, share=share, progress=progress)
    rules.left[""] = len(progress.left) if progress else 0
    for measure_name, rule in policy.rules.items():
        rules.apply(rules.target(measure_name, rule), report, baseline.report)
    for name, part in policy.slices.items():
        selected = select(run.eval_set.eval_ids, run.tags, part)
        chosen, before = selected.of(report), selected.of(baseline.report) if baseline.report else None
        rules.left[name] = len(progress.left & selected.eval_ids) if progress else 0
        if selected.eval_ids:
            rules.notes += [f"slice {name}: {reason}" for reason in selected.unmatched]
        obstacle = "all its cases are waived" if selected.eval_ids else f"it has no cases: {'; '.join(selected.unmatched)}"
        for measure_name, rule in part.rules.items():
            target = rules.target(measure_name, rule, name)
            if chosen.cases:
                rules.apply(target, chosen, before)
            else:
                rules.leave_undecided(target, "none of its cases was run yet" if rules.left[name] else obstacle, 0, more=rules.left[name])
    drops = [result for result in rules.results if isinstance(result, Drop)]
    if progress:
        looked = look_at_drops(drops, progress, rules.left, power=policy.power)
        rules.open += [check for check, is_open in looked if is_open]
    else:
        looked = [(check, False) for check in check_drops(drops, power=policy.power)]
    compared = iter(looked)
    rules.checks = [next(compared)[0] if isinstance(result, Drop) else result for result in rules.results]
    rules.notes = [*dict.fromkeys(rules.notes)]
    return rules


@dataclass(slots=True, kw_only=True)
class AppliedRules:
    """What rules are applied to, and what they have come to so far."""

    policy: Policy
    run: ReadableRun
    report: Report
    baseline: ResolvedBaseline
    trust: JudgeTrust
    share: float
    progress: Progress | None
    """How far a run until decided has come."""
    left: dict[str, int] = field(default_factory=dict[str, int])
    """How many cases of each slice were not run."""
    checks: list[Check] = field(default_factory=list[Check])
    """In the order of the policy, all cases before its slices."""
    open: list[Check] = field(default_factory=list[Check])
    """Those among them that more cases or runs could decide, in a run until decided."""
    results: list[Check | Drop] = field(default_factory=list["Check | Drop"])
    """In the order of the policy; a `Drop` becomes a check at the end."""
    uncompared: list[Check] = field(default_factory=list[Check])
    """Those checks that only lack something to compare with."""
    notes: list[str] = field(default_factory=list[str])

    def target(self, name: str, rule: Rule, slice_name: str = "") -> RuleTarget:
        """Return a rule with the confidence that it has here."""
        wanted, share = rule.confidence or self.policy.confidence, self.share * (self.progress.share if self.progress else 1.0)
        return RuleTarget(measure=name, slice=slice_name, rule=rule, confidence=wanted + (1 - wanted) * (1 - share))

    def apply(self, target: RuleTarget, report: Report, before: Report | None) -> None:
        """Add what one rule comes to over the cases of `report`; `before`: the same cases in the baseline's run, if any."""
        rule, measured = target.rule, self._measured(target, report)
        if isinstance(measured, str):
            reason = "it applies to no case here" if target.measure in self.run.report.criteria else measured
            self.leave_undecided(target, reason if report.cases else "all cases are waived", 0, more=self.progress is not None)
            return
        cases = len(measured.values)
        if obstacle := self._obstacle(target, measured, report):
            too_few = not measured.missing and cases < self._wanted(target)
            self.leave_undecided(target, obstacle, cases, more=too_few and self.left[target.slice])
            return
        # What a rule demands against the direction of its measure may be meant, or not.
        if measured.greater_is_better and rule.max is not None and rule.min is None:
            self.notes.append(f"{target.where}: higher is better, but the rule has a max and no min")
        if not measured.greater_is_better and rule.min is not None and rule.max is None:
            self.notes.append(f"{target.where}: lower is better, but the rule has a min and no max")
        self.notes += self._left_out(target, measured, report)
        for limit in limits_of(target):
            carried = "" if limit.use in CORRECTED else carried_by_one(limit, measured, config_pinned=self.policy.config is not None)
            if carried:
                check = target.check(limit.demand, "undecided", carried, cases, value=measured.value)
            elif limit.use in CORRECTED:
                check = check_corrected(target, limit, _originals(report, self.run.copies), self.trust)
            else:
                check = check_limit(target, limit, measured)
            if self.progress and not carried:
                check, more = look_at_limit(check, target, limit, measured, self.progress, self.left[target.slice])
                self.open += [check] if more else []
            self.results.append(check)
        if rule.max_drop is not None:
            self._compare(target, measured, before)

    def _obstacle(self, target: RuleTarget, measured: Measured, report: Report) -> str:
        """Return why a rule decides nothing; empty where it does."""
        rule, copies, policy = target.rule, self.run.copies, self.policy
        bounds = [f"{key} {given}: wanted {wanted}. {NO_EFFECT}" for key, given, wanted in rule.without_effect(*measured.bounds)]
        if gap := _gap(measured) or "; ".join(bounds):
            return gap
        wanted, cases = self._wanted(target), len(measured.values)
        # That the run itself has too few is told once.
        if cases < wanted and (target.slice or rule.min_cases is not None or different(self.report, copies) >= policy.min_cases):
            return f"it has {counted(cases, 'case')}{' with different contents' if copies else ''} but needs at least {wanted}"
        config = report.config
        if rule.use in CORRECTED and target.measure in config.by_criterion and target.measure not in config.deciding_thresholds():
            return information_only(target.measure, config)
        return "; ".join(rule_problems(rule.judge, target.measure, self.trust))

    def _wanted(self, target: RuleTarget) -> int:
        general = self.policy.slices[target.slice].min_cases if target.slice else self.policy.min_cases
        return target.rule.min_cases or general

    def _measured(self, target: RuleTarget, report: Report) -> Measured | str:
        """Return a measure over the cases of a report: copies of a case as one, and no value beyond the rule's range."""
        measured = measure(target.measure, report, self.policy.prices)
        return measured if isinstance(measured, str) else measured.pooled(self.run.copies).within(target.rule.range)

    def _left_out(self, target: RuleTarget, measured: Measured, report: Report) -> Iterator[str]:
        """Yield that a measure is not about all cases, which the config of the run may have arranged."""
        copies = self.run.copies
        if len(measured.values) == (every := different(report, copies)):
            return
        originals = {copies.get(case.eval_id, case.eval_id) for case in report.cases}
        if lacking := sorted(originals.difference(measured.values)):
            named = ", ".join(few(lacking, limit=4))
            yield f"{target.where}: {len(lacking)} of {counted(every, 'case')} have no value and do not count: {named}"

    def leave_undecided(self, target: RuleTarget, reason: str, cases: int, *, more: int = False) -> None:
        """Add that nothing decides what a rule demands; `more`: whether more cases or runs could."""
        demands = [limit.demand for limit in limits_of(target)]
        if target.rule.max_drop is not None and (self.baseline.problems or self.baseline.report is not None):
            demands.append(f"max_drop {format_exact(target.rule.max_drop)}")
        checks = [target.check(demand, "undecided", reason, cases) for demand in demands]
        self.results += checks
        self.open += checks if more else []

    def _compare(self, target: RuleTarget, measured: Measured, report: Report | None) -> None:
        """Add the comparison with the baseline's `report`, where one is asked for."""
        baseline, demand, cases = self.baseline, f"max_drop {format_exact(target.rule.max_drop or 0.0)}", len(measured.values)
        lead = f"not compared with {baseline.name}: "
        if baseline.problems:
            self.uncompared.append(target.check(demand, "undecided", lead + baseline.problems[0], cases))
            self.results.append(self.uncompared[-1])
        elif report is not None:
            before = self._measured(target, report)
            obstacle = before if isinstance(before, str) else _gap(before)
            if target.rule.use == "mean" and math.isinf(measured.bounds[measured.greater_is_better]):
                open_ended = "it has no best value, so one case could outweigh all others"
                obstacle = obstacle or f"{open_ended}; remove use: mean to test the drop, or give the rule a range"
            drop = None if obstacle or isinstance(before, str) else drop_of(target, before, measured, baseline.name)
            reason = lead + (obstacle or "no case has a value in both runs")
            self.results.append(drop or target.check(demand, "undecided", reason, cases))


def _originals(report: Report, copies: Mapping[str, str]) -> Report:
    """Return a report with one case of each content."""
    if not copies:
        return report
    first: dict[str, str] = {}
    for case in report.cases:
        first.setdefault(copies.get(case.eval_id, case.eval_id), case.eval_id)
    originals = set(first.values())
    return replace(report, cases=report.cases.changed(lambda case: case if case.eval_id in originals else None))


def _gap(measured: Measured) -> str:
    """Return of how many cases a measure has no value, and why; empty where it has all."""
    if missing := measured.missing:
        count = len(missing)
        return f"{count} of {count + len(measured.values)} cases without a value: {'; '.join(few(missing, limit=_MAX_NAMED))}"
    return "" if measured.values else "it applies to no case here"
