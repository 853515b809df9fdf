"""Every shape that ADK's agents come in, each with a scripted model and with the real Gemini client: what is recorded of a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.recordings import save_recording
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.conversation import Conversation, InnerCall
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalSet, Invocation
from mlflow_adk_eval.report.html.report import html_of
from mlflow_adk_eval.runner.evaluation import run
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing.failure import conversation_lines
from tests.agents.adk.gemini_models import gemini_scripts
from tests.agents.scripted import Script, Scripted, call, case_of, echo, finals, llm, play, results, text, user_text
from tests.kit import case_json, eval_set_json, turn_json

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning"),  # ADK 2 of classes that ADK 1 has too
    pytest.mark.filterwarnings("ignore::UserWarning:google"),  # of what ADK calls experimental
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # nobody closes ADK's clients
]
USED = {"prompt_token_count": 10, "candidates_token_count": 2}


@dataclass(frozen=True)
class Cast:
    """Makes agents whose models answer by functions."""

    model: Callable[[Script], BaseLlm]

    def __call__(self, script: Script, **settings: Any) -> LlmAgent:
        return llm(script, model=self.model(script), **settings)


@pytest.fixture(params=["scripted", "gemini"])
def cast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cast]:
    if request.param == "scripted":
        yield Cast(lambda script: Scripted(script=script))
        return
    with gemini_scripts(monkeypatch) as scripts:
        yield Cast(scripts.model)
        assert scripts.server.calls


def says(words: str) -> Script:
    return lambda request: text(words)


def uses(tool: str, then: str = "{}", /, **args: Any) -> Script:
    """Return a model that calls a tool and then tells what it answered."""
    return lambda request: text(then.format(found[0])) if (found := results(request)) else [call(tool, **args)]


def told(turn: Invocation) -> list[tuple[Any, ...]]:
    """What the events of a turn say: author, then texts, calls and results; for a model's, whether its tokens are known."""
    return [
        (event.author, *((*map(piece, event.content.parts),) if event.content and event.content.parts else ()), *paid(event))
        for event in turn.events
    ]


def piece(part: Any) -> Any:
    if part.function_call:
        return {part.function_call.name: part.function_call.args}
    if part.function_response:
        return (part.function_response.name, part.function_response.response)
    return part.text


def paid(event: Any) -> tuple[str, ...]:
    if event.usage_metadata is None and event.model_version is None:
        return ()
    assert {name: event.usage_metadata[name] for name in USED} == USED
    return (event.model_version,)


def agents(turn: Invocation) -> dict[str, tuple[str, list[str]]]:
    """The agents of a turn: the first line of their instructions, and the names of their tools."""
    assert turn.app_details is not None
    return {
        name: (
            details.instructions.splitlines()[0],
            [tool["name"] for declared in details.tool_declarations for tool in declared["function_declarations"]],
        )
        for name, details in turn.app_details.agent_details.items()
    }


def turns(played: Conversation) -> tuple[Invocation, ...]:
    """Return the turns of a conversation that went well, each with all that there is to measure."""
    assert played.error == ""
    for turn in played.actual:
        assert turn.invocation_id.startswith("e-")
        assert time.time() - 60 < turn.creation_timestamp <= time.time()
        assert None not in (turn.duration, turn.model_duration, turn.tool_duration)
        assert 0 <= turn.model_duration + turn.tool_duration <= turn.duration + 0.002
        assert all(None not in (found.id, answer) for found, answer in turn.answered_calls())
    return tuple(played.actual)


@dataclass
class Table:
    """What a tool knows."""

    bern: str = "clear"


def weather(city: str) -> dict[str, Any]:
    """Tell the weather."""
    return {"city": city, "sky": Table().bern}


def test_a_single_agent(cast: Cast) -> None:
    agent = cast(uses("weather", "It is {0[sky]}.", city="Bern"), tools=[weather], instruction="Tell the weather.")
    played = play(agent, case_of("Bern?", "again", state={"unit": "C"}))
    for turn, said in zip(turns(played), ("Bern?", "again"), strict=True):
        assert (turn.user_text, turn.final_text) == (said, "It is clear.")
        assert told(turn) == [
            ("agent", {"weather": {"city": "Bern"}}, "scripted-1"),
            ("agent", ("weather", {"city": "Bern", "sky": "clear"})),
            ("agent", "scripted-1"),
        ]
        assert agents(turn) == {"agent": ("Tell the weather.", ["weather"])}
    assert played.session_state == {"unit": "C"}


