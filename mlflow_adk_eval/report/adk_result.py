"""A report in the format of ADK's result files, which ``adk web`` lists and this package reads as a recording."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from mlflow_adk_eval.config.spec import JudgedSettings
from mlflow_adk_eval.evalset import conversation as adk
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import cell_at, item_results, votes_by_turn

_OF_VERDICT: dict[Verdict, int] = {"passed": adk.PASSED, "failed": adk.FAILED, "undecided": adk.NOT_EVALUATED}
_DETAILS = {"token_usage_v1": "token_usage_details", "invocation_duration_v1": "duration_details"}


def result_of(report: Report, *, app_name: str = "agent", created: float | None = None) -> adk.EvalSetResult:
    """Return a report as ADK's result of an eval set, one entry per case and run.

    Turns that the agent did not reach have no place in ADK's format; the case's results say that they were not evaluated.

    Args:
        report: what was found.
        app_name: the first part of the result's id, which ADK takes for the agent's name.
        created: when, in seconds since 1970; ``None``: now.
    """
    timestamp = time.time() if created is None else created
    result_id = f"{app_name}_{report.eval_set.eval_set_id}_{timestamp}"
    return adk.EvalSetResult(
        eval_set_result_id=result_id,
        eval_set_result_name=result_id.replace("/", "_"),
        eval_set_id=report.eval_set.eval_set_id,
        eval_case_results=tuple(_case(report, case, app_name) for case in report.cases),
        creation_timestamp=timestamp,
    )


def _case(report: Report, case: CaseResult, app_name: str) -> adk.EvalCaseResult:
    session_id, conversation, expected = f"{case.eval_id}_{case.run_index + 1}", case.conversation, case.expected or ()
    given: Json = {}
    if conversation.session_state is not None:
        state = dict(conversation.session_state)
        given["session_details"] = {"id": session_id, "app_name": app_name, "user_id": "user", "state": state, "events": []}
    votes = {result.criterion: votes_by_turn(result.votes) for result in case.results if result.votes}
    turns = tuple(
        adk.InvocationResult(
            actual_invocation=actual.for_adk(),
            expected_invocation=expected[index] if index < len(expected) else None,
            eval_metric_results=tuple(
                _metric(report, case, result, cell, votes.get(result.criterion, {}).get(index, ()))
                for result in case.results
                if (cell := cell_at(result, index)) is not None
            ),
        )
        for index, actual in enumerate(conversation.actual)
    )
    return adk.EvalCaseResult(
        eval_set_id=report.eval_set.eval_set_id,
        eval_id=case.eval_id,
        final_eval_status=adk.FAILED if case.error and not case.actual else _OF_VERDICT[case.verdict],
        overall_eval_metric_results=tuple(_metric(report, case, result, result.overall) for result in case.results),
        eval_metric_result_per_invocation=turns,
        session_id=session_id,
        user_id="user",
        adk_eval=adk.ConversationOutcome(**adk.outcome_of(conversation)),
        **given,
    )


def _metric(report: Report, case: CaseResult, result: CriterionResult, outcome: Outcome, votes: Sequence[Vote] = ()) -> adk.MetricResult:
    given: dict[str, Any] = {}
    custom = (report.config.custom_metrics or {}).get(result.criterion)
    if custom:
        given["custom_function_path"] = custom.code_config.name
    settings = report.config.criteria_of(case.eval_id).get(result.criterion)
    if settings is not None:
        given["criterion"] = settings.model_dump(mode="json", exclude_none=True)
    status = adk.NOT_EVALUATED
    if isinstance(outcome, Scored):
        status = adk.INFORMATIONAL if not result.decides else adk.PASSED if result.reached(outcome) else adk.FAILED
        if outcome.details and result.criterion in _DETAILS:
            given["details"] = {_DETAILS[result.criterion]: dict(outcome.details)}
    if isinstance(settings, JudgedSettings) and (rubric_scores := list(_rubric_scores(outcome, votes))):
        given["details"] = {"rubric_scores": rubric_scores}
    score = outcome.score if isinstance(outcome, Scored) else None
    return adk.MetricResult(metric_name=result.criterion, threshold=result.threshold, score=score, eval_status=status, **given)


def _rubric_scores(cell: Outcome, votes: Sequence[Vote]) -> Iterator[Json]:
    """Yield what ``adk web`` shows of each rubric, or each sentence."""
    for finding in item_results(cell, votes):
        if finding.id is not None and (finding.rationale or finding.score is not None or not finding.settled):
            without = "; ".join((f"no verdict; votes: {finding.counts or 'none'}", *finding.errors))
            yield {"rubric_id": finding.id, "score": finding.score, "rationale": finding.rationale if finding.settled else without}
