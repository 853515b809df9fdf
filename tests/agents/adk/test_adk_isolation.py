from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import AdkAgent, load_adk_agent
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.results.outcomes import Errored, Scored
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.scripted import Scripted, call, calls, case_of, echo, finals, llm, ping, play, results, team, text, user_text
from tests.kit import RESPONSE, case, cases, config, scenario, turn


def remember(name: str, tool_context: ToolContext) -> dict[str, Any]:
    """Remember a name."""
    tool_context.state["user:name"] = name
    tool_context.state["app:names"] = [*tool_context.state.get("app:names", []), name]
    tool_context.state["notes"] = {**tool_context.state.get("notes", {}), name: True}
    tool_context.state["temp:scratch"] = name
    tool_context.state["__internal"] = name
    return {"remembered": name}


def remembering(request: LlmRequest) -> list[types.Part]:
    known = str(request.config.system_instruction).partition("\n")[0]
    return text(f"known: {known}") if user_text(request) == "?" or results(request) else [call("remember", name=user_text(request))]


def rememberer() -> LlmAgent:
    return llm(remembering, tools=[remember], instruction="{user:name?} {app:names?}")


def test_state_lives_through_a_case() -> None:
    played = play(rememberer(), case_of("Ada", "?", state={"notes": {"Bob": True}}))
    assert finals(played)[1] == "known: Ada ['Ada']"
    assert played.session_state == {"user:name": "Ada", "app:names": ["Ada"], "notes": {"Bob": True, "Ada": True}}


def test_state_does_not_reach_other_cases_runs_or_the_eval_set() -> None:
    agent = load_adk_agent(rememberer())
    case = case_of("Ada", state={"notes": {"Bob": {"age": 3}}})
    first, second = play(agent, case), play(agent, case, run_index=1)
    assert first.session_state == second.session_state
    assert finals(play(agent, case_of("?"))) == ["known:  "]
    assert case == case_of("Ada", state={"notes": {"Bob": {"age": 3}}})


def test_a_pinned_session_is_not_continued_by_the_next_run() -> None:
    agent = load_adk_agent(llm(lambda request: text(f"{len(request.contents)} messages")))
    case = case_of("a", session_id="pinned")
    assert finals(play(agent, case)) == finals(play(agent, case, run_index=1)) == ["1 messages"]


