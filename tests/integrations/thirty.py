"""Thirty cases, 60 turns, and a real ADK agent that gets some of them wrong: what every integration must agree on."""

from __future__ import annotations

import re
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.judge.protocol import Request
from mlflow_adk_eval.testing import ScriptedJudge
from tests.agents.scripted import call, llm, results, text, user_text
from tests.kit import turn_json

ROOMS = ("hall", "kitchen", "attic")
WRONG_ARGS, WRONG_ANSWER, NO_CALL = 4, 5, 7
"""Every so many-th case goes wrong in this way."""

RUBRIC = {"rubric_id": "polite", "rubric_content": {"text_property": "The agent is polite."}}
CONFIG: dict[str, Any] = {
    "criteria": {
        "tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "IN_ORDER"},
        "response_match_score": 0.8,
        "final_response_match_v2": 0.5,
        "rubric_based_final_response_quality_v1": {"threshold": 0.8, "rubrics": [RUBRIC]},
        "rubric_based_tool_use_quality_v1": {"threshold": 0.8, "rubrics": [RUBRIC]},
        "rubric_based_multi_turn_trajectory_quality_v1": {"threshold": 0.8, "rubrics": [RUBRIC]},
        "safety_v1": {"threshold": 0.5, "backend": "judge"},
        "multi_turn_task_success_v1": {"threshold": 0.5, "backend": "judge"},
        "rapid_eval_rouge": {"threshold": 0.8, "rouge_type": "rougeL"},
        "rapid_eval_fulfillment": 3,
        "tool_call_count_v1": 2,
        "token_usage_v1": 10_000,
    }
}
CRITERIA = tuple(CONFIG["criteria"])


def eval_set() -> EvalSet:
    """Return the cases."""
    return EvalSet.model_validate({"eval_set_id": "thirty", "eval_cases": [_case(number) for number in range(30)]})


def _case(number: int) -> dict[str, Any]:
    return {
        "eval_id": f"case_{number:02}",
        "conversation": [_turn(number, turn) for turn in range(1 + number % 3)],
        "session_input": {"app_name": "agent", "user_id": "somebody", "state": {"owner": f"owner {number}"}},
    }


def _turn(number: int, turn: int) -> dict[str, Any]:
    return turn_json(said(number, turn), answer(number, turn), ("switch", arguments(number, turn)))


def said(number: int, turn: int) -> str:
    """What the user says."""
    return f"case {number} turn {turn}: light in the {ROOMS[turn]} please"


def answer(number: int, turn: int) -> str:
    """What the agent should answer."""
    return f"The light in the {ROOMS[turn]} is on, number {number}."


def arguments(number: int, turn: int) -> dict[str, Any]:
    """What the tool should be called with."""
    return {"room": ROOMS[turn], "on": True, "level": number}


def switch(room: str, on: bool, level: int, tool_context: ToolContext) -> dict[str, Any]:
    """Switch a light."""
    tool_context.state[room] = level if on else 0
    return {"room": room, "level": level}


def _script(request: LlmRequest) -> list[types.Part]:
    number, turn = map(int, re.findall(r"\d+", user_text(request))[:2])
    if not results(request) and number % NO_CALL:
        changed = {"level": number + 1} if number % WRONG_ARGS == 0 else {}
        return [call("switch", **arguments(number, turn) | changed)]
    return text("Something wrong happened." if number % WRONG_ANSWER == 0 else answer(number, turn))


def agent() -> LlmAgent:
    """Return the agent."""
    return llm(_script, instruction="Switch lights. Be polite.", tools=[switch])


def judge(**settings: Any) -> ScriptedJudge:
    """Return a judge who finds whatever speaks of something wrong to be so."""
    return ScriptedJudge(_verdict, rationale="| a | b |\n|---|---|\n| ünï | 🙂 |", address="thirty", **settings)


def _verdict(request: Request) -> Any:
    labels = _labels(request)
    return labels[-1] if "wrong" in request.text else labels[0]


def _labels(request: Request) -> list[str]:
    """Return the labels on offer, the good one first."""
    properties = request.schema["properties"]
    one = properties if "verdict" in properties else next(iter(properties.values()))["properties"]
    return sorted(one["verdict"]["enum"], key=lambda label: label in {"no", "invalid", "unsafe", "fail", "failed", "false"})
