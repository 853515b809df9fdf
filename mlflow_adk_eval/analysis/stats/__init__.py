"""Statistics of what was measured on a sample of cases: intervals, paired tests, and how many cases they need."""

from __future__ import annotations

from mlflow_adk_eval.analysis.stats.intervals import Interval, mean_interval, proportion_interval, wilson_interval
from mlflow_adk_eval.analysis.stats.paired import Paired, compare_paired, holm
from mlflow_adk_eval.analysis.stats.power import (
    cases_needed,
    cases_to_exclude,
    detectable_drop,
    detectable_rate_drop,
    fewest_cases,
    rate_cases_needed,
)

__all__ = [
    "Interval",
    "Paired",
    "cases_needed",
    "cases_to_exclude",
    "compare_paired",
    "detectable_drop",
    "detectable_rate_drop",
    "fewest_cases",
    "holm",
    "mean_interval",
    "proportion_interval",
    "rate_cases_needed",
    "wilson_interval",
]
