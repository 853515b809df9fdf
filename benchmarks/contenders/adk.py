"""google-adk's own evaluation, of recorded invocations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from data import ACTUAL, EVAL_SET

from contenders import CRITERIA, RESPONSE_MATCH, THRESHOLD, TRAJECTORY, Cells


class _NoAgent:
    """Stands where the service wants an agent; with recorded inferences it is never asked."""


def imports(*, logging: bool) -> None:
    """Import all that the work needs."""
    import google.adk.evaluation.final_response_match_v1
    import google.adk.evaluation.local_eval_service
    import google.adk.evaluation.trajectory_evaluator  # noqa: F401

    if logging:
        import mlflow  # noqa: F401
        import pandas as pd  # noqa: F401


def load(folder: Path) -> Any:
    """Return the eval set and the recorded invocations by eval id, as ADK's own objects."""
    from google.adk.evaluation.eval_case import Invocation
    from google.adk.evaluation.local_eval_sets_manager import load_eval_set_from_file
    from pydantic import TypeAdapter
    from typing_extensions import TypedDict

    eval_set = load_eval_set_from_file(str(folder / EVAL_SET), "bench")
    recorded = TypedDict("recorded", {"eval_id": str, "invocations": list[Invocation]})  # noqa: UP013 - Invocation is imported here
    actual = TypeAdapter(list[recorded]).validate_json((folder / ACTUAL).read_bytes())
    return eval_set, {case["eval_id"]: case["invocations"] for case in actual}


def service(data: Any) -> Cells:
    """Score with LocalEvalService, as AgentEvaluator and `adk eval` do after the agent ran."""
    return cells(serve(data, metrics()))


def service_and_table(data: Any) -> Cells:
    """Score with LocalEvalService and write by hand what MLflow is to show: means and a table of all turns."""
    import mlflow
    import pandas as pd

    results = serve(data, metrics())
    frame = pd.DataFrame(_rows(results))
    with mlflow.start_run():
        mlflow.log_metrics({f"{name}/mean": float(frame[name].mean()) for name in CRITERIA})
        mlflow.log_table(frame, "per_invocation.json")
    return cells(results)


def classes(data: Any) -> Cells:
    """Score with ADK's evaluator classes in a plain loop: the least that ADK can do."""
    from google.adk.evaluation.final_response_match_v1 import RougeEvaluator
    from google.adk.evaluation.trajectory_evaluator import TrajectoryEvaluator

    eval_set, actual = data
    makes = {TRAJECTORY: TrajectoryEvaluator, RESPONSE_MATCH: RougeEvaluator}
    evaluators = {metric.metric_name: makes[metric.metric_name](eval_metric=metric) for metric in metrics()}
    found = [
        (name, case.eval_id, evaluator.evaluate_invocations(actual[case.eval_id], case.conversation))
        for case in eval_set.eval_cases
        for name, evaluator in evaluators.items()
    ]
    return ((name, eval_id, turn, cell.score) for name, eval_id, result in found for turn, cell in enumerate(result.per_invocation_results))


def metrics() -> list[Any]:
    """Return the two criteria as google-adk's own objects."""
    from google.adk.evaluation.eval_metrics import BaseCriterion, EvalMetric, ToolTrajectoryCriterion

    return [
        EvalMetric(metric_name=TRAJECTORY, criterion=ToolTrajectoryCriterion(threshold=THRESHOLD)),
        EvalMetric(metric_name=RESPONSE_MATCH, criterion=BaseCriterion(threshold=THRESHOLD)),
    ]


def serve(data: Any, metrics: list[Any], **config: Any) -> list[Any]:
    """Return what LocalEvalService finds; `config` goes to its EvaluateConfig."""
    from google.adk.evaluation.base_eval_service import EvaluateConfig, EvaluateRequest, InferenceResult, InferenceStatus
    from google.adk.evaluation.in_memory_eval_sets_manager import InMemoryEvalSetsManager
    from google.adk.evaluation.local_eval_service import LocalEvalService

    eval_set, actual = data
    manager = InMemoryEvalSetsManager()
    manager.create_eval_set(app_name="bench", eval_set_id="bench")
    for case in eval_set.eval_cases:
        manager.add_eval_case("bench", "bench", case)
    evaluation = LocalEvalService(root_agent=_NoAgent(), eval_sets_manager=manager)
    place = {"app_name": "bench", "eval_set_id": "bench", "session_id": None, "status": InferenceStatus.SUCCESS}
    inferences = [InferenceResult(eval_case_id=eval_id, inferences=turns, **place) for eval_id, turns in actual.items()]
    request = EvaluateRequest(inference_results=inferences, evaluate_config=EvaluateConfig(eval_metrics=metrics, **config))

    async def collect() -> list[Any]:
        return [result async for result in evaluation.evaluate(request)]

    return asyncio.run(collect())


def cells(results: list[Any]) -> Cells:
    """Return the scores in the common shape."""
    for result in results:
        for turn, per_invocation in enumerate(result.eval_metric_result_per_invocation):
            for metric in per_invocation.eval_metric_results:
                yield metric.metric_name, result.eval_id, turn, metric.score


def _rows(results: list[Any]) -> list[dict[str, Any]]:
    from google.adk.evaluation.eval_case import get_all_tool_calls
    from google.adk.evaluation.llm_as_judge_utils import get_text_from_content

    def tools(invocation: Any) -> list[dict[str, Any]]:
        return [{"name": call.name, "args": call.args} for call in get_all_tool_calls(invocation.intermediate_data)]

    return [
        {
            "eval_id": result.eval_id,
            "turn": turn,
            "prompt": get_text_from_content(found.actual_invocation.user_content),
            "actual": get_text_from_content(found.actual_invocation.final_response),
            "expected": get_text_from_content(found.expected_invocation.final_response),
            "actual_tools": tools(found.actual_invocation),
            "expected_tools": tools(found.expected_invocation),
            **{metric.metric_name: metric.score for metric in found.eval_metric_results},
            **{f"{metric.metric_name}/status": metric.eval_status.name for metric in found.eval_metric_results},
        }
        for result in results
        for turn, found in enumerate(result.eval_metric_result_per_invocation)
    ]
