"""A report in the format of ADK's result files, which ``adk web`` lists and this package reads as a recording."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mlflow_adk_eval.config.criteria import JudgedSettings
from mlflow_adk_eval.evalset import EvalSetResult
from mlflow_adk_eval.evalset.conversation import ConversationOutcome, outcome_of
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.result import FAILED, INFORMATIONAL, NOT_EVALUATED, PASSED, EvalCaseResult, InvocationResult, MetricResult
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.results.votes import item_results, votes_by_turn

_OF_VERDICT: dict[Verdict, int] = {"passed": PASSED, "failed": FAILED, "undecided": NOT_EVALUATED}
_DETAILS = {"token_usage_v1": "token_usage_details", "invocation_duration_v1": "duration_details"}


def result_of(report: Report, *, app_name: str = "agent", created: float | None = None) -> EvalSetResult:
    """Return a report as ADK's result of an eval set, one entry per case and run.

    Turns that the agent did not reach have no place in ADK's format; the case's results say that they were not evaluated.

    Args:
        report: what was found.
        app_name: the first part of the result's id, which ADK takes for the agent's name.
        created: when, in seconds since 1970; ``None``: now.
    """
    timestamp = time.time() if created is None else created
    result_id = f"{app_name}_{report.eval_set.eval_set_id}_{timestamp}"
    return EvalSetResult(
        eval_set_result_id=result_id,
        eval_set_result_name=result_id.replace("/", "_"),
        eval_set_id=report.eval_set.eval_set_id,
        eval_case_results=tuple(_case(report, case, app_name) for case in report.cases),
        creation_timestamp=timestamp,
    )


def _case(report: Report, case: CaseResult, app_name: str) -> EvalCaseResult:
    session_id = f"{case.eval_id}_{case.run_index + 1}"
    given: Json = {}
    if case.session_state is not None:
        details = {"id": session_id, "app_name": app_name, "user_id": "user", "state": dict(case.session_state), "events": []}
        given = {"session_details": details}
    return EvalCaseResult(
        eval_set_id=report.eval_set.eval_set_id,
        eval_id=case.eval_id,
        final_eval_status=_OF_VERDICT[case.verdict],
        overall_eval_metric_results=tuple(_metric(report, case, result, result.overall) for result in case.results),
        eval_metric_result_per_invocation=tuple(_invocations(report, case)),
        session_id=session_id,
        user_id="user",
        adk_eval=ConversationOutcome(**outcome_of(case)),
        **given,
    )


def _invocations(report: Report, case: CaseResult) -> Iterator[InvocationResult]:
    expected = case.expected or ()
    votes = {result.criterion: votes_by_turn(result.votes) for result in case.results}
    for index, actual in enumerate(case.actual):
        cells = [(result, cell_at(result, index)) for result in case.results]
        yield InvocationResult(
            actual_invocation=actual,
            expected_invocation=expected[index] if index < len(expected) else None,
            eval_metric_results=tuple(
                _metric(report, case, result, cell, votes[result.criterion].get(index, ())) for result, cell in cells if cell is not None
            ),
        )


def _metric(report: Report, case: CaseResult, result: CriterionResult, outcome: Outcome, votes: Sequence[Vote] = ()) -> MetricResult:
    scored = outcome if isinstance(outcome, Scored) else None
    given: dict[str, Any] = {}
    custom = (report.config.custom_metrics or {}).get(result.criterion)
    if custom:
        given["custom_function_path"] = custom.code_config.name
    settings = report.config.criteria_of(case.eval_id).get(result.criterion)
    if settings is not None:
        given["criterion"] = settings.model_dump(mode="json", exclude_none=True)
    if scored and scored.details and result.criterion in _DETAILS:
        given["details"] = {_DETAILS[result.criterion]: dict(scored.details)}
    if isinstance(settings, JudgedSettings) and (rubric_scores := list(_rubric_scores(outcome, votes))):
        given["details"] = {"rubric_scores": rubric_scores}
    return MetricResult(
        metric_name=result.criterion,
        threshold=result.threshold,
        score=scored.score if scored else None,
        eval_status=_status(result, outcome),
        **given,
    )


def _rubric_scores(cell: Outcome, votes: Sequence[Vote]) -> Iterator[Json]:
    """Yield what ``adk web`` shows of each rubric, or each sentence."""
    for finding in item_results(cell, votes):
        if finding.id is not None and (finding.rationale or finding.score is not None or not finding.settled):
            without = "; ".join((f"no verdict; votes: {finding.counts or 'none'}", *finding.errors))
            yield {"rubric_id": finding.id, "score": finding.score, "rationale": finding.rationale if finding.settled else without}


def _status(result: CriterionResult, outcome: Outcome) -> int:
    if not isinstance(outcome, Scored):
        return NOT_EVALUATED
    if not result.decides:
        return INFORMATIONAL
    return PASSED if result.reached(outcome) else FAILED