def test_agents_one_after_the_other(cast: Cast) -> None:
    writer = cast(says("a draft"), name="writer", instruction="Write.", output_key="draft")
    editor = cast(lambda request: text(f"edited: {first_line(request)}"), name="editor", instruction="Edit: {draft}")
    played = play(SequentialAgent(name="team", sub_agents=[writer, editor]), case_of("go"))
    (turn,) = turns(played)
    assert turn.final_text == "edited: Edit: a draft"
    assert told(turn) == [("writer", "a draft", "scripted-1"), ("editor", "scripted-1")]
    assert agents(turn) == {"writer": ("Write.", []), "editor": ("Edit: a draft", [])}
    assert played.session_state == {"draft": "a draft"}


def first_line(request: LlmRequest) -> str:
    given: Any = request.config.system_instruction
    words = given if isinstance(given, str) else "".join(part.text for part in given.parts)
    return words.splitlines()[0]


def test_agents_at_the_same_time(cast: Cast) -> None:
    left = cast(says("left"), name="left", output_key="l")
    right = cast(uses("weather", "right: {0[sky]}", city="Bern"), name="right", output_key="r", tools=[weather])
    played = play(ParallelAgent(name="team", sub_agents=[left, right]), case_of("go"))
    (turn,) = turns(played)
    by_author = {name: [event for event in told(turn) if event[0] == name] for name in ("left", "right")}
    called = [("right", {"weather": {"city": "Bern"}}, "scripted-1"), ("right", ("weather", {"city": "Bern", "sky": "clear"}))]
    # Of answers that come in any order, the last one is the answer of the turn.
    assert (turn.final_text, by_author) in [
        ("right: clear", {"left": [("left", "left", "scripted-1")], "right": [*called, ("right", "scripted-1")]}),
        ("left", {"left": [("left", "scripted-1")], "right": [*called, ("right", "right: clear", "scripted-1")]}),
    ]
    assert set(agents(turn)) == {"left", "right"}
    assert played.session_state == {"l": "left", "r": "right: clear"}


def test_agents_in_a_loop(cast: Cast) -> None:
    def critic(request: LlmRequest) -> list[types.Part]:
        drafts = sum("a draft" in (part.text or "") for content in request.contents for part in content.parts)
        return text("once more") if drafts < 2 else [call("exit_loop")]

    team = LoopAgent(
        name="team", max_iterations=5, sub_agents=[cast(says("a draft"), name="writer"), cast(critic, name="critic", tools=[exit_loop])]
    )
    (turn,) = turns(play(team, case_of("go")))
    assert turn.final_text == "a draft"
    assert told(turn) == [
        ("writer", "a draft", "scripted-1"),
        ("critic", "once more", "scripted-1"),
        ("writer", "scripted-1"),
        ("critic", {"exit_loop": {}}, "scripted-1"),
        ("critic", ("exit_loop", {"result": None})),
    ]
    assert agents(turn)["critic"][1] == ["exit_loop"]


def test_a_transfer_to_a_sub_agent(cast: Cast) -> None:
    billing = cast(says("The bill is 3 francs."), name="billing", description="Knows bills.", instruction="Answer.")
    front = cast(uses("transfer_to_agent", agent_name="billing"), name="front", sub_agents=[billing])
    first, second = turns(play(front, case_of("my bill?", "sure?")))
    assert first.final_text == second.final_text == "The bill is 3 francs."
    asked, answered, final = told(first)
    assert asked == ("front", {"transfer_to_agent": {"agent_name": "billing"}}, "scripted-1")
    assert (answered[0], answered[1][0]) == ("front", "transfer_to_agent")
    assert final == ("billing", "scripted-1")
    assert agents(first)["front"][1] == ["transfer_to_agent"]
    assert agents(first)["billing"][0] == "Answer."
    assert told(second) == [("billing", "scripted-1")], "the sub-agent keeps the conversation"


def test_an_agent_as_a_tool(cast: Cast) -> None:
    expert = cast(uses("weather", "{0[sky]}", city="Bern"), name="expert", instruction="Look.", tools=[weather], output_key="sky")
    front = cast(uses("expert", "It is {0[result]}.", request="Bern?"), name="front", tools=[AgentTool(agent=expert)])
    played = play(front, case_of("go"))
    (turn,) = turns(played)
    assert turn.final_text == "It is clear."
    assert told(turn) == [
        ("front", {"expert": {"request": "Bern?"}}, "scripted-1"),
        ("expert", "scripted-1"),
        ("expert", "scripted-1"),
        ("front", ("expert", {"result": "clear"})),
        ("front", "scripted-1"),
    ], "what the inner agent said is in its result, and what it cost is not lost"
    assert agents(turn) == {"front": (agents(turn)["front"][0], ["expert"]), "expert": ("Look.", ["weather"])}
    assert played.session_state == {"sky": "clear"}
    inner = InnerCall(turn=0, after=1, agent="expert", tool="weather", args={"city": "Bern"})
    assert played.inner_calls == (inner,), "whose place is after the call of the agent"


