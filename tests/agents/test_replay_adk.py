"""Real ADK agents whose world is recorded once and then replayed: equal turns, and nothing real is called."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import signature
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.openapi_tool import OpenAPIToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.recordings import Recording, recording_of_report
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from mlflow_adk_eval.runs.replays import replays_of
from tests.agents.scripted import Scripted, call, case_of, llm, results, text, user_text


@dataclass
class Office:
    """A travel office: everything that agents may call, and a count of real calls."""

    called: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    prices: dict[str, int] = field(default_factory=lambda: {"Rome": 100, "Oslo": 200})

    def agent(self, *, polite: bool = False) -> LlmAgent:
        def search(city: str, request_id: str, tool_context: ToolContext) -> list[int]:
            """Return prices."""
            self.called.append(f"search {city}")
            tool_context.state["searches"] = tool_context.state.get("searches", 0) + 1
            self.prices[city] += 1
            return [self.prices[city]]

        async def book(city: str, tool_context: ToolContext) -> dict[str, Any]:
            """Book, and save the ticket."""
            self.called.append(f"book {city}")
            version = await tool_context.save_artifact(
                f"{city}.txt", types.Part.from_bytes(data=b"\x00\xff ticket", mime_type="text/plain")
            )
            return {"booked": city, "version": version}

        def broken(city: str) -> str:
            """Fail."""
            self.called.append("broken")
            raise ConnectionRefusedError(f"{city} is away")

        def approve(city: str) -> None:
            """Wait for somebody."""
            self.called.append("approve")

        def weather(city: str) -> dict[str, Any]:
            """Ask a service."""
            self.called.append("weather")
            return {"sunny": city}

        async def forgiving(tool: Any, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> dict[str, Any]:
            return {"error": type(error).__name__, "said": str(error)}

        def asked(name: str, script: Any) -> Scripted:
            def counted(request: LlmRequest) -> Any:
                self.asked.append(name)
                return script(request)

            return Scripted(script=counted)

        def root(request: LlmRequest) -> Any:
            found = results(request)
            said = user_text(request)
            if not found:
                if said.startswith("transfer"):
                    return [call("transfer_to_agent", agent_name="helper")]
                city = said.split()[-1]
                signed = types.Part(
                    function_call=types.FunctionCall(name="search", args={"city": city, "request_id": said}), thought_signature=b"\x00\xffs"
                )
                return [
                    signed,
                    call("book", city=city),
                    call("broken", city=city),
                    call("approve", city=city),
                    call("forecaster", request=city),
                ]
            return text(str(found))

        def inner(request: LlmRequest) -> Any:
            found = results(request)
            return text(f"inner {found}") if found else [call("weather", city=user_text(request))]

        forecaster = LlmAgent(name="forecaster", model=asked("forecaster", inner), tools=[weather])
        helper = LlmAgent(name="helper", model=asked("helper", inner), tools=[weather])

        def politely(callback_context: Any, llm_request: LlmRequest) -> LlmResponse | None:
            llm_request.append_instructions(["Be polite."])
            return None

        return LlmAgent(
            name="office",
            model=asked("office", root),
            tools=[search, book, broken, LongRunningFunctionTool(approve), AgentTool(forecaster)],
            sub_agents=[helper],
            on_tool_error_callback=forgiving,
            before_model_callback=politely if polite else None,
        )


def evaluated(
    agent: LlmAgent,
    cases: EvalCase | tuple[EvalCase, ...],
    *,
    replay: Recording | Report | None = None,
    ignore: tuple[str, ...] = (),
    **options: Any,
) -> Report:
    listed = cases if isinstance(cases, tuple) else (cases,)
    config = parse_config({"criteria": {"tool_trajectory_avg_score": 0.0}, "replay": {"ignore": list(ignore)}}, "config")
    source = recording_of_report(replay) if isinstance(replay, Report) else replay
    return run(EvalSet(eval_set_id="s", eval_cases=listed), load_adk_agent(agent), config, Options(replay=source, **options))


def told(report: Report) -> list[Any]:
    """What the agent did, without times and ids."""
    turns = []
    for case in report.cases:
        for turn in case.actual:
            events = [event.content.model_dump(exclude_none=True) for event in turn.intermediate_data.invocation_events if event.content]
            for event in events:
                for part in event["parts"]:
                    for kind in ("function_call", "function_response"):
                        part.get(kind, {}).pop("id", None)
            turns.append((case.eval_id, turn.final_text, events))
        turns.append((case.conversation.session_state, case.error))
    return turns


CASE = case_of("fly to Rome", "fly to Rome", "transfer to Oslo", "fly to Oslo")


def test_a_recorded_world_is_replayed_and_nothing_real_is_called() -> None:
    office = Office()
    live = evaluated(office.agent(), CASE, record=True)
    assert live.world is not None
    assert live.world.tools == "record"
    assert office.called.count("weather") == 4
    again = Office()
    replayed = evaluated(again.agent(), CASE, replay=live)
    assert not again.called
    assert again.asked == office.asked
    assert told(replayed) == told(live)
    assert replayed.world is not None
    assert replayed.world.digest == live.world.digest
    assert {one.kind for case in replayed.cases for one in case.conversation.injections} == {"replayed"}
    found = replays_of(replayed)
    assert (found.tools, found.models, found.live) == ("12 of 12 tool calls", "0 of 13 requests to the agent's model", "")
    inner = [case.conversation.inner_calls for case in (*live.cases, *replayed.cases)]
    assert inner[0] == inner[1]
    assert [one.tool for one in inner[0] or ()] == ["weather"] * 2


@pytest.mark.needs("google-adk", "2.13")
def test_an_agent_that_no_plugin_sees_is_replayed_as_a_whole() -> None:
    office, again = Office(), Office()
    first, second = (one.agent() for one in (office, again))
    for agent in (first, second):
        next(tool for tool in agent.tools if isinstance(tool, AgentTool)).include_plugins = False
    live = evaluated(first, CASE, record=True)
    assert office.called.count("weather") == 4
    replayed = evaluated(second, CASE, replay=live)
    assert not again.called, "its own tools would not be replayed"
    assert told(replayed) == told(live)
    for (case,) in (live.cases, replayed.cases):
        assert [(one.tool, one.unseen) for one in case.conversation.inner_calls or ()] == [("forecaster", True)] * 2


def test_models_are_replayed_where_the_request_is_the_same() -> None:
    office = Office()
    live = evaluated(office.agent(), CASE, record=True)
    unchanged, polite = Office(), Office()
    replayed = evaluated(unchanged.agent(), CASE, replay=live, replay_models=True)
    assert not unchanged.asked
    assert told(replayed) == told(live)
    assert replays_of(replayed).models == "13 of 13 requests to the agent's model"
    changed = evaluated(polite.agent(polite=True), CASE, replay=live, replay_models=True)
    assert polite.asked.count("office") == 5
    assert not polite.called
    assert told(changed) == told(live)


def test_what_a_tool_asked_the_framework_for_is_asked_for_again() -> None:
    called: list[str] = []

    def hand_over(tool_context: ToolContext) -> str:
        """Hand over."""
        called.append("hand_over")
        tool_context.actions.transfer_to_agent = "other"
        tool_context.state["temp:seen"] = True
        return "over"

    def finish(tool_context: ToolContext) -> dict[str, Any]:
        """Say it all."""
        called.append("finish")
        tool_context.actions.skip_summarization = True
        return {"done": tool_context.state["by"]}

    def agent() -> LlmAgent:
        other = LlmAgent(name="other", model=Scripted(script=lambda _: [call("finish")]), tools=[finish])

        async def before(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> None:
            tool_context.state["by"] = f"{tool.name} {tool_context.state.get('temp:seen', False)}"

        other.before_tool_callback = before
        return LlmAgent(name="agent", model=Scripted(script=lambda _: [call("hand_over")]), tools=[hand_over], sub_agents=[other])

    live = evaluated(agent(), case_of("go"), record=True)
    assert called == ["hand_over", "finish"]
    replayed = evaluated(agent(), case_of("go"), replay=live)
    assert told(replayed) == told(live)
    assert called == ["hand_over", "finish"]
    assert replayed.cases[0].conversation.session_state == {"by": "finish True"}  # callbacks ran


_SPEC = {
    "openapi": "3.0.0",
    "info": {"title": "Weather", "version": "1"},
    "paths": {
        "/weather": {
            "get": {
                "operationId": "get_weather",
                "parameters": [{"name": "city", "in": "query", "schema": {"type": "string"}}],
                "responses": {"200": {"description": "It", "content": {"application/json": {"schema": {"type": "object"}}}}},
            }
        }
    },
}


def test_tools_of_an_openapi_service_are_replayed_without_the_service() -> None:
    asked: list[str] = []

    class Weather(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"sunny": len(asked)}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Weather)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    spec = _SPEC | {"servers": [{"url": f"http://127.0.0.1:{server.server_port}"}]}

    def agent() -> LlmAgent:
        def script(request: LlmRequest) -> Any:
            found = results(request)
            return text(str(found[0])) if found else [call("get_weather", city=user_text(request))]

        # Newer versions of ADK refuse addresses of this machine, unless they are allowed.
        allowed = {"allow_private_network_access": True} if "allow_private_network_access" in signature(OpenAPIToolset).parameters else {}
        return LlmAgent(name="agent", model=Scripted(script=script), tools=[OpenAPIToolset(spec_dict=spec, **allowed)])

    live = evaluated(agent(), case_of("Rome", "Rome"), record=True)
    server.shutdown()
    server.server_close()
    assert [turn.final_text for turn in live.cases[0].actual] == ["{'sunny': 1}", "{'sunny': 2}"]
    assert told(evaluated(agent(), case_of("Rome", "Rome"), replay=live)) == told(live)
    assert asked == ["/weather?city=Rome"] * 2


def test_an_agent_that_only_asks_its_model_runs_where_nothing_else_was_recorded() -> None:
    def agent() -> LlmAgent:
        adviser = llm(lambda _: text("Wait."), name="adviser", output_key="advice")
        return llm(lambda request: text("Done.") if results(request) else [call("adviser", request="?")], tools=[AgentTool(adviser)])

    live = evaluated(agent(), case_of("What now?"), record=True)
    replayed = evaluated(agent(), case_of("What now?"), replay=live)
    assert live.cases[0].conversation.session_state == {"advice": "Wait."}
    assert told(replayed) == told(live)
    assert (live.world and live.world.digest) == (replayed.world and replayed.world.digest)


def test_what_an_agent_calls_within_a_function_is_answered_with_it() -> None:
    prices = iter(range(100))

    def price(city: str) -> int:
        """Return a new price each time."""
        return next(prices)

    async def ask(tool_context: ToolContext) -> Any:
        """Ask an agent that is in no tree."""
        clerk = llm(lambda request: text("Asked.") if results(request) else [call("price", city="Rome")], name="clerk", tools=[price])
        return await AgentTool(clerk).run_async(args={"request": "?"}, tool_context=tool_context)

    def script(request: LlmRequest) -> Any:
        done = results(request)
        return (
            text(str(done))
            if done and "result" in done[0] and done[0]["result"] != "Asked."
            else [call("price", city="Rome") if done else call("ask")]
        )

    case = case_of("Ask.", "Ask again.")
    live = evaluated(llm(script, tools=[ask, price]), case, record=True)
    left = next(prices)
    replayed = evaluated(llm(script, tools=[ask, price]), case, replay=live)
    assert (left, next(prices)) == (4, 5)
    assert told(replayed) == told(live)
    assert [one.tool for one in live.cases[0].conversation.inner_calls or ()] == ["price"] * 2
    assert replayed.cases[0].conversation.inner_calls == live.cases[0].conversation.inner_calls
    assert replays_of(replayed).tools == "6 of 6 tool calls"
    assert not replays_of(replayed).live


def test_an_agent_elsewhere_is_not_asked_in_a_replay() -> None:
    asked: list[str] = []

    class RemoteA2aAgent(BaseAgent):
        """An agent behind A2A, as ADK calls it."""

        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event]:
            asked.append(self.name)
            yield Event(author=self.name, invocation_id=ctx.invocation_id, content=types.Content(role="model", parts=text("far away")))

    def agent() -> LlmAgent:
        def here() -> str:
            """Do something here."""
            return "here"

        def script(request: LlmRequest) -> Any:
            return [call("transfer_to_agent", agent_name="far")] if results(request) else [call("here")]

        return LlmAgent(name="agent", model=Scripted(script=script), tools=[here], sub_agents=[RemoteA2aAgent(name="far")])

    live = evaluated(agent(), case_of("go"), record=True)
    assert (live.cases[0].error, asked) == ("", ["far"])
    replayed = evaluated(agent(), case_of("go"), replay=live)
    assert replayed.cases[0].error == "turn 1: agent 'far' runs elsewhere, and what it answers cannot be recorded"
    assert asked == ["far"]


def test_replaying_and_recording_what_did_not_change_adds_nothing() -> None:
    live = evaluated(Office().agent(), CASE, record=True)
    again = evaluated(Office().agent(), CASE, replay=live, record=True)
    assert live.world
    assert again.world
    assert (again.world.tools, again.world.digest) == ("live", live.world.digest)


def test_what_a_callback_answers_is_neither_replayed_nor_unrecorded() -> None:
    def guarded(city: str) -> str:
        """Do it."""
        return f"done in {city}"

    def agent(*, forbidden: str = "") -> LlmAgent:
        def guard(tool: Any, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
            return {"refused": args["city"]} if args["city"] == forbidden else None

        def script(request: LlmRequest) -> Any:
            found = results(request)
            return text(str(found)) if found else [call("guarded", city="Rome"), call("guarded", city=user_text(request))]

        return LlmAgent(name="agent", model=Scripted(script=script), tools=[guarded], before_tool_callback=guard)

    live = evaluated(agent(), case_of("Rome"), record=True)
    replayed = evaluated(agent(forbidden="Oslo"), case_of("Oslo"), replay=live)
    assert replayed.cases[0].error == ""
    assert [(one.kind, one.call_index) for one in replayed.cases[0].conversation.injections] == [("replayed", 0), ("callback", 1)]
    assert "{'refused': 'Oslo'}" in replayed.cases[0].actual[0].final_text
    assert replays_of(replayed).live == ""


def test_state_that_a_tool_changes_in_place_is_changed_again() -> None:
    def put(tool_context: ToolContext) -> str:
        """Put something into the cart, without setting the entry."""
        tool_context.state["cart"]["items"].append("apple")
        return "done"

    def script(request: LlmRequest) -> Any:
        return text(str(request.config.system_instruction)) if results(request) else [call("put")]

    case = case_of("Put.", state={"cart": {"items": []}})
    live = evaluated(llm(script, instruction="The cart: {cart}.", tools=[put]), case, record=True)
    assert "The cart: {'items': ['apple']}." in live.cases[0].actual[0].final_text
    assert told(evaluated(llm(script, instruction="The cart: {cart}.", tools=[put]), case, replay=live)) == told(live)
