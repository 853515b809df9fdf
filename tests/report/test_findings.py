"""Each cause stands once, with its extent; and of a case, what was expected and what came."""

from __future__ import annotations

from typing import Any

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.report.findings import causes_of, why_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.testing import Request, ScriptedJudge
from tests.tracking.small import eval_set, turn

CONFIG = {
    "criteria": {
        "tool_trajectory_avg_score": 1.0,
        "response_match_score": 0.8,
        "final_response_match_v2": {"threshold": 1.0, "judge_model_options": {"judge_model": "gemini-2.5-flash", "num_samples": 1}},
    }
}
CASES = eval_set(
    {
        "crash 1": [turn("crash 1", "it is 20 degrees now")],
        "crash 2": [turn("crash 2", "it is 21 degrees now")],
        "calls": [turn("calls", "done", ("set", {"room": "hall", "value": 21}))],
        "words": [turn("hello", "hello to you"), turn("words", "the lamp is off")],
        "sense": [turn("sense", "the door is open")],
        "good": [turn("good", "fine")],
    },
    "home",
)
SAID: dict[str, Any] = {
    "calls": turn("calls", "done", ("set", {"room": "hall", "value": 20})),
    "hello": "hello to you",
    "words": "no idea at all",
    "sense": "the door is open",
    "good": "fine",
}


def agent(text: str, _: Any) -> Any:
    if text.startswith("crash"):
        raise ConnectionError(f"thermostat service timed out after {text[-1]} s")
    answer = SAID[text]
    return {"final_response": answer, "intermediate_data": {}} if isinstance(answer, str) else answer


def verdict(request: Request) -> str:
    return "invalid" if "door" in request.text else "valid"


def scored() -> Report:
    recording = adk_eval.record(CASES, agent, CONFIG, ledger=False)
    return adk_eval.score(CASES, recording, CONFIG, judge=ScriptedJudge(verdict, rationale="The door was closed. It says open."))


def test_each_cause_stands_once_and_the_widest_comes_first() -> None:
    causes = causes_of(scored())
    assert str(causes.found[0]) == "ConnectionError: thermostat service timed out after 1 s · 2 cases, 3 criteria"
    assert sorted(map(str, causes.found[1:])) == [
        "final_response_match_v2 below its threshold 1 · 1 case, 1 criterion",
        "response_match_score below its threshold 0.8 · 1 case, 1 criterion",
        "tool_trajectory_avg_score below its threshold 1 · 1 case, 1 criterion",
    ]
    assert causes.found[0].verdict == "undecided"
    assert causes.found[0].places == [0, 1]
    assert causes.unread == 0


def test_a_case_says_what_was_expected_and_what_came() -> None:
    report = scored()
    whys = {case.eval_id: why_of(case) for case in report.cases}
    assert whys == {
        "crash 1": "turn 1: ConnectionError: thermostat service timed out after 1 s",
        "crash 2": "turn 1: ConnectionError: thermostat service timed out after 2 s",
        "calls": "tool_trajectory_avg_score: set was called with different arguments: $.value: expected 21, got 20",
        "words": "turn 2: expected 'the lamp is off', got 'no idea at all'",
        "sense": "final_response_match_v2: invalid 1:0: The door was closed. It says open.",
        "good": "",
    }