def test_the_calls_of_an_agent_as_a_tool_count_where_asked(tmp_path: Path) -> None:
    expert = llm(uses("weather", "{0[sky]}", city="Bern"), name="expert", tools=[weather])
    agent = llm(uses("expert", "It is {0[result]}.", request="Bern?"), name="front", tools=[AgentTool(agent=expert)])
    wanted = EvalSet.model_validate(
        eval_set_json(case_json("c", turn_json("go", None, ("expert", {"request": "Bern?"}), ("weather", {"city": "Bern"}))))
    )
    asking = {"threshold": 1, "include_inner_calls": True}
    given = {"criteria": {"tool_trajectory_avg_score": asking, "tool_parameter_match": asking}}
    report = run(wanted, load_adk_agent(agent), parse_config(given, "config"))
    assert report.passed
    save_recording(report, tmp_path / "recording.json")
    assert score(wanted, tmp_path / "recording.json", given).passed
    assert "tool calls: as expected (2)" in "".join(text for line in conversation_lines(report.cases[0], report.config) for text, _ in line)
    page = html_of(report, title="page", facts={}, secrets={})
    assert ("as expected" in page, ">missing<" in page) == (True, False)
    without = score(wanted, tmp_path / "recording.json", {"criteria": {"tool_trajectory_avg_score": 1}})
    assert "missing: `weather" in without.cases[0].results[0].per_invocation[0].rationale
    unknown = score(wanted, {"c": list(report.cases[0].actual)}, given)
    assert (unknown.verdict, "the calls of AgentTools are not known" in unknown.reasons[0]) == ("undecided", True)


@pytest.mark.needs("google-adk", "2.13")
def test_an_agent_as_a_tool_that_no_plugin_sees() -> None:
    expert = llm(uses("weather", city="Bern"), name="expert", tools=[weather])
    front = llm(uses("expert", request="Bern?"), name="front", tools=[AgentTool(agent=expert, include_plugins=False)])
    unseen = InnerCall(turn=0, after=1, agent="front", tool="expert", args={"request": "Bern?"}, unseen=True)
    assert play(front, case_of("go")).inner_calls == (unseen,)


def test_one_agent_as_a_tool_twice_at_the_same_time(cast: Cast) -> None:
    expert = cast(lambda request: text(user_text(request).upper()), name="expert")

    def both(request: LlmRequest) -> list[types.Part]:
        found = results(request)
        return text(" ".join(one["result"] for one in found)) if found else [call("expert", request="a"), call("expert", request="b")]

    (turn,) = turns(play(cast(both, name="front", tools=[AgentTool(agent=expert)]), case_of("go")))
    assert turn.final_text == "A B"
    assert [event for event in told(turn) if event[0] == "expert"] == [("expert", "scripted-1")] * 2
    assert [answer.response for _, answer in turn.answered_calls() if answer] == [{"result": "A"}, {"result": "B"}]


def start_job(hours: int) -> dict[str, Any] | None:
    """Start a job."""
    return {"status": "pending", "hours": hours} if hours else None


def test_a_long_running_tool(cast: Cast) -> None:
    agent = cast(uses("start_job", "It is {0[status]}.", hours=2), tools=[LongRunningFunctionTool(func=start_job)])
    (turn,) = turns(play(agent, case_of("go")))
    assert turn.final_text == "It is pending."
    assert told(turn) == [
        ("agent", {"start_job": {"hours": 2}}, "scripted-1"),
        ("agent", ("start_job", {"status": "pending", "hours": 2})),
        ("agent", "scripted-1"),
    ]
    assert agents(turn)["agent"][1] == ["start_job"]


def test_a_long_running_tool_that_says_nothing_yet(cast: Cast) -> None:
    played = play(cast(uses("start_job", hours=0), tools=[LongRunningFunctionTool(func=start_job)]), case_of("go"))
    assert played.error == ""
    (turn,) = played.actual
    assert turn.final_text == ""
    assert told(turn) == [("agent", {"start_job": {"hours": 0}}, "scripted-1")]
    assert turn.tool_responses == []


def test_a_tool_whose_result_is_the_answer(cast: Cast) -> None:
    def table(tool_context: ToolContext) -> dict[str, Any]:
        """Show the table."""
        tool_context.actions.skip_summarization = True
        return {"rows": [1, 2]}

    (turn,) = turns(play(cast(uses("table"), tools=[table]), case_of("go")))
    assert told(turn) == [("agent", {"table": {}}, "scripted-1"), ("agent", ("table", {"rows": [1, 2]}))]
    assert turn.final_response is not None
    assert [part.function_response.response for part in turn.final_response.parts or () if part.function_response] == [{"rows": [1, 2]}]


