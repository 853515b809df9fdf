"""A user's answers to calls of tools that were written before there were these calls, with the ids of then or with none."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.runners import InMemoryRunner
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Json
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.scripted import Scripted, call, finals, play, results, text

ASKED = "adk_request_confirmation"


def shop(paid: list[str]) -> LlmAgent:
    """An agent that pays for two things at once, after the user has confirmed each."""

    def pay(thing: str) -> Json:
        """Pay for a thing."""
        paid.append(thing)
        return {"paid": thing}

    def script(request: LlmRequest) -> Any:
        answers = [part.function_response for content in request.contents for part in content.parts or () if part.function_response]
        done = [str(answer.response) for answer in answers if "requires confirmation" not in str(answer.response)]
        return text(" ".join(done)) if done else [call("pay", thing="tea"), call("pay", thing="milk")]

    return LlmAgent(name="shop", model=Scripted(script=script), tools=[FunctionTool(pay, require_confirmation=True)])


def said(words: str) -> Json:
    return {"role": "user", "parts": [{"text": words}]}


def answered(*answers: tuple[str | None, str, Json]) -> Json:
    parts: list[Json] = []
    for call_id, name, response in answers:
        answer: Json = {"name": name, "response": response}
        if call_id:
            answer["id"] = call_id
        parts.append({"function_response": answer})
    return {"role": "user", "parts": parts}


def confirmation(call_id: str, of: str, thing: str) -> Json:
    original = {"id": of, "name": "pay", "args": {"thing": thing}}
    hint = "Please approve or reject the tool call pay() by responding with a FunctionResponse with an expected ToolConfirmation payload."
    return {
        "id": call_id,
        "name": ASKED,
        "args": {"originalFunctionCall": original, "toolConfirmation": {"hint": hint, "confirmed": False}},
    }


def saved(first_calls: list[Json], *messages: Json) -> EvalCase:
    """A case as it is saved from a session: the calls of its first turn, and what the user answered then."""
    turns = [{"user_content": said("Pay."), "intermediate_data": {"tool_uses": first_calls}}]
    turns += [{"user_content": message} for message in messages]
    return EvalCase.model_validate({"eval_id": "c1", "conversation": turns})


YES, NO = {"confirmed": True}, {"confirmed": False}
CALLS = [
    {"id": "adk-a", "name": "pay", "args": {"thing": "tea"}},
    {"id": "adk-b", "name": "pay", "args": {"thing": "milk"}},
    confirmation("adk-1b2c3d", "adk-a", "tea"),
    confirmation("adk-4e5f60", "adk-b", "milk"),
]


@pytest.mark.parametrize(
    ("messages", "paid"),
    [
        ([answered(("adk-1b2c3d", ASKED, YES), ("adk-4e5f60", ASKED, NO))], ["tea"]),
        ([answered(("adk-4e5f60", ASKED, YES), ("adk-1b2c3d", ASKED, NO))], ["milk"]),
        ([answered(("adk-4e5f60", ASKED, NO), ("adk-1b2c3d", ASKED, NO))], []),
        ([answered(("adk-1b2c3d", ASKED, YES), ("adk-4e5f60", ASKED, YES))], ["tea", "milk"]),
        ([answered((None, ASKED, NO), (None, ASKED, YES))], ["milk"]),
        ([answered(("unheard-of", ASKED, NO), ("another", ASKED, YES))], ["milk"]),
        ([answered(("unheard-of", ASKED, NO), ("adk-1b2c3d", ASKED, YES))], ["tea"]),
        ([answered((None, ASKED, NO), ("adk-1b2c3d", ASKED, YES))], ["tea"]),
        ([answered(("adk-4e5f60", ASKED, YES)), answered(("adk-1b2c3d", ASKED, YES))], ["milk", "tea"]),
    ],
)
def test_an_answer_goes_to_the_call_of_today_that_is_the_recorded_one(messages: list[Json], paid: list[str]) -> None:
    really: list[str] = []
    played = play(shop(really), saved(CALLS, *messages))
    assert played.error == ""
    assert really == paid


@pytest.mark.needs("google-adk", "2.13")
def test_a_saved_answer_fails_in_adk_and_goes_to_its_call_here() -> None:
    case = saved(CALLS, answered(("adk-1b2c3d", ASKED, YES), ("adk-4e5f60", ASKED, NO)))
    really: list[str] = []
    with pytest.raises(ValueError, match="Function call not found for function response ids"):
        anyio.run(in_adk, shop(really), case)
    assert not really
    assert play(shop(really), case).error == ""
    assert really == ["tea"]


async def in_adk(agent: LlmAgent, case: EvalCase) -> None:
    """Send the messages of a case to an agent, as ADK's evaluation does."""
    runner = InMemoryRunner(agent=agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="u")
    for turn in case.conversation or ():
        message = types.Content.model_validate(turn.user_content.model_dump(exclude_none=True))
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass


