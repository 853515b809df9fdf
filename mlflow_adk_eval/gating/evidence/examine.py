"""A run's evidence, examined once: what its table comes to, and every reason not to believe it.

A decision rests on what `examine` returns and on nothing else of the run. The table is read back into a report and every score is
computed anew; the logged metrics and the logged verdict only have to agree with it (`recomputed_metrics`), since whoever may write to
the run can change them. A run is examined once per decision: the search for a baseline, the comparison and the rules all
take the same `ExaminedRun`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.gating.evidence.documents import Documents, Rows, read_contents
from mlflow_adk_eval.gating.evidence.integrity import Evidence, few, integrity_problems, key_of_criterion, state_problems
from mlflow_adk_eval.results.repeats import variance
from mlflow_adk_eval.results.report import Report

_PRECISION = 1e-9
_DIGITS = 7
"""How many significant digits a logged metric has that is no whole number: as many as a column of MLflow's list of runs shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRun:
    """A run's evidence, and why it must not be believed.

    One whose artifacts can be read is a `ReadableRun`, which also has a report. It may have problems all the same, such as a metric
    that contradicts its table: then its numbers may be shown, but they decide nothing.
    """

    evidence: Evidence
    problems: tuple[str, ...]
    """As sentences; empty only for a run that can be believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableRun(ExaminedRun):
    """A run whose artifacts could be read, with what they come to."""

    documents: Documents
    report: Report
    """What its rows come to, computed anew, with the judges' votes; of a run in parts, only what decides is in memory."""
    rows: Rows
    """What was said and done on each turn, by case run."""


@no_collection()
def examine(evidence: Evidence) -> ExaminedRun:
    """Return what a run's evidence comes to, a `ReadableRun` unless its artifacts cannot be used at all."""
    problems = [*state_problems(evidence), *(integrity := integrity_problems(evidence))]
    if integrity:
        return ExaminedRun(evidence=evidence, problems=tuple(problems))
    found = read_contents(evidence)
    problems += found.mismatches
    if found.documents is None:
        return ExaminedRun(evidence=evidence, problems=(*problems, *found.unusable))
    documents = found.documents
    report = Report(eval_set=documents.eval_set, config=documents.config, cases=found.cases, num_runs=documents.num_runs)
    problems += [*_contradictions(evidence, report), *found.unvoted]
    return ReadableRun(evidence=evidence, problems=tuple(problems), documents=documents, report=report, rows=found.rows)


def rounded_metric(value: float) -> float:
    """Return a metric as it is logged.

    >>> rounded_metric(3 / 11), rounded_metric(123456789)
    (0.2727273, 123456789)
    """
    return value if float(value).is_integer() else float(f"{value:.{_DIGITS}g}")


def recomputed_metrics(report: Report) -> dict[str, float | None]:
    """Return the metrics of a run that follow from its table, by name; ``None``: the table has nothing to compute it from.

    They are logged when a run ends, rounded, and computed again by the gate. Confidence intervals are not among them: no decision rests on
    those. MLflow's pages show metrics in this order: what answers whether the run is good comes first.
    """
    cases, passed = report.case_counts
    summaries = {key_of_criterion(name): summary for name, summary in report.summaries().items()}
    found: dict[str, float | None] = {"case_pass_rate": passed / cases if cases else None}
    found |= {f"{key}/mean": summary.mean for key, summary in summaries.items()}
    found |= {f"{key}/threshold": summary.threshold for key, summary in summaries.items() if cases}
    found["cases"] = cases
    for key, summary in summaries.items():
        measured = summary.threshold is not None or bool(summary.evaluated or summary.errored)
        found |= {
            f"{key}/{metric}": value
            for metric, value in (
                ("pass_rate", summary.pass_rate),
                ("evaluated", summary.evaluated if measured else None),
                ("errored", summary.errored if measured else None),
            )
        }
    return found | (dict(_repeat_metrics(report)) if report.num_runs > 1 else {})


def _repeat_metrics(report: Report) -> Iterator[tuple[str, float | None]]:
    repeats = report.repeats
    yield from ((f"pass_hat_{k}", repeats.pass_hat(k)) for k in repeats.ks)
    yield "flaky_cases", len(repeats.flaky) if repeats.cases else None
    yield "case_pass_rate_run_std", math.sqrt(variance(repeats.run_pass_rates)) if repeats.cases else None
    for name, found in repeats.criteria.items():
        key = key_of_criterion(name)
        yield f"{key}/run_std", found.run_std
        yield f"{key}/within_case_variance", found.within_variance
        yield f"{key}/between_case_variance", found.between_variance


def _contradictions(evidence: Evidence, report: Report) -> Iterator[str]:
    """Yield where the run's metrics and its verdict are not those of the report in its table."""
    yield from few(_metric_problems(evidence.metrics, recomputed_metrics(report)))
    logged = evidence.tags.get("adk_eval.verdict")
    if logged is None:
        yield "the run has no tag adk_eval.verdict"
    elif logged != report.verdict:
        yield f"the run's tag adk_eval.verdict is {logged!r}, but its table comes to {report.verdict!r}"


def _metric_problems(logged: Mapping[str, float], expected: Mapping[str, float | None]) -> Iterator[str]:
    for name, wanted in expected.items():
        found = logged.get(name)
        if found is None:
            continue
        if wanted is None:
            yield f"the logged metric {name} is {found:g}, but the table has nothing to compute it from"
        elif not any(math.isclose(found, value, rel_tol=_PRECISION, abs_tol=_PRECISION) for value in (rounded_metric(wanted), wanted)):
            yield f"the logged metric {name} is {found:g}, but the table comes to {wanted:g}"
