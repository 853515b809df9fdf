"""Replaying runs that nobody recorded: what tools did to the session is done again if the run says it, and else the state is unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from mlflow_adk_eval.agents.adk.agent import load_adk_agent
from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.recordings import Recording, dumps_recording, load_recording, recording_of_report
from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.evalset.conversation import CallChange, Conversation, RecordedCall
from mlflow_adk_eval.evalset.models import Content, EvalCase, EvalSet, Invocation, Part
from mlflow_adk_eval.results.outcomes import explanation_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.agents.scripted import Scripted, call, case_of, results, text, user_text

_CONFIG = {"criteria": {"final_session_state": {"threshold": 1.0, "match_type": "EXACT", "only_where_expected": True}}}
NOT_SAID = (
    "the session's final state is unknown: the replayed calls do not say how they changed the session's state; record the run with --record"
)


class Shop:
    """Tools that do to the session whatever a tool may do, or fail if they are `closed`."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed

    def tool(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not self.closed:
            return function
        return _closed(function)

    def agent(self) -> LlmAgent:
        def count(by: int, tool_context: ToolContext) -> dict[str, Any]:
            """Set one entry and another."""
            state = tool_context.state
            state["count"] = state.get("count", 0) + by
            state[f"by {by}"] = True
            return {"count": state["count"]}

        def put(thing: str, tool_context: ToolContext) -> str:
            """Change a list without setting it."""
            tool_context.state["cart"].append(thing)
            return "done"

        async def print_bill(tool_context: ToolContext) -> str:
            """Save a file."""
            await tool_context.save_artifact("bill.bin", types.Part.from_bytes(data=b"\x00\xff bill", mime_type="application/pdf"))
            return "printed"

        async def read_bill(tool_context: ToolContext) -> str:
            """Read the file."""
            found = await tool_context.load_artifact("bill.bin")
            return repr(found.inline_data.data) if found and found.inline_data else "no bill"

        def fail(tool_context: ToolContext) -> str:
            """Change the state, then fail."""
            tool_context.state["failed"] = True
            raise ConnectionRefusedError("away")

        def wait(tool_context: ToolContext) -> None:
            """Have no answer yet."""
            tool_context.state["waiting"] = True

        def note(tool_context: ToolContext) -> str:
            """Change the state within an agent that is a tool."""
            tool_context.state["noted"] = True
            return "noted"

        async def forgiving(tool: Any, args: dict[str, Any], tool_context: ToolContext, error: Exception) -> dict[str, Any]:
            return {"error": f"{type(error).__name__}: {error}"}

        def root(request: LlmRequest) -> Any:
            if results(request):
                return text(f"{results(request)} {request.config.system_instruction}")
            return {
                "count": [call("count", by=1), call("count", by=2)],
                "put": [call("put", thing="apple"), call("fail"), call("wait")],
                "print": [call("print_bill"), call("clerk", request="note")],
            }.get(user_text(request)) or [call("read_bill")]

        def clerk(request: LlmRequest) -> Any:
            return text("done") if results(request) else [call("note")]

        tools = [*map(self.tool, (count, put, print_bill, fail)), LongRunningFunctionTool(self.tool(wait)), read_bill]
        helper = LlmAgent(name="clerk", model=Scripted(script=clerk), tools=[self.tool(note)])
        return LlmAgent(
            name="shop",
            model=Scripted(script=root),
            instruction="Cart: {cart}.",
            tools=[*tools, AgentTool(helper)],
            on_tool_error_callback=forgiving,
        )


def _closed(function: Callable[..., Any]) -> Callable[..., Any]:
    from functools import wraps

    @wraps(function)
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{function.__name__} was called in a replay")

    return fail


CASE = case_of("count", "put", "print", "count", state={"cart": ["pear"]})


def evaluated(agent: Any, case: EvalCase, replay: Report | Recording | None = None, **options: Any) -> Report:
    source = recording_of_report(replay) if isinstance(replay, Report) else replay
    played = agent if isinstance(agent, CallableAgent) else load_adk_agent(agent)
    return run(EvalSet(eval_set_id="s", eval_cases=(case,)), played, parse_config(_CONFIG, "config"), Options(replay=source, **options))


def conversation(report: Report) -> Conversation:
    return report.cases[0].conversation


def said(report: Report) -> list[str]:
    return [turn.final_text for turn in conversation(report).actual]


def reason(report: Report) -> str:
    return explanation_of(report.cases[0].results[0].per_invocation[-1])


def expecting(case: EvalCase, state: Any) -> EvalCase:
    return case.model_copy(update={"final_session_state": dict(state)})


@pytest.mark.parametrize("replays", [1, 2])
@pytest.mark.parametrize("options", [{}, {"record": True}])
def test_a_replay_does_to_the_session_what_the_tools_did(options: dict[str, Any], replays: int) -> None:
    live = evaluated(Shop().agent(), CASE, **options)
    state = conversation(live).session_state
    assert state is not None
    assert {"count", "by 1", "by 2", "failed", "noted"} <= state.keys()
    assert "'error': 'ConnectionRefusedError: away'" in said(live)[1]
    found = live
    for _ in range(replays):  # a replay holds a world, which is replayed in turn
        found = evaluated(Shop(closed=True).agent(), expecting(CASE, state), found)
        assert conversation(found).error == ""
        assert said(found) == said(live)
        assert conversation(found).session_state == state
        assert found.verdict == "passed"


def test_the_file_of_a_plain_run_says_what_its_tools_did() -> None:
    case = case_of("count", "print", "read", state={"cart": ["pear"]})
    live = evaluated(Shop().agent(), case)
    assert "bill" in said(live)[2]
    changes = conversation(live).changes
    assert [(change.turn, change.tool) for change in changes] == [
        (0, "count"),
        (0, "count"),
        (1, "print_bill"),
        (1, "clerk"),
        (2, "read_bill"),
    ]
    assert changes[1].actions == {"state_delta": {"count": 3, "by 2": True}}
    assert changes[4] == CallChange(turn=2, tool="read_bill", call_id=changes[4].call_id, duration_s=changes[4].duration_s)
    text_of_file = dumps_recording(recording_of_report(live))
    assert "call_id" in text_of_file
    read = load_recording_of(text_of_file)
    replayed = evaluated(Shop(closed=True).agent(), case, read)
    assert said(replayed) == said(live)
    assert conversation(replayed).session_state == conversation(live).session_state


def load_recording_of(content: str) -> Recording:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "recorded.json"
        file.write_text(content)
        return load_recording(file)


def _without_changes(live: Report, kind: str) -> Recording:
    """Return what a source knows of a run that does not say what its tools did."""
    actual = conversation(live).actual
    if kind == "turns":
        return load_recording({"c1": list(actual)})
    if kind == "eval set":
        turns = tuple(
            Invocation(user_content=one.user_content, final_response=one.final_response, intermediate_data=one.intermediate_data)
            for one in actual
        )
        return load_recording(EvalSet(eval_set_id="s", eval_cases=(EvalCase(eval_id="c1", conversation=turns),)))
    old = [
        RecordedCall(turn=turn, tool="count", args=made.args or {}, answer={"count": 1})
        for turn, one in enumerate(actual)
        for made in one.tool_calls
    ]
    return Recording({"c1": (Conversation(actual=(), calls=tuple(old)),)})


@pytest.mark.parametrize("kind", ["turns", "eval set", "world of an earlier version"])
def test_a_source_that_does_not_say_what_tools_did_leaves_the_state_unknown(kind: str) -> None:
    case = case_of("count", state={"cart": ["pear"]})
    live = evaluated(Shop().agent(), case)
    state = conversation(live).session_state
    expected = expecting(case, state or {})
    once = evaluated(Shop(closed=True).agent(), expected, _without_changes(live, kind))
    twice = evaluated(Shop(closed=True).agent(), expected, once)
    for replayed in (once, twice):
        assert conversation(replayed).error == ""
        assert conversation(replayed).session_state is None
        assert replayed.verdict == "undecided"
        assert NOT_SAID in reason(replayed)


def _unknown(report: Report) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for entry in conversation(report).unknown:
        found.setdefault(entry.what, []).append(entry.turn)
    return found


def test_a_replay_says_what_else_its_source_does_not_say() -> None:
    """How long tools took, and what agents called within them, is not what it is when nothing took time or called anything."""
    case = case_of("count", "hello", "count", state={"cart": []})
    live = evaluated(Shop().agent(), case)
    assert _unknown(live) == {}
    assert _unknown(evaluated(Shop(closed=True).agent(), case, live)) == {}
    told = evaluated(Shop(closed=True).agent(), case, _without_changes(live, "turns"))
    assert _unknown(told) == {"state": [None], "inner_calls": [0, 1, 2], "timing": [0, 1, 2]}
    config = parse_config({"criteria": {"invocation_duration_v1": 100.0, "tool_call_count_v1": 10.0}}, "config")
    source = Options(replay=_without_changes(live, "turns"))
    report = run(EvalSet(eval_set_id="s", eval_cases=(case,)), load_adk_agent(Shop(closed=True).agent()), config, source)
    found = {result.criterion: result for result in report.cases[0].results}
    assert "the duration is unknown: the replayed calls do not say how long they took" in explanation_of(
        found["invocation_duration_v1"].overall
    )
    assert found["tool_call_count_v1"].score == 5 / 3


def test_only_calls_that_are_replayed_make_the_state_unknown() -> None:
    """An agent that calls nothing leaves the state as it was, whatever the source does not say."""
    live = evaluated(Shop().agent(), case_of("count", state={"cart": []}))
    quiet = LlmAgent(name="quiet", model=Scripted(script=lambda _: text("hello")))
    case = expecting(case_of("count", state={"cart": []}), {"cart": []})
    assert evaluated(quiet, case, _without_changes(live, "turns")).verdict == "passed"


def test_changes_that_are_too_large_to_keep_are_unknown() -> None:
    def fill(size: int, tool_context: ToolContext) -> str:
        """Put much into the state."""
        tool_context.state[f"n{size}"] = "x" * size
        return "done"

    def agent() -> LlmAgent:
        script = Scripted(script=lambda request: text("ok") if results(request) else [call("fill", size=int(user_text(request)))])
        return LlmAgent(name="filler", model=script, tools=[fill])

    small, large = case_of("1000"), case_of("300000")
    assert [change.lost for change in conversation(evaluated(agent(), small)).changes] == [False]
    live = evaluated(agent(), large)
    assert len(dumps_recording(recording_of_report(live))) < 400_000 * 2
    assert [change.lost for change in conversation(live).changes] == [True]
    replayed = evaluated(agent(), expecting(large, {"n300000": "x" * 300_000}), live)
    assert replayed.verdict == "undecided"
    assert NOT_SAID in reason(replayed)


def test_a_state_that_cannot_be_read_costs_no_conversation_and_is_unknown() -> None:
    def strange(tool_context: ToolContext) -> str:
        """Put something into the state that no JSON can hold."""
        loop: list[Any] = []
        loop.append(loop)
        tool_context.state["loop"] = loop
        return "done"

    def agent() -> LlmAgent:
        return LlmAgent(
            name="a", model=Scripted(script=lambda request: text("ok") if results(request) else [call("strange")]), tools=[strange]
        )

    live = evaluated(agent(), case_of("go"))
    assert conversation(live).error == ""
    assert [change.lost for change in conversation(live).changes] == [True]
    assert conversation(evaluated(agent(), case_of("go"), live)).session_state is None


def test_an_event_that_no_tool_of_ours_made_says_nothing() -> None:
    """A function that reports calls of its own is not seen to call tools, so nobody knows what these changed."""

    def reporting(text: str, session: Session) -> dict[str, Any]:
        session.state["called"] = True
        made = {
            "tool_uses": [{"id": "1", "name": "look", "args": {}}],
            "tool_responses": [{"id": "1", "name": "look", "response": {"seen": 1}}],
        }
        return {"final_response": text, "intermediate_data": made}

    live = evaluated(CallableAgent(function=reporting, name="reporting"), case_of("go"))
    assert conversation(live).changes == ()

    def looking(text: str, session: Session) -> str:
        return str(session.tool(_look)())

    def _look() -> dict[str, Any]:
        raise AssertionError("called in a replay")

    _look.__name__ = "look"
    replayed = evaluated(CallableAgent(function=looking, name="looking"), expecting(case_of("go"), {"called": True}), live)
    assert said(replayed) == ["{'seen': 1}"]
    assert NOT_SAID in reason(replayed)


def test_the_tools_of_a_function_say_what_they_did() -> None:
    def agent(*, closed: bool) -> CallableAgent:
        def talk(said: str, session: Session) -> str:
            def note(words: str) -> int:
                """Note words in the state."""
                assert not closed
                session.state["notes"] = [*session.state.get("notes", []), words]
                return len(session.state["notes"])

            def forget() -> None:
                """Remove an entry."""
                del session.state["notes"]

            if said == "forget":
                return str(session.tool(forget)())
            return f"{session.tool(note)(said)} {session.state['notes']}"

        return CallableAgent(function=talk, name="talk")

    case = case_of("a", "b")
    live = evaluated(agent(closed=False), case)
    replayed = evaluated(agent(closed=True), expecting(case, {"notes": ["a", "b"]}), live)
    assert said(replayed) == said(live) == ["1 ['a']", "2 ['a', 'b']"]
    assert replayed.verdict == "passed"
    forgetful = case_of("a", "forget")
    for options in ({}, {"record": True}):  # what is removed cannot be said
        source = evaluated(agent(closed=False), forgetful, **options)
        assert NOT_SAID in reason(evaluated(agent(closed=True), expecting(forgetful, {"x": 1}), source))


def pay_agent(*, paid: list[int], closed: bool = False) -> LlmAgent:
    def pay(amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Pay."""
        assert not closed, "pay was called in a replay"
        paid.append(amount)
        tool_context.state["paid"] = tool_context.state.get("paid", 0) + amount
        return {"paid": amount}

    def script(request: LlmRequest) -> Any:
        answers = [
            part.function_response.response for content in request.contents for part in content.parts or () if part.function_response
        ]
        done = [one for one in answers if one and ("paid" in one or "rejected" in str(one))]
        return text(f"{done}") if done else [call("pay", amount=5)]

    return LlmAgent(name="payer", model=Scripted(script=script), tools=[FunctionTool(pay, require_confirmation=True)])


def answering(*, confirmed: bool) -> Content:
    answer = {"name": "adk_request_confirmation", "response": {"confirmed": confirmed}}
    return Content(role="user", parts=(Part.model_validate({"function_response": answer}),))


@pytest.mark.parametrize("confirmed", [True, False])
@pytest.mark.parametrize("options", [{}, {"record": True}])
def test_a_confirmed_call_is_replayed_with_what_it_did(options: dict[str, Any], confirmed: bool) -> None:
    first = case_of("Pay 5 euros.")
    assert first.conversation
    asked = (*first.conversation, Invocation(user_content=answering(confirmed=confirmed)))
    case = first.model_copy(update={"conversation": asked})
    paid: list[int] = []
    live = evaluated(pay_agent(paid=paid), case, **options)
    assert paid == ([5] if confirmed else [])
    expected = expecting(case, {"paid": 5} if confirmed else {"nothing": 1})
    replayed = evaluated(pay_agent(paid=paid, closed=True), expected, live)
    assert conversation(replayed).error == ""
    assert said(replayed) == said(live)
    assert conversation(replayed).session_state == conversation(live).session_state == ({"paid": 5} if confirmed else {})
    assert replayed.verdict == ("passed" if confirmed else "failed")


def test_an_answer_of_the_tool_environment_is_not_taken_for_one_of_the_tool() -> None:
    injected = {"tool_name": "count", "injection_configs": [{"injected_response": {"count": 99}}]}
    config = parse_config({**_CONFIG, "environment_simulation_config": {"tool_simulation_configs": [injected]}}, "config")
    case = case_of("count", state={"cart": []})
    agent = load_adk_agent(Shop().agent())
    live = run(EvalSet(eval_set_id="s", eval_cases=(expecting(case, {"count": 3}),)), agent, config, Options())
    assert "99" in said(live)[0]
    assert live.verdict == "failed"
    assert "The tool environment answered calls of `count` in the tool's place, so these changed no state." in reason(live)
    replayed = evaluated(
        Shop(closed=True).agent(), case, recording_of_report(evaluated(Shop().agent(), case_of("put", state={"cart": []})))
    )
    assert "count" in conversation(replayed).error
    only_injected = load_recording_of(dumps_recording(recording_of_report(live)))
    from mlflow_adk_eval.errors import UsageError

    with pytest.raises(UsageError, match="holds no tool call"):
        evaluated(Shop(closed=True).agent(), case, only_injected)
