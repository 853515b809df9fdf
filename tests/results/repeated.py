"""Reports on repeated runs, made of their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored
from mlflow_adk_eval.results.report import Report
from tests.kit import RESPONSE, case_result, cases, config, turn

Scores = Mapping[str, Sequence[float | None]]
"""The scores of each case by run; ``None``: the judge was down."""
PASSED, FAILED, LOST = 1.0, 0.0, None


def result(score: float | None, criterion: str = RESPONSE, threshold: float | None = 0.5) -> CriterionResult:
    found = Errored("judge down") if score is None else Scored(score)
    return CriterionResult(criterion=criterion, threshold=threshold, greater_is_better=True, overall=found, per_invocation=(found,))


def case_run(eval_id: str, run_index: int, *results: CriterionResult, error: str = "") -> CaseResult:
    return case_result(eval_id=eval_id, run_index=run_index, actual=(turn(),), expected=(turn(),), results=results, error=error)


def repeated(scores: Scores) -> Report:
    """Return the report on one criterion with the threshold 0.5."""
    found = tuple(case_run(eval_id, index, result(score)) for eval_id, runs in scores.items() for index, score in enumerate(runs))
    return Report(eval_set=cases(), config=config(RESPONSE), cases=found, num_runs=max(map(len, scores.values()), default=1))
