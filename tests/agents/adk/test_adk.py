from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.agents.turns import TurnRecord
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import ConfigError, UsageError
from mlflow_adk_eval.evalset.models import Content, ConversationScenario, EvalCase, Invocation, InvocationEvents, Part
from mlflow_adk_eval.runner.evaluation import run
from mlflow_adk_eval.runner.recordings import score
from tests.agents.scripted import Scripted, call, calls, case_of, echo, finals, llm, ping, play, results, team, text, user_text
from tests.kit import RESPONSE, case, cases, turn

composite_agents = pytest.mark.filterwarnings("ignore:(Sequential|Parallel)Agent is deprecated:DeprecationWarning")
"""As ADK 2.0 says of classes that ADK 1 has too."""


def weather(city: str) -> dict[str, Any]:
    """Tell the weather."""
    time.sleep(0.02)
    return {"city": city, "sky": "clear"}


def ask_weather(request: LlmRequest) -> list[types.Part]:
    found = results(request)
    return text(f"It is {found[0]['sky']}.") if found else [types.Part(text="Let me look."), call("weather", city=user_text(request))]


def test_calls_answers_and_measurements_of_a_turn_are_kept() -> None:
    played = play(llm(ask_weather, tools=[weather], instruction="Tell the weather."), case_of("Bern"))
    assert played.error == ""
    (turn,) = played.actual
    assert turn.user_text == "Bern"
    assert turn.final_text == "It is clear."
    assert calls(turn) == [("weather", {"city": "Bern"})]
    assert [(answer.name, answer.response) for answer in turn.tool_responses] == [("weather", {"city": "Bern", "sky": "clear"})]
    assert turn.tool_calls[0].id == turn.tool_responses[0].id
    assert turn.invocation_id.startswith("e-")
    assert time.time() - 60 < turn.creation_timestamp <= time.time()


def test_events_are_kept_in_adks_way() -> None:
    (turn,) = play(llm(ask_weather, tools=[weather]), case_of("Bern")).actual
    asked, answered, final = turn.events
    assert [event.author for event in turn.events] == ["agent"] * 3
    assert asked.content is not None
    assert asked.content.text == "Let me look."
    assert asked.usage_metadata == {"prompt_token_count": 10, "candidates_token_count": 2}
    assert asked.model_version == "scripted-1"
    assert answered.usage_metadata is None
    assert final.content is None, "its text is the final response"
    assert final.usage_metadata == asked.usage_metadata


@pytest.mark.needs("google-adk", "2.13")
def test_adk_reads_what_we_make_of_a_turn() -> None:
    from google.adk.evaluation.eval_case import Invocation as AdkInvocation

    from mlflow_adk_eval.evalset.files import dump

    (turn,) = play(llm(ask_weather, tools=[weather], instruction="Be brief."), case_of("Bern")).actual
    read = AdkInvocation.model_validate(dump(turn))
    assert read.final_response.parts[0].text == "It is clear."
    assert read.app_details.agent_details["agent"].instructions.startswith("Be brief.")


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of ADK's evaluation package, which is experimental
def test_the_turn_is_the_one_that_adk_itself_makes() -> None:
    from google.adk.evaluation.evaluation_generator import EvaluationGenerator
    from google.adk.runners import InMemoryRunner

    agent = llm(ask_weather, tools=[weather])

    async def by_adk() -> Any:
        runner = InMemoryRunner(agent=agent, app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        message = types.Content(role="user", parts=text("Bern"))
        events = [event async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message)]
        asked = Event(author="user", content=message, invocation_id=events[0].invocation_id)
        return EvaluationGenerator.convert_events_to_eval_invocations([asked, *events])

    (theirs,) = anyio.run(by_adk)
    (ours,) = play(agent, case_of("Bern")).actual
    expected = theirs.model_dump(mode="json", exclude_none=True)
    found = ours.model_dump(mode="json", exclude_none=True)
    for own in ("invocation_id", "creation_timestamp", "duration", "model_duration", "tool_duration", "app_details"):
        expected.pop(own, None)
        found.pop(own, None)
    assert without_ids(found) == without_ids(expected)


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key != "id"}
    return [without_ids(item) for item in value] if isinstance(value, list) else value


