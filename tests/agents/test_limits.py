"""Agents that hang or are cancelled: the turn is kept for what happened in it, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any

import anyio
import pytest
from google.adk.agents import BaseAgent, LlmAgent, ParallelAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import AdkAgent, load_adk_agent
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.scripted import Scripted, call, calls, case_of, echo, finals, llm, play, results, text, user_text
from tests.kit import RESPONSE, case, cases, config, turn

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # ADK 2 of classes that ADK 1 has too
TURN = Limits(turn_s=1.5)
"""Short enough to wait for, where the turn hangs that it cuts off."""
PATIENT = Limits(turn_s=3.0)
"""Long enough for turns that do not hang, on a busy machine too."""


class Hangs(Scripted):
    """A model that never answers, unless what it is asked is said to be quick."""

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        if "quick" not in user_text(llm_request):
            await asyncio.Event().wait()
        async for answer in super().generate_content_async(llm_request):
            yield answer


def hanging(**settings: Any) -> LlmAgent:
    return llm(echo, **({"model": Hangs(script=echo)} | settings))


class Nap:
    """A tool that never returns, and knows whether it was told to stop."""

    def __init__(self) -> None:
        self.began = self.stopped = 0

    async def nap(self) -> str:
        """Sleep."""
        self.began += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped += 1
        return "rested"


def naps(nap: Callable[[], Awaitable[str]], **settings: Any) -> LlmAgent:
    return llm(lambda request: text("rested") if results(request) else [call("nap")], tools=[nap], **settings)


@pytest.fixture(autouse=True, scope="module")
def _what_is_slow_the_first_time_is_behind_us() -> None:
    assert finals(play(llm(echo), case_of("hi"))) == ["echo hi"]


def test_a_model_that_hangs_is_cut_off_and_its_time_is_counted() -> None:
    played = play(hanging(), case_of("hi"), limits=TURN)
    assert played.error == "turn 1 took longer than its limit of 1.5 s"
    assert played.unfinished
    (turn,) = played.actual
    assert (turn.user_text, turn.final_response) == ("hi", None)
    assert turn.app_details is not None, "what was asked is known"
    assert turn.model_duration is not None
    assert turn.duration is not None
    assert 0 < turn.model_duration <= turn.duration
    assert turn.tool_duration == 0


def test_a_tool_that_hangs_is_stopped_and_its_call_is_kept() -> None:
    tool = Nap()
    played = play(naps(tool.nap), case_of("hi"), limits=TURN)
    assert played.error == "turn 1 took longer than its limit of 1.5 s"
    (turn,) = played.actual
    assert calls(turn) == [("nap", {})]
    assert turn.tool_responses == []
    assert turn.tool_duration is not None
    assert turn.tool_duration > 0
    assert tool.began == tool.stopped == 1


@pytest.mark.slow
def test_turns_before_the_one_that_hangs_are_kept() -> None:
    played = play(hanging(), case_of("quick", "hi", "quick again"), limits=PATIENT)
    assert finals(played) == ["echo quick", ""]
    assert played.error == "turn 2 took longer than its limit of 3 s"


def test_the_limit_of_a_case_counts_all_its_turns() -> None:
    agent = llm(lambda request: text("ok") if results(request) else [call("rest")], tools=[rest])
    played = play(agent, case_of(*"abcdefgh"), limits=Limits(case_s=1.0))
    assert played.error == "the case took longer than its limit of 1 s"
    assert 0 < len(played.actual) < 8
    assert played.unfinished
    assert finals(played)[:-1] == ["ok"] * (len(played.actual) - 1)


async def rest() -> str:
    """Rest for a while."""
    await asyncio.sleep(0.3)
    return "rested"


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["parallel", "tool"])
def test_whatever_hangs_inside_is_stopped(shape: str) -> None:
    tool = Nap()
    if shape == "parallel":
        agent: BaseAgent = ParallelAgent(name="both", sub_agents=[llm(echo, name="swift"), naps(tool.nap, name="slow")])
    else:
        agent = llm(lambda request: [call("slow", request="go")], tools=[AgentTool(agent=naps(tool.nap, name="slow"))])

    async def play_and_look() -> tuple[Conversation, int]:
        played = await load_adk_agent(agent, limits=TURN).converse(case_of("hi"), 0)
        await asyncio.sleep(0)
        return played, len(asyncio.all_tasks())

    played, tasks = anyio.run(play_and_look)
    assert played.error == "turn 1 took longer than its limit of 1.5 s"
    assert (tool.began, tool.stopped) == (1, 1)
    assert tasks == 1, "nothing of the agent runs on"
    assert ("swift", "echo hi") in spoken(played) or shape == "tool"


def spoken(played: Conversation) -> list[tuple[str, str]]:
    """Who said what in the last turn; its answer is told by the author alone."""
    final = played.actual[-1].final_text
    return [(event.author, event.content.text if event.content else final) for event in played.actual[-1].events]


def judged(agent: Any, *listed: Any, limits: Limits = PATIENT, **options: Any) -> dict[str, CaseResult]:
    report = run(cases(*listed), load_adk_agent(agent, limits=limits), config(RESPONSE), Options(**options))
    return {found.eval_id: found for found in report.cases}


def said(eval_id: str, *texts: str) -> Any:
    return case(eval_id, *(turn(f"echo {words}", user=words) for words in texts))


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 3])
def test_other_cases_go_on_beside_and_after_one_that_hangs(concurrency: int) -> None:
    listed = [said("before", "quick"), said("hangs", "quick", "slow", "never"), said("after", "quick", "quick 2")]
    found = judged(hanging(), *listed, concurrency=concurrency)
    assert {eval_id: result.verdict for eval_id, result in found.items()} == {"before": "passed", "hangs": "undecided", "after": "passed"}
    assert [turn.final_text for turn in found["hangs"].actual] == ["echo quick", ""]
    assert found["hangs"].reasons()[0] == "the agent did not finish: turn 2 took longer than its limit of 3 s"


def test_an_agent_that_is_not_ready_in_time_is_an_error_of_its_case() -> None:
    async def make() -> LlmAgent:
        await asyncio.Event().wait()
        return llm(echo)

    played = play(AdkAgent(name="made", root=make, app_name="made", limits=Limits(case_s=0.2)), case_of("hi"))
    assert (played.actual, played.error) == ((), "the case took longer than its limit of 0.2 s")


def test_an_agent_that_does_not_close_costs_seconds_and_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_adk_eval.agents.adk.agent._CLOSING_S", 0.2)

    async def make() -> tuple[LlmAgent, AsyncExitStack]:
        stack = AsyncExitStack()
        stack.push_async_callback(asyncio.Event().wait)
        return llm(echo), stack

    began = time.monotonic()
    played = play(AdkAgent(name="made", root=make, app_name="made"), case_of("hi"))
    assert (finals(played), played.error) == (["echo hi"], "")
    assert time.monotonic() - began < 100


class Block:
    """A tool that blocks its thread until it is let go."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.threads: list[str] = []

    def block(self) -> str:
        """Wait."""
        self.threads.append(threading.current_thread().name)
        self.free.wait(300)
        return "free"


