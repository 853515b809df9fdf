"""Rules with ``max_drop``: whether the same cases did worse than in the baseline's run, by more than is allowed and than chance explains.

A `Drop` pairs one measure in both runs case by case. `drop_verdict` has three outcomes: *failed* if the drop is larger than allowed and
significant, *passed* if it is small and a larger one is excluded or none of enough cases got worse, else *undecided*, with how many cases would
decide it. The p-values of all comparisons of a policy are adjusted together (Holm), which is why `check_drops` takes them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_adk_eval.analysis.stats import (
    Paired,
    cases_needed,
    compare_paired,
    detectable_drop,
    detectable_rate_drop,
    fewest_cases,
    holm,
    rate_cases_needed,
)
from mlflow_adk_eval.gating.policy.model import NO_WORSE_FROM
from mlflow_adk_eval.gating.rules.checks import RuleTarget, format_cases, format_exact, format_number, format_percent, largest_drops
from mlflow_adk_eval.gating.rules.measures import Measured
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import TOLERANCE, Verdict
from mlflow_adk_eval.results.report import scaled


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
    def demand(self) -> str:
        """What a check calls it."""
        return f"max_drop {format_number(self.max_drop)}" + (" (mean)" if self.target.rule.use == "mean" else "")

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
        value, baseline = sign * paired.after, sign * paired.before
        low, high = sorted((sign * paired.low, sign * paired.high))
        worse = largest_drops(self.before, self.after)
        examples = "" if verdict == "passed" or not worse else f"; {format_cases(paired.worse)} did worse, most of all {worse}"
        means = f"mean {format_number(value)} against {format_number(baseline, unlike=value)} for {self.name}"
        return self.target.check(
            self.demand,
            verdict,
            f"{means}, over the same {format_cases(paired.cases)}: {finding}{examples}",
            paired.cases,
            value=value,
            low=low,
            high=high,
            baseline=baseline,
            difference=sign * paired.difference,
            p_value=p_value,
            needed=needed,
        )


def drop_verdict(paired: Paired, *, max_drop: float, confidence: float, p_adjusted: float, no_worse_from: int = NO_WORSE_FROM) -> Verdict:
    """Return whether cases did worse than before by more than `max_drop`.

    Args:
        paired: the same cases in both runs, where higher is better, with the interval at ``2 * confidence - 1``, each end of which
            holds with `confidence`.
        max_drop: the drop that does not matter, at least 0.
        confidence: one less the chance of a false alarm.
        p_adjusted: the one-sided p-value of a drop, adjusted for the number of comparisons.
        no_worse_from: with how many cases it is enough that none got worse.

    Returns:
        *failed* if the drop is both larger than that and significant, *passed* if it is not larger and either none of enough cases got
        worse or a larger one is excluded, else *undecided*.
    """
    small = -paired.difference <= max_drop + TOLERANCE
    if not small:
        return "failed" if p_adjusted <= 1 - confidence + TOLERANCE else "undecided"
    unharmed = not paired.worse and paired.cases >= no_worse_from
    return "passed" if unharmed or -paired.low <= max_drop + TOLERANCE else "undecided"


def drop_of(target: RuleTarget, before: Measured, after: Measured, name: str) -> Drop | None:
    """Return a measure in both runs; ``None`` if they have no case in common."""
    sign, bounds = (1.0 if after.greater_is_better else -1.0), after.bounds
    if sign < 0:
        bounds = (-bounds[1], -bounds[0])
    turned = (side.values if sign > 0 else scaled(side.values, lambda value: -value) for side in (before, after))
    paired = compare_paired(*turned, confidence=2 * target.confidence - 1, bounds=bounds)
    if paired is None:
        return None
    return Drop(target=target, max_drop=target.rule.max_drop or 0.0, paired=paired, before=before, after=after, name=name)


def check_drops(drops: Sequence[Drop], *, power: float, no_worse_from: int = NO_WORSE_FROM) -> list[Check]:
    """Return what each comparison of a policy came to, the tests among them adjusted for how many they are."""
    p_values = holm([drop.paired.p_worse for drop in drops if drop.tested])
    adjusted = iter(p_values)
    return [_check(drop, next(adjusted) if drop.tested else None, len(p_values), power, no_worse_from) for drop in drops]


def _check(drop: Drop, p_adjusted: float | None, tests: int, power: float, no_worse_from: int) -> Check:
    paired, confidence = drop.paired, drop.target.confidence
    if drop.target.rule.use == "mean":
        return drop.check("passed" if drop.small else "failed", drop.change_as_allowed)
    if p_adjusted is None:
        fewest = fewest_cases(confidence)
        finding = (
            f"{format_cases(paired.cases)} cannot show a drop at {format_percent(confidence)} confidence: at least {fewest} are needed"
        )
        return drop.check("undecided", finding, needed=fewest)
    p_value = f"p = {p_adjusted:.2g}" + (f", adjusted for {tests} comparisons; {paired.p_worse:.2g} alone" if tests > 1 else "")
    match drop_verdict(paired, max_drop=drop.max_drop, confidence=confidence, p_adjusted=p_adjusted, no_worse_from=no_worse_from):
        case "passed":
            return drop.check("passed", _why_passed(drop), p_adjusted)
        case "failed":
            return drop.check("failed", f"{drop.change_as_allowed} and more than chance explains ({p_value})", p_adjusted)
        case "undecided":
            needed = cases_to_decide(paired, drop.max_drop, confidence=confidence, power=power)
            if drop.small and not paired.worse:
                needed = min(needed or no_worse_from, no_worse_from)
            return drop.check("undecided", _why_undecided(drop, p_value, needed, power, no_worse_from), p_adjusted, needed)


def _why_passed(drop: Drop) -> str:
    if not drop.paired.worse:
        return f"{drop.change}, and no case did worse"
    most = -drop.paired.low
    lead = f"{drop.change}, with {format_percent(drop.target.confidence)} confidence"
    if most < 0:
        return f"{lead} by at least {format_number(-most)}"
    return f"{lead} worse by at most {format_number(abs(most))}, within the allowed {format_exact(drop.max_drop)}"


def _why_undecided(drop: Drop, p_value: str, needed: int | None, power: float, no_worse_from: int) -> str:
    paired, confidence, allowed = drop.paired, drop.target.confidence, format_exact(drop.max_drop)
    if drop.small and not paired.worse:
        return (
            f"{drop.change}, and no case did worse, but so few cases would often show none even if the agent were worse: that is enough"
            f" from {no_worse_from} cases on (no_worse_from), and worse by {format_number(-paired.low)} is not excluded at"
            f" {format_percent(confidence)} confidence, where {allowed} is allowed"
        )
    if not drop.small:
        why = f"more than the allowed {allowed}, but chance could explain it ({p_value})"
    else:
        why = f"but worse by {format_number(-paired.low)} is not excluded at {format_percent(confidence)} confidence, and {allowed} is allowed"
    if needed:
        why += f"; about {format_cases(needed)} would decide it with a chance of {format_percent(power)}"
    least = smallest_shown(paired, confidence=confidence, power=power)
    shown = "" if math.isinf(least) else f"; {format_cases(paired.cases)} can show a drop of {format_number(least)}"
    return f"{drop.change}, {why}{shown}"


def cases_to_decide(paired: Paired, max_drop: float, *, confidence: float, power: float) -> int | None:
    """Return how many cases would decide a comparison with a chance of `power`, if they went on as those there are.

    A drop larger than `max_drop` would have to be shown, a smaller one told from it. ``None``: no number of cases would do.
    """
    lost = -paired.difference
    if lost > max_drop + TOLERANCE:
        binary = paired.test == "mcnemar"
        discordant = (paired.better + paired.worse) / paired.cases
        needed = (
            rate_cases_needed(discordant, lost, confidence=confidence, power=power)
            if binary
            else cases_needed(paired.spread, lost, confidence=confidence, power=power)
        )
    elif max_drop - lost > TOLERANCE:
        needed = cases_needed(paired.spread, max_drop - lost, confidence=confidence, power=power)
    else:
        return None
    return max(needed, paired.cases + 1)


def smallest_shown(paired: Paired, *, confidence: float, power: float) -> float:
    """Return the smallest drop that so many cases would show with a chance of `power`; infinity if none."""
    if paired.test == "mcnemar":
        return detectable_rate_drop((paired.better + paired.worse) / paired.cases, paired.cases, confidence=confidence, power=power)
    return detectable_drop(paired.spread, paired.cases, confidence=confidence, power=power)
