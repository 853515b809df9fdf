"""Metric functions as ADK's users write them, with ADK's own classes."""

from __future__ import annotations

from google.adk.evaluation.eval_case import ConversationScenario, Invocation, get_all_tool_calls
from google.adk.evaluation.eval_metrics import EvalMetric
from google.adk.evaluation.eval_rubrics import RubricScore
from google.adk.evaluation.evaluator import EvalStatus, EvaluationResult, PerInvocationResult


def few_calls(
    eval_metric: EvalMetric,
    actual_invocations: list[Invocation],
    expected_invocations: list[Invocation] | None,
    conversation_scenario: ConversationScenario | None = None,
) -> EvaluationResult:
    """Score 1 for each turn with at most as many calls as the criterion allows."""
    assert isinstance(eval_metric, EvalMetric)
    assert eval_metric.threshold in (None, eval_metric.criterion.threshold)  # the first releases of ADK want one beside the criterion
    most = eval_metric.criterion.most
    found = [
        PerInvocationResult(
            actual_invocation=turn,
            score=float(len(get_all_tool_calls(turn.intermediate_data)) <= most),
            eval_status=EvalStatus.PASSED,
            rubric_scores=[RubricScore(rubric_id="calls", rationale=f"{len(get_all_tool_calls(turn.intermediate_data))} calls")],
        )
        for turn in actual_invocations
    ]
    overall = sum(result.score or 0.0 for result in found) / len(found)
    return EvaluationResult(overall_score=overall, overall_eval_status=EvalStatus.PASSED, per_invocation_results=found)


async def whole_conversation(
    eval_metric: EvalMetric, actual_invocations: list[Invocation], *_: list[Invocation] | ConversationScenario | None
) -> EvaluationResult:
    """Score the conversation, and no turn of it."""
    results = [PerInvocationResult(actual_invocation=turn) for turn in actual_invocations]
    return EvaluationResult(overall_score=0.75, overall_eval_status=EvalStatus.PASSED, per_invocation_results=results)


def nothing(*_: EvalMetric | list[Invocation] | ConversationScenario | None) -> EvaluationResult:
    """Evaluate nothing."""
    return EvaluationResult()


def vandal(
    eval_metric: EvalMetric, actual_invocations: list[Invocation], *_: list[Invocation] | ConversationScenario | None
) -> EvaluationResult:
    """Change what it is given."""
    results = [PerInvocationResult(actual_invocation=turn, score=1.0) for turn in actual_invocations]
    for turn in actual_invocations:
        turn.final_response = None
    return EvaluationResult(overall_score=1.0, overall_eval_status=EvalStatus.PASSED, per_invocation_results=results)