def test_seconds_are_split_between_models_and_tools() -> None:
    def slow(request: LlmRequest) -> list[types.Part]:
        time.sleep(0.03)
        return ask_weather(request)

    (turn,) = play(llm(slow, tools=[weather]), case_of("Bern")).actual
    assert turn.model_duration is not None
    assert turn.tool_duration is not None
    assert turn.duration is not None
    assert turn.model_duration >= 0.06
    assert turn.tool_duration >= 0.02
    assert turn.duration + 0.002 >= turn.model_duration + turn.tool_duration


def test_an_end_without_a_beginning_is_no_time() -> None:
    record = TurnRecord()
    record.end("never begun")
    assert record.calls == {}


def test_instructions_and_tools_of_the_agents_are_kept() -> None:
    (turn,) = play(llm(ask_weather, tools=[weather], instruction="Tell the weather."), case_of("Bern")).actual
    assert turn.app_details is not None
    details = turn.app_details.agent_details["agent"]
    assert details.instructions.startswith("Tell the weather.")
    (tools,) = details.tool_declarations
    assert [declared["name"] for declared in tools["function_declarations"]] == ["weather"]


def test_the_model_is_asked_again_when_its_provider_is_busy() -> None:
    seen = []

    def look(request: LlmRequest) -> list[types.Part]:
        seen.append(request.config.http_options.retry_options)
        return text("ok")

    play(llm(look), case_of("hi"))
    own = types.GenerateContentConfig(http_options=types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=2)))
    play(llm(look, generate_content_config=own), case_of("hi"))
    assert [options.attempts for options in seen] == [7, 2]
    assert 429 in seen[0].http_status_codes


def test_a_conversation_remembers_its_turns() -> None:
    played = play(llm(lambda request: text(f"{len(request.contents)} messages")), case_of("a", "b", "c"))
    assert finals(played) == ["1 messages", "3 messages", "5 messages"]
    assert len({turn.invocation_id for turn in played.actual}) == 3


def test_parallel_calls_keep_the_models_order() -> None:
    def both(request: LlmRequest) -> list[types.Part]:
        return text("done") if results(request) else [call("weather", city="Bern"), call("weather", city="Basel")]

    (turn,) = play(llm(both, tools=[weather]), case_of("go")).actual
    assert calls(turn) == [("weather", {"city": "Bern"}), ("weather", {"city": "Basel"})]
    assert len({tool_call.id for tool_call in turn.tool_calls}) == 2
    assert len(turn.tool_responses) == 2


def test_a_call_without_arguments_is_kept_as_one() -> None:
    def once(request: LlmRequest) -> list[types.Part]:
        return text("done") if results(request) else [types.Part(function_call=types.FunctionCall(name="ping"))]

    (turn,) = play(llm(once, tools=[ping]), case_of("go")).actual
    assert [(tool_call.name, tool_call.args or {}) for tool_call in turn.tool_calls] == [("ping", {})]
    assert turn.final_text == "done"


def find(name: str | None = None) -> dict[str, Any]:
    """Find."""
    return {"name": name, "place": Path("here"), "photo": b"\xff\x00"}


def test_an_explicit_null_argument_is_kept_and_odd_tool_answers_become_text() -> None:
    def once(request: LlmRequest) -> list[types.Part]:
        return text("done") if results(request) else [call("find", name=None)]

    (turn,) = play(llm(once, tools=[find]), case_of("go")).actual
    assert calls(turn) == [("find", {"name": None})]
    (answer,) = turn.tool_responses
    assert answer.response == {"name": None, "place": "here", "photo": "_wA="}


