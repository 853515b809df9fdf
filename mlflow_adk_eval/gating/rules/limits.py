"""What a rule allows: the limits ``min`` and ``max`` of a measure, or of the interval that it lies in, and ``max_drop`` against the baseline.

A limit on the mean passes or fails. One on an interval has a third outcome: if the limit lies within the interval, more cases are
needed, and the check says about how many. A corrected pass rate is such an interval, wider by what is unknown of the judge's error.

A `Drop` pairs one measure in both runs case by case. `drop_verdict` has three outcomes: *failed* if the drop is larger than allowed and
significant, *passed* if a larger one is excluded, else *undecided*, with how many cases would decide it. That no case did worse is no reason to
pass: few cases exclude no small drop. The p-values of all comparisons of a policy are adjusted together (Holm), which is why `check_drops` takes them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlflow_adk_eval.analysis.calibration.calibration import judged_sample
from mlflow_adk_eval.analysis.calibration.judge_error import Corrected
from mlflow_adk_eval.analysis.calibration.prediction_powered import people_rate
from mlflow_adk_eval.analysis.stats.intervals import Interval, mean_interval
from mlflow_adk_eval.analysis.stats.paired import Paired, compare_paired, holm
from mlflow_adk_eval.analysis.stats.power import cases_to_decide, fewest_cases, smallest_shown
from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.gating.calibration import labels_among
from mlflow_adk_eval.gating.policy.model import Use
from mlflow_adk_eval.gating.rules.checks import RuleTarget, extremes, format_exact, format_number, format_percent, largest_drops
from mlflow_adk_eval.gating.rules.judges import JudgeTrust
from mlflow_adk_eval.gating.rules.measures import SHARE, Measured
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import TOLERANCE, Verdict, reaches
from mlflow_adk_eval.results.report import Report, scaled
from mlflow_adk_eval.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One end of what is allowed."""

    bound: float
    least: bool
    """Whether it is a minimum."""
    use: Use

    @property
    def demand(self) -> str:
        """What a check calls it."""
        word = "min" if self.least else "max"
        return f"{word} {format_exact(self.bound)}" + ("" if self.use == "mean" else f" ({self.use})")

    @property
    def noun(self) -> str:
        """How sentences call it."""
        return f"the {'minimum' if self.least else 'maximum'} {format_exact(self.bound)}"

    def kept(self, value: float) -> bool:
        """Whether a number is on the right side of it."""
        return reaches(value, self.bound, greater_is_better=self.least)


def limits_of(target: RuleTarget) -> Iterator[Limit]:
    """Yield the limits of a rule."""
    for bound, least in ((target.rule.min, True), (target.rule.max, False)):
        if bound is not None:
            yield Limit(bound=bound, least=least, use=target.rule.use or "mean")


def interval_verdict(limit: Limit, interval: Interval) -> Verdict:
    """Return *passed* if the whole interval keeps to the limit, *failed* if none of it does, else *undecided*."""
    low, high = interval
    first, last = (low, high) if limit.least else (high, low)
    return "passed" if limit.kept(first) else "undecided" if limit.kept(last) else "failed"


def carried_by_one(limit: Limit, measured: Measured, *, config_pinned: bool) -> str:
    """Return why a single case could carry the mean over a limit, whatever the others came to; empty if none could.

    That is so where a value has no end on the side of the limit. A custom metric's range is what the run's own config says, so
    a wide one is no better than none, unless the policy pins the config.
    """
    low, high, cases = *measured.bounds, len(measured.values)
    best, worst = (high, low) if limit.least else (low, high)
    if math.isinf(best):
        why = f"it has no {'highest' if limit.least else 'lowest'} value"
    elif measured.by_config and not config_pinned and cases > 1 and math.isfinite(worst) and limit.kept(worst + (best - worst) / cases):
        why = f"its range {format_number(low)} to {format_number(high)} comes from the run's own config"
    else:
        return ""
    example = format_exact(limit.bound or 1.0)
    return f"{why}, so one case could lift the mean to {limit.noun}; give the rule a range, such as range: [{'0, ' + example if limit.least else example + ', 0'}]"


