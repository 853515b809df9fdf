"""What a run would have come to with other thresholds, from the scores that it has; nothing is written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.results.outcomes import Tally, Verdict, tallies_of, verdict_of
from mlflow_adk_eval.viewer.query import Query
from mlflow_adk_eval.viewer.store import OpenRun

PREFIX = "threshold."
"""Before a criterion's name in an address."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What would have come of it."""

    verdict: Verdict
    passed: int
    """How many case runs would have passed, of all."""
    total: int
    better: tuple[int, ...]
    """The places of the case runs that would pass and did not."""
    worse: tuple[int, ...]
    """The places of those that passed and would not."""


def asked(found: OpenRun, query: Query) -> dict[str, float]:
    """Return the thresholds that an address names, by criterion.

    Raises:
        UsageError: if one is no number, or of no criterion that decides.
    """
    given = {name.removeprefix(PREFIX): value for name, value in query.params if name.startswith(PREFIX)}
    config = found.report.config
    for name, value in given.items():
        if name not in config.thresholds():
            raise UsageError(f"{PREFIX}{name}: no criterion of that name decides in this run; wanted {', '.join(config.thresholds())}")
        low, high = config.bounds(name)
        if not low <= _number(value) <= high:
            raise UsageError(f"{PREFIX}{name}: {value!r}; wanted a number from {low:g} to {high:g}")
    return {name: _number(value) for name, value in given.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def what_if(found: OpenRun, thresholds: Mapping[str, float]) -> WhatIf:
    """Return what the run would have come to."""
    now = found.report.verdicts
    then: list[Verdict] = [_verdict(tallies, thresholds, failed=failed) for _, failed, tallies in tallies_of(found.report.cases)]
    return WhatIf(
        verdict=verdict_of(then),
        passed=then.count("passed"),
        total=len(then),
        better=tuple(place for place, verdict in enumerate(then) if verdict == "passed" != now[place]),
        worse=tuple(place for place, verdict in enumerate(then) if verdict != "passed" == now[place]),
    )


def _verdict(tallies: Sequence[Tally], thresholds: Mapping[str, float], *, failed: bool) -> Verdict:
    """Return a case run's verdict, as `CaseResult.verdict` has it, with other thresholds; `failed`: the agent did not finish."""
    deciding = [_with(tally, thresholds) for tally in tallies if tally.planned.decides]
    if any(tally.score is not None and not tally.passed for tally in deciding):
        return "failed"
    return "undecided" if failed or not deciding or any(tally.score is None for tally in deciding) else "passed"


def _with(tally: Tally, thresholds: Mapping[str, float]) -> Tally:
    planned = tally.planned
    return tally._replace(planned=replace(planned, threshold=thresholds.get(planned.criterion, planned.threshold)))
