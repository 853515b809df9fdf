"""Turns, cases and configs in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.evalset import (
    Content,
    ConversationScenario,
    EvalCase,
    EvalSet,
    FunctionCall,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    Part,
)

TRAJECTORY, RESPONSE = "tool_trajectory_avg_score", "response_match_score"


def call(name: str, args: Mapping[str, Any] | None = None, /, **more: Any) -> FunctionCall:
    """A tool call; without arguments its ``args`` are absent."""
    given = dict(args or {}) | more
    return FunctionCall(name=name, args=given if given or args is not None else None)


def message(role: str, *texts: str) -> Content:
    return Content(role=role, parts=tuple(Part(text=text) for text in texts))


def turn(answer: str | None = "yes", *calls: FunctionCall, user: str = "hi", **more: Any) -> Invocation:
    """A turn as people write it."""
    final = None if answer is None else message("model", answer)
    data = IntermediateData(tool_uses=calls) if calls else None
    return Invocation(user_content=message("user", user), final_response=final, intermediate_data=data, **more)


def recorded(answer: str | None, *events: InvocationEvent, **more: Any) -> Invocation:
    """A turn as ADK records it."""
    return turn(answer, **more).model_copy(update={"intermediate_data": InvocationEvents(invocation_events=events)})


def event(*calls: FunctionCall, author: str = "agent", text: str = "", **more: Any) -> InvocationEvent:
    parts = ([Part(text=text)] if text else []) + [Part(function_call=found) for found in calls]
    return InvocationEvent(author=author, content=Content(role="model", parts=tuple(parts)), **more)


def case(eval_id: str, *turns: Invocation, **more: Any) -> EvalCase:
    return EvalCase(eval_id=eval_id, conversation=turns, **more)


def scenario(eval_id: str) -> EvalCase:
    return EvalCase(eval_id=eval_id, conversation_scenario=ConversationScenario(starting_prompt="hi", conversation_plan="ask"))


def cases(*listed: EvalCase, eval_set_id: str = "set") -> EvalSet:
    return EvalSet(eval_set_id=eval_set_id, eval_cases=listed)


def run_of(actual: Sequence[Invocation], expected: Sequence[Invocation] | None, **more: Any) -> CaseRun:
    """What a criterion looks at; without a reference the case is a scenario."""
    found = scenario("c") if expected is None else case("c", *expected)
    return CaseRun(case=found, actual=tuple(actual), **more)


def config(*names: str, **criteria: Any) -> EvalConfig:
    """A config; criteria that are only named have the threshold 1."""
    return parse_config({"criteria": dict.fromkeys(names, 1.0) | criteria}, "config")
