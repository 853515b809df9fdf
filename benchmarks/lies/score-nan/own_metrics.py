from google.adk.evaluation.eval_metrics import EvalStatus
from google.adk.evaluation.evaluator import EvaluationResult, PerInvocationResult


def own(eval_metric, actual_invocations, expected_invocations=None, conversation_scenario=None):
    """Judge a conversation, in ADK's form."""
    turns = [
        PerInvocationResult(actual_invocation=turn, score=float("nan"), eval_status=EvalStatus.NOT_EVALUATED) for turn in actual_invocations
    ]
    return EvaluationResult(overall_score=float("nan"), overall_eval_status=EvalStatus.NOT_EVALUATED, per_invocation_results=turns)
