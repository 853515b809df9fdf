"""Models that answer with an error and raise nothing, in every place where an agent of ADK may ask one; and how often models are asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import AgentTool
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.evalset.model_errors import told_errors
from mlflow_adk_eval.evalset.observation import unseen
from mlflow_adk_eval.results.outcomes import Errored
from mlflow_adk_eval.runner.evaluation import run
from tests.agents.scripted import call, case_of, llm, ping, play, text
from tests.agents.scripted import calls as calls_of
from tests.kit import TRAJECTORY, case, cases, config, turn

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:google"),  # of what ADK calls experimental
    pytest.mark.filterwarnings("ignore:.*Agent is deprecated:DeprecationWarning"),  # which all versions before 2 need
]

ERROR = LlmResponse(error_code="MALFORMED_FUNCTION_CALL", error_message="malformed function call")
WORDS = "MALFORMED_FUNCTION_CALL: malformed function call"


def said(words: str, **about: Any) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=text(words)), **about)


def agent(name: str, *answers: Any, **settings: Any) -> LlmAgent:
    """An agent whose model gives these answers, one after the other; they report no usage."""
    left = list(answers)

    def script(_: LlmRequest) -> Any:
        answer = left.pop(0)
        return LlmResponse(content=types.Content(role="model", parts=answer)) if isinstance(answer, list) else answer

    return llm(script, name=name, **settings)


def asking(inner: LlmAgent, times: int = 1, **settings: Any) -> LlmAgent:
    """An agent that asks another one as a tool, and then answers."""
    asked = [[call(inner.name, request="x")]] * times
    return agent("root", *asked, text("sorry"), tools=[AgentTool(agent=inner, **settings)])


FAILING: dict[str, Callable[[], BaseAgent]] = {
    "the only agent": lambda: agent("a", ERROR),
    "the last of a sequence": lambda: SequentialAgent(name="s", sub_agents=[agent("w", text("draft")), agent("c", ERROR)]),
    "the first of a sequence": lambda: SequentialAgent(name="s", sub_agents=[agent("w", ERROR), agent("c", text("fine"))]),
    "one of several at a time": lambda: ParallelAgent(name="p", sub_agents=[agent("w", text("draft")), agent("c", ERROR)]),
    "the last round of a loop": lambda: LoopAgent(name="l", max_iterations=2, sub_agents=[agent("w", text("fine"), ERROR)]),
    "after a tool": lambda: agent("a", [call("ping")], ERROR, tools=[ping]),
    "after a transfer": lambda: agent("f", [call("transfer_to_agent", agent_name="b")], sub_agents=[agent("b", ERROR)]),
    "an agent that is a tool": lambda: asking(agent("inner", ERROR)),
}


@pytest.mark.parametrize("where", FAILING)
def test_an_error_that_a_model_reports_ends_the_conversation_as_one_that_it_raises(where: str) -> None:
    played = play(FAILING[where](), case_of("hi", "still there?"))
    assert played.error == f"turn 1: {WORDS}"
    assert (played.unfinished, len(played.actual)) == (True, 1)
    assert played.session_state is None


@pytest.mark.parametrize("where", ["the only agent", "the last of a sequence", "an agent that is a tool"])
def test_no_case_passes_on_a_model_that_failed(where: str) -> None:
    report = run(cases(case("a", turn("draft"))), load_adk_agent(FAILING[where]()), config(TRAJECTORY))
    (result,) = report.cases
    assert result.verdict == "undecided"
    cell = result.results[0].per_invocation[0]
    assert isinstance(cell, Errored)
    assert WORDS in cell.error


RECOVERING: dict[str, tuple[Callable[[], BaseAgent], str]] = {
    "a later round of a loop": (lambda: LoopAgent(name="l", max_iterations=2, sub_agents=[agent("w", ERROR, text("fine"))]), "fine"),
    "a tool that is asked again": (lambda: asking(agent("inner", ERROR, text("yes")), times=2), "sorry"),
    "a callback": (lambda: agent("a", ERROR, after_model_callback=_instead), "instead"),
    "a callback of an agent that is a tool": (lambda: asking(agent("inner", ERROR, after_model_callback=_instead)), "sorry"),
}


def _instead(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
    return said("instead") if llm_response.error_code else None


@pytest.mark.parametrize("how", RECOVERING)
def test_an_agent_that_recovers_has_answered(how: str) -> None:
    make, answer = RECOVERING[how]
    played = play(make(), case_of("hi"))
    assert (played.error, played.actual[0].final_text) == ("", answer)


def test_a_recovered_error_is_told() -> None:
    played = play(RECOVERING["a later round of a loop"][0](), case_of("hi"))
    assert told_errors(played.actual[0]) == [f"{WORDS} (the agent went on)"]


PARTLY = {
    "cut": (said("half", error_code="MAX_TOKENS"), "", ["MAX_TOKENS (the text is cut)"]),
    "cut, by the reason alone": (said("half", finish_reason="MAX_TOKENS"), "", ["MAX_TOKENS (the text is cut)"]),
    "cut before it began": (LlmResponse(error_code="MAX_TOKENS"), "turn 1: MAX_TOKENS", ["MAX_TOKENS"]),
    "blocked midway": (said("half", error_code="SAFETY"), "turn 1: SAFETY", ["SAFETY"]),
    "blocked midway, by the reason alone": (said("half", finish_reason="RECITATION"), "turn 1: RECITATION", ["RECITATION"]),
    "whole": (said("half", finish_reason="STOP"), "", []),
}


@pytest.mark.parametrize("how", PARTLY)
def test_a_text_that_is_cut_is_an_answer_and_one_that_is_blocked_is_none(how: str) -> None:
    response, error, told = PARTLY[how]
    played = play(agent("a", response), case_of("hi"))
    assert (played.error, told_errors(played.actual[0])) == (error, told)


def test_a_draft_is_no_answer_of_the_agent_whose_model_had_no_room_left() -> None:
    team = SequentialAgent(name="s", sub_agents=[agent("w", text("draft")), agent("c", LlmResponse(error_code="MAX_TOKENS"))])
    assert play(team, case_of("hi")).error == "turn 1: MAX_TOKENS"


class Streaming(BaseLlm):
    """A model that streams although nobody asked for it, and breaks off."""

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        yield said("The ", partial=True)
        yield said("The total", error_code="MAX_TOKENS")


def test_pieces_of_a_stream_are_not_said_twice() -> None:
    (streamed,) = play(LlmAgent(name="a", model=Streaming(model="s")), case_of("hi")).actual
    assert streamed.final_text == "The total"
    assert [event.content for event in streamed.events] == [None]


class Mine(BaseAgent):
    """An agent that asks a model itself, and may say so."""

    usage: bool

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        counted = types.GenerateContentResponseUsageMetadata(prompt_token_count=1) if self.usage else None
        yield Event(author=self.name, content=types.Content(role="model", parts=text("mine")), usage_metadata=counted)


COUNTED: dict[str, tuple[Callable[[], BaseAgent], int | None]] = {
    "a model that reports no usage": (lambda: agent("a", [call("ping")], [call("ping")], text("done"), tools=[ping]), 3),
    "a model that streams nothing": (lambda: agent("a", None), 1),
    "a model that fails": (lambda: agent("a", ERROR), 1),
    "a callback that answers instead": (lambda: agent("a", before_model_callback=_before), 0),
    "agents in a sequence": (lambda: SequentialAgent(name="s", sub_agents=[agent("b", text("x")), agent("c", text("y"))]), 2),
    "an agent that is a tool": (lambda: asking(agent("inner", text("x"))), 3),
    "an agent that plugins do not see": (lambda: asking(agent("inner", text("x")), include_plugins=False), None),
    "code that tells of its model": (lambda: Mine(name="mine", usage=True), 1),
    "code that does not tell": (lambda: Mine(name="mine", usage=False), None),
    "such code beside an agent": (lambda: SequentialAgent(name="s", sub_agents=[Mine(name="m", usage=True), agent("b", text("x"))]), 2),
}


def _before(callback_context: Any, llm_request: LlmRequest) -> LlmResponse:
    return said("instead")


@pytest.mark.parametrize("what", COUNTED)
def test_each_request_that_reaches_a_model_is_counted(what: str) -> None:
    make, count = COUNTED[what]
    played = play(make(), case_of("hi"))
    why = unseen(played, 0, ["model_calls"])
    if count is None:
        assert why.startswith("the number of model calls is unknown: the agent ")
    else:
        assert (why, played.actual[0].model_calls) == ("", count)


def test_each_turn_has_a_count_of_its_own() -> None:
    played = play(agent("a", text("one"), [call("ping")], text("two"), tools=[ping]), case_of("hi", "again"))
    assert [one.model_calls for one in played.actual] == [1, 2]
    assert [calls_of(one) for one in played.actual] == [[], [("ping", {})]]


def test_adk_reads_a_result_whose_model_calls_were_counted() -> None:
    from google.adk.evaluation.eval_result import EvalSetResult

    from mlflow_adk_eval.evalset.conversation import dumps_result
    from mlflow_adk_eval.report.adk_result import result_of

    report = run(cases(case("a", turn("done"))), load_adk_agent(agent("a", text("done"))), config(TRAJECTORY))
    assert report.cases[0].actual[0].inference_call_count == 1
    read = EvalSetResult.model_validate_json(dumps_result(result_of(report, app_name="app", created=0.0)))
    (result,) = read.eval_case_results
    assert result.eval_metric_result_per_invocation[0].actual_invocation.final_response.parts[0].text == "done"


@pytest.mark.needs("google-adk", "2.13")
def test_adk_takes_the_draft_for_the_answer() -> None:
    from google.adk.evaluation.evaluation_generator import EvaluationGenerator

    drafted = Event(invocation_id="i", author="writer", content=types.Content(role="model", parts=text("draft")))
    failed = Event(invocation_id="i", author="checker", error_code="SAFETY")
    (made,) = EvaluationGenerator.convert_events_to_eval_invocations([drafted, failed])
    assert made.final_response is drafted.content
    assert "SAFETY" not in made.model_dump_json()


@pytest.mark.needs("google-adk", "2.13")
def test_adk_does_not_count_a_model_without_usage() -> None:
    from tests.criteria.test_adk_agreement import by_adk

    played = play(agent("a", [call("ping")], text("done"), tools=[ping]), case_of("hi"))
    assert played.actual[0].model_calls == 2
    assert not by_adk("inference_call_count_v1", tuple(one.for_adk() for one in played.actual)).overall_score
