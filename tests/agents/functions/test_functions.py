from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mlflow_adk_eval.agents.conversation import described
from mlflow_adk_eval.agents.functions import CallableAgent, Session
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Content, ConversationScenario, EvalCase, IntermediateData, Invocation, Part, SessionInput
from mlflow_adk_eval.evalset.observation import unseen


def said(text: str) -> Content:
    return Content(role="user", parts=(Part(text=text),))


def case_of(*texts: str, state: dict[str, Any] | None = None) -> EvalCase:
    return EvalCase(
        eval_id="c1",
        conversation=tuple(Invocation(user_content=said(text)) for text in texts),
        session_input=None if state is None else SessionInput(app_name="a", user_id="u", state=state),
    )


def play(function: Callable[..., Any], case: EvalCase, *, run_index: int = 0, timeout_s: float | None = None) -> Conversation:
    agent = CallableAgent(function=function, name="fn", limits=Limits(case_s=timeout_s))
    return anyio.run(agent.converse, case, run_index)


def test_each_turn_of_the_case_is_one_call_and_one_invocation() -> None:
    played = play(lambda text, session: f"you said {text}", case_of("one", "two"))
    assert [turn.final_text for turn in played.actual] == ["you said one", "you said two"]
    assert [turn.user_text for turn in played.actual] == ["one", "two"]
    assert played.error == ""


def test_a_case_without_turns_is_played_without_a_call() -> None:
    def never(text: str, session: Session) -> str:
        raise AssertionError

    assert play(never, case_of()) == Conversation(actual=(), session_state={})


def test_the_session_tells_case_run_history_and_state() -> None:
    seen = []

    def look(text: str, session: Session) -> str:
        session.state["turns"] = session.state.get("turns", 0) + 1
        seen.append((session.eval_id, session.run_index, [turn.final_text for turn in session.history]))
        return text.upper()

    played = play(look, case_of("a", "b", state={"owner": "Ada"}), run_index=2)
    assert seen == [("c1", 2, []), ("c1", 2, ["A"])]
    assert played.session_state == {"owner": "Ada", "turns": 2}


def test_the_state_of_the_case_is_never_changed() -> None:
    case = case_of("a", state={"devices": {"lamp": "off"}})

    def switch(text: str, session: Session) -> None:
        session.state["devices"]["lamp"] = "on"

    assert play(switch, case).session_state == {"devices": {"lamp": "on"}}
    assert case.session_input is not None
    assert case.session_input.state == {"devices": {"lamp": "off"}}


async def answer_async(text: str, session: Session) -> str:
    await anyio.lowlevel.checkpoint()
    return f"async {text}"


def answer_later(text: str, session: Session) -> Awaitable[str]:
    return answer_async(text, session)


class AsyncObject:
    async def __call__(self, text: str, session: Session) -> str:
        return f"object {text}"


@pytest.mark.parametrize(
    ("function", "answer"),
    [(answer_async, "async x"), (AsyncObject(), "object x"), (answer_later, "async x")],
    ids=["function", "object", "sync function that returns an awaitable"],
)
def test_async_functions_are_awaited(function: Callable[..., Any], answer: str) -> None:
    assert play(function, case_of("x")).actual[0].final_text == answer


def test_async_functions_run_in_the_loop_and_sync_ones_beside_it() -> None:
    threads: dict[str, bool] = {}

    async def in_loop(text: str, session: Session) -> None:
        threads["async"] = threading.current_thread() is threading.main_thread()

    def in_worker(text: str, session: Session) -> None:
        threads["sync"] = threading.current_thread() is threading.main_thread()

    play(in_loop, case_of("x"))
    play(in_worker, case_of("x"))
    assert threads == {"async": True, "sync": False}


def test_sync_functions_do_not_hold_up_other_conversations() -> None:
    met = threading.Barrier(2, timeout=120)

    def meet(text: str, session: Session) -> str:
        met.wait()
        return "met"

    async def both() -> list[Conversation]:
        agent = CallableAgent(function=meet, name="fn")
        return list(await asyncio.gather(agent.converse(case_of("x"), 0), agent.converse(case_of("x"), 1)))

    assert [played.actual[0].final_text for played in anyio.run(both)] == ["met", "met"]