def test_thoughts_images_and_grounding_are_carried_along() -> None:
    image = types.Part(inline_data=types.Blob(data=b"\xff", mime_type="image/png"))
    grounding = types.GroundingMetadata(web_search_queries=["q"])
    parts = [types.Part(text="hm", thought=True), types.Part(text="Here."), image]
    answer = LlmResponse(content=types.Content(role="model", parts=parts), grounding_metadata=grounding)
    (turn,) = play(llm(lambda request: answer), case_of("draw")).actual
    assert turn.final_response is not None
    thought, said, drawn = turn.final_response.parts or ()
    assert (thought.thought, said.text) == (True, "Here.")
    assert drawn.model_dump(exclude_none=True) == {"inline_data": {"data": "_w==", "mime_type": "image/png"}}
    assert turn.events[0].grounding_metadata == {"web_search_queries": ["q"]}


# Agents that work together


@pytest.mark.filterwarnings("ignore:.* is deprecated in favor of Workflow:DeprecationWarning")
@composite_agents
def test_of_several_final_answers_the_last_one_counts_and_the_others_are_kept() -> None:
    first = llm(lambda request: text("draft"), name="writer")
    second = llm(lambda request: text("final"), name="editor")
    (turn,) = play(SequentialAgent(name="both", sub_agents=[first, second]), case_of("write")).actual
    assert turn.final_text == "final"
    assert [(event.author, event.content.text if event.content else None) for event in turn.events] == [
        ("writer", "draft"),
        ("editor", None),
    ]
    assert turn.app_details is not None
    assert list(turn.app_details.agent_details) == ["writer", "editor"]


@pytest.mark.filterwarnings("ignore:.* is deprecated in favor of Workflow:DeprecationWarning")
@composite_agents
def test_agents_that_run_at_the_same_time_are_timed_once() -> None:
    class Slow(Scripted):
        async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
            await asyncio.sleep(0.2)
            async for answer in super().generate_content_async(llm_request):
                yield answer

    workers = [LlmAgent(name=name, model=Slow(script=lambda request: text("done"))) for name in ("left", "right")]
    (turn,) = play(ParallelAgent(name="both", sub_agents=workers), case_of("go")).actual
    assert turn.model_duration is not None
    assert turn.duration is not None
    assert 0.2 <= turn.model_duration <= turn.duration + 0.001


def test_a_transfer_to_a_sub_agent_is_part_of_the_turn() -> None:
    first, second = play(team(), case_of("my bill?", "again?")).actual
    assert calls(first) == [("transfer_to_agent", {"agent_name": "billing"})]
    assert first.final_text == "The bill is 3 francs."
    assert [event.author for event in first.events] == ["front", "front", "billing"]
    assert calls(second) == [], "the sub-agent keeps the conversation"


def test_a_sub_agent_can_be_played_by_its_name() -> None:
    agent = load_adk_agent(team(), agent_name="billing")
    assert agent.name == "billing"
    (turn,) = play(agent, case_of("my bill?")).actual
    assert [event.author for event in turn.events] == ["billing"]


def test_an_unknown_sub_agent_is_named_with_the_likely_one() -> None:
    with pytest.raises(UsageError, match=r"agent 'front' has no sub-agent 'biling'; it has front, billing. Did you mean 'billing'\?"):
        load_adk_agent(team(), agent_name="biling")


# Silence and failures


