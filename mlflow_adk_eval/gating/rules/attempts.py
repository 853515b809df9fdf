"""How often candidates were submitted against one champion, and which share of the error each of them may spend.

One candidate at the limit passes with a chance of 1 − confidence. Of N candidates at the limit, at least one passes with a chance of up to
N times that, however they depend on each other (Bonferroni's inequality). `share_of` divides the error between them, so that this sum stays
at 1 − confidence: in N equal shares, or without an end in shares of 6 / (π²·k²), whose sum is 1 (Dwork et al., "The reusable holdout",
2015, gain more only where the answers are blurred, which the numbers of a decision are not).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlflow_adk_eval.gating.policy.model import Policy, Spend


@dataclass(frozen=True, slots=True)
class Attempt:
    """The place of a decision among all about candidates that had to do as well as the same champion."""

    number: int
    """From 1."""
    every_eval_set: bool = False
    """Whether decisions on other eval sets are counted as well."""
    champion: bool = True
    """Whether there is one."""
    uncounted: tuple[str, ...] = ()
    """What could be an attempt and cannot be read, as sentences."""

    def __str__(self) -> str:
        """Return it as a decision calls it."""
        last = self.number % 10 if self.number % 100 not in (11, 12, 13) else 0
        suffix = {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
        where = "any eval set (the policy pins none by its digest)" if self.every_eval_set else "this eval set"
        return f"the {self.number}{suffix} attempt {'against this champion' if self.champion else 'without a champion'} on {where}"


def share_of(spend: Spend | None, number: int) -> float:
    """Return the share of the error that an attempt may spend: from 0, where nothing is left, to 1.

    >>> share_of(None, 7), share_of(20, 7), share_of(20, 21), round(share_of("unlimited", 2), 4)
    (1.0, 0.05, 0.0, 0.152)

    Args:
        spend: what the policy says: so many equal shares, or ``unlimited``; ``None``: each attempt has the whole.
        number: the number of the attempt, from 1.
    """
    if spend is None:
        return 1.0
    if spend == "unlimited":
        return 6 / (math.pi * number) ** 2
    return 1 / spend if number <= spend else 0.0


def spent(policy: Policy, attempt: Attempt | None) -> tuple[float, list[str], list[str]]:
    """Return the share of the error for a decision, why none is left, and what is to be said of the attempt.

    Args:
        policy: whose error is spent.
        attempt: the place of the decision; ``None``: nobody counted, and the share is that of the first attempt.
    """
    spend = policy.attempts.spend if policy.attempts else None
    if attempt is None:
        unknown = "promote counts the attempts; this decision is that on a first attempt"
        return share_of(spend, 1), [], [unknown] if spend else []
    notes = [f"not counted as an attempt: {each}" for each in attempt.uncounted]
    if not (share := share_of(spend, attempt.number)):
        remedy = "use new cases (with the new digest in the policy), or compare with another champion"
        return share_of(spend, 1), [f"it is {attempt}, but the policy allows {spend}: {remedy}"], notes
    # What passes must pass every rule, so that the rule with the largest error says how often a candidate at its limit does.
    tested = [rule for _, _, rule in policy.all_rules() if rule.use != "mean" and (rule.use or rule.max_drop is not None)]
    error = max((1 - (rule.confidence or policy.confidence) for rule in tested), default=0.0)
    place = f"{attempt}, of {spend}" if spend and spend != "unlimited" else str(attempt)
    if not error or (spend is None and attempt.number == 1):
        return share, [], notes
    if spend is None:
        chance = f"with a chance of up to {min(1.0, error * attempt.number):.2g}"
        risk = f"{chance}, one of {attempt.number} candidates exactly at the limit passes"
        return share, [], [*notes, f"{place}: {risk}; attempts: {{spend: N}} in the policy limits that"]
    risk = f"with a chance of at most {error:.2g}, any of the candidates exactly at the limit passes"
    return share, [], [*notes, f"{place}, decided with {share:.2g} of the error: {risk}"]