def test_silence_is_an_invocation_without_an_answer() -> None:
    played = play(lambda text, session: None, case_of("hello"))
    assert len(played.actual) == 1
    assert played.actual[0].final_response is None
    assert played.error == ""


def test_a_dict_may_leave_out_the_user_and_tell_the_calls() -> None:
    answer = {"final_response": "done", "intermediate_data": {"tool_uses": [{"name": "f", "args": {"x": 1}}]}}
    (turn,) = play(lambda text, session: answer, case_of("do it")).actual
    assert (turn.user_text, turn.final_text) == ("do it", "done")
    assert [(call.name, call.args) for call in turn.tool_calls] == [("f", {"x": 1})]


def test_an_invocation_keeps_its_own_user_text_and_duration() -> None:
    own = Invocation(user_content=said("rewritten"), duration=4.5)
    (turn,) = play(lambda text, session: own, case_of("original")).actual
    assert turn == own


def test_an_invocation_without_user_text_gets_the_one_of_the_case() -> None:
    (turn,) = play(lambda text, session: Invocation(user_content=Content()), case_of("original")).actual
    assert turn.user_content == said("original")


def test_the_time_of_each_turn_is_measured() -> None:
    def slow(text: str, session: Session) -> str:
        time.sleep(0.05 if text == "slow" else 0)
        return text

    first, second = play(slow, case_of("slow", "fast")).actual
    assert first.duration is not None
    assert second.duration is not None
    assert 0.05 <= first.duration < 10
    assert second.duration < first.duration
    assert round(first.duration, 3) == first.duration


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_ends_the_conversation_and_keeps_the_turns_before(is_async: bool) -> None:
    def fail(text: str, session: Session) -> str:
        if text == "bad":
            raise KeyError(text)
        return text

    async def fail_async(text: str, session: Session) -> str:
        return fail(text, session)

    played = play(fail_async if is_async else fail, case_of("good", "bad", "never"))
    assert [turn.final_text for turn in played.actual] == ["good"]
    assert played.error == "turn 2: KeyError: 'bad'"
    assert played.session_state is None


def test_an_answer_that_means_nothing_is_an_error_of_its_turn() -> None:
    played = play(lambda text, session: 42, case_of("x"))
    assert played.actual == ()
    assert played.error.startswith("turn 1: EvalSetError: answer of fn")
    assert "found 42; wanted a text, an Invocation or a dict of one" in played.error


def test_a_scenario_that_nobody_plays_is_an_error_in_words_for_users() -> None:
    case = EvalCase(eval_id="s", conversation_scenario=ConversationScenario(starting_prompt="hi", conversation_plan="chat"))
    played = play(lambda text, session: text, case)
    assert played.actual == ()
    assert played.error.startswith("this case has a conversation_scenario, but nothing simulates its user here")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_case_that_takes_too_long_keeps_its_finished_turns(is_async: bool) -> None:
    release = threading.Event()

    def hang(text: str, session: Session) -> str:
        if text == "hang":
            release.wait(300)
        return text

    async def hang_async(text: str, session: Session) -> str:
        if text == "hang":
            await anyio.sleep(300)
        return text

    played = play(hang_async if is_async else hang, case_of("quick", "hang"), timeout_s=0.8)
    release.set()
    assert [turn.final_text for turn in played.actual] == ["quick"]
    assert played.error == "the case took longer than its limit of 0.8 s"


def test_a_case_within_its_limit_is_left_alone() -> None:
    assert play(lambda text, session: text, case_of("x"), timeout_s=30).error == ""


def test_cancellation_from_outside_is_not_mistaken_for_a_failure() -> None:
    async def hang(text: str, session: Session) -> None:
        await anyio.sleep_forever()

    async def cancelled() -> Conversation | None:
        with anyio.move_on_after(0.05):
            return await CallableAgent(function=hang, name="fn").converse(case_of("x"), 0)
        return None

    assert anyio.run(cancelled) is None


