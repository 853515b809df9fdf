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
from mlflow_adk_eval.gating.evidence.integrity import (
    Documents,
    Evidence,
    few,
    integrity_problems,
    key_of_criterion,
    read_documents,
    state_problems,
)
from mlflow_adk_eval.gating.evidence.table import Rows, missing_votes, read_cases, read_votes, with_votes
from mlflow_adk_eval.results.repeats import variance
from mlflow_adk_eval.results.report import Report

_PRECISION = 1e-9


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
    """What the table comes to, computed anew, with the judges' votes."""
    rows: Rows
    """What the table says, by case run."""


@no_collection()
def examine(evidence: Evidence) -> ExaminedRun:
    """Return what a run's evidence comes to, a `ReadableRun` unless its artifacts cannot be used at all."""
    problems = [*state_problems(evidence), *(integrity := integrity_problems(evidence))]
    if integrity:
        return ExaminedRun(evidence=evidence, problems=tuple(problems))
    documents, mismatches = read_documents(evidence)
    problems += mismatches
    if documents is None:
        return ExaminedRun(evidence=evidence, problems=tuple(problems))
    table = read_cases(documents)
    if table.problems:
        return ExaminedRun(evidence=evidence, problems=(*problems, *table.problems))
    votes, unreadable = read_votes(evidence, documents)
    cases = with_votes(table.cases, votes)
    report = Report(eval_set=documents.eval_set, config=documents.config, cases=cases, num_runs=documents.num_runs)
    problems += [*_contradictions(evidence, report), *(unreadable or missing_votes(documents, cases, votes))]
    return ReadableRun(evidence=evidence, problems=tuple(problems), documents=documents, report=report, rows=table.rows)


def recomputed_metrics(report: Report) -> dict[str, float | None]:
    """Return the metrics of a run that follow from its table, by name; ``None``: the table has nothing to compute it from.

    They are logged when a run ends and computed again by the gate. Confidence intervals are not among them: no decision rests on those.
    """
    passed: dict[str, bool] = {}
    for case in report.cases:
        passed[case.eval_id] = passed.get(case.eval_id, True) and case.verdict == "passed"
    found: dict[str, float | None] = {"cases": len(passed), "case_pass_rate": sum(passed.values()) / len(passed) if passed else None}
    for name, summary in report.summaries().items():
        measured = summary.threshold is not None or bool(summary.evaluated or summary.errored)
        found |= {
            f"{key_of_criterion(name)}/{metric}": value
            for metric, value in (
                ("mean", summary.mean),
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
        elif not math.isclose(found, wanted, rel_tol=_PRECISION, abs_tol=_PRECISION):
            yield f"the logged metric {name} is {found:g}, but the table comes to {wanted:g}"
