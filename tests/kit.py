"""Turns, cases, eval sets and configs in a few words: as objects, and as the JSON that people write (``…_json``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config
from mlflow_adk_eval.criteria.criterion import CaseRun
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import (
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
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult

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


Json = dict[str, Any]


def turn_json(user: str, answer: str | None = None, *calls: str | tuple[str, Json] | Json, **fields: Any) -> Json:
    """A turn of an eval set's file; a call is a name, a name with its arguments, or the whole object."""
    value: Json = {"user_content": {"role": "user", "parts": [{"text": user}]}}
    if answer is not None:
        value["final_response"] = {"role": "model", "parts": [{"text": answer}]}
    if calls:
        value["intermediate_data"] = {"tool_uses": [_call_json(each) for each in calls]}
    return value | fields


def _call_json(given: str | tuple[str, Json] | Json) -> Json:
    match given:
        case str():
            return {"name": given, "args": {}}
        case (name, args):
            return {"name": name, "args": args}
        case _:
            return dict(given)


def case_json(eval_id: str, *turns: Json, **fields: Any) -> Json:
    return {"eval_id": eval_id, "conversation": list(turns), **fields}


def eval_set_json(*listed: Json, eval_set_id: str = "set", **fields: Any) -> Json:
    return {"eval_set_id": eval_set_id, "eval_cases": list(listed), **fields}


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


def case_result(
    eval_id: str,
    run_index: int = 0,
    *,
    actual: Sequence[Invocation] = (),
    expected: Sequence[Invocation] | None = None,
    results: Sequence[CriterionResult] = (),
    **conversation: Any,
) -> CaseResult:
    """What came of a case run; `conversation`: its other fields, such as its error."""
    done = Conversation(actual=tuple(actual), **conversation)
    return CaseResult(eval_id=eval_id, run_index=run_index, conversation=done, expected=expected, results=results)


def gone(case: CaseResult, **conversation: Any) -> CaseResult:
    """A case run whose conversation went otherwise."""
    return replace(case, conversation=replace(case.conversation, **conversation))


def config(*names: str, **criteria: Any) -> EvalConfig:
    """A config; criteria that are only named have the threshold 1."""
    return parse_config({"criteria": dict.fromkeys(names, 1.0) | criteria}, "config")