def test_errors_do_not_show_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEATHER_API_KEY", "sk-123456789")
    monkeypatch.setenv("SHORT_TOKEN", "on")
    monkeypatch.setenv("CITY", "Wellington")
    error = ValueError("GET /?key=sk-123456789 turned on in Wellington")
    assert described(error) == "ValueError: GET /?key=[WEATHER_API_KEY] turned on in Wellington"
    assert described(error, private={"CITY"}).endswith("turned on in [CITY]")


def test_errors_without_words_are_named_by_their_type() -> None:
    assert described(TimeoutError()) == "TimeoutError"


def test_a_group_of_one_error_is_that_error() -> None:
    assert described(ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no such room")])) == "ValueError: no such room"
    assert described(ExceptionGroup("two", [ValueError("a"), ValueError("b")])) == "ExceptionGroup: two (2 sub-exceptions)"


def lamp(on: bool) -> bool:
    return on


def with_tool(text: str, session: Session) -> str:
    session.tool(lamp)
    return text


def in_first_turn(text: str, session: Session) -> Any:
    return text if session.history else {"final_response": text, "intermediate_data": {"tool_uses": []}}


EVENT = {"author": "fn", "content": {"parts": [{"text": "hi"}]}}
TELLING: dict[str, tuple[Callable[..., Any], bool]] = {
    "a text": (lambda text, session: text, False),
    "nothing": (lambda text, session: None, False),
    "texts, bit by bit": (lambda text, session: iter(["a", "b"]), False),
    "a turn without steps": (lambda text, session: {"final_response": text}, True),
    "the steps of one turn": (in_first_turn, True),
    "a turn of ours": (lambda text, session: Invocation(user_content=said(text), intermediate_data=IntermediateData()), True),
    "an event": (lambda text, session: iter([EVENT]), True),
    "a tool that it did not call": (with_tool, True),
}


@pytest.mark.parametrize("what", TELLING)
def test_what_a_function_called_is_unknown_unless_it_says_so(what: str) -> None:
    function, tells = TELLING[what]
    played = play(function, case_of("hi", "again"))
    for turn in range(2):
        why = unseen(played, turn, ["calls", "call_results", "inner_calls"])
        assert bool(why) is not tells
        assert tells or "wrap its tools with session.tool" in why
    assert unseen(played, 0, ["timing"]) == unseen(played, 0, ["state"]) == ""
    assert unseen(played, 0, ["usage"])
    assert unseen(played, 0, ["model_calls"])


def test_an_error_in_an_event_that_a_function_passes_on_is_one_of_the_turn() -> None:
    """As of `adk api_server`, whose events are JSON."""
    failed = {"author": "checker", "errorCode": "SAFETY", "errorMessage": "blocked"}
    played = play(lambda text, session: iter([EVENT, failed]), case_of("hi", "again"))
    assert (played.error, len(played.actual)) == ("turn 1: SAFETY: blocked", 1)


def test_a_function_passes_on_what_a_workflow_gives_out() -> None:
    given = {"author": "flow", "output": {"total": 48}, "nodeInfo": {"path": "flow@1/f@1", "outputFor": ["flow@1/f@1", "flow@1"]}}
    inner = {"author": "flow", "output": "no", "nodeInfo": {"path": "flow@1/g@1", "outputFor": ["flow@1/g@1"]}}
    (turn,) = play(lambda text, session: iter([EVENT, given, inner]), case_of("hi")).actual
    assert turn.final_text == '{"total": 48}'


def test_media_and_spoken_words_are_answers() -> None:
    image = {"inline_data": {"mime_type": "image/png", "data": "AA=="}}
    answers = iter([[image], [{"audio_transcription": {"text": "Hello!"}}], [{"text": "hm", "thought": True}], [{"text": "last"}]])
    messages: list[Any] = []

    def agent(text: str, session: Session) -> Any:
        messages[:] = session.messages
        return {"final_response": {"parts": next(answers)}}

    played = play(agent, case_of("1", "2", "3", "4"))
    assert [turn.final_text for turn in played.actual] == ["", "Hello!", "", "last"]
    assert [turn.shown_answer for turn in played.actual] == ["[image/png]", "Hello!", "", "last"]
    assert [turn.answered for turn in played.actual] == [True, True, False, True]
    assert [message["content"] for message in messages] == ["1", "[image/png]", "2", "Hello!", "3", "4"]
