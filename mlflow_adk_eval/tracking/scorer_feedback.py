"""What a criterion found in a row, as MLflow's feedback."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow.entities import AssessmentError, AssessmentSource, Feedback

from mlflow_adk_eval.integrations.explained import explained
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.findings import Finding, findings_of, votes_by_turn
from mlflow_adk_eval.results.report import (
    CriterionResult,
    Errored,
    Scored,
    reason_of,
    status_of,
)
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.tracking.judge_facts import judge_of, voting_metadata
from mlflow_adk_eval.tracking.names import assessment_name
from mlflow_adk_eval.tracking.storable import Secrets, storable_text

_SCORED_BY = AssessmentSource(source_type="CODE", source_id="mlflow_adk_eval")


def feedback_of(result: CriterionResult) -> Feedback:
    """Return the score with its reasons, or, where there is none, an error: never a zero in its place."""
    secrets = secrets_of()
    judge = judge_of(result.votes, secrets)
    scored = isinstance(result.overall, Scored)
    return Feedback(
        name=assessment_name(result.criterion),
        value=float(result.overall.score) if isinstance(result.overall, Scored) else None,
        error=None if scored else _error(result, secrets),
        rationale=(storable_text(explained(result), secrets) or None) if scored else None,
        source=AssessmentSource(source_type="LLM_JUDGE", source_id=judge) if judge else _SCORED_BY,
        metadata={
            "status": status_of(result.overall),
            "threshold": repr(result.threshold),
            **(voting_metadata(_findings(result), secrets) if result.votes else {}),
        },
    )


def unreadable(criterion: str, error: Exception) -> Feedback:
    """Return that a row does not say what the criterion could judge."""
    message = storable_text(str(error), secrets_of())
    return Feedback(
        name=assessment_name(criterion),
        error=AssessmentError(error_code="ERROR", error_message=message),
        source=_SCORED_BY,
        metadata={"status": status_of(Errored(message))},
    )


def _error(result: CriterionResult, secrets: Secrets) -> AssessmentError:
    code = "JUDGE_ERROR" if result.votes else {"skipped": "NOT_EVALUATED"}.get(status_of(result.overall), "ERROR")
    return AssessmentError(error_code=code, error_message=storable_text(reason_of(result.overall), secrets))


def _findings(result: CriterionResult) -> Sequence[Finding]:
    cells = ((cell_at(result, index), votes) for index, votes in sorted(votes_by_turn(result.votes).items()))
    return [finding for cell, votes in cells if cell is not None for finding in findings_of(cell, votes)]
