"""Functions that tell of a turn piece by piece, and which functions are agents at all."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval import UsageError
from mlflow_adk_eval.agents.functions import CallableAgent, Session, takes_session
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import IntermediateData, Invocation, InvocationEvents
from tests.agents.functions.test_functions import case_of, play, said

CALL = {"author": "home", "content": {"role": "model", "parts": [{"function_call": {"id": "1", "name": "lamp", "args": {"on": True}}}]}}
ANSWER = {"author": "home", "content": {"parts": [{"function_response": {"id": "1", "name": "lamp", "response": {"ok": True}}}]}}
SPOKEN = {
    "author": "home",
    "content": {"parts": [{"text": "It is on."}]},
    "usage_metadata": {"prompt_token_count": 9, "candidates_token_count": 4},
    "id": "e-1",
    "actions": {"state_delta": {}},
}


def calls(turn: Invocation) -> list[tuple[str | None, Any]]:
    return [(call.name, call.args) for call in turn.tool_calls]


def texts_on_the_way(turn: Invocation) -> list[str]:
    assert isinstance(turn.intermediate_data, IntermediateData)
    return [part.text or "" for _, parts in turn.intermediate_data.intermediate_responses for part in parts]


def one_turn(*pieces: Any, is_async: bool = False) -> Conversation:
    def agent(text: str, session: Session) -> Iterator[Any]:
        yield from pieces

    async def agent_async(text: str, session: Session) -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return play(agent_async if is_async else agent, case_of("hi"))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_text_is_the_answer_and_those_before_are_on_the_way(is_async: bool) -> None:
    (turn,) = one_turn("Looking it up.", "One moment.", "It rains.", is_async=is_async).actual
    assert turn.final_text == "It rains."
    assert texts_on_the_way(turn) == ["Looking it up.", "One moment."]
    assert turn.user_text == "hi"
    assert turn.duration is not None


@pytest.mark.parametrize("is_async", [False, True])
def test_events_as_adk_writes_them_become_the_events_of_the_turn(is_async: bool) -> None:
    (turn,) = one_turn(CALL, ANSWER, SPOKEN, is_async=is_async).actual
    assert calls(turn) == [("lamp", {"on": True})]
    assert turn.final_text == "It is on."
    assert isinstance(turn.intermediate_data, InvocationEvents)
    assert [event.usage_metadata for event in turn.events] == [None, None, SPOKEN["usage_metadata"]]
    assert turn.model_dump(exclude_unset=True).keys().isdisjoint({"id", "actions"})


def test_both_spellings_and_plain_texts_are_understood_in_events() -> None:
    (turn,) = one_turn(
        {"content": {"parts": [{"functionCall": {"name": "f", "args": {}}}]}}, {"role": "assistant", "content": "Done."}
    ).actual
    assert calls(turn) == [("f", {})]
    assert turn.final_text == "Done."
    assert {event.author for event in turn.events} == {"fn"}


def test_what_a_model_streams_counts_once() -> None:
    partial = {"author": "home", "partial": True, "content": {"parts": [{"text": "It "}]}}
    (turn,) = one_turn(partial, SPOKEN).actual
    assert len(turn.events) == 1


def test_objects_of_adk_are_events_too() -> None:
    from google.adk.events.event import Event
    from google.genai import types

    def event(*parts: types.Part, **more: Any) -> Event:
        return Event(author="home", invocation_id="i-1", content=types.Content(role="model", parts=list(parts)), **more)

    call = event(types.Part(function_call=types.FunctionCall(name="lamp", args={"on": True})))
    streamed = event(types.Part(text="It "), partial=True)
    spoken = event(types.Part(text="It is on."), usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=9))
    (turn,) = one_turn(call, streamed, spoken, is_async=True).actual
    assert calls(turn) == [("lamp", {"on": True})]
    assert (turn.final_text, turn.invocation_id) == ("It is on.", "i-1")
    assert turn.events[-1].usage_metadata == {"prompt_token_count": 9}
    assert one_turn(spoken).actual[0].final_text == "It is on."


def test_a_finished_invocation_is_completed_by_what_was_yielded() -> None:
    (turn,) = one_turn("Looking.", CALL, {"final_response": "It rains."}).actual
    assert (turn.final_text, turn.user_text) == ("It rains.", "hi")
    assert calls(turn) == [("lamp", {"on": True})]
    assert [event.content.text for event in turn.events if event.content and event.content.text] == ["Looking."]


def test_what_a_finished_invocation_says_itself_is_not_doubled() -> None:
    (turn,) = one_turn(CALL, {"final_response": "ok", "intermediate_data": {"tool_uses": [{"name": "own"}]}}).actual
    assert calls(turn) == [("own", None)]


def test_what_a_generator_returns_is_the_answer() -> None:
    def agent(text: str, session: Session) -> Generator[str, None, str]:
        yield "Looking."
        return "It rains."

    (turn,) = play(agent, case_of("hi")).actual
    assert turn.final_text == "It rains."
    assert texts_on_the_way(turn) == ["Looking."]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_that_yields_nothing_is_a_silent_turn(is_async: bool) -> None:
    played = one_turn(None, is_async=is_async)
    assert played.error == ""
    assert (played.actual[0].final_response, played.actual[0].intermediate_data) == (None, None)


@pytest.mark.parametrize("is_async", [False, True])
def test_what_was_yielded_before_a_failure_is_kept_without_an_answer(is_async: bool) -> None:
    def agent(text: str, session: Session) -> Iterator[Any]:
        yield "I am on it."
        if text == "bad":
            yield CALL
            raise ValueError("no power")

    async def agent_async(text: str, session: Session) -> AsyncIterator[Any]:
        for piece in agent(text, session):
            yield piece

    played = play(agent_async if is_async else agent, case_of("good", "bad", "never"))
    assert played.error == "turn 2: ValueError: no power"
    assert played.unfinished
    good, bad = played.actual
    assert good.final_text == "I am on it."
    assert bad.final_response is None
    assert calls(bad) == [("lamp", {"on": True})]
    assert bad.events[0].content is not None
    assert bad.events[0].content.text == "I am on it."


def test_a_piece_that_means_nothing_is_an_error_and_keeps_those_before() -> None:
    played = one_turn("Hello.", 42)
    assert "found 42; wanted a text, an Invocation or a dict of one" in played.error
    assert texts_on_the_way(played.actual[0]) == ["Hello."]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("limits", [Limits(case_s=0.3), Limits(turn_s=0.3)], ids=["case", "turn"])
def test_what_was_yielded_before_a_limit_is_kept(is_async: bool, limits: Limits) -> None:
    release, ended = threading.Event(), threading.Event()

    def agent(text: str, session: Session) -> Iterator[Any]:
        yield CALL
        try:
            release.wait(30)
            yield "too late"
            raise AssertionError
        finally:
            ended.set()

    async def agent_async(text: str, session: Session) -> AsyncIterator[Any]:
        yield CALL
        try:
            await anyio.sleep(30)
        finally:
            ended.set()

    played = anyio.run(CallableAgent(function=agent_async if is_async else agent, name="fn", limits=limits).converse, case_of("x"), 0)
    release.set()
    assert "longer than its limit of 0.3 s" in played.error
    assert played.unfinished
    assert calls(played.actual[0]) == [("lamp", {"on": True})]
    assert played.actual[0].final_response is None
    assert ended.wait(10), "the generator is left, not driven to its end"


def test_a_sync_generator_stays_in_one_thread_that_is_not_the_loops() -> None:
    threads = set()

    def agent(text: str, session: Session) -> Iterator[str]:
        for _ in range(3):
            threads.add(threading.get_ident())
            yield "on"

    play(agent, case_of("x"))
    assert len(threads) == 1
    assert threads.isdisjoint({threading.get_ident()})


class Team:
    def answer(self, text: str, session: Session) -> str:
        return f"method {text}"

    def __call__(self, text: str, session: Session) -> Iterator[str]:
        yield f"object {text}"


async def stream(greeting: str, text: str, session: Session) -> AsyncGenerator[str]:
    yield f"{greeting} {text}"


async def later(text: str, session: Session) -> Iterator[str]:
    return iter(["one", f"later {text}"])


@pytest.mark.parametrize(
    ("function", "answer", "name"),
    [
        (Team().answer, "method x", "answer"),
        (Team(), "object x", "Team"),
        (functools.partial(stream, "partial"), "partial x", "stream"),
        (lambda text, session: stream("lambda", text, session), "lambda x", "<lambda>"),
        (later, "later x", "later"),
        (lambda text: f"alone {text}", "alone x", "<lambda>"),
        (lambda text, temperature=0.5: f"{temperature} {text}", "0.5 x", "<lambda>"),
        (lambda text, session=None: f"{session.eval_id} {text}", "c1 x", "<lambda>"),
        (lambda *args: f"{len(args)} {args[0]}", "2 x", "<lambda>"),
        (lambda text, *rest: f"{len(rest)} {text}", "1 x", "<lambda>"),
    ],
)
def test_whatever_can_be_called_is_an_agent(function: Callable[..., Any], answer: str, name: str) -> None:
    agent = resolve_agent(function)
    assert agent.name == name
    (turn,) = anyio.run(agent.converse, case_of("x"), 0).actual
    assert turn.final_text == answer


def test_a_function_without_a_signature_is_taken_at_its_word() -> None:
    assert takes_session(max)


class Lines:
    """An asynchronous iterable that is no generator."""

    def __aiter__(self) -> AsyncIterator[str]:
        return stream("from", "lines", Session(eval_id="c", run_index=0, state={}))


def test_any_asynchronous_iterable_is_read() -> None:
    assert play(lambda text, session: Lines(), case_of("x")).actual[0].final_text == "from lines"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: "", "agent <lambda> takes ()"),
        (lambda a, b, c: "", "agent <lambda> takes (a, b, c)"),
        (lambda text, *, session: "", "agent <lambda> takes (text, *, session)"),
        (functools.partial(stream, "a", "b", "c"), "agent stream takes ()"),
        (Team, "agent Team is a class: pass an instance"),
    ],
)
def test_a_function_that_cannot_be_called_like_that_is_refused_before_anything_runs(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        resolve_agent(function)
    assert str(refusal.value).startswith(words)
    assert "wanted a function of the user's text and the session, or of the text only" in str(refusal.value)


def test_the_conversation_so_far_as_messages() -> None:
    seen = []

    def agent(text: str, session: Session) -> str | None:
        seen.append(session.messages)
        return None if text == "two" else text.upper()

    play(agent, case_of("one", "two", "three"))
    assert seen[0] == [{"role": "user", "content": "one"}]
    assert seen[2] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "ONE"},
        {"role": "user", "content": "two"},
        {"role": "user", "content": "three"},
    ]


def test_the_session_tells_the_whole_message_of_the_user() -> None:
    seen = []

    def agent(text: str, session: Session) -> None:
        seen.append(session.user_content)

    play(agent, case_of("look"))
    assert seen == [said("look")]


@given(st.lists(st.one_of(st.text(min_size=1), st.just(CALL), st.none()), max_size=8))
def test_nothing_that_is_yielded_is_lost(pieces: list[Any]) -> None:
    (turn,) = one_turn(*pieces).actual
    spoken = [piece for piece in pieces if isinstance(piece, str)]
    assert turn.final_text == (spoken[-1] if spoken else "")
    assert len(turn.tool_calls) == sum(piece is CALL for piece in pieces)
    if turn.events:
        on_the_way = [part.text for event in turn.events for part in (event.content and event.content.parts) or () if part.text]
    else:
        on_the_way = texts_on_the_way(turn) if turn.intermediate_data else []
    assert on_the_way == spoken[:-1]
