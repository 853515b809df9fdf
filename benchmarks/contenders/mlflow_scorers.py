"""The ADK scorers that MLflow ships, in a loop and in `mlflow.genai.evaluate`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import ACTUAL, EVAL_SET, Json

from contenders import RESPONSE_MATCH, THRESHOLD, TRAJECTORY, Cells

NAMES = {"ToolTrajectory": TRAJECTORY, "ResponseMatch": RESPONSE_MATCH}


def imports(*, logging: bool) -> None:  # noqa: ARG001 - mlflow is what this contender is made of
    """Import all that the work needs."""
    import google.adk.evaluation.final_response_match_v1
    import google.adk.evaluation.trajectory_evaluator  # noqa: F401
    import mlflow.genai.scorers.google_adk  # noqa: F401


def load(folder: Path) -> list[Json]:
    """Return the rows that a user makes of ADK's files, which MLflow cannot read."""
    eval_set = json.loads((folder / EVAL_SET).read_bytes())
    actual = {case["eval_id"]: case["invocations"] for case in json.loads((folder / ACTUAL).read_bytes())}
    return list(_rows(eval_set["eval_cases"], actual))


def _rows(cases: list[Json], actual: dict[str, list[Json]]) -> Iterator[Json]:
    for case in cases:
        for turn, (expected, got) in enumerate(zip(case["conversation"], actual[case["eval_id"]], strict=True)):
            yield {
                "inputs": {"query": _text(expected["user_content"]), "eval_id": case["eval_id"], "turn": turn},
                "outputs": _text(got["final_response"]),
                "expectations": {
                    "expected_response": _text(expected["final_response"]),
                    "expected_tool_calls": _calls(expected["intermediate_data"]),
                    "actual_tool_calls": _calls(got["intermediate_data"]),
                },
            }


def _text(content: Json) -> str:
    return "\n".join(part["text"] for part in content["parts"] if part.get("text"))


def _calls(data: Json) -> list[Json]:
    calls = data.get("tool_uses")
    if calls is None:
        parts = (part for event in data["invocation_events"] for part in event["content"]["parts"])
        calls = [part["function_call"] for part in parts if part.get("function_call")]
    return [{"name": call["name"], "args": call["args"]} for call in calls]


def loop(rows: list[Json]) -> Cells:
    """Score with the scorers in a plain loop: no run, no traces."""
    found = [(NAMES[scorer.name], row["inputs"], scorer(**row)) for scorer in _scorers() for row in rows]
    return (
        (name, inputs["eval_id"], inputs["turn"], None if feedback.error else feedback.metadata["score"])
        for name, inputs, feedback in found
    )


def evaluate(rows: list[Json]) -> Cells:
    """Score and log with `mlflow.genai.evaluate` as it comes."""
    import mlflow

    return _logged(mlflow.genai.evaluate(data=rows, scorers=_scorers()).result_df)


def evaluate_tuned(rows: list[Json]) -> Cells:
    """Score and log with the best settings known: few enough threads for the SQLite pool, no rate limits."""
    os.environ["MLFLOW_GENAI_EVAL_MAX_WORKERS"] = "4"
    os.environ["MLFLOW_GENAI_EVAL_PREDICT_RATE_LIMIT"] = "0"
    os.environ["MLFLOW_GENAI_EVAL_SCORER_RATE_LIMIT"] = "0"
    return evaluate(rows)


def _scorers() -> list[Any]:
    import mlflow.genai.scorers.google_adk as shipped

    shipped._create_trajectory_evaluator = _trajectory_evaluator  # noqa: SLF001 - the repair
    return [shipped.ToolTrajectory(), shipped.ResponseMatch()]


def _trajectory_evaluator(threshold: float, match_type: Any) -> Any:
    """Return what MLflow 3.17 means to make: it leaves out the threshold that ADK 2.13 wants, so that its own does not construct."""
    from google.adk.evaluation.eval_metrics import EvalMetric, ToolTrajectoryCriterion
    from google.adk.evaluation.trajectory_evaluator import TrajectoryEvaluator

    criterion = ToolTrajectoryCriterion(threshold=threshold, match_type=match_type)
    return TrajectoryEvaluator(eval_metric=EvalMetric(metric_name=TRAJECTORY, threshold=THRESHOLD, criterion=criterion))


def _logged(frame: Any) -> Cells:
    for request, assessments in zip(frame["request"], frame["assessments"], strict=True):
        for assessment in assessments:
            name = NAMES.get(assessment["assessment_name"])
            score = (assessment.get("metadata") or {}).get("score")
            if name:
                yield name, request["eval_id"], request["turn"], None if score is None else float(score)
