"""What a rule is about, and how checks of it are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.gating.policy.model import Rule
from mlflow_adk_eval.gating.rules.measures import Measured
from mlflow_adk_eval.results.decision import Check
from mlflow_adk_eval.results.outcomes import Verdict

_MAX_EXAMPLES = 3
_LARGE = 1e12
"""From here on, nobody wants to count digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTarget:
    """One rule on one measure over some cases."""

    measure: str
    slice: str
    """The name of the slice; empty for all cases."""
    rule: Rule
    confidence: float

    @property
    def where(self) -> str:
        """How sentences call it."""
        return f"{self.measure} (slice {self.slice})" if self.slice else self.measure

    def check(self, demand: str, verdict: Verdict, said: str, cases: int, **numbers: Any) -> Check:
        """Return what a demand came to; `said`: the sentence without its subject."""
        return Check(
            measure=self.measure,
            slice=self.slice,
            demand=demand,
            verdict=verdict,
            reason=f"{self.where}: {said}",
            cases=cases,
            **numbers,
        )


def number(value: float, *, unlike: float | None = None) -> str:
    """Return a number with four digits, or with all of them where it would be rounded to another one.

    >>> number(0.123456), number(4100.0), number(0.7999999, unlike=0.8)
    ('0.1235', '4100', '0.7999999')
    """
    told = f"{value:.4g}"
    if unlike is not None and told == f"{unlike:.4g}" and value != unlike:
        return repr(value)
    return f"{value:.0f}" if "e" in told and 1 <= abs(value) < _LARGE else told


def exact(value: float) -> str:
    """Return a number that somebody has written down.

    >>> exact(0.123456), exact(4000.0), exact(0.1 + 0.2)
    ('0.123456', '4000', '0.3')
    """
    return f"{value:.15g}"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.95), percent(0.999)
    ('95%', '99.9%')
    """
    return f"{share * 100:.6g}%"


def cases_told(count: int) -> str:
    """Return a number of cases.

    >>> cases_told(1), cases_told(2000)
    ('1 case', '2,000 cases')
    """
    return "1 case" if count == 1 else f"{count:,} cases"


def extremes(measured: Measured, *, lowest: bool) -> str:
    """Return the cases with the lowest or the highest values, the most extreme first."""
    sign = 1 if lowest else -1
    ranked = sorted(measured.means.items(), key=lambda found: (sign * found[1], found[0]))
    return ", ".join(f"{case} {number(value)}" for case, value in ranked[:_MAX_EXAMPLES])


def largest_drops(before: Mapping[str, float], after: Mapping[str, float], *, greater_is_better: bool) -> str:
    """Return the cases that got worse the most, with both values; empty where none did."""
    sign = 1 if greater_is_better else -1
    drops = {case: sign * (before[case] - value) for case, value in after.items() if case in before}
    ranked = sorted(((drop, case) for case, drop in drops.items() if drop > 0), key=lambda found: (-found[0], found[1]))
    return ", ".join(f"{case} {number(before[case])} → {number(after[case])}" for _, case in ranked[:_MAX_EXAMPLES])