@pytest.mark.slow
@pytest.mark.needs("google-adk", "2.13")
def test_a_function_that_blocks_holds_up_nobody_where_there_is_a_limit() -> None:
    tool = Block()

    def answers(request: LlmRequest) -> list[types.Part]:
        return echo(request) if "quick" in user_text(request) else [call("block")]

    agent = llm(answers, tools=[tool.block])
    try:
        found = judged(agent, said("blocks", "slow"), said("other", "quick"), said("again", "slow 2"), said("last", "quick"), concurrency=2)
    finally:
        tool.free.set()
    assert [result.verdict for result in found.values()] == ["undecided", "passed", "undecided", "passed"]
    assert found["blocks"].error == found["again"].error == "turn 1 took longer than its limit of 3 s"
    assert calls(found["blocks"].actual[0]) == [("block", {})]
    assert found["blocks"].actual[0].tool_duration > 0


@pytest.mark.parametrize("limits", [Limits(), Limits(case_s=60)])
def test_functions_run_where_adk_runs_them_unless_there_is_a_limit(limits: Limits) -> None:
    tool = Block()
    tool.free.set()
    agent = llm(lambda request: text(found[0]["result"]) if (found := results(request)) else [call("block")], tools=[tool.block])
    assert finals(play(agent, case_of("hi"), limits=limits)) == ["free"]
    assert (tool.threads == [threading.current_thread().name]) == (limits == Limits() or version("google-adk").startswith("1."))


async def lose_connection() -> str:
    """Lose the connection, as clients do that cancel their own tasks."""
    raise asyncio.CancelledError("connection lost")


def test_a_tool_that_is_cancelled_from_within_is_an_error_and_no_end_of_the_run() -> None:
    def answers(request: LlmRequest) -> list[types.Part]:
        return echo(request) if "quick" in user_text(request) else [call("lose_connection")]

    agent = llm(answers, tools=[lose_connection])
    found = judged(agent, said("lost", "quick", "slow", "never"), said("other", "quick"), said("last", "quick"), concurrency=2)
    assert found["lost"].error == "turn 2: ExitError: the agent raised CancelledError: connection lost"
    assert [turn.user_text for turn in found["lost"].actual] == ["quick", "slow"]
    assert calls(found["lost"].actual[1]) == [("lose_connection", {})]
    assert {eval_id: result.verdict for eval_id, result in found.items()} == {"lost": "undecided", "other": "passed", "last": "passed"}


def test_a_run_that_is_cancelled_ends() -> None:
    agent = load_adk_agent(hanging())

    async def cancelled() -> bool:
        with anyio.move_on_after(0.3) as scope:
            await agent.converse(case_of("hi"), 0)
        return scope.cancelled_caught

    assert anyio.run(cancelled)


@pytest.mark.slow
def test_nothing_is_left_to_be_collected_noisily() -> None:
    tool = Nap()
    play(naps(tool.nap), case_of("hi"), limits=TURN)
    gc.collect()  # a coroutine that nobody awaited, or a generator that nobody closed, would warn, which is an error here
    assert tool.stopped == 1
