"""What users write: metric functions. Those here know nothing of ADK."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.lowlevel

NOT_A_FUNCTION = 3


def answer_length(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> list[float]:
    """By turn: the length of the answer over the length that the criterion asks for."""
    return [len(turn.final_text) / eval_metric.criterion.longest for turn in actual]


async def politeness(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> float:
    """Of the whole conversation: whether the last answer says thanks."""
    await anyio.lowlevel.checkpoint()
    return float("thank" in actual[-1].final_text)


class Asked:
    """A callable object."""

    async def __call__(self, eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> dict[str, Any]:
        return {"overall_score": 0.25, "per_invocation_results": [{"score": 0.5} for _ in actual]}


asked = Asked()


def vandal(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> float:
    """Change all that it is given."""
    for turn in (*actual, *expected):
        for call in turn.tool_calls:
            call.args.clear()
        turn.__dict__["final_response"] = None
    actual.clear()
    eval_metric.criterion.threshold = 0.0
    return 1.0


_MEETING = threading.Barrier(4)


def sociable(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> float:
    """Wait for three others."""
    _MEETING.wait(60)
    return 1.0


def says_passed(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> dict[str, Any]:
    """Score 0.4 and call that a pass, as ADK lets a function do."""
    return {"overall_score": 0.4, "overall_eval_status": 1, "per_invocation_results": [{"score": 0.4, "eval_status": 1} for _ in actual]}


def failing(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> float:
    raise LookupError("no such thing")


def too_few(actual: Any) -> float:
    return 1.0


def wrong_answer(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> dict[str, Any]:
    return {"score": 1}


def with_reasons(eval_metric: Any, actual: Any, expected: Any, scenario: Any) -> dict[str, Any]:
    """A result as ADK's rubric metrics return it, as a dict."""
    reasons = [
        {"rubric_id": "polite", "score": 1.0, "rationale": "The answer says please."},
        {"rubric_id": "short", "score": 1.0, "rationale": "Nine words."},
        {"rubric_id": "silent", "score": 0.0, "rationale": None},
    ]
    return {"overall_score": 1.0, "per_invocation_results": [{"score": 1.0, "rubric_scores": reasons} for _ in actual]}
