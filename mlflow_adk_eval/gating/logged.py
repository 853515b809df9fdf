"""What a run says of itself in metrics and tags, held against what its table comes to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from mlflow_adk_eval.gating.evidence.integrity import Evidence, few
from mlflow_adk_eval.gating.keys import key_of_criterion
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
