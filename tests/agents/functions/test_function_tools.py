"""The tools of functions that are agents: recorded, and answered by a tool environment."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.conversation import StaticUser, converse
from mlflow_adk_eval.agents.functions import CallableAgent, Session, named
from mlflow_adk_eval.agents.protocol import ConversationSetup, Limits
from mlflow_adk_eval.evalset.conversation import Conversation, Injection
from mlflow_adk_eval.evalset.models import EvalCase, Invocation, Json
from tests.agents.functions.test_functions import case_of, play


@dataclass
class Environment:
    """Answers by a function, and notes what it was asked and by which thread."""

    answers: Callable[[str, Mapping[str, Any]], Json | None]
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    injections: tuple[Injection, ...] = ()
    world: None = None

    def next_turn(self) -> None:
        pass

    async def answer(self, tool: str, args: Mapping[str, Any], /) -> Json | None:
        await anyio.sleep(0.01)
        self.asked.append((tool, args))
        self.threads.add(threading.get_ident())
        return self.answers(tool, args)


def play_in(environment: Environment, function: Callable[..., Any], case: EvalCase) -> Conversation:
    assert case.conversation is not None
    agent = CallableAgent(function=function, name="fn")
    return anyio.run(converse, agent, case, 0, ConversationSetup(user=StaticUser(case.conversation), tools=environment))


def lamp(room: str, *, on: bool = True) -> dict[str, Any]:
    """Switch a lamp."""
    return {"room": room, "on": on}


async def weather(city: str) -> str:
    await anyio.lowlevel.checkpoint()
    return f"rain in {city}"


def answered(turn: Invocation) -> list[tuple[str | None, Any, Any]]:
    return [(call.name, call.args, answer.response if answer else None) for call, answer in turn.answered_calls()]


def test_calls_are_part_of_the_turn_in_which_they_are_made() -> None:
    def agent(text: str, session: Session) -> str:
        return f"{session.tool(lamp)(text, on=False)}"

    hall, attic = play(agent, case_of("hall", "attic")).actual
    assert answered(hall) == [("lamp", {"room": "hall", "on": False}, {"room": "hall", "on": False})]
    assert answered(attic) == [("lamp", {"room": "attic", "on": False}, {"room": "attic", "on": False})]
    assert hall.final_text == "{'room': 'hall', 'on': False}"
    assert hall.tool_duration is not None


def test_a_turn_without_calls_claims_nothing_about_tools() -> None:
    (turn,) = play(lambda text, session: text, case_of("x")).actual
    assert (turn.intermediate_data, turn.tool_duration, turn.model_duration) == (None, None, None)


def test_async_tools_are_awaited_and_keep_being_async() -> None:
    async def agent(text: str, session: Session) -> str:
        tool = session.tool(weather)
        assert inspect.iscoroutinefunction(tool)
        return await tool(city=text)

    (turn,) = play(agent, case_of("Basel")).actual
    assert turn.final_text == "rain in Basel"
    assert answered(turn) == [("weather", {"city": "Basel"}, {"result": "rain in Basel"})]


def test_a_tool_looks_like_its_function() -> None:
    session = Session(eval_id="c", run_index=0, state={})
    tool = session.tool(lamp)
    assert (tool.__name__, tool.__doc__, inspect.signature(tool)) == ("lamp", "Switch a lamp.", inspect.signature(lamp))
    assert tool("hall") == {"room": "hall", "on": True}


class Hub:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, room: str) -> None:
        self.calls += 1

    async def later(self, room: str) -> str:
        return room


@pytest.mark.parametrize(
    ("function", "name", "expected"),
    [
        (functools.partial(lamp, on=False), "lamp", ("lamp", {"room": "hall"}, {"room": "hall", "on": False})),
        (functools.partial(weather), "weather", ("weather", {"city": "hall"}, {"result": "rain in hall"})),
        (Hub(), "Hub", ("Hub", {"room": "hall"}, {"result": None})),
        (Hub().later, "later", ("later", {"room": "hall"}, {"result": "hall"})),
        (max, "max", ("max", {"args": ["hall"]}, {"result": "l"})),
    ],
)
def test_whatever_can_be_called_is_a_tool(function: Callable[..., Any], name: str, expected: Any) -> None:
    async def agent(text: str, session: Session) -> None:
        tool = session.tool(function)
        assert tool.__name__ == name
        answer = tool("hall")
        if inspect.isawaitable(answer):
            await answer

    assert answered(play(agent, case_of("x")).actual[0]) == [expected]


def test_a_failing_tool_is_recorded_and_fails_as_before() -> None:
    def broken(room: str) -> None:
        raise ConnectionError(f"no bulb in {room}")

    def agent(text: str, session: Session) -> str:
        with pytest.raises(ConnectionError, match="no bulb in hall"):
            session.tool(broken)("hall")
        return "It does not work."

    (turn,) = play(agent, case_of("x")).actual
    assert answered(turn) == [("broken", {"room": "hall"}, {"error": "ConnectionError: no bulb in hall"})]
    assert turn.final_text == "It does not work."


def test_a_call_that_does_not_fit_is_recorded_and_raises_what_it_always_raised() -> None:
    def agent(text: str, session: Session) -> None:
        session.tool(lamp)("hall", colour="red")  # type: ignore[call-arg]

    played = play(agent, case_of("x"))
    assert "TypeError" in played.error
    assert "colour" in played.error
    ((name, args, answer),) = answered(played.actual[0])
    assert (name, args) == ("lamp", {"args": ["hall"], "colour": "red"})
    assert answer["error"].startswith("TypeError: ")


@pytest.mark.parametrize("is_async", [False, True])
def test_the_environment_answers_in_the_place_of_a_tool(is_async: bool) -> None:
    real: list[str] = []
    environment = Environment(lambda tool, args: {"error": "no power"} if args["room"] == "attic" else None)

    def switch(room: str) -> dict[str, Any]:
        real.append(room)
        return {"on": True}

    async def switch_async(room: str) -> dict[str, Any]:
        return switch(room)

    async def agent_async(text: str, session: Session) -> str:
        return str(await session.tool(switch_async, name="switch")(room=text))

    played = play_in(environment, agent_async if is_async else lambda text, s: str(s.tool(switch)(text)), case_of("hall", "attic"))
    hall, attic = played.actual
    assert answered(hall) == [("switch", {"room": "hall"}, {"on": True})]
    assert answered(attic) == [("switch", {"room": "attic"}, {"error": "no power"})]
    assert attic.final_text == "{'error': 'no power'}"
    assert real == ["hall"]
    assert environment.asked == [("switch", {"room": "hall"}), ("switch", {"room": "attic"})]


def test_the_environment_is_asked_in_the_loop_wherever_a_tool_is_called() -> None:
    environment = Environment(lambda tool, args: {"from": tool})

    def in_threads(text: str, session: Session) -> str:
        with ThreadPoolExecutor(2) as threads:
            return str([future.result() for future in [threads.submit(session.tool(lamp), room) for room in ("a", "b")]])

    def in_a_loop_of_its_own(text: str, session: Session) -> str:
        return str(asyncio.run(session.tool(weather)(text)))

    assert play_in(environment, in_threads, case_of("x")).error == ""
    assert play_in(environment, in_a_loop_of_its_own, case_of("x")).actual[0].final_text == "{'from': 'weather'}"
    assert environment.threads == {threading.get_ident()}


def test_a_sync_tool_called_in_the_loop_itself_gets_its_answer() -> None:
    async def agent(text: str, session: Session) -> str:
        return str(session.tool(lamp)(text))

    played = play_in(Environment(lambda tool, args: {"injected": True}), agent, case_of("x"))
    assert (played.error, played.actual[0].final_text) == ("", "{'injected': True}")


def test_calls_at_the_same_time_are_all_kept_each_with_its_answer() -> None:
    barrier = threading.Barrier(4, timeout=120)

    def square(n: int) -> int:
        barrier.wait()
        time.sleep(0.02 * (4 - n))
        return n * n

    def agent(text: str, session: Session) -> str:
        tool = session.tool(square)
        with ThreadPoolExecutor(4) as threads:
            return str(sum(threads.map(tool, range(4))))

    (turn,) = play(agent, case_of("x")).actual
    assert turn.final_text == "14"
    assert sorted((args["n"], response["result"]) for _, args, response in answered(turn)) == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert len({call.id for call in turn.tool_calls}) == 4


def test_tasks_keep_the_order_of_their_calls() -> None:
    async def slow(n: int) -> int:
        await anyio.sleep(0.02 * (3 - n))
        return n

    async def agent(text: str, session: Session) -> str:
        return str(await asyncio.gather(*(session.tool(slow)(n) for n in range(3))))

    (turn,) = play(agent, case_of("x")).actual
    assert [(args["n"], response["result"]) for _, args, response in answered(turn)] == [(0, 0), (1, 1), (2, 2)]


def test_texts_and_calls_of_a_generator_are_both_kept() -> None:
    def agent(text: str, session: Session) -> Iterator[str]:
        yield "Switching."
        session.tool(lamp)("hall")
        yield "Done."

    (turn,) = play(agent, case_of("x")).actual
    assert [name for name, _, _ in answered(turn)] == ["lamp"]
    assert turn.final_text == "Done."


@pytest.mark.parametrize(
    "told",
    [
        {"final_response": "ok", "intermediate_data": {"tool_uses": [{"name": "own", "args": {}}]}},
        {"content": {"parts": [{"function_call": {"name": "own", "args": {}}}, {"text": "ok"}]}},
    ],
    ids=["summary", "event"],
)
def test_calls_that_the_function_tells_itself_are_not_doubled(told: Json) -> None:
    def agent(text: str, session: Session) -> Json:
        session.tool(lamp)("hall")
        return told

    (turn,) = play(agent, case_of("x")).actual
    assert [call.name for call in turn.tool_calls] == ["own"]


def test_a_summary_without_calls_is_completed_by_those_that_were_watched() -> None:
    def agent(text: str, session: Session) -> Json:
        session.tool(lamp)("hall")
        return {"final_response": "ok"}

    (turn,) = play(agent, case_of("x")).actual
    assert [call.name for call in turn.tool_calls] == ["lamp"]
    assert turn.final_text == "ok"


def test_calls_before_a_failure_are_kept() -> None:
    def agent(text: str, session: Session) -> str:
        session.tool(lamp)("hall")
        raise ValueError("lost")

    played = play(agent, case_of("x"))
    assert (played.error, played.unfinished) == ("turn 1: ValueError: lost", True)
    assert [call.name for call in played.actual[0].tool_calls] == ["lamp"]


def test_a_thread_that_was_left_behind_calls_no_more_tools() -> None:
    release, refused, real = threading.Event(), threading.Event(), []

    def agent(text: str, session: Session) -> str:
        session.tool(real.append, name="note")("before")
        release.wait(30)
        try:
            session.tool(real.append, name="note")("after")
        except Exception:
            refused.set()
            raise
        return text

    played = anyio.run(CallableAgent(function=agent, name="fn", limits=Limits(turn_s=0.3)).converse, case_of("x"), 0)
    release.set()
    assert refused.wait(10)
    assert real == ["before"]
    assert [call.name for call in played.actual[0].tool_calls] == ["note"]


def test_wrapping_again_does_not_record_twice() -> None:
    def agent(text: str, session: Session) -> None:
        session.tool(session.tool(lamp))("hall")

    (turn,) = play(agent, case_of("x")).actual
    assert len(turn.tool_calls) == 1


def test_tools_of_one_conversation_record_nothing_in_another() -> None:
    kept: list[Callable[..., Any]] = []

    def agent(text: str, session: Session) -> str:
        kept.append(session.tool(kept[-1] if kept else lamp))
        return str(kept[-1](text))

    first, second = play(agent, case_of("a")).actual[0], play(agent, case_of("b")).actual[0]
    assert [call.args for call in first.tool_calls] == [{"room": "a"}]
    assert [call.args for call in second.tool_calls] == [{"room": "b"}]


def other() -> Callable[..., Any]:
    def lamp() -> None:
        """Do something else under a name that is taken."""

    return lamp


@pytest.mark.parametrize(
    ("function", "words"),
    [(other(), "two tools are named 'lamp'"), (lambda room: room, "a tool that is a lambda has no name")],
)
def test_tools_need_names_of_their_own(function: Callable[..., Any], words: str) -> None:
    session = Session(eval_id="c", run_index=0, state={})
    session.tool(lamp)
    with pytest.raises(ValueError, match=words):
        session.tool(function)
    assert session.tool(function, name="another").__name__ == "another"


def test_the_same_local_function_is_a_tool_in_each_turn() -> None:
    def agent(text: str, session: Session) -> str:
        def shout(words: str) -> str:
            return words.upper()

        return session.tool(shout)(text)

    assert [turn.final_text for turn in play(agent, case_of("a", "b")).actual] == ["A", "B"]


class Promise:
    """Something to await that is no coroutine."""

    def __await__(self) -> Generator[None, None, str]:
        yield
        return "rain"


def in_promise(city: str) -> Any:
    return Promise()


def in_coroutine(city: str) -> Any:
    return weather(city)


@pytest.mark.parametrize("function", [in_coroutine, in_promise])
def test_a_sync_tool_must_answer_at_once(function: Callable[..., Any]) -> None:
    def agent(text: str, session: Session) -> None:
        session.tool(function, name="weather")("Basel")

    assert "tool weather returned an awaitable but is not an async function" in play(agent, case_of("x")).error


def test_what_is_no_json_is_recorded_as_text() -> None:
    loop: list[Any] = []
    loop.append(loop)

    def odd(*things: Any) -> Any:
        return {1: {2}, "bytes": b"\xff"}

    def agent(text: str, session: Session) -> None:
        session.tool(odd)(loop, object, {3: None})

    ((_, args, response),) = answered(play(agent, case_of("x")).actual[0])
    assert args == {"things": "([[...]], <class 'object'>, {3: None})"}
    assert response == {"result": repr({1: {2}, "bytes": b"\xff"})}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(st.lists(VALUES, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), VALUES))
def test_arguments_are_told_by_their_names_whichever_way_they_are_given(args: list[Any], kwargs: dict[str, Any]) -> None:
    def function(a: Any, /, b: Any = 0, *rest: Any, c: Any = 0, **more: Any) -> None: ...

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        assert named(signature, tuple(args), kwargs) == ({"args": args} if args else {}) | kwargs
        return
    found = named(signature, tuple(args), kwargs)
    assert found.get("a") == (kwargs["a"] if "a" in kwargs else args[0])
    assert found.get("b") == (args[1] if len(args) > 1 else kwargs.get("b"))
    assert found.get("rest") == (args[2:] or None)
    assert {name: value for name, value in found.items() if name in "cd"} == {name: value for name, value in kwargs.items() if name in "cd"}