def test_an_answer_that_nobody_waits_for_is_a_clear_error() -> None:
    really: list[str] = []
    played = play(shop(really), saved(CALLS, answered(*[("x", ASKED, YES)] * 3)))
    assert "the user answers the tool 'adk_request_confirmation', but the agent has no open call of it" in played.error
    played = play(shop(really), saved(CALLS, answered(("adk-1b2c3d", "ask_manager", YES))))
    assert "the user answers the tool 'ask_manager', but the agent has no open call of it" in played.error
    assert not really


def test_the_answers_to_a_tool_that_takes_long_all_go_to_its_call() -> None:
    def ask(whom: str) -> Json:
        """Ask somebody."""
        return {"status": "asked", "whom": whom}

    def script(request: LlmRequest) -> Any:
        found = results(request)
        return text(str(found)) if found else [call("ask", whom="Ada"), call("ask", whom="Bob")]

    def agent() -> LlmAgent:
        return LlmAgent(name="a", model=Scripted(script=script), tools=[LongRunningFunctionTool(ask)])

    calls = [{"id": f"adk-{whom}", "name": "ask", "args": {"whom": whom}} for whom in ("Ada", "Bob")]
    half, whole = {"half": 1}, {"whole": 2}
    case = saved(calls, answered(("adk-Bob", "ask", half)), answered(("adk-Bob", "ask", whole)), answered(("adk-Ada", "ask", {"ada": 3})))
    played: Conversation = play(agent(), case)
    assert played.error == ""
    asked = {made.args["whom"]: made.id for made in played.actual[0].tool_calls if made.args}
    ids = [part.function_response.id for turn in played.actual[1:] for part in turn.user_content.parts or () if part.function_response]
    assert ids == ["adk-Bob", "adk-Bob", "adk-Ada"], "what the user says stays as it is written"
    assert len(set(asked.values())) == 2
    assert "'half': 1" in finals(played)[1]
    assert "'whole': 2" in finals(played)[2]


def test_of_several_same_calls_the_answer_goes_to_the_one_that_was_made_as_often_before() -> None:
    def ask() -> Json:
        """Ask somebody."""
        return {"status": "asked"}

    def script(request: LlmRequest) -> Any:
        found = [part.function_response for part in request.contents[-1].parts if part.function_response]
        return text(str([answer.response for answer in found])) if found else [call("ask")]

    agent = LlmAgent(name="a", model=Scripted(script=script), tools=[LongRunningFunctionTool(ask)])
    first: Json = {"user_content": said("Ask."), "intermediate_data": {"tool_uses": [{"id": "adk-1", "name": "ask", "args": {}}]}}
    second: Json = {"user_content": said("Ask."), "intermediate_data": {"tool_uses": [{"id": "adk-2", "name": "ask", "args": {}}]}}
    case = EvalCase.model_validate(
        {"eval_id": "c1", "conversation": [first, second, {"user_content": answered(("adk-2", "ask", {"late": True}))}]}
    )
    session = load_adk_agent(agent)
    played = play(session, case)
    assert played.error == ""
    assert "late" in finals(played)[2]


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("criterion", ["tool_trajectory_avg_score", "tool_parameter_match"])
def test_a_saved_confirmation_is_the_same_call_as_that_of_today(criterion: str, with_ids: bool) -> None:
    calls = [dict(made) for made in CALLS]
    if not with_ids:
        for made in calls:
            del made["id"]
        for made in calls[2:]:
            original = {key: value for key, value in made["args"]["originalFunctionCall"].items() if key != "id"}
            made["args"] = {**made["args"], "originalFunctionCall": original}
    case = saved(calls, answered(("adk-1b2c3d", ASKED, YES), ("adk-4e5f60", ASKED, YES)))
    config = parse_config({"criteria": {criterion: 1.0}}, "config")
    report = run(EvalSet(eval_set_id="s", eval_cases=(case,)), load_adk_agent(shop([])), config, Options())
    assert report.cases[0].results[0].per_invocation[0].score == 1.0  # type: ignore[union-attr]
    wrong = [
        *calls[:3],
        {**calls[3], "args": {**calls[3]["args"], "originalFunctionCall": {"id": "adk-b", "name": "pay", "args": {"thing": "tea"}}}},
    ]
    report = run(
        EvalSet(eval_set_id="s", eval_cases=(saved(wrong, answered(("adk-1b2c3d", ASKED, YES))),)),
        load_adk_agent(shop([])),
        config,
        Options(),
    )
    (cell, *_) = report.cases[0].results[0].per_invocation
    assert cell.score < 1.0  # type: ignore[union-attr]
    assert "originalFunctionCall.args.thing" in cell.rationale  # type: ignore[union-attr]
    assert "originalFunctionCall.id" not in cell.rationale  # type: ignore[union-attr]
