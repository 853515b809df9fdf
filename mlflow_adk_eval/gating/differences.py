"""Whether a decision that is made again comes to the same numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mlflow_adk_eval.results.report import Check, Decision

_CLOSE = 1e-9
_WHAT = ("measure", "slice", "demand")
_NUMBERS = ("cases", "value", "low", "high", "baseline", "difference", "p_value", "needed")


def differences(then: Decision, today: Decision) -> list[str]:
    """Return where a decision does not come to the numbers of an earlier one on the same evidence."""
    return [*_score_differences(then, today), *_check_differences(then, today)]


def _score_differences(then: Decision, today: Decision) -> Iterator[str]:
    for name in dict.fromkeys((*then.scores, *today.scores)):
        recorded, found = then.scores.get(name), today.scores.get(name)
        if not _same(recorded, found):
            yield f"the record says that the score of {name} is {_told(recorded)}, but the evidence comes to {_told(found)}"


def _check_differences(then: Decision, today: Decision) -> Iterator[str]:
    if [_named(check) for check in then.checks] != [_named(check) for check in today.checks]:
        yield "the record does not hold the checks that its policy asks for"
        return
    for recorded, found in zip(then.checks, today.checks, strict=True):
        what = f"the record says that the check {' '.join(part for part in _named(found) if part)}"
        if recorded.verdict != found.verdict:
            yield f"{what} {recorded.verdict}, but the evidence comes to {found.verdict}"
        for name in _NUMBERS:
            before, now = getattr(recorded, name), getattr(found, name)
            if not _same(before, now):
                yield f"{what} has the {name.replace('_', ' ')} {_told(before)}, but the evidence comes to {_told(now)}"


def _named(check: Check) -> tuple[str, ...]:
    return tuple(getattr(check, name) for name in _WHAT)


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _told(value: float | None) -> str:
    return "missing" if value is None else f"{value:.6g}"