class Polite(BasePlugin):
    """Adds a word to each answer, and answers one tool itself."""

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
        for part in llm_response.content.parts:
            part.text = part.text and f"{part.text} Sir."

    async def before_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any) -> Any:
        return {"sky": "cached"} if tool_args["city"] == "Bern" else None


def test_an_app_with_a_plugin(cast: Cast) -> None:
    agent = cast(lambda request: uses("weather", "{0[sky]}.", city=user_text(request))(request), tools=[weather])
    first, second = turns(play(App(name="shop", root_agent=agent, plugins=[Polite(name="polite")]), case_of("Bern", "Basel")))
    assert [first.final_text, second.final_text] == ["cached. Sir.", "clear. Sir."]
    assert [answer.response for answer in first.tool_responses] == [{"sky": "cached"}]


class Forgiving(BasePlugin):
    """Makes up for a model or a tool that fails."""

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> Any:
        from google.adk.models.llm_response import LlmResponse

        return LlmResponse(content=types.Content(role="model", parts=text(f"sorry: {error}")))

    async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Exception) -> Any:
        return {"error": str(error)}


def test_a_plugin_that_makes_up_for_failures() -> None:
    def fails(request: LlmRequest) -> list[types.Part]:
        if user_text(request) == "fail":
            raise OSError("model down")
        return text(f"it said {found[0]}") if (found := results(request)) else [call("broken")]

    def broken() -> None:
        """Break."""
        raise OSError("disk full")

    app = App(name="shop", root_agent=llm(fails, tools=[broken]), plugins=[Forgiving(name="forgiving")])
    assert finals(play(app, case_of("call", "fail"))) == ["it said {'error': 'disk full'}", "sorry: model down"]


def test_an_agent_that_answers_without_its_model() -> None:
    agent = llm(echo, before_agent_callback=lambda callback_context: types.Content(role="model", parts=text("we are closed")))
    (turn,) = turns(play(agent, case_of("hi")))
    assert turn.final_text == "we are closed"
    assert told(turn) == [("agent",)]
    assert turn.app_details is None


def test_code_and_its_result_are_kept(cast: Cast) -> None:
    code = types.Part(executable_code=types.ExecutableCode(code="print(1)", language=types.Language.PYTHON))
    ran = types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="1"))

    def computes(request: LlmRequest) -> list[types.Part]:
        done = any(part.code_execution_result for content in request.contents for part in content.parts)
        return text("It is 1.") if done else [code, ran]

    (turn,) = turns(play(cast(computes), case_of("go")))
    first, _ = turn.events
    assert first.content is not None
    assert [[*part.model_dump(exclude_none=True)] for part in first.content.parts or ()] == [["executable_code"], ["code_execution_result"]]
    assert turn.final_text == "It is 1."


@pytest.mark.needs("google-adk", "2.0")
def test_a_workflow_of_nodes(cast: Cast) -> None:
    from google.adk.workflow import START, Workflow

    shout = cast(lambda request: text("LOUD"), name="shout", instruction="Shout.")
    whisper = cast(lambda request: text("soft"), name="whisper", instruction="Whisper.")
    (turn,) = turns(play(Workflow(name="flow", edges=[(START, shout), (shout, whisper)]), case_of("go")))
    assert turn.final_text == "soft"
    assert told(turn) == [("shout", "LOUD", "scripted-1"), ("whisper", "scripted-1")]
    assert {name: line for name, (line, _) in agents(turn).items()} == {"shout": "Shout.", "whisper": "Whisper."}


@pytest.mark.needs("google-adk", "2.13")
def test_adk_reads_every_record(cast: Cast) -> None:
    from google.adk.evaluation.eval_case import Invocation as AdkInvocation

    expert = cast(uses("weather", city="Bern"), name="expert", tools=[weather])
    (turn,) = turns(play(cast(uses("expert", request="?"), tools=[AgentTool(agent=expert)]), case_of("go")))
    read = AdkInvocation.model_validate(dump(turn))
    assert [event.author for event in read.intermediate_data.invocation_events] == ["agent", "expert", "expert", "agent", "agent"]


def test_models_that_take_their_time_are_timed(cast: Cast) -> None:
    def slow(request: LlmRequest) -> Any:
        time.sleep(0.05)
        return uses("nap")(request)

    async def nap() -> str:
        """Sleep."""
        await asyncio.sleep(0.08)
        return "rested"

    (turn,) = turns(play(cast(slow, tools=[nap]), case_of("go")))
    assert turn.model_duration >= 0.1
    assert turn.tool_duration >= 0.08
