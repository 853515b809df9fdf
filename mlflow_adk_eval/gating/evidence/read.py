"""A run's evidence, read and held against itself: what its table comes to, and every reason not to believe it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlflow_adk_eval.gating.evidence.artifacts import Documents, read_documents
from mlflow_adk_eval.gating.evidence.integrity import Evidence, few, integrity_problems, key_of_criterion, state_problems
from mlflow_adk_eval.gating.evidence.table_cells import read_cases, read_votes, voteless, with_votes
from mlflow_adk_eval.gating.evidence.table_rows import Rows
from mlflow_adk_eval.results.repeats import Repeats, variance
from mlflow_adk_eval.results.report import Report

_PRECISION = 1e-9


def contradictions(evidence: Evidence, report: Report) -> list[str]:
    """Return where the run's metrics and its verdict are not those of the `report` in its table."""
    logged = evidence.tags.get("adk_eval.verdict")
    found = few(_metric_problems(evidence.metrics, expected_metrics(report)))
    if logged is None:
        found.append("the run has no tag adk_eval.verdict")
    elif logged != report.verdict:
        found.append(f"the run's tag adk_eval.verdict is {logged!r}, but its table comes to {report.verdict!r}")
    return found


def expected_metrics(report: Report) -> dict[str, float | None]:
    """Return what each metric of a run must be if the run has it; ``None``: it must not have it.

    Confidence intervals are not among them: they are resampled, and no decision rests on them.
    """
    passed: dict[str, bool] = {}
    for case in report.cases:
        passed[case.eval_id] = passed.get(case.eval_id, True) and case.verdict == "passed"
    expected: dict[str, float | None] = {"cases": len(passed), "case_pass_rate": sum(passed.values()) / len(passed)}
    for name, summary in report.summaries().items():
        key = key_of_criterion(name)
        expected[f"{key}/mean"], expected[f"{key}/pass_rate"] = summary.mean, summary.pass_rate
        expected[f"{key}/evaluated"], expected[f"{key}/errored"] = summary.evaluated, summary.errored
    return expected | (_of_repeats(report.repeats) if report.num_runs > 1 else {})


def _of_repeats(repeats: Repeats) -> dict[str, float | None]:
    """Return the metrics of repeated runs."""
    expected: dict[str, float | None] = {f"pass_hat_{k}": repeats.pass_hat(k) for k in repeats.ks}
    expected["flaky_cases"] = len(repeats.flaky)
    expected["case_pass_rate_run_std"] = math.sqrt(variance(repeats.run_pass_rates))
    for name, found in repeats.criteria.items():
        key = key_of_criterion(name)
        expected[f"{key}/run_std"] = found.run_std
        expected[f"{key}/within_case_variance"] = found.within_variance
        expected[f"{key}/between_case_variance"] = found.between_variance
    return expected


def _metric_problems(logged: Mapping[str, float], expected: Mapping[str, float | None]) -> Iterator[str]:
    for name, wanted in expected.items():
        found = logged.get(name)
        if found is None:
            continue
        if wanted is None:
            yield f"the logged metric {name} is {found:g}, but the table has nothing to compute it from"
        elif not math.isclose(found, wanted, rel_tol=_PRECISION, abs_tol=_PRECISION):
            yield f"the logged metric {name} is {found:g}, but the table comes to {wanted:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a run has to say."""

    evidence: Evidence
    documents: Documents
    report: Report
    """What its table comes to, computed anew, with the judges' votes."""
    rows: Rows
    """What its table says, by case run."""
    doubts: tuple[str, ...]
    """Why it is no evidence all the same; empty where it is."""


def examine(evidence: Evidence) -> Examined | tuple[str, ...]:
    """Return what a run's evidence comes to, or why nothing can be made of it."""
    state, integrity = state_problems(evidence), integrity_problems(evidence)
    if integrity:
        return (*state, *integrity)
    documents, mismatches = read_documents(evidence)
    if documents is None:
        return (*state, *mismatches)
    reading = read_cases(documents)
    if reading.problems:
        return (*state, *mismatches, *reading.problems)
    votes, unreadable = read_votes(evidence, documents)
    cases = with_votes(reading.cases, votes)
    report = Report(eval_set=documents.eval_set, config=documents.config, cases=cases, num_runs=documents.num_runs)
    unsupported = unreadable or voteless(documents, cases, votes)
    doubts = (*state, *mismatches, *contradictions(evidence, report), *unsupported)
    return Examined(evidence=evidence, documents=documents, report=report, rows=reading.rows, doubts=doubts)
