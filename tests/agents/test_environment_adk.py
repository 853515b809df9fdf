"""Real ADK agents whose tools fail on demand."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.conversation import StaticUser, converse
from mlflow_adk_eval.agents.protocol import ConversationSetup, Limits
from mlflow_adk_eval.agents.tool_environment import case_tools
from mlflow_adk_eval.evalset.conversation import Conversation, Injection
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.environments import ERROR, ERROR_ANSWER, config_of, injecting
from tests.agents.scripted import call, case_of, finals, llm, results, text, user_text
from tests.strategies import QUICK


def book(city: str) -> dict[str, Any]:
    """Book a hotel."""
    return {"booked": city}


def find(city: str) -> dict[str, Any]:
    """Find hotels."""
    return {"found": city}


def persistent(request: LlmRequest) -> list[types.Part]:
    """Try until there is no error."""
    found = results(request)
    return text(json.dumps(found[-1])) if found and "error_code" not in found[-1] else [call("book", city=user_text(request))]


def at_once(*calls: types.Part) -> Any:
    """A model that makes these calls at the same time, and then tells what came of them."""
    return lambda request: text(json.dumps(found)) if (found := results(request)) else list(calls)


def had(agent: Any, environment: Any, case: EvalCase | None = None, *, run_index: int = 0, turn_s: float | None = None) -> Conversation:
    """A conversation with an agent whose tools are as `environment` says."""
    chosen = case or case_of("Bern")
    tools = case_tools(config_of(environment), chosen.eval_id, run_index)
    loaded = load_adk_agent(agent, limits=Limits(turn_s=turn_s))
    return anyio.run(converse, loaded, chosen, run_index, ConversationSetup(user=StaticUser(chosen.conversation or ()), tools=tools))


def answered(turn: Invocation) -> list[Any]:
    return [answer.response for answer in turn.tool_responses]


# What the agent and the recording see


def test_a_tool_fails_at_first_and_the_agent_tries_again() -> None:
    played = had(llm(persistent, tools=[book]), injecting(book=ERROR | {"first_calls": 1}))
    assert played.error == ""
    (turn,) = played.actual
    assert answered(turn) == [ERROR_ANSWER, {"booked": "Bern"}]
    assert [found.args for found in turn.tool_calls] == [{"city": "Bern"}] * 2
    assert turn.final_text == '{"booked": "Bern"}'
    assert played.injections == (Injection(invocation_index=0, tool="book", kind="error", call_index=0),)


def test_only_the_calls_with_the_arguments_fail() -> None:
    model = at_once(call("book", city="Bern"), call("find", city="Bern"), call("book", city="Genf"))
    played = had(llm(model, tools=[book, find]), injecting(book={"match_args": {"city": "Genf"}, "injected_response": {"full": True}}))
    assert json.loads(finals(played)[0]) == [{"booked": "Bern"}, {"found": "Bern"}, {"full": True}]
    assert [(done.tool, done.kind) for done in played.injections] == [("book", "response")]


def test_an_empty_response_is_a_response() -> None:
    def never(city: str) -> dict[str, Any]:
        """Book a hotel."""
        raise AssertionError(city)

    never.__name__ = "book"
    played = had(llm(at_once(call("book", city="Bern")), tools=[never]), injecting(book={"injected_response": {}}))
    assert (played.error, finals(played)) == ("", ["[{}]"])
    assert answered(played.actual[0]) == [{}]


def test_parallel_calls_are_counted_in_the_order_in_which_they_were_made() -> None:
    calls = [call("book", city=city) for city in ("Bern", "Genf", "Chur", "Zug")]
    slow = {"injected_latency_seconds": 0.05, "on_calls": [0]}
    played = had(llm(at_once(*calls), tools=[book]), injecting(book=[slow, ERROR | {"on_calls": [1, 2]}]))
    assert json.loads(finals(played)[0]) == [{"booked": "Bern"}, ERROR_ANSWER, ERROR_ANSWER, {"booked": "Zug"}]
    assert [done.kind for done in played.injections] == ["latency", "error", "error"]


def test_calls_are_counted_through_the_turns_of_a_conversation() -> None:
    model = at_once(call("book", city="Bern"))
    played = had(llm(model, tools=[book]), injecting(book=ERROR | {"on_calls": [1, 2]}), case_of("a", "b", "c", "d"))
    assert [answered(turn)[0] == ERROR_ANSWER for turn in played.actual] == [False, True, True, False]
    assert [done.invocation_index for done in played.injections] == [1, 2]


def test_a_delay_is_time_of_the_tool() -> None:
    played = had(llm(at_once(call("book", city="Bern")), tools=[book]), injecting(book={"injected_latency_seconds": 0.1}))
    (turn,) = played.actual
    assert answered(turn) == [{"booked": "Bern"}]
    assert turn.tool_duration is not None
    assert turn.tool_duration >= 0.1
    assert turn.model_duration is not None
    assert turn.model_duration < 0.1


def test_a_tool_that_hangs_runs_into_the_limit_of_the_turn() -> None:
    environment = injecting(book={"injected_latency_seconds": 100})
    played = had(llm(at_once(call("book", city="Bern")), tools=[book]), environment, turn_s=0.5)
    assert played.error == "turn 1 took longer than its limit of 0.5 s"
    (turn,) = played.actual
    assert [found.name for found in turn.tool_calls] == ["book"]
    assert answered(turn) == []
    assert played.injections == (Injection(invocation_index=0, tool="book", kind="latency", latency_s=100, call_index=0),)


def test_the_agents_own_callbacks_see_the_answer() -> None:
    async def after(tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, tool_response: dict[str, Any]) -> dict[str, Any]:
        tool_response["seen"] = True
        return tool_response

    agent = llm(at_once(call("book", city="Bern"), call("book", city="Genf")), tools=[book], after_tool_callback=after)
    played = had(agent, injecting(book={"injected_response": {"full": True}}))
    assert json.loads(finals(played)[0]) == [{"full": True, "seen": True}] * 2


# Agents of several agents


def in_bern(request: LlmRequest) -> list[types.Part]:
    """Try until there is no error, whatever the user says."""
    found = results(request)
    return text(json.dumps(found[-1])) if found and "booked" in found[-1] else [call("book", city="Bern")]


def test_the_tools_of_a_sub_agent_fail_too() -> None:
    booker = llm(in_bern, name="booker", description="Books.", tools=[book])
    front = llm(lambda request: [call("transfer_to_agent", agent_name="booker")], name="front", sub_agents=[booker])
    played = had(front, injecting(book=ERROR | {"first_calls": 2}))
    assert finals(played) == ['{"booked": "Bern"}']
    assert answered(played.actual[0])[-3:] == [ERROR_ANSWER, ERROR_ANSWER, {"booked": "Bern"}]


def with_helper() -> LlmAgent:
    """An agent that has another agent as its tool."""
    booker = llm(in_bern, name="booker", description="Books.", tools=[book])
    return llm(at_once(call("booker", request="Bern")), tools=[AgentTool(booker)])


def test_an_agent_that_is_a_tool_fails() -> None:
    played = had(with_helper(), injecting(booker=ERROR))
    assert json.loads(finals(played)[0]) == [ERROR_ANSWER]
    assert played.injections == (Injection(invocation_index=0, tool="booker", kind="error", call_index=0),)


def test_the_tools_of_an_agent_that_is_a_tool_fail() -> None:
    played = had(with_helper(), injecting(book=ERROR | {"first_calls": 1}))
    assert json.loads(finals(played)[0]) == [{"result": '{"booked": "Bern"}'}]
    assert played.injections == (Injection(invocation_index=0, tool="book", kind="error", call_index=0),)


# Whole evaluations


def evaluated(agent: Any, environment: Any, *eval_ids: str, num_runs: int = 1, concurrency: int = 4, **more: Any) -> Report:
    listed = tuple(case_of("Bern", "Genf").model_copy(update={"eval_id": eval_id}) for eval_id in eval_ids)
    options = Options(num_runs=num_runs, concurrency=concurrency)
    return run(EvalSet(eval_set_id="set", eval_cases=listed), load_adk_agent(agent), config_of(environment, **more), options)


def pattern(report: Report) -> dict[tuple[str, int], list[Any]]:
    """The answers of tools in each conversation."""
    return {(found.eval_id, found.run_index): [answered(turn) for turn in found.actual] for found in report.cases}


def test_luck_is_the_same_however_many_conversations_are_had_at_the_same_time_and_in_which_order() -> None:
    agent = llm(at_once(*[call("book", city="Bern") for _ in range(4)]), tools=[book])
    environment = injecting(book=ERROR | {"injection_probability": 0.5})
    eval_ids = ("c1", "c2", "c3", "c4")
    first = pattern(evaluated(agent, environment, *eval_ids, num_runs=3, concurrency=1))
    assert first == pattern(evaluated(agent, environment, *reversed(eval_ids), num_runs=3, concurrency=6))
    assert len({str(answers) for answers in first.values()}) == len(first)  # each of the 12 conversations draws anew
    reseeded = injecting(book=ERROR | {"injection_probability": 0.5, "random_seed": 1})
    assert pattern(evaluated(agent, reseeded, *eval_ids, num_runs=3)) != first


def test_the_report_tells_what_was_injected_and_in_which_case() -> None:
    agent = llm(persistent, tools=[book])
    own = {"c2": injecting(book={"injected_response": {"full": True}}), "c3": None}
    report = evaluated(agent, injecting(book=ERROR | {"first_calls": 1}), "c1", "c2", "c3", case_environments=own)
    told = {found.eval_id: [(done.invocation_index, done.tool, done.kind) for done in found.injections] for found in report.cases}
    assert told == {"c1": [(0, "book", "error")], "c2": [(0, "book", "response"), (1, "book", "response")], "c3": []}
    assert report.notes == ()


def test_a_tool_that_no_agent_has_is_noted() -> None:
    booker = llm(in_bern, name="booker", description="Books.", tools=[book, find])
    front = llm(lambda request: [call("transfer_to_agent", agent_name="booker")], name="front", sub_agents=[booker])
    report = evaluated(front, injecting(bok=ERROR, find=ERROR, book=ERROR | {"first_calls": 1}), "c1")
    assert report.notes == (
        "the tool environment names 'bok', but no agent has or called that tool",
        "the tool environment answered or delayed no call of 'find'",
    )


# Beside ADK's own plugin


class Plain(BaseTool):
    """A tool that tells its arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, description="Tell.")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(name=self.name, description=self.description)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return {"tool": self.name, "args": args}


