"""What a run says of repeated runs: in metrics how reliable the agent is, in a table how reliable it is in each case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from mlflow_adk_eval.gating.keys import key_of_criterion
from mlflow_adk_eval.report.repeats import pass_hat_lines
from mlflow_adk_eval.results.repeats import Repeats, table_of_repeats, variance
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import Table
from mlflow_adk_eval.tracking.storable import Secrets, clean_table

REPEATS = "repeats.json"
"""Only runs with more than one run of each case have it."""


def repeats_artifact(report: Report, secrets: Secrets) -> dict[str, bytes]:
    """Return the artifact with a row for each case, where cases were repeated."""
    if report.num_runs == 1:
        return {}
    columns, rows = table_of_repeats(report.repeats)
    return {REPEATS: clean_table(Table(columns, tuple(rows)), secrets)[1].encode()}


def metrics_of_repeats(report: Report) -> Iterator[tuple[str, float]]:
    """Yield the metrics of repeated runs; nothing with one run of each case. What has no value is left out."""
    if report.num_runs > 1:
        found = _metrics(report.repeats)
        yield from ((name, float(value)) for name, value in found if value is not None and math.isfinite(value))


def _metrics(repeats: Repeats) -> Iterable[tuple[str, float | None]]:
    for line in pass_hat_lines(repeats):
        low, high = line.interval or (None, None)
        yield from ((f"pass_hat_{line.k}{suffix}", value) for suffix, value in (("", line.mean), ("_ci_low", low), ("_ci_high", high)))
    if repeats.cases:
        yield "flaky_cases", len(repeats.flaky)
        yield "case_pass_rate_run_std", math.sqrt(variance(repeats.run_pass_rates))
    for name, found in repeats.criteria.items():
        key = key_of_criterion(name)
        yield f"{key}/run_std", found.run_std
        yield f"{key}/within_case_variance", found.within_variance
        yield f"{key}/between_case_variance", found.between_variance


def series_of_repeats(report: Report) -> Mapping[str, tuple[float, ...]]:
    """Return the metrics that have a value for each run, which MLflow draws over its steps."""
    rates = report.repeats.run_pass_rates if report.num_runs > 1 else ()
    return {"case_pass_rate_by_run": rates} if rates else {}
