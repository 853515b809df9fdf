"""How many cases an eval set needs for what is to be found, by how far the cases of a run vary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mlflow_adk_eval.analysis.stats import (
    Interval,
    cases_needed,
    detectable_drop,
    detectable_rate_drop,
    mean_interval,
    rate_cases_needed,
)
from mlflow_adk_eval.analysis.stats.power import Source, Spread, spread_of
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import TrackingError, UsageError, did_you_mean
from mlflow_adk_eval.gating.evidence.examine import ReadableRun, examine
from mlflow_adk_eval.results.outcomes import mean
from mlflow_adk_eval.results.report import Report

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.mlflow_store import MlflowStore

CASE_PASS_RATE = "case_pass_rate"  # noqa: S105 - not that kind of pass
"""The measure that is planned for besides the criteria: the share of its runs that a case passed, over the cases."""

Values = Mapping[str, Sequence[float]]
"""By case, one per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one measure takes."""

    measure: str
    """A criterion, or ``case_pass_rate``."""
    cases: int
    """How many cases have it."""
    mean: float
    interval: Interval | None
    """Of the mean; ``None`` where cases do not say how much cases differ."""
    test: Literal["mcnemar", "permutation"]
    """By which runs will be compared."""
    spread: float | None
    """The standard deviation of a case's difference between two versions that is reckoned with; ``None`` where nothing is known of it."""
    source: Source | None
    """Where the spread comes from."""
    told: str
    """The same as a sentence."""
    drop: float
    """What is to be found, in the unit of the measure: a rise, where lower is better."""
    detectable: float | None
    """The smallest drop that the present cases would show; ``None`` where there is none."""
    needed: int | None
    """How many cases would show `drop`; ``None`` where it cannot be said."""

    @property
    def enough(self) -> bool:
        """Whether the present cases would show it."""
        return self.needed is not None and self.cases >= self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How many cases each measure takes."""

    run_id: str | None
    baseline_run_id: str | None
    detect: float
    """What is to be found: in the unit of the measure, for quantities as a share of their mean."""
    confidence: float
    power: float
    num_runs: int
    """How often each case is to run."""
    needs: tuple[Need, ...]

    @property
    def enough(self) -> bool:
        """Whether the present cases would show every drop."""
        return all(need.enough for need in self.needs)


def plan(
    run: str | Report,
    detect: float,
    *,
    baseline: str | Report | None = None,
    criteria: Iterable[str] = (),
    confidence: float = 0.95,
    power: float = 0.8,
    num_runs: int | None = None,
    tracking_uri: str | None = None,
) -> Plan:
    """Return how many cases it takes to notice that an agent got worse, by how far the cases of a run vary.

    Args:
        run: the id of a run, or a report.
        detect: how much worse: a difference of scores or pass rates; for tokens, calls and durations a share of their mean.
        baseline: an earlier run of the same cases, from which to learn how far versions differ case by case.
        criteria: the measures, among them ``case_pass_rate``; none: that and those that decide.
        confidence: one less the chance of an alarm where nothing got worse.
        power: the chance to notice.
        num_runs: how often each case is to run; ``None``: as often as in the run.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run or criterion, or a number makes no sense.
        TrackingError: if MLflow cannot be reached, or the evidence of a run cannot be believed.
    """
    _check(detect, confidence, power, num_runs)
    now, before = _reports(run, baseline, tracking_uri)
    found, earlier = _measures(now), _measures(before) if before else {}
    runs = num_runs or now.num_runs
    terms = _Terms(detect, confidence, power, runs)
    return Plan(
        run_id=now.run_id,
        baseline_run_id=before.run_id if before else None,
        detect=detect,
        confidence=confidence,
        power=power,
        num_runs=runs,
        needs=tuple(_need(name, found[name], earlier.get(name), terms) for name in _chosen(now, found, tuple(criteria))),
    )


@dataclass(frozen=True, slots=True)
class _Terms:
    detect: float
    confidence: float
    power: float
    num_runs: int


def _check(detect: float, confidence: float, power: float, num_runs: int | None) -> None:
    if not 0 < detect < math.inf:
        raise UsageError(f"detect: {detect!r}; wanted a difference above 0")
    for name, value in (("confidence", confidence), ("power", power)):
        if not 0 < value < 1:
            raise UsageError(f"{name}: {value!r}; wanted a number between 0 and 1, such as 0.95")
    if num_runs is not None and num_runs < 1:
        raise UsageError(f"num_runs: {num_runs!r}; wanted a whole number of at least 1")


def _reports(run: str | Report, baseline: str | Report | None, tracking_uri: str | None) -> tuple[Report, Report | None]:
    """Return the reports, reading from MLflow what is not there yet."""
    if isinstance(run, Report) and (baseline is None or isinstance(baseline, Report)):
        return run, baseline
    from mlflow_adk_eval.gating.mlflow_store import store_at  # noqa: PLC0415 - seconds, for those who use MLflow

    with store_at(tracking_uri) as store:
        return _report(store, run), None if baseline is None else _report(store, baseline)


def _report(store: MlflowStore, run: str | Report) -> Report:
    return run if isinstance(run, Report) else _read(store, run)


def _read(store: MlflowStore, run_id: str) -> Report:
    """Return what the table of a run says, if it can be believed."""
    run = examine(store.evidence(run_id))
    if run.problems or not isinstance(run, ReadableRun):
        raise TrackingError(f"run {run_id} is no evidence to plan with: {run.problems[0]}")
    return replace(run.report, run_id=run_id)


def _measures(report: Report) -> dict[str, Values]:
    """Return the values of each measure that has any."""
    passed: dict[str, list[float]] = {}
    for case in report.cases:
        passed.setdefault(case.eval_id, []).append(float(case.verdict == "passed"))
    scores = {name: summary.case_scores for name, summary in report.summaries().items()}
    return {name: values for name, values in {CASE_PASS_RATE: passed, **scores}.items() if values}


def _chosen(report: Report, found: Mapping[str, Values], criteria: Sequence[str]) -> list[str]:
    for name in criteria:
        if name not in found:
            raise UsageError(f"criterion {name!r}: the run has no scores of it. {did_you_mean(name, found)}".strip())
    deciding = [name for name, summary in report.summaries().items() if summary.threshold is not None]
    chosen = list(dict.fromkeys(criteria)) or [name for name in (CASE_PASS_RATE, *deciding) if name in found]
    if not chosen:
        raise UsageError("the run has no scores to plan with")
    return chosen


def _need(name: str, values: Values, before: Values | None, terms: _Terms) -> Need:
    middle = mean(value for runs in values.values() for value in runs)
    spread = spread_of(values, before, terms.num_runs, confidence=terms.confidence)
    drop = terms.detect * abs(middle) if CRITERIA.is_quantity(name) else terms.detect
    detectable, needed = _sizes(spread, drop, len(values), terms)
    return Need(
        measure=name,
        cases=len(values),
        mean=middle,
        interval=mean_interval(values, terms.confidence, proportion=not CRITERIA.is_quantity(name)),
        test="mcnemar" if spread.passes else "permutation",
        spread=spread.value,
        source=spread.source,
        told=spread.explanation,
        drop=drop,
        detectable=detectable if detectable is not None and math.isfinite(detectable) else None,
        needed=needed,
    )


def _sizes(spread: Spread, drop: float, cases: int, terms: _Terms) -> tuple[float | None, int | None]:
    """Return the smallest drop that so many cases show, and how many show `drop`."""
    if spread.value is None or not drop:
        return None, None
    if spread.passes:
        share = spread.value**2
        return (
            detectable_rate_drop(share, cases, confidence=terms.confidence, power=terms.power),
            rate_cases_needed(share, min(drop, 1.0), confidence=terms.confidence, power=terms.power),
        )
    return (
        detectable_drop(spread.value, cases, confidence=terms.confidence, power=terms.power),
        cases_needed(spread.value, drop, confidence=terms.confidence, power=terms.power),
    )
