"""Rules with ``min`` and ``max``: whether a measure, or the interval that it lies in, keeps to a limit.

A limit on the mean passes or fails. One on an interval has a third outcome: if the limit lies within the interval, more cases are
needed, and the check says about how many. A corrected pass rate is such an interval, wider by what is unknown of the judge's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mlflow_adk_eval.analysis.calibration.calibration import corrected_of
from mlflow_adk_eval.analysis.stats import Interval, mean_interval
from mlflow_adk_eval.gating.policy.model import Use
from mlflow_adk_eval.gating.rules.checks import RuleTarget, extremes, format_cases, format_exact, format_number, format_percent
from mlflow_adk_eval.gating.rules.judges import JudgeTrust
from mlflow_adk_eval.gating.rules.measures import SHARE, Measured
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import TOLERANCE, Verdict, reaches
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.votes import judged_criteria


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
    use = target.rule.use or "mean"
    if target.rule.min is not None:
        yield Limit(bound=target.rule.min, least=True, use=use)
    if target.rule.max is not None:
        yield Limit(bound=target.rule.max, least=False, use=use)


def interval_verdict(limit: Limit, interval: Interval) -> Verdict:
    """Return *passed* if the whole interval keeps to the limit, *failed* if none of it does, else *undecided*."""
    low, high = interval
    first, last = (low, high) if limit.least else (high, low)
    if limit.kept(first):
        return "passed"
    return "undecided" if limit.kept(last) else "failed"


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
        why = f"its range {format_number(low)} to {format_number(high)} is what the run's own config says"
    else:
        return ""
    example = format_exact(limit.bound or 1.0)
    return f"{why}, so one case could carry the mean to {limit.noun}; give the rule a range, such as range: [{'0, ' + example if limit.least else example + ', 0'}]"


def check_mean(target: RuleTarget, limit: Limit, measured: Measured) -> Check:
    """Return whether the mean keeps to a limit, as measured."""
    value, cases = measured.value or 0.0, len(measured.values)
    kept = limit.kept(value)
    low, high = _interval(target, measured) or (None, None)
    finding = f"mean {format_number(value, unlike=limit.bound)} over {format_cases(cases)}, {_relation(limit, kept=kept)}"
    finding += "" if kept else f"; {_worst(limit, measured)}"
    return target.check(limit.demand, "passed" if kept else "failed", finding, cases, value=value, low=low, high=high)


def check_interval(target: RuleTarget, limit: Limit, measured: Measured) -> Check:
    """Return whether the interval of the mean keeps to a limit."""
    value, cases = measured.value or 0.0, len(measured.values)
    interval = _interval(target, measured)
    if interval is None:
        why = "there is only one" if cases == 1 else "all came to the same, which does not say how far others would differ"
        finding = f"mean {format_number(value)} over {format_cases(cases)} has no interval to hold against {limit.noun}, since {why}"
        return target.check(limit.demand, "undecided", finding, cases, value=value)
    verdict, (low, high) = interval_verdict(limit, interval), interval
    needed = _needed(value, interval, limit.bound, cases, share=measured.bounds == SHARE) if verdict == "undecided" else None
    summary = f"mean {format_number(value)} over {format_cases(cases)}, {format_percent(target.confidence)} interval {format_number(low)} to {format_number(high)}"
    more = {"passed": "", "failed": f"; {_worst(limit, measured)}", "undecided": f"; {_format_needed(needed)}"}[verdict]
    finding = f"{summary}: {_interval_relation(limit, verdict)}{more}"
    return target.check(limit.demand, verdict, finding, cases, value=value, low=low, high=high, needed=needed)


def check_corrected(target: RuleTarget, limit: Limit, report: Report, trust: JudgeTrust) -> Check:
    """Return whether the pass rate of a judged criterion, corrected for the judge's error, surely keeps to a limit."""
    name = target.measure
    cases = len({case.eval_id for case in report.cases for result in case.results if result.criterion == name})
    if name not in judged_criteria(report.config) or trust.measured is None:
        return target.check(limit.demand, "undecided", "no judge decides it, so there is no judge error to correct", cases)
    found = trust.obstacle(name) or corrected_of(trust.measured.calibration, report.cases, name, target.confidence)
    if isinstance(found, str):
        return target.check(limit.demand, "undecided", f"no corrected pass rate: {found}", cases)
    verdict = interval_verdict(limit, (found.low, found.high))
    summary = (
        f"pass rate of its turns corrected for the judge's error {format_number(found.value)} over {format_cases(cases)},"
        f" {format_percent(target.confidence)} interval {format_number(found.low)} to {format_number(found.high)}"
    )
    more = "; more labels or more cases would narrow it" if verdict == "undecided" else ""
    finding = f"{summary}: {_interval_relation(limit, verdict)}{more}"
    return target.check(limit.demand, verdict, finding, cases, value=found.value, low=found.low, high=found.high)


def _interval(target: RuleTarget, measured: Measured) -> Interval | None:
    return mean_interval(measured.values, target.confidence, proportion=measured.proportion)


def _relation(limit: Limit, *, kept: bool) -> str:
    if kept:
        return f"{'at least' if limit.least else 'at most'} {format_exact(limit.bound)}"
    return f"{'below' if limit.least else 'above'} {limit.noun}"


def _worst(limit: Limit, measured: Measured) -> str:
    return f"{'lowest' if limit.least else 'highest'}: {extremes(measured, lowest=limit.least)}"


def _interval_relation(limit: Limit, verdict: Verdict) -> str:
    match verdict:
        case "passed":
            return f"all of it {_relation(limit, kept=True)}"
        case "failed":
            return f"all of it {_relation(limit, kept=False)}"
        case "undecided":
            return f"{limit.noun} lies within it, so these cases cannot tell"


def _format_needed(needed: int | None) -> str:
    if needed is None:
        return "with this mean, no number of cases would decide it"
    return f"about {format_cases(needed)} would decide it if the mean stayed the same"


def _needed(value: float, interval: Interval, bound: float, cases: int, *, share: bool) -> int | None:
    """Return how many cases would bring the end of the interval between the value and the bound to the bound.

    The squared distance of an end goes down with the number of cases; that of a share's, by Wilson, in proportion to its variance.
    """
    end = interval[0] if value > bound else interval[1]
    if abs(value - bound) <= TOLERANCE or abs(value - end) <= TOLERANCE:
        return None
    wide, narrow = (end * (1 - end), bound * (1 - bound)) if share else (1.0, 1.0)
    if wide <= 0 or narrow <= 0:
        return None
    factor = narrow / wide * ((value - end) / (value - bound)) ** 2
    return max(cases + 1, math.ceil(factor * cases - TOLERANCE))