class Silent(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        return
        yield


@pytest.mark.parametrize("agent", [Silent(name="s"), llm(lambda request: None)], ids=["no event", "no answer"])
def test_a_turn_without_events_is_an_invocation_without_an_answer(agent: BaseAgent) -> None:
    played = play(agent, case_of("hi", "still there?"))
    assert played.error == ""
    assert [turn.user_text for turn in played.actual] == ["hi", "still there?"]
    assert [turn.final_response for turn in played.actual] == [None, None]
    assert all(isinstance(turn.intermediate_data, InvocationEvents) and not turn.events for turn in played.actual)


def test_a_blocked_answer_is_an_invocation_that_says_why_and_ends_the_conversation() -> None:
    blocked = LlmResponse(error_code="SAFETY", error_message="blocked by a rule")
    agent = llm(lambda request: blocked if user_text(request) == "bad" else echo(request))
    played = play(agent, case_of("hi", "bad", "still there?"))
    first, second = played.actual
    assert (first.final_text, first.errors) == ("echo hi", [])
    assert second.final_response is None
    assert second.errors == ["SAFETY: blocked by a rule"]
    assert (played.error, played.unfinished) == ("turn 2: SAFETY: blocked by a rule", True)


def explode(key: str) -> dict[str, Any]:
    """Fail."""
    raise KeyError(key)


def test_a_tool_that_raises_ends_the_conversation_and_keeps_what_was_done() -> None:
    def risky(request: LlmRequest) -> list[types.Part]:
        return text("fine") if user_text(request) == "good" else [call("explode", key="k")]

    played = play(llm(risky, tools=[explode]), case_of("good", "bad", "never"))
    assert played.error == "turn 2: KeyError: 'k'"
    good, bad = played.actual
    assert good.final_text == "fine"
    assert bad.user_text == "bad"
    assert calls(bad) == [("explode", {"key": "k"})]
    assert bad.final_response is None
    assert played.session_state is None


def test_a_model_that_fails_ends_the_conversation_and_keeps_what_was_done() -> None:
    def fail(request: LlmRequest) -> list[types.Part]:
        raise ConnectionError("model down")

    played = play(llm(fail), case_of("hi"))
    assert played.error == "turn 1: ConnectionError: model down"
    assert [turn.user_text for turn in played.actual] == ["hi"]


def test_a_user_message_that_adk_refuses_is_an_error_of_its_turn() -> None:
    odd = Content(parts=(Part.model_validate({"text": "hi", "hologram": 1}),))
    case = EvalCase(eval_id="c", conversation=(Invocation(user_content=odd),))
    assert play(llm(echo), case).error.startswith("turn 1: ValidationError: 1 validation error for Content")


def test_a_scenario_that_nobody_plays_is_an_error_in_words_for_users() -> None:
    case = EvalCase(eval_id="s", conversation_scenario=ConversationScenario(starting_prompt="hi", conversation_plan="chat"))
    played = play(llm(echo), case)
    assert played.actual == ()
    assert played.error.startswith("this case has a conversation_scenario, but nothing simulates its user here")


def test_a_case_that_takes_too_long_keeps_its_finished_turns() -> None:
    class Hangs(Scripted):
        async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
            if user_text(llm_request) == "hang":
                await asyncio.sleep(300)
            async for answer in super().generate_content_async(llm_request):
                yield answer

    agent = LlmAgent(name="agent", model=Hangs(script=echo))
    assert finals(play(agent, case_of("quick"))) == ["echo quick"], "what is slow the first time is behind us"
    began = time.monotonic()
    played = play(agent, case_of("quick", "hang", "never"), limits=Limits(case_s=1.0))
    assert finals(played) == ["echo quick", ""]
    assert (played.actual[1].user_text, played.unfinished) == ("hang", True)
    assert played.error == "the case took longer than its limit of 1 s"
    assert time.monotonic() - began < 100


@pytest.mark.parametrize(("given", "limit", "limits"), [("", 100, None), ("7", 7, None), ("7", 7, Limits(turn_s=600))])
def test_an_agent_that_goes_round_in_circles_is_stopped(
    given: str, limit: int, limits: Limits | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADK_MAX_LLM_CALLS", given)
    asked: list[LlmRequest] = []

    def again(request: LlmRequest) -> list[types.Part]:
        asked.append(request)
        return [call("find", name="Bern")]

    played = play(llm(again, tools=[find]), case_of("Bern"), limits=limits)
    assert f"Max number of llm calls limit of `{limit}` exceeded" in played.error
    assert len(asked) == limit


def test_a_live_connection_is_refused_before_the_agent_is_called() -> None:
    asked: list[LlmRequest] = []
    agent = load_adk_agent(llm(asked.append))
    settings = parse_config({"criteria": {RESPONSE: 1.0}, "live_model_config": {"timeout_seconds": 60}}, "config")
    with pytest.raises(ConfigError) as refused:
        run(cases(case("a", turn())), agent, settings)
    assert asked == []
    assert "$.live_model_config: found settings for live (streaming) conversations" in str(refused.value)
    assert "live conversations are not supported" in str(refused.value)
    assert score(cases(case("a", turn("yes"))), {"a": ["yes"]}, settings).passed, "of a recording nobody asks how it was made"
