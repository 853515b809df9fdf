"""Traces that MLflow writes of other frameworks' agents: each is read as the same conversation, and scored the same."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing import ScriptedJudge
from tests.agents.traces.framework_traces import FRAMEWORKS, recorded
from tests.tracking.small import eval_set, turn

CASES: EvalSet = eval_set(
    {
        "light_then_thanks": [
            turn("Light on in the hall, please.", "The light in the hall is on.", ("switch_light", {"room": "hall", "on": True})),
            turn("Thanks.", "You are welcome."),
        ]
    }
)
COMPUTED = {"tool_trajectory_avg_score": 1.0, "response_match_score": 1.0}
INSTRUCTIONS, DESCRIPTION = "You switch lights.", "Switch the light of a room."


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_conversation_is_read_whole(framework: str) -> None:
    found = conversation_from_traces(recorded(framework))
    assert (found.error, found.unfinished) == ("", False)
    first, second = found.actual
    assert (first.user_text, first.final_text.strip()) == ("Light on in the hall, please.", "The light in the hall is on.")
    assert (second.user_text, second.final_text.strip()) == ("Thanks.", "You are welcome.")
    assert [(call.name, call.args) for call in first.tool_calls] == [("switch_light", {"room": "hall", "on": True})]
    assert [one.response for one in first.tool_responses] == [{"room": "hall", "on": True}]
    assert second.tool_calls == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_models_and_the_agent_are_known(framework: str) -> None:
    first, second = conversation_from_traces(recorded(framework)).actual
    costs = [[event.usage_metadata for event in one.events if event.usage_metadata] for one in (first, second)]
    assert list(map(len, costs)) == [2, 1]
    assert all(cost["prompt_token_count"] > 0 and cost["candidates_token_count"] > 0 for turn in costs for cost in turn)
    assert {event.author for one in (first, second) for event in one.events} == {"lights"}
    assert first.duration is not None
    assert first.model_duration is not None
    assert 0 < first.model_duration <= first.duration
    details: dict[str, Any] = dump(first)["app_details"]["agent_details"]["lights"]
    assert details["instructions"] == INSTRUCTIONS
    tools = [one for declared in details["tool_declarations"] for one in declared["function_declarations"]]
    # Strands leaves the tools that its models are offered out of its spans.
    assert [(one["name"], one["description"]) for one in tools] == ([] if framework == "strands" else [("switch_light", DESCRIPTION)])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_computed_criteria_give_the_same_scores(framework: str) -> None:
    report = score(CASES, {"light_then_thanks": list(conversation_from_traces(recorded(framework)).actual)}, {"criteria": COMPUTED})
    assert report.verdict == "passed"
    assert report.scores == COMPUTED


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_judge_is_asked_about_what_the_agent_did(framework: str) -> None:
    judge = ScriptedJudge("yes")
    rubric = {"rubric_id": "announces", "rubric_content": {"text_property": "The agent switches before it says so."}}
    config = {"criteria": {"rubric_based_tool_use_quality_v1": {"threshold": 1.0, "rubrics": [rubric]}}}
    report = score(CASES, {"light_then_thanks": list(conversation_from_traces(recorded(framework)).actual)}, config, judge, ledger=False)
    assert report.scores == {"rubric_based_tool_use_quality_v1": 1.0}
    asked = ["\n".join(request.blocks.values()) for request in judge.requests]
    assert any('"switch_light"' in text and '"hall"' in text for text in asked)
