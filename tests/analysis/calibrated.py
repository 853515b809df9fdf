"""Runs whose judge errs where the answer says so, and what people think of its answers: for the tests of calibrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, answer_for
from tests.tracking.small import eval_set, turn

MATCH, RUBRICS, TASK = "final_response_match_v2", "rubric_based_final_response_quality_v1", "multi_turn_task_success_v1"
EXPERIMENT = "labels"


def rubric(rubric_id: str) -> dict[str, Any]:
    return {"rubric_id": rubric_id, "rubric_content": {"text_property": f"The answer is {rubric_id}."}}


CONFIG: dict[str, Any] = {
    "criteria": {
        MATCH: {"threshold": 0.5, "judge_model_options": {"num_samples": 1}},
        RUBRICS: {"threshold": 1.0, "rubrics": [rubric("short"), rubric("polite")], "judge_model_options": {"num_samples": 1}},
    }
}
"""A criterion with one question and one with two rubrics."""

CASES: dict[str, tuple[str, ...]] = {
    # what is good passes the judge, unless "strict" stands there, and what is bad fails, unless "blind" does
    **{f"good_{number}": ("good", "good") for number in range(5)},
    **{f"bad_{number}": ("bad",) for number in range(6)},
    "strict": ("good strict",),
    "blind": ("good", "bad blind"),
    "down": ("good down",),
}
"""The answers of each case: 13 good and 8 bad ones that were judged, of which the judge is wrong about one each; and one that was not."""


def answers() -> Iterator[tuple[str, int, str]]:
    """Yield each turn with its answer."""
    for eval_id, turns in CASES.items():
        for index, answer in enumerate(turns):
            yield eval_id, index, answer


def deserves(answer: str) -> bool:
    """Whether people think that an answer passes."""
    return answer.startswith("good")


def judge(request: Request) -> Any:
    """Judge an answer by its words, a rubric by whether the answer names it as missed."""
    answer = request.blocks["response"]
    if "down" in answer:
        raise ConnectionError("the judge is down")
    passes = (deserves(answer) and "strict" not in answer) or "blind" in answer
    if "verdict" in request.schema["properties"]:
        return answer_for(request, "valid" if passes else "invalid", rationale=f"it is {answer}")
    return answer_for(request, {"item_1": "yes", "item_2": "yes" if passes else "no"}, rationale=f"it is {answer}")


def cases() -> adk_eval.EvalSet:
    return eval_set({eval_id: [turn(f"question {index}", "good") for index in range(len(turns))] for eval_id, turns in CASES.items()})


def agent(_text: str, session: adk_eval.Session) -> str:
    return CASES[session.eval_id][len(session.history)]


def evaluated(store: str, config: dict[str, Any] | None = None, *, by: Any = judge, **options: Any) -> Report:
    """Return the report on a run in a store."""
    return adk_eval.evaluate(cases(), agent, config or CONFIG, judge=by, experiment=EXPERIMENT, tracking_uri=store, **options)