def check_limit(target: RuleTarget, limit: Limit, measured: Measured) -> Check:
    """Return whether the mean keeps to a limit, as measured or with its interval."""
    value, cases = measured.value or 0.0, len(measured.values)
    interval = mean_interval(measured.values, target.confidence, proportion=measured.proportion)
    if limit.use == "mean":
        (low, high), kept = interval or (None, None), limit.kept(value)
        finding = f"mean {format_number(value, unlike=limit.bound)} over {counted(cases, 'case')}, {_relation(limit, kept=kept)}"
        finding += "" if kept else _worst(limit, measured)
        return target.check(limit.demand, "passed" if kept else "failed", finding, cases, value=value, low=low, high=high)
    lead = f"mean {format_number(value)} over {counted(cases, 'case')}"
    if interval is None:
        why = "there is only one case" if cases == 1 else "all cases have the same value, so nothing shows how others would vary"
        return target.check(limit.demand, "undecided", f"{lead} has no interval to compare with {limit.noun}: {why}", cases, value=value)
    verdict, needed, more = interval_verdict(limit, interval), None, ""
    if verdict == "failed":
        more = _worst(limit, measured)
    elif verdict == "undecided":
        needed = _needed(value, interval, limit.bound, cases, share=measured.bounds == SHARE)
        enough = f"about {counted(needed, 'case')} would decide it if the mean stays the same" if needed else ""
        more = f"; {enough or 'with this mean, no number of cases would decide it'}"
    return _check_within(target, limit, lead, value, interval, more, cases=cases, needed=needed)


def check_corrected(target: RuleTarget, limit: Limit, report: Report, trust: JudgeTrust) -> Check:
    """Return whether the pass rate that people would give a judged criterion surely keeps to a limit."""
    name = target.measure
    cases = len({case.eval_id for case in report.cases for result in case.results if result.criterion == name})
    if name not in judged_criteria(report.config) or trust.measured is None:
        return target.check(limit.demand, "undecided", "no judge decides it, so there is no judge error to correct", cases)
    calibration, what = trust.measured.calibration, "pass rate of its turns, corrected for the judge's error,"
    found: Corrected | str = trust.obstacle(name)
    if not found and limit.use == "ppi_ci_low":
        among = labels_among(calibration, trust.run, report.cases, name)
        if isinstance(among, str):
            found = among
        else:
            sample, chosen = among.sample, "" if calibration.sampled else ", if those were chosen at random"
            what = f"pass rate that people would give, by {counted(sample.judged, 'verdict')} and labels of {among.labelled}{chosen},"
            found = people_rate(sample.passed, sample.judged, among, target.confidence, design_effect=sample.design_effect)
    elif not found:
        judge = calibration.criteria[name]
        found = judge.corrected(judged_sample(report.cases, name, judge.level), target.confidence)
    if isinstance(found, str):
        return target.check(limit.demand, "undecided", f"no corrected pass rate: {found}", cases)
    interval, lead = (found.low, found.high), f"{what} {format_number(found.value)} over {counted(cases, 'case')}"
    more = "; more labels or more cases would narrow it" if interval_verdict(limit, interval) == "undecided" else ""
    return _check_within(target, limit, lead, found.value, interval, more, cases=cases)


def _check_within(
    target: RuleTarget, limit: Limit, lead: str, value: float, interval: Interval, more: str, *, cases: int, needed: int | None = None
) -> Check:
    verdict, (low, high) = interval_verdict(limit, interval), interval
    relation = f"all of it {_relation(limit, kept=verdict == 'passed')}"
    if verdict == "undecided":
        relation = f"{limit.noun} lies within it, so there are too few cases to decide"
    finding = f"{lead}, {format_percent(target.confidence)} interval {format_number(low)} to {format_number(high)}: {relation}{more}"
    return target.check(limit.demand, verdict, finding, cases, value=value, low=low, high=high, needed=needed)


