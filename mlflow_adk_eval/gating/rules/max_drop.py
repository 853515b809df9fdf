"""Rules with ``max_drop``: whether the same cases did worse than in the baseline's run, by more than is allowed and than luck explains."""

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
from mlflow_adk_eval.gating.rules.checks import (
    RuleTarget,
    cases_told,
    exact,
    largest_drops,
    number,
    percent,
)
from mlflow_adk_eval.gating.rules.measures import Measured
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import TOLERANCE, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """One measure in both runs, on the cases that both have."""

    subject: RuleTarget
    max_drop: float
    paired: Paired
    """Turned so that a negative difference is a drop, whichever direction is better; each end of its interval holds with the confidence."""
    before: Measured
    after: Measured
    name: str
    """How sentences call the baseline."""

    @property
    def tested(self) -> bool:
        """Whether it is asked if luck explains it, which with too few cases cannot be told."""
        return self.subject.rule.use != "mean" and self.paired.cases >= fewest_cases(self.subject.confidence)

    @property
    def demand(self) -> str:
        """What a check calls it."""
        return f"max_drop {number(self.max_drop)}" + (" (mean)" if self.subject.rule.use == "mean" else "")


def judge_drop(paired: Paired, *, max_drop: float, confidence: float, p_adjusted: float) -> Verdict:
    """Return whether cases did worse than before by more than `max_drop`.

    Args:
        paired: the same cases in both runs, where higher is better, with the interval at ``2 * confidence - 1``, each end of which
            holds with `confidence`.
        max_drop: the drop that does not matter, at least 0.
        confidence: one less the chance of a false alarm.
        p_adjusted: the one-sided p-value of a drop, adjusted for the number of comparisons.

    Returns:
        *failed* if the drop is both larger than that and more than luck, *passed* if it is not larger and either no case got worse or
        a larger one is excluded, else *undecided*.
    """
    small = -paired.difference <= max_drop + TOLERANCE
    if not small:
        return "failed" if p_adjusted <= 1 - confidence + TOLERANCE else "undecided"
    return "passed" if not paired.worse or -paired.low <= max_drop + TOLERANCE else "undecided"


def drop_of(subject: RuleTarget, before: Measured, after: Measured, name: str) -> Drop | None:
    """Return a measure in both runs; ``None`` if they have no case in common."""
    sign, bounds = (1.0 if after.greater_is_better else -1.0), after.bounds
    if bounds is not None and sign < 0:
        bounds = (-bounds[1], -bounds[0])
    turned = ({case: [sign * value for value in values] for case, values in side.values.items()} for side in (before, after))
    paired = compare_paired(*turned, confidence=2 * subject.confidence - 1, bounds=bounds)
    if paired is None:
        return None
    return Drop(subject=subject, max_drop=subject.rule.max_drop or 0.0, paired=paired, before=before, after=after, name=name)


def check_drops(drops: Sequence[Drop], *, power: float) -> list[Check]:
    """Return what each comparison of a policy came to, the tests among them adjusted for how many they are."""
    p_values = holm([drop.paired.p_worse for drop in drops if drop.tested])
    adjusted = iter(p_values)
    return [_check(drop, next(adjusted) if drop.tested else None, len(p_values), power) for drop in drops]


def _check(drop: Drop, p_adjusted: float | None, tests: int, power: float) -> Check:
    paired, confidence = drop.paired, drop.subject.confidence
    if drop.subject.rule.use == "mean":
        small = -paired.difference <= drop.max_drop + TOLERANCE
        return _told(drop, "passed" if small else "failed", _allowed(drop, small=small), None)
    if p_adjusted is None:
        fewest = fewest_cases(confidence)
        said = f"{cases_told(paired.cases)} cannot show a drop at {percent(confidence)} confidence, whatever they come to: at least {fewest} are needed"
        return _told(drop, "undecided", said, None, needed=fewest)
    verdict = judge_drop(paired, max_drop=drop.max_drop, confidence=confidence, p_adjusted=p_adjusted)
    if verdict == "undecided":
        needed = cases_to_decide(paired, drop.max_drop, confidence=confidence, power=power)
        return _told(drop, verdict, _open(drop, p_adjusted, tests, needed, power), p_adjusted, needed=needed)
    said = _shown(drop, p_adjusted, tests) if verdict == "failed" else _excluded(drop)
    return _told(drop, verdict, said, p_adjusted)


def _told(drop: Drop, verdict: Verdict, said: str, p_value: float | None, needed: int | None = None) -> Check:
    paired, sign = drop.paired, 1.0 if drop.after.greater_is_better else -1.0
    value, baseline = sign * paired.after, sign * paired.before
    low, high = sorted((sign * paired.low, sign * paired.high))
    worse = largest_drops(drop.before.means, drop.after.means, greater_is_better=drop.after.greater_is_better)
    examples = "" if verdict == "passed" or not worse else f"; {cases_told(paired.worse)} did worse, the most {worse}"
    lead = f"mean {number(value)} beside {number(baseline, unlike=value)} of {drop.name}, over the same {cases_told(paired.cases)}"
    return drop.subject.check(
        drop.demand,
        verdict,
        f"{lead}: {said}{examples}",
        paired.cases,
        value=value,
        low=low,
        high=high,
        baseline=baseline,
        difference=sign * paired.difference,
        p_value=p_value,
        needed=needed,
    )


def _change(drop: Drop) -> str:
    lost = -drop.paired.difference
    if abs(lost) <= TOLERANCE:
        return "no change"
    return f"worse by {number(lost, unlike=drop.max_drop)}" if lost > 0 else f"better by {number(-lost)}"


def _allowed(drop: Drop, *, small: bool) -> str:
    return f"{_change(drop)}, {'within the allowed' if small else 'more than the allowed'} {exact(drop.max_drop)}"


def _shown(drop: Drop, p_adjusted: float, tests: int) -> str:
    return f"{_allowed(drop, small=False)} and more than luck ({_p(p_adjusted, tests)})"


def _excluded(drop: Drop) -> str:
    if not drop.paired.worse:
        return f"{_change(drop)}, and no case did worse"
    confidence, most = percent(drop.subject.confidence), -drop.paired.low
    if most < 0:
        return f"{_change(drop)}, with {confidence} confidence by at least {number(-most)}"
    return f"{_change(drop)}, with {confidence} confidence worse by at most {number(abs(most))}, within the allowed {exact(drop.max_drop)}"


def _open(drop: Drop, p_adjusted: float, tests: int, needed: int | None, power: float) -> str:
    paired, confidence, allowed = drop.paired, drop.subject.confidence, exact(drop.max_drop)
    said = f"{_change(drop)}, "
    if -paired.difference > drop.max_drop + TOLERANCE:
        said += f"more than the allowed {allowed}, but luck would explain it ({_p(p_adjusted, tests)})"
    else:
        said += f"but worse by {number(-paired.low)} is not excluded at {percent(confidence)} confidence, and {allowed} is allowed"
    if needed:
        said += f"; about {cases_told(needed)} would decide it with a chance of {percent(power)}"
    least = smallest_shown(paired, confidence=confidence, power=power)
    return said if math.isinf(least) else f"{said}; {cases_told(paired.cases)} can show a drop of {number(least)}"


def _p(p_adjusted: float, tests: int) -> str:
    return f"p = {p_adjusted:.2g}" + (f", adjusted for {tests} comparisons" if tests > 1 else "")


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