async def keep(name: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keep a name in everything that a tool may write to, and tell what was there."""
    found = await tool_context.search_memory(name)
    kept = await tool_context.list_artifacts()
    await tool_context.save_artifact(f"user:{name}.txt", types.Part(text=name))
    await tool_context.save_artifact("note.txt", types.Part(text=name))
    context = tool_context._invocation_context
    await context.memory_service.add_session_to_memory(context.session)
    return {"memories": len(found.memories), "artifacts": sorted(kept)}


def keeper() -> LlmAgent:
    return llm(lambda request: text("kept") if results(request) else [call("keep", name=user_text(request))], tools=[keep])


def kept(played: Conversation) -> list[Any]:
    return [answer.response for turn in played.actual for answer in turn.tool_responses]


def test_memories_and_artifacts_live_through_a_case_and_no_longer() -> None:
    agent = load_adk_agent(keeper())
    case = case_of("Ada", "Ada", state={"k": 1})
    for run_index in range(2):
        first, second = kept(play(agent, case, run_index=run_index))
        assert first == {"memories": 0, "artifacts": []}
        assert second["artifacts"] == ["note.txt", "user:Ada.txt"]
        assert second["memories"] > 0
    assert kept(play(agent, case_of("Bob"))) == [{"memories": 0, "artifacts": []}]


def test_memories_and_artifacts_of_conversations_at_the_same_time_do_not_mix() -> None:
    agent = load_adk_agent(keeper())

    async def all_at_once() -> list[Conversation]:
        return await asyncio.gather(*(agent.converse(case_of("Ada", user_id="u", session_id="pinned"), index) for index in range(8)))

    assert [kept(played) for played in anyio.run(all_at_once)] == [[{"memories": 0, "artifacts": []}]] * 8


def identity(tool_context: ToolContext) -> dict[str, Any]:
    """Tell who is asking."""
    session = tool_context._invocation_context.session
    return {"app": session.app_name, "user": session.user_id, "session": session.id}


@pytest.mark.parametrize(
    ("session", "app", "user"),
    [
        ({}, "agent", "test_user_id"),
        ({"app_name": "shop", "user_id": "ada"}, "shop", "ada"),
        ({"app_name": "", "user_id": ""}, "agent", "test_user_id"),
    ],
    ids=["none", "given", "legacy"],
)
def test_the_session_is_the_one_of_the_case_or_a_new_one(session: dict[str, Any], app: str, user: str) -> None:
    def who(request: LlmRequest) -> list[types.Part]:
        return text("done") if results(request) else [call("identity")]

    (turn,) = play(llm(who, tools=[identity]), case_of("who?", **session)).actual
    found = turn.tool_responses[0].response or {}
    assert (found["app"], found["user"]) == (app, user)
    assert found["session"].startswith("adk-eval-session-")


def test_conversations_at_the_same_time_do_not_mix() -> None:
    agent = load_adk_agent(rememberer())
    names = [f"user{number}" for number in range(12)]

    async def all_at_once() -> list[Conversation]:
        return await asyncio.gather(*(agent.converse(case_of(name, "?"), 0) for name in names))

    for name, played in zip(names, anyio.run(all_at_once), strict=True):
        assert finals(played)[1] == f"known: {name} ['{name}']"
        assert calls(played.actual[0]) == [("remember", {"name": name})]


class Tools(BaseToolset):
    """A toolset that, as one with a server behind it, is of no use after it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[int] = []
        self.closed = 0

    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        self.uses.append(self.closed)
        return [FunctionTool(ping)]

    async def close(self) -> None:
        self.closed += 1


class Unhurried(Scripted):
    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        await asyncio.sleep(0.02)
        async for answer in super().generate_content_async(llm_request):
            yield answer


def test_tools_are_closed_when_the_last_conversation_that_uses_them_ends() -> None:
    tools = Tools()
    agent = load_adk_agent(llm(echo, model=Unhurried(script=echo), tools=[tools]))

    async def long_and_short() -> None:
        await asyncio.gather(agent.converse(case_of("a"), 0), agent.converse(case_of("a", "b", "c"), 0))

    anyio.run(long_and_short)
    assert set(tools.uses) == {0}
    assert tools.closed == 1
    assert finals(play(agent, case_of("later"))) == ["echo later"]
    assert tools.closed == 2


def test_no_conversation_begins_while_tools_are_being_closed() -> None:
    class Slow(Tools):
        closing = False

        async def get_tools(self, readonly_context: Any = None) -> list[Any]:
            assert not self.closing
            return await super().get_tools(readonly_context)

        async def close(self) -> None:
            self.closing = True
            await asyncio.sleep(0.1)
            self.closing = False
            await super().close()

    tools = Slow()
    agent = load_adk_agent(llm(echo, tools=[tools]))

    async def one_after_the_other() -> list[Conversation]:
        first = asyncio.create_task(agent.converse(case_of("a"), 0))
        while not tools.closing:  # noqa: ASYNC110 - a toolset has no event to wait for
            await asyncio.sleep(0.001)
        return [await agent.converse(case_of("b"), 0), await first]

    assert [played.error for played in anyio.run(one_after_the_other)] == ["", ""]
    assert tools.closed == 2


def test_agents_made_for_one_conversation_are_closed_with_it() -> None:
    made: list[Tools] = []

    async def make() -> LlmAgent:
        made.append(Tools())
        return llm(echo, model=Unhurried(script=echo), tools=[made[-1]])

    agent = AdkAgent(name="made", root=make, app_name="made")

    async def at_the_same_time() -> None:
        await asyncio.gather(agent.converse(case_of("a"), 0), agent.converse(case_of("a", "b"), 0))

    anyio.run(at_the_same_time)
    assert [tools.closed for tools in made] == [1, 1]


def test_tools_that_do_not_close_spoil_no_conversation(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(BasePlugin):
        async def close(self) -> None:
            raise OSError("busy")

    played = play(App(name="shop", root_agent=llm(echo), plugins=[Stubborn(name="stubborn")]), case_of("hi"))
    assert finals(played) == ["echo hi"]
    assert played.error == ""
    assert "the session of agent shop could not be closed" in caplog.text


class Shout(BasePlugin):
    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
        words = llm_response.content.parts[0].text.upper()
        return LlmResponse(content=types.Content(role="model", parts=text(words)))


class Canned(BasePlugin):
    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> LlmResponse:
        return LlmResponse(content=types.Content(role="model", parts=text("from the cache")))


def test_the_plugins_of_an_app_take_part() -> None:
    app = App(name="shop", root_agent=llm(echo), plugins=[Shout(name="shout")])
    agent = load_adk_agent(app)
    assert agent.name == "shop"
    for _ in range(2):
        (turn,) = play(agent, case_of("hi")).actual
        assert turn.final_text == "ECHO HI"
        assert turn.model_duration is not None
    assert [plugin.name for plugin in app.plugins] == ["shout"], "the app itself is left as it is"


def test_a_plugin_that_answers_for_the_model_costs_no_evidence() -> None:
    (turn,) = play(App(name="shop", root_agent=llm(echo), plugins=[Canned(name="canned")]), case_of("hi")).actual
    assert turn.final_text == "from the cache"
    assert turn.app_details is not None
    assert list(turn.app_details.agent_details) == ["agent"]


def test_an_app_named_by_the_case_keeps_its_plugins() -> None:
    app = App(name="shop", root_agent=team(), plugins=[Shout(name="shout")])
    (turn,) = play(app, case_of("bill?", app_name="other"), agent_name="billing").actual
    assert turn.final_text == "THE BILL IS 3 FRANCS."


@pytest.mark.parametrize("source", [types.Part(text="x"), 3])
def test_other_objects_are_refused(source: Any) -> None:
    with pytest.raises(UsageError, match=f"is of type {type(source).__name__}; wanted an agent of google-adk, or an App"):
        load_adk_agent(source)


# By the number of the quirk in the list that docs/development/parity.md refers to: what a live agent does never harms another case or run


def report_on(agent: Any, *listed: Any, **options: Any) -> Report:
    return run(cases(*listed), load_adk_agent(agent), config(RESPONSE), Options(**options))


def verdicts(report: Report) -> list[tuple[str, str]]:
    return [(found.eval_id, found.verdict) for found in report.cases]


def said(eval_id: str, *texts: str, **more: Any) -> EvalCase:
    return case(eval_id, *(turn(f"echo {words}", user=words) for words in texts), **more)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_q18_a_silent_turn_costs_no_other_turn_case_or_run(concurrency: int) -> None:
    """ADK aborts the whole evaluation; nothing is saved."""
    agent = llm(lambda request: None if user_text(request) == "silence" else echo(request))
    report = report_on(agent, said("a", "hi"), said("b", "hi", "silence", "bye"), said("c", "hi"), num_runs=2, concurrency=concurrency)
    assert verdicts(report) == [("a", "passed")] * 2 + [("b", "failed")] * 2 + [("c", "passed")] * 2
    for found in report.cases[2:4]:
        assert found.error == ""
        assert [turn.final_text for turn in found.actual] == ["echo hi", "", "echo bye"]


def test_q21_the_error_of_an_agent_is_told_where_it_happened() -> None:
    """ADK's result says that the case failed, and not why."""

    def down(request: LlmRequest) -> list[types.Part]:
        if user_text(request) == "down":
            raise ConnectionError("model down")
        return echo(request)

    report = report_on(llm(down), said("a", "hi", "down", "bye"), said("b", "hi"))
    assert verdicts(report) == [("a", "undecided"), ("b", "passed")]
    assert report.reasons[0] == "a: the agent did not finish: turn 2: ConnectionError: model down"
    assert [turn.final_text for turn in report.cases[0].actual] == ["echo hi", ""]


def test_q22_the_session_of_every_case_is_known() -> None:
    """ADK has none where the case names no session, and keys of its own in the others."""

    def note(tool_context: ToolContext) -> str:
        """Note."""
        tool_context.state["noted"] = tool_context.session.user_id
        return "ok"

    agent = llm(lambda request: text("echo hi") if results(request) else [call("note")], tools=[note])
    report = report_on(agent, said("without", "hi"), said("with", "hi", session_input={"app_name": "a", "user_id": "u", "state": {"k": 1}}))
    assert [found.session_state for found in report.cases] == [{"noted": "test_user_id"}, {"k": 1, "noted": "u"}]


def test_q23_runs_of_a_pinned_session_begin_anew_and_share_no_state() -> None:
    """ADK shares one session service: the second run goes on with the conversation of the first, and with the user's state."""
    session = {"app_name": "app", "user_id": "u", "session_id": "pinned", "state": {"notes": {}}}
    listed = [case(name, turn("known: Ada ['Ada']", user="Ada"), session_input=session) for name in ("a", "b", "c")]
    agent = rememberer()
    report = report_on(agent, *listed, num_runs=2, concurrency=4)
    assert verdicts(report) == [(name, "passed") for name in "aabbcc"]
    assert [found.session_state for found in report.cases] == [{"user:name": "Ada", "app:names": ["Ada"], "notes": {"Ada": True}}] * 6
    assert session["state"] == {"notes": {}}


def test_q28_a_failure_ends_no_other_case_and_names_its_own() -> None:
    """ADK's AgentEvaluator stops at the first failing file, and its message names no case."""

    def broken() -> str:
        """Break."""
        raise OSError("disk full")

    agent = llm(lambda request: [call("broken")] if user_text(request) == "break" else echo(request), tools=[broken])
    listed = [said("first", "break"), case("second", turn("something else")), said("third", "hi")]
    report = report_on(agent, *listed, concurrency=1)
    assert verdicts(report) == [("first", "undecided"), ("second", "failed"), ("third", "passed")]
    assert [reason.partition(":")[0] for reason in report.reasons] == ["first", "first", "second"]


def test_q35_what_was_said_before_a_simulated_user_fails_is_kept() -> None:
    """ADK fails the whole case, and drops all turns that were had."""

    def user(scenario: Any, turns: Any) -> str:
        if len(turns) == 2:
            raise ValueError("nothing to say")
        return f"turn {len(turns) + 1}"  # after the starting prompt, which is hi

    options = Options(user_simulator=user)
    (found,) = run(cases(scenario("s")), load_adk_agent(llm(echo)), config(tool_call_count_v1=5.0), options).cases
    assert [turn.final_text for turn in found.actual] == ["echo hi", "echo turn 2"]
    assert found.ending is not None
    assert (found.ending.reason, found.verdict) == ("error", "undecided")
    assert "nothing to say" in found.error


def test_q50_a_tool_that_raises_costs_its_turn_and_nothing_else() -> None:
    """ADK fails the inference of the whole case; nothing of it is kept."""

    def risky(words: str) -> str:
        """Take a risk."""
        if words == "bad":
            raise OSError("disk full")
        return words

    agent = llm(
        lambda request: text(f"echo {found[0]['result']}") if (found := results(request)) else [call("risky", words=user_text(request))],
        tools=[risky],
    )
    report = report_on(agent, said("a", "good", "bad", "never"), said("b", "good", "fine"), num_runs=2)
    assert verdicts(report) == [("a", "undecided")] * 2 + [("b", "passed")] * 2
    for found in report.cases[:2]:
        assert found.error == "turn 2: OSError: disk full"
        assert [calls(turn) for turn in found.actual] == [[("risky", {"words": "good"})], [("risky", {"words": "bad"})]]
        assert [type(cell) for cell in found.results[0].per_invocation] == [Scored, Errored, Errored]


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the imports of ADK's evaluation warn of many things that are not ours
def test_q23_artifacts_of_a_user_reach_the_next_case_in_adk() -> None:
    from tests.quirks.test_quirks_in_adk import SESSION, evaluate

    found = evaluate(keeper(), [case(name, turn("kept", user="Ada"), session_input=SESSION) for name in "ab"])
    answers = [inference.inferences[0].intermediate_data.invocation_events[1].content for inference in found.inferences]
    kept_before = [content.parts[0].function_response.response["artifacts"] for content in answers]
    assert kept_before == [[], ["user:Ada.txt"]]