def _worst(limit: Limit, measured: Measured) -> str:
    return f"; {'lowest' if limit.least else 'highest'}: {extremes(measured, lowest=limit.least)}"


def _relation(limit: Limit, *, kept: bool) -> str:
    if kept:
        return f"{'at least' if limit.least else 'at most'} {format_exact(limit.bound)}"
    return f"{'below' if limit.least else 'above'} {limit.noun}"


def _needed(value: float, interval: Interval, bound: float, cases: int, *, share: bool) -> int | None:
    """Return how many cases would bring the end of the interval between the value and the bound to the bound.

    The squared distance of an end goes down with the number of cases; that of a share's, by Wilson, in proportion to its variance.
    """
    end = interval[0] if value > bound else interval[1]
    wide, narrow = (end * (1 - end), bound * (1 - bound)) if share else (1.0, 1.0)
    if abs(value - bound) <= TOLERANCE or abs(value - end) <= TOLERANCE or wide <= 0 or narrow <= 0:
        return None
    factor = narrow / wide * ((value - end) / (value - bound)) ** 2
    return max(cases + 1, math.ceil(factor * cases - TOLERANCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """One measure in both runs, on the cases that both have."""

    target: RuleTarget
    max_drop: float
    paired: Paired
    """Turned so that a negative difference is a drop, whichever direction is better; each end of its interval holds with the confidence."""
    before: Measured
    after: Measured
    name: str
    """How sentences call the baseline."""

    @property
    def tested(self) -> bool:
        """Whether it is tested for significance, which takes a certain number of cases."""
        return self.target.rule.use != "mean" and self.paired.cases >= fewest_cases(self.target.confidence)

    @property
    def small(self) -> bool:
        """Whether the drop as measured is within what is allowed."""
        return -self.paired.difference <= self.max_drop + TOLERANCE

    @property
    def change(self) -> str:
        """How the mean changed, as part of a sentence."""
        lost = -self.paired.difference
        if abs(lost) <= TOLERANCE:
            return "no change"
        return f"worse by {format_number(lost, unlike=self.max_drop)}" if lost > 0 else f"better by {format_number(-lost)}"

    @property
    def change_as_allowed(self) -> str:
        """How the mean changed, and whether that is within what is allowed, as part of a sentence."""
        return f"{self.change}, {'within the allowed' if self.small else 'more than the allowed'} {format_exact(self.max_drop)}"

    def check(self, verdict: Verdict, finding: str, p_value: float | None = None, needed: int | None = None) -> Check:
        """Return what the comparison came to; `finding`: the sentence after the numbers of both runs."""
        paired, sign = self.paired, 1.0 if self.after.greater_is_better else -1.0
        low, high = sorted((sign * paired.low, sign * paired.high))
        numbers = {"value": sign * paired.after, "baseline": sign * paired.before, "difference": sign * paired.difference}
        demand = f"max_drop {format_number(self.max_drop)}" + (" (mean)" if self.target.rule.use == "mean" else "")
        worse = largest_drops(self.before, self.after)
        examples = "" if verdict == "passed" or not worse else f"; {counted(paired.worse, 'case')} did worse, most of them {worse}"
        against = format_number(numbers["baseline"], unlike=numbers["value"])
        means = f"mean {format_number(numbers['value'])}, against {against} for {self.name}, over the same {counted(paired.cases, 'case')}"
        said = f"{means}: {finding}{examples}"
        return self.target.check(demand, verdict, said, paired.cases, low=low, high=high, p_value=p_value, needed=needed, **numbers)


def drop_verdict(paired: Paired, *, max_drop: float, confidence: float, p_adjusted: float) -> Verdict:
    """Return whether cases did worse than before by more than `max_drop`.

    Args:
        paired: the same cases in both runs, where higher is better, with the interval at ``2 * confidence - 1``, each end of which
            holds with `confidence`.
        max_drop: the drop that does not matter, at least 0.
        confidence: one less the chance of a false alarm.
        p_adjusted: the one-sided p-value of a drop, adjusted for the number of comparisons.

    Returns:
        *failed* if the drop is both larger than that and significant, *passed* if a larger one is excluded, else *undecided*. Of versions
        that are worse by more than that, at most one less the confidence pass, near a ceiling, too.
    """
    if -paired.low <= max_drop + TOLERANCE:
        return "passed"
    larger = -paired.difference > max_drop + TOLERANCE
    return "failed" if larger and p_adjusted <= 1 - confidence + TOLERANCE else "undecided"


def drop_of(target: RuleTarget, before: Measured, after: Measured, name: str) -> Drop | None:
    """Return a measure in both runs; ``None`` if they have no case in common."""
    up, (low, high) = after.greater_is_better, after.bounds
    turned = (side.values if up else scaled(side.values, lambda value: -value) for side in (before, after))
    paired = compare_paired(*turned, confidence=2 * target.confidence - 1, bounds=(low, high) if up else (-high, -low))
    if paired is None:
        return None
    return Drop(target=target, max_drop=target.rule.max_drop or 0.0, paired=paired, before=before, after=after, name=name)


def check_drops(drops: Sequence[Drop], *, power: float) -> list[Check]:
    """Return what each comparison of a policy came to, the tests among them adjusted for how many they are."""
    p_values = holm([drop.paired.p_worse for drop in drops if drop.tested])
    adjusted = iter(p_values)
    return [_check(drop, next(adjusted) if drop.tested else None, len(p_values), power) for drop in drops]


def _check(drop: Drop, p_adjusted: float | None, tests: int, power: float) -> Check:
    paired, confidence = drop.paired, drop.target.confidence
    if drop.target.rule.use == "mean":
        return drop.check("passed" if drop.small else "failed", drop.change_as_allowed)
    if p_adjusted is None:
        fewest = fewest_cases(confidence)
        finding = f"{counted(paired.cases, 'case')} are too few to show a drop at {format_percent(confidence)} confidence"
        return drop.check("undecided", f"{finding}: at least {fewest} are needed", needed=fewest)
    p_value = f"p = {p_adjusted:.2g}" + (f", adjusted for {tests} comparisons; {paired.p_worse:.2g} alone" if tests > 1 else "")
    match drop_verdict(paired, max_drop=drop.max_drop, confidence=confidence, p_adjusted=p_adjusted):
        case "passed":
            lead = f"{drop.change}{',' if paired.worse else ', and no case did worse;'} with {format_percent(confidence)} confidence"
            most = f"worse by at most {format_number(abs(paired.low))}, within the allowed {format_exact(drop.max_drop)}"
            return drop.check("passed", f"{lead} {f'by at least {format_number(paired.low)}' if paired.low > 0 else most}", p_adjusted)
        case "failed":
            return drop.check("failed", f"{drop.change_as_allowed} and unlikely to be chance ({p_value})", p_adjusted)
        case "undecided":
            needed = cases_to_decide(paired, drop.max_drop, confidence=confidence, power=power)
            return drop.check("undecided", _why_undecided(drop, p_value, needed, power), p_adjusted, needed)


def _why_undecided(drop: Drop, p_value: str, needed: int | None, power: float) -> str:
    paired, allowed, cases = drop.paired, format_exact(drop.max_drop), counted(drop.paired.cases, "case")
    shown = ""
    if drop.small:
        unharmed, excluded = "" if paired.worse else ", and no case did worse", format_number(-paired.low, unlike=drop.max_drop)
        confidence = format_percent(drop.target.confidence)
        why = f"{unharmed}, but {cases} exclude no drop below {excluded} at {confidence} confidence, and {allowed} is allowed"
    else:
        why = f", more than the allowed {allowed}, but chance could explain it ({p_value})"
        least = smallest_shown(paired, confidence=drop.target.confidence, power=power)
        shown = "" if math.isinf(least) else f"; {cases} can show a drop of {format_number(least)}"
    if needed:
        why += f"; about {counted(needed, 'case')} would decide it with {format_percent(power)} power"
    elif drop.small:
        why += "; with this difference, no number of cases would decide it"
    return f"{drop.change}{why}{shown}"
