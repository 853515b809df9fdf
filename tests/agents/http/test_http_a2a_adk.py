"""A2A as a2a-sdk's own server speaks it, with real ADK agents behind it; by either generation of a2a-sdk, whichever is installed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import google.adk.version
import pytest
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.criteria.efficiency import inference_calls, token_usage
from mlflow_adk_eval.results.outcomes import Scored
from tests.agents.functions.test_functions import case_of
from tests.agents.http.http_kit import calls, had
from tests.agents.scripted import call, llm, team, text, user_text

pytest.importorskip("a2a", reason="a2a-sdk is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


TELLS_EVENTS = not google.adk.version.__version__.startswith("1.")
"""Whether the server tells each event, with author and tokens."""


@contextmanager
def served(agent: Any) -> Iterator[str]:
    """Serve an agent by A2A while the block runs; the address."""
    import uvicorn
    from google.adk.a2a.utils.agent_to_a2a import to_a2a

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(to_a2a(agent, host="127.0.0.1", port=port), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 300
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join()


def lamp(room: str, on: bool) -> dict[str, Any]:
    """Switch a lamp."""
    return {"room": room, "on": on}


def broken() -> None:
    """Fail."""
    raise ValueError("no power")


def ask_owner(what: str) -> None:
    """Ask the owner, who answers some day."""


def script(request: Any) -> Any:
    """Switch, fail, ask or echo, with the number of the user's messages."""
    said, last = user_text(request), request.contents[-1].parts[0]
    if last.function_response:
        return text(f"done {last.function_response.response}")
    match said:
        case "lamp":
            return [types.Part(text="Switching."), call("lamp", room="hall", on=True)]
        case "broken":
            return [call("broken")]
        case "ask":
            return [call("ask_owner", what="may I?")]
        case "silent":
            return None
    spoken = sum(1 for content in request.contents if content.role == "user" and content.parts[0].text)
    return text(f"echo {said} {spoken}")


def home() -> Any:
    return llm(script, name="home", tools=[lamp, broken, LongRunningFunctionTool(ask_owner)])


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(home()) as found:
        yield found


def test_a_conversation_with_its_calls_tokens_and_author(address: str) -> None:
    (played,) = had(A2AAgent(address), case_of("hello", "lamp", "bye"))
    assert played.error == ""
    hello, switched, bye = played.actual
    assert [hello.final_text, bye.final_text] == ["echo hello 1", "echo bye 3"]
    assert switched.final_text == "done {'room': 'hall', 'on': True}"
    assert calls(switched) == [("lamp", {"room": "hall", "on": True})]
    assert [answer and answer.response for _, answer in switched.answered_calls()] == [{"room": "hall", "on": True}]
    if TELLS_EVENTS:
        tokens = token_usage(switched)
        assert isinstance(tokens, Scored)
        assert (tokens.score, inference_calls(switched)) == (24, Scored(2.0))
        assert {event.author for event in switched.events} == {"home"}


def test_conversations_at_the_same_time_do_not_mix(address: str) -> None:
    played = had(A2AAgent(address), *[case_of(f"a{n}", f"b{n}") for n in range(6)])
    assert [[turn.final_text for turn in one.actual] for one in played] == [[f"echo a{n} 1", f"echo b{n} 2"] for n in range(6)]


def test_a_tool_that_raises_fails_the_turn_and_keeps_the_call(address: str) -> None:
    (played,) = had(A2AAgent(address), case_of("hello", "broken", "never"))
    assert played.error.startswith("turn 2: the agent's task failed")
    assert "no power" in played.error
    assert played.unfinished
    assert calls(played.actual[1]) == [("broken", {})]


@pytest.mark.skipif(not TELLS_EVENTS, reason="google-adk 1 leaves the task of a silent turn in state working")
def test_a_silent_turn_is_one(address: str) -> None:
    (played,) = had(A2AAgent(address), case_of("silent", "hello"))
    assert played.error == ""
    assert [turn.final_text for turn in played.actual] == ["", "echo hello 2"]


def test_a_tool_that_waits_for_somebody_does_not_end_the_conversation(address: str) -> None:
    (played,) = had(A2AAgent(address), case_of("ask"))
    assert played.error == ""
    assert calls(played.actual[0]) == [("ask_owner", {"what": "may I?"})]


def test_agents_behind_agents() -> None:
    with served(team()) as address:
        (played,) = had(A2AAgent(address), case_of("The bill, please."))
    assert played.error == ""
    assert played.actual[0].final_text == "The bill is 3 francs."
    assert calls(played.actual[0]) == [("transfer_to_agent", {"agent_name": "billing"})]
    if TELLS_EVENTS:
        assert {event.author for event in played.actual[0].events} >= {"front", "billing"}