VALUES = st.sampled_from(["Bern", 2, 2.0, 2.5, None, [2, "x"], {"k": [2.0]}, {"k": [2], "l": None}])
"""Without ``true`` and ``1``, which ADK takes for the same."""
ARGS = st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)
EFFECTS = st.sampled_from([ERROR, {"injected_response": {"fixed": [1]}}, {"injected_response": {"error_code": 3}}])
INJECTIONS = st.lists(st.tuples(EFFECTS, st.none() | ARGS).map(lambda found: found[0] | {"match_args": found[1]}), min_size=1, max_size=3)
ENVIRONMENTS = st.dictionaries(st.sampled_from(["one", "two", "none"]), INJECTIONS, min_size=1).map(lambda tools: injecting(**tools))
CALLS = st.lists(st.tuples(st.sampled_from(["one", "two"]), ARGS), min_size=1, max_size=5)


def telling(calls: list[tuple[str, dict[str, Any]]]) -> LlmAgent:
    return llm(at_once(*[call(name, **args) for name, args in calls]), tools=[Plain("one"), Plain("two")])


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")
@QUICK
@given(ENVIRONMENTS, CALLS)
def test_where_nothing_is_drawn_adks_plugin_answers_the_same(environment: Any, calls: list[tuple[str, dict[str, Any]]]) -> None:
    reason = "this google-adk has no environment simulation"
    simulation = pytest.importorskip("google.adk.tools.environment_simulation.environment_simulation_factory", reason=reason)
    settings = pytest.importorskip("google.adk.tools.environment_simulation.environment_simulation_config", reason=reason)
    plugin = simulation.EnvironmentSimulationFactory.create_plugin(settings.EnvironmentSimulationConfig.model_validate(environment))
    theirs = had(App(name="app", root_agent=telling(calls), plugins=[plugin]), injecting(other=ERROR))
    ours = had(telling(calls), environment)
    assert ours.error == theirs.error == ""
    assert answered(ours.actual[0]) == answered(theirs.actual[0])
    real = [{"tool": name, "args": args} for name, args in calls]
    assert len(ours.injections) == sum(answer != call for answer, call in zip(answered(ours.actual[0]), real, strict=True))
