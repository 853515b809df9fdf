"""Agents that speak A2A, in both dialects, by loopback servers that speak the documented format."""

from __future__ import annotations

import base64
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.a2a_wire import ADK_EVENTS, Message, Task, answer_of, card_of, error_of, events_of
from mlflow_adk_eval.agents.protocol import Limits
from mlflow_adk_eval.criteria.efficiency import inference_calls, token_usage
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Content, EvalCase, IntermediateData, Invocation, Part
from mlflow_adk_eval.evalset.observation import unseen
from mlflow_adk_eval.results.outcomes import Scored, Skipped
from tests.agents.functions.test_functions import case_of
from tests.agents.http.http_kit import CARD, OLDER_CARD, A2AServer, calls, echo_a2a, had, said_in
from tests.judge.servers import HANG, RESET, Call, Reply, Server, serving

both = pytest.mark.parametrize("older", [False, True], ids=["1.0", "0.3"])


def play(server: Server, case: EvalCase, **settings: Any) -> Conversation:
    return had(A2AAgent(server.url, **({"attempts": 2} | settings)), case)[0]


def sent(server: Server) -> list[Call]:
    return [call for call in server.calls if call.method == "POST"]


@both
def test_the_agent_remembers_what_was_said_before(older: bool) -> None:
    with serving(A2AServer(echo_a2a, older)) as server:
        played = play(server, case_of("one", "two", "three"))
    assert played.error == ""
    assert [turn.final_text for turn in played.actual] == ["one", "one|two", "one|two|three"]
    assert [call.body["params"]["message"].get("contextId") for call in sent(server)] == [None, "ctx-2", "ctx-2"]
    assert len({call.body["params"]["message"]["messageId"] for call in sent(server)}) == 3
    assert played.session_state is None


def test_the_dialect_of_version_1() -> None:
    with serving(A2AServer(echo_a2a)) as server:
        play(server, case_of("hi"))
    (call,) = sent(server)
    assert (call.path, call.body["jsonrpc"], call.body["method"]) == ("/rpc", "2.0", "SendMessage")
    message = call.body["params"]["message"]
    assert (message["role"], message["parts"]) == ("ROLE_USER", [{"text": "hi"}])
    assert (call.headers["a2a-version"], call.headers["a2a-extensions"]) == ("1.0", ADK_EVENTS)


def test_the_older_dialect() -> None:
    with serving(A2AServer(echo_a2a, older=True)) as server:
        play(server, case_of("hi"))
    (call,) = sent(server)
    assert call.body["method"] == "message/send"
    message = call.body["params"]["message"]
    assert (message["kind"], message["role"], message["parts"]) == ("message", "user", [{"kind": "text", "text": "hi"}])
    assert call.body["params"]["configuration"] == {"blocking": True}
    assert call.headers["x-a2a-extensions"] == ADK_EVENTS


@both
def test_conversations_at_the_same_time_do_not_mix_and_share_card_and_connections(older: bool) -> None:
    with serving(A2AServer(echo_a2a, older)) as server:
        agent = A2AAgent(server.url)
        played = had(agent, *[case_of(f"a{n}", f"b{n}") for n in range(8)])
    assert [one.actual[1].final_text for one in played] == [f"a{n}|b{n}" for n in range(8)]
    assert [call.path for call in server.calls if call.method == "GET"] == [CARD]
    assert server.connections <= 8


@both
def test_a_task_tells_what_happened_on_the_way_and_its_artifacts_are_the_answer(older: bool) -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        text, data = server.artifact({"text": "It is on."}), server.artifact({"data": {"room": "hall", "lamps": [1, 2]}})
        history = [
            {**server.words(said_in(call)), "role": "user" if older else "ROLE_USER"},
            server.words("Looking."),
            server.words("Switching."),
        ]
        return server.task(call, "completed", artifacts=[text, data], history=history)

    with serving(A2AServer(answer, older)) as server:
        (turn,) = play(server, case_of("hi")).actual
    assert turn.final_text == 'It is on.\n{"room": "hall", "lamps": [1, 2]}'
    assert isinstance(turn.intermediate_data, IntermediateData)
    assert [parts[0].text for _, parts in turn.intermediate_data.intermediate_responses] == ["Looking.", "Switching."]
    assert {author for author, _ in turn.intermediate_data.intermediate_responses} == {"home"}
    assert inference_calls(turn) == Skipped("no model call was recorded")


@both
def test_what_a_task_says_last_is_the_answer_if_it_has_no_artifacts(older: bool) -> None:
    def by_status(server: A2AServer, call: Call) -> Any:
        return server.task(call, "completed", said="It is on.")

    def by_history(server: A2AServer, call: Call) -> Any:
        return server.task(call, "completed", history=[server.words("Looking."), server.words("It is on.")])

    for answer in (by_status, by_history):
        with serving(A2AServer(answer, older)) as server:
            assert play(server, case_of("hi")).actual[0].final_text == "It is on."


def test_the_answer_is_not_among_what_was_said_before_it() -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        return server.task(call, "completed", artifacts=[server.artifact({"text": "On."})], history=[server.words("On.")])

    with serving(A2AServer(answer)) as server:
        (turn,) = play(server, case_of("hi")).actual
    assert (turn.final_text, turn.intermediate_data) == ("On.", None)


def adk_event(server: A2AServer, *parts: Any, usage: Any = None) -> Any:
    about = {"adk_event_id": "e", "adk_author": "switcher", **({"adk_usage_metadata": usage} if usage else {})}
    return server.artifact(*parts, **about)


def adk_data(kind: str, **data: Any) -> Any:
    return {"data": data, "metadata": {"adk_type": kind}}


@both
def test_events_of_adk_keep_their_calls_authors_and_tokens(older: bool) -> None:
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 2}

    def answer(server: A2AServer, call: Call) -> Any:
        asked = adk_data("function_call", id="f1", name="lamp", args={"on": True})
        done = adk_data("function_response", id="f1", name="lamp", response={"ok": True})
        artifacts = [
            adk_event(server, {"text": "Switching."}, asked, usage=usage),
            adk_event(server, done),
            adk_event(server, {"text": "hm", "metadata": {"adk_thought": True}}, {"text": "It is on."}, usage=usage),
        ]
        return server.task(call, "completed", artifacts=artifacts)

    with serving(A2AServer(answer, older)) as server:
        (turn,) = play(server, case_of("hi")).actual
    assert calls(turn) == [("lamp", {"on": True})]
    assert [answer and answer.response for _, answer in turn.answered_calls()] == [{"ok": True}]
    assert turn.final_response == Content(role="model", parts=(Part(text="hm", thought=True), Part(text="It is on.")))
    assert {event.author for event in turn.events} == {"switcher"}
    tokens = token_usage(turn)
    assert isinstance(tokens, Scored)
    assert (tokens.score, inference_calls(turn)) == (24, Scored(2.0))


def test_calls_in_the_history_of_older_adk_servers_are_found() -> None:
    """As google-adk 1.19 to 2.13 with a2a-sdk 0.3 tell it where the extension is not known."""

    def answer(server: A2AServer, call: Call) -> Any:
        call_message = {**server.words("Switching.")}
        call_message["parts"] = [*call_message["parts"], {"kind": "data", **adk_data("function_call", id="f1", name="lamp", args={})}]
        reply_message = {
            **server.words(""),
            "parts": [{"kind": "data", **adk_data("function_response", id="f1", name="lamp", response={})}],
        }
        history = [call_message, reply_message, server.words("Done.")]
        return server.task(call, "completed", artifacts=[server.artifact({"kind": "text", "text": "Done."})], history=history)

    with serving(A2AServer(answer, older=True)) as server:
        (turn,) = play(server, case_of("hi")).actual
    assert calls(turn) == [("lamp", {})]
    assert len(turn.tool_responses) == 1
    assert turn.final_text == "Done."


def test_data_that_is_not_what_adk_says_it_is_stays_data() -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        return server.task(call, "completed", artifacts=[server.artifact(adk_data("function_call", args="none"))])

    with serving(A2AServer(answer)) as server:
        assert play(server, case_of("hi")).actual[0].final_text == '{"args": "none"}'


PNG = base64.b64encode(b"png").decode()


@pytest.mark.parametrize(
    ("older", "part", "expected"),
    [
        (False, {"raw": PNG, "mediaType": "image/png"}, Part(inline_data={"data": PNG, "mime_type": "image/png"})),
        (False, {"url": "https://x/y.png"}, Part(file_data={"file_uri": "https://x/y.png"})),
        (
            True,
            {"kind": "file", "file": {"bytes": PNG, "mimeType": "image/png"}},
            Part(inline_data={"data": PNG, "mime_type": "image/png"}),
        ),
        (
            True,
            {"kind": "file", "file": {"uri": "https://x/y.png", "mimeType": "image/png"}},
            Part(file_data={"file_uri": "https://x/y.png", "mime_type": "image/png"}),
        ),
    ],
)
def test_files_are_kept(older: bool, part: Any, expected: Part) -> None:
    with serving(A2AServer(lambda server, call: server.task(call, "completed", artifacts=[server.artifact(part)]), older)) as server:
        (turn,) = play(server, case_of("hi")).actual
    assert turn.final_response is not None
    assert turn.final_response.parts == (expected,)


@pytest.mark.parametrize(
    ("older", "parts"),
    [
        (False, [{"text": "Look:"}, {"raw": PNG, "mediaType": "image/png"}, {"url": "https://x/y.png", "mediaType": ""}]),
        (
            True,
            [
                {"kind": "text", "text": "Look:"},
                {"kind": "file", "file": {"bytes": PNG, "mimeType": "image/png"}},
                {"kind": "file", "file": {"uri": "https://x/y.png", "mimeType": ""}},
            ],
        ),
    ],
)
def test_files_of_the_user_are_sent(older: bool, parts: Any) -> None:
    given = (Part(text="Look:"), Part(inline_data={"data": PNG, "mime_type": "image/png"}), Part(file_data={"file_uri": "https://x/y.png"}))
    case = EvalCase(eval_id="c", conversation=(Invocation(user_content=Content(role="user", parts=given)),))
    with serving(A2AServer(echo_a2a, older)) as server:
        assert play(server, case).error == ""
    assert sent(server)[0].body["params"]["message"]["parts"] == parts


def test_what_cannot_be_said_is_not_left_out_in_silence() -> None:
    given = (Part(text="Hi"), Part(function_response={"name": "f", "response": {}}))  # type: ignore[arg-type]
    case = EvalCase(eval_id="c", conversation=(Invocation(user_content=Content(role="user", parts=given)),))
    with serving(A2AServer(echo_a2a)) as server:
        played = play(server, case)
    assert "a part that is neither text nor a file" in played.error
    assert sent(server) == []


@both
@pytest.mark.parametrize(
    ("state", "said", "error"),
    [
        ("failed", "no power", "turn 1: the agent's task failed: no power"),
        ("failed", "", "turn 1: the agent's task failed"),
        ("rejected", "not my business", "turn 1: the agent's task was rejected: not my business"),
        ("canceled", "", "turn 1: the agent's task was canceled"),
        ("auth-required", "log in", "turn 1: the agent's task wants credentials: log in"),
        ("dancing", "", "turn 1: the agent's task is in state 'dancing'"),
    ],
)
def test_a_task_that_comes_to_nothing_is_an_error_and_keeps_what_it_told(older: bool, state: str, said: str, error: str) -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        return server.task(call, state, said=said, history=[server.words("Looking.")])

    with serving(A2AServer(answer, older)) as server:
        played = play(server, case_of("hi", "never"))
    assert played.error == error
    assert played.unfinished
    assert played.actual[0].final_response is None
    assert isinstance(played.actual[0].intermediate_data, IntermediateData)
    assert len(sent(server)) == 1


@both
def test_an_agent_that_asks_back_gets_the_next_message_in_its_task(older: bool) -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        message = call.body["params"]["message"]
        if message.get("taskId") is None:
            return server.task(call, "input-required", said="Which room?", history=[server.words("Thinking.")])
        context = server.context(call)
        old = [{**server.words("Thinking."), "messageId": "m-1"}, {**server.words("Which room?"), "messageId": "m-2"}]
        done = {"id": message["taskId"], "contextId": context, "status": server.status("completed")}
        return server.wrapped({**done, "history": [*old, server.words("Switching.")], "artifacts": [server.artifact({"text": "On."})]})

    def numbered(server: A2AServer, call: Call) -> Any:
        found = answer(server, call)
        task = found if older else found["task"]
        if task["status"]["state"].lower().endswith("required"):
            task["history"][0]["messageId"], task["status"]["message"]["messageId"] = "m-1", "m-2"
        return found

    with serving(A2AServer(numbered, older)) as server:
        played = play(server, case_of("lamp on", "hall", "again"))
    assert played.error == ""
    assert [turn.final_text for turn in played.actual] == ["Which room?", "On.", "Which room?"]
    first, second, third = (call.body["params"]["message"] for call in sent(server))
    assert (first.get("taskId"), third.get("taskId")) == (None, None)
    assert second["taskId"].startswith("task-")
    data = played.actual[1].intermediate_data
    assert isinstance(data, IntermediateData)
    assert [parts[0].text for _, parts in data.intermediate_responses] == ["Switching."]


def test_ids_need_to_be_unique_within_a_task_only() -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        return server.task(call, "completed", artifacts=[{"artifactId": "result", "parts": [{"text": "Yes."}]}])

    with serving(A2AServer(answer)) as server:
        assert [turn.final_text for turn in play(server, case_of("a", "b")).actual] == ["Yes.", "Yes."]


def test_equal_calls_without_ids_are_several() -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        asked = {"role": "ROLE_AGENT", "parts": [adk_data("function_call", name="lamp", args={})]}
        return server.task(call, "completed", said="Done.", history=[asked, asked])

    with serving(A2AServer(answer)) as server:
        assert calls(play(server, case_of("a")).actual[0]) == [("lamp", {})] * 2


@pytest.mark.slow
@both
def test_a_task_that_takes_its_time_is_waited_for(older: bool) -> None:
    polls: list[str] = []

    def answer(server: A2AServer, call: Call) -> Any:
        if "message" in call.body["params"]:
            return server.task(call, "submitted")
        polls.append(call.body["method"])
        task = {
            "id": call.body["params"]["id"],
            "contextId": "ctx-2",
            "status": server.status("working" if len(polls) < 3 else "completed"),
        }
        task["artifacts"] = [server.artifact({"text": "Done."})] if len(polls) == 3 else []
        return task

    with serving(A2AServer(answer, older)) as server:
        played = play(server, case_of("hi"))
    assert (played.error, played.actual[0].final_text) == ("", "Done.")
    assert polls == ["tasks/get" if older else "GetTask"] * 3


@both
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"task_s": 1.5}, "turn 1: the agent's task was still working after 1.5 s"),
        ({"limits": Limits(turn_s=1.5)}, "turn 1 took longer than its limit of 1.5 s"),
        ({"limits": Limits(case_s=1.5)}, "the case took longer than its limit of 1.5 s"),
    ],
    ids=["task", "turn", "case"],
)
def test_a_task_without_end_is_given_up_with_what_it_told_and_cancelled(older: bool, settings: Any, error: str) -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        if "message" in call.body["params"]:
            return server.task(call, "working", history=[server.words("Looking.")])
        history = [{**server.words("Looking."), "messageId": "same"}]
        return {"id": call.body["params"]["id"], "contextId": "c", "status": server.status("working"), "history": history}

    with serving(A2AServer(answer, older)) as server:
        played = play(server, case_of("hi"), **settings)
    assert played.error == error
    assert played.unfinished
    data = played.actual[0].intermediate_data
    assert isinstance(data, IntermediateData)
    assert [parts[0].text for _, parts in data.intermediate_responses] == ["Looking."]
    assert sent(server)[-1].body["method"] == ("tasks/cancel" if older else "CancelTask")


def test_the_card_is_found_at_the_older_place_too() -> None:
    with serving(A2AServer(echo_a2a, older=True, paths=(OLDER_CARD,))) as server:
        assert play(server, case_of("hi")).error == ""
    assert [call.path for call in server.calls] == [CARD, OLDER_CARD, "/rpc"]


@pytest.mark.parametrize(
    ("address", "paths", "asked"),
    [
        ("/home/", (f"/home{CARD}",), [f"/home{CARD}"]),
        ("/cards/home.json", ("/cards/home.json",), ["/cards/home.json"]),
        ("/home?key=1", (f"/home{CARD}",), [f"/home{CARD}"]),
    ],
)
def test_the_card_is_below_the_address_or_at_it(address: str, paths: tuple[str, ...], asked: list[str]) -> None:
    with serving(A2AServer(echo_a2a, paths=paths)) as server:
        assert had(A2AAgent(server.url + address), case_of("hi"))[0].error == ""
    assert [call.path for call in server.calls if call.method == "GET"] == asked


def test_no_card_at_all() -> None:
    with serving(A2AServer(echo_a2a, paths=())) as server:
        played = play(server, case_of("hi"))
    assert played.error == f"the agent could not be started: HttpError: {server.url}{OLDER_CARD} answered 404 Scripted: nothing here"


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ({"url": None, "supportedInterfaces": None}, "that is not an agent card"),
        ({"supportedInterfaces": "none"}, "that is not an agent card"),
        (
            {"supportedInterfaces": [{"url": "http://h", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]},
            "offers GRPC 1.0; wanted JSONRPC of version 0.3 or 1",
        ),
        ({"supportedInterfaces": [{"url": "http://h", "protocolBinding": "JSONRPC", "protocolVersion": "7.1"}]}, "offers JSONRPC 7.1"),
        (
            {"supportedInterfaces": [{"url": "grpc://h:1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]},
            "an HTTP agent needs an address",
        ),
    ],
)
def test_cards_that_lead_nowhere(card: Any, words: str) -> None:
    with serving(A2AServer(echo_a2a, card=card)) as server:
        played = play(server, case_of("hi"))
    assert words in played.error
    assert sent(server) == []


def test_the_first_interface_that_is_understood_is_used() -> None:
    said = {
        "name": "home",
        "url": "http://h/grpc",
        "preferredTransport": "GRPC",
        "additionalInterfaces": [{"url": "http://h/rest", "transport": "HTTP+JSON"}, {"url": "http://h/rpc", "transport": "JSONRPC"}],
    }
    card = card_of(said)
    assert card is not None
    interface = card.interface
    assert interface is not None
    assert (interface.url, interface.protocol_version) == ("http://h/rpc", "0.3")
    newer = card_of({**said, "supportedInterfaces": [{"url": "http://h/1", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]})
    assert newer is not None
    assert newer.interface.url == "http://h/1"  # type: ignore[union-attr]


def test_the_tenant_of_an_interface_is_part_of_each_call() -> None:
    def card(server: Server) -> Any:
        return {
            "supportedInterfaces": [{"url": f"{server.url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "acme"}]
        }

    agent = A2AServer(echo_a2a)
    with serving(agent) as server:
        agent.card = card(server)
        assert play(server, case_of("hi")).error == ""
    assert sent(server)[0].body["params"]["tenant"] == "acme"


def test_headers_go_to_the_server_that_they_were_given_for() -> None:
    agent = A2AServer(echo_a2a)
    with serving(echoing_elsewhere) as other, serving(agent) as server:
        agent.card = {"supportedInterfaces": [{"url": f"{other.url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]}
        headers = {"Authorization": "Bearer 0123456789"}
        refused = play(server, case_of("hi"), headers=headers)
        assert other.calls == []
        allowed = play(server, case_of("hi"), headers=headers, endpoint=f"{other.url}/rpc")
        open_to_all = play(server, case_of("hi"))
    assert f"points to {other.url}/rpc: to send your headers there, pass endpoint='{other.url}/rpc'" in refused.error
    assert (allowed.error, open_to_all.error) == ("", "")
    assert [call.headers.get("authorization") for call in other.calls] == ["Bearer 0123456789", None]
    assert {call.headers.get("authorization") for call in server.calls} == {"Bearer 0123456789", None}


def echoing_elsewhere(call: Call) -> Reply:
    said = {"message": {"messageId": "m", "contextId": "c", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}
    return Reply(body={"jsonrpc": "2.0", "id": call.body["id"], "result": said})


def test_an_error_of_json_rpc_is_the_turns() -> None:
    def answer(server: A2AServer, call: Call) -> Any:
        return Reply(body={"jsonrpc": "2.0", "id": call.body["id"], "error": {"code": -32603, "message": "Internal error", "data": None}})

    with serving(A2AServer(answer)) as server:
        played = play(server, case_of("hi"))
    assert played.error == f"turn 1: {server.url}/rpc answered with an error: Internal error"


@pytest.mark.parametrize("result", [None, {}, [], "hello", {"task": {"id": "t"}}, {"message": {"role": "agent"}}, {"status": {}}])
def test_results_of_another_shape(result: Any) -> None:
    with serving(A2AServer(lambda server, call: Reply(body={"jsonrpc": "2.0", "id": 1, "result": result}))) as server:
        played = play(server, case_of("hi"))
    assert "answered with JSON that is not a message or a task of A2A: " in played.error


@both
def test_a_message_is_not_said_twice_in_one_conversation(older: bool) -> None:
    broken: list[str] = []

    def answer(server: A2AServer, call: Call) -> Any:
        if len(broken) < 2 and said_in(call) not in broken:
            broken.append(said_in(call))
            server.context(call)
            return RESET
        return echo_a2a(server, call)

    with serving(A2AServer(answer, older)) as server:
        played = play(server, case_of("one", "two"))
    assert played.actual[0].final_text == "one", "the first message began another conversation"
    assert played.error.startswith(f"turn 2: the connection to {server.url}/rpc broke: ")
    assert [said_in(call) for call in sent(server)] == ["one", "one", "two"]


def test_an_overloaded_agent_is_asked_again_with_the_same_message() -> None:
    busy = iter([False, True, False])

    def answer(server: A2AServer, call: Call) -> Any:
        return Reply(status=503) if next(busy) else echo_a2a(server, call)

    with serving(A2AServer(answer)) as server:
        played = play(server, case_of("one", "two"))
    assert [turn.final_text for turn in played.actual] == ["one", "one|two"]
    _, first, second = (call.body["params"]["message"]["messageId"] for call in sent(server))
    assert first == second


def test_a_server_that_never_answers() -> None:
    with serving(A2AServer(lambda server, call: HANG)) as server:
        started = time.monotonic()
        played = play(server, case_of("hi"), timeout_s=0.3)
    assert played.error == f"turn 1: {server.url}/rpc did not answer within 0.3 s"
    assert time.monotonic() - started < 20


def test_an_agent_that_says_nothing() -> None:
    with serving(A2AServer(lambda server, call: server.task(call, "completed"))) as server:
        played = play(server, case_of("hi"))
    assert (played.error, played.actual[0].final_response, played.actual[0].intermediate_data) == ("", None, None)


WORDS = st.sampled_from(["completed", "TASK_STATE_WORKING", "failed", "agent", "ROLE_AGENT", "x", ""])
KEYS = [
    "task",
    "message",
    "status",
    "state",
    "parts",
    "text",
    "data",
    "id",
    "messageId",
    "artifacts",
    "history",
    "metadata",
    "adk_type",
    "file",
    "raw",
    "role",
]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | WORDS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
        max_leaves=25,
    )
)
def test_no_json_at_all_makes_the_reader_fail(said: Any) -> None:
    found = answer_of(said)
    assert found is None or isinstance(found, Message | Task)
    if found is not None:
        events = events_of(found, "home", set())
        assert sum(event.final for event in events) <= 1
        assert isinstance(error_of(found), str)
    assert card_of(said) is None


@both
def test_what_an_agent_that_sends_only_texts_called_is_unknown(older: bool) -> None:
    with serving(A2AServer(echo_a2a, older)) as server:
        played = play(server, case_of("one", "two"))
    for turn in range(2):
        assert "does not report the events of its turns" in unseen(played, turn, ["calls"])
        assert unseen(played, turn, ["model_calls"])
    assert unseen(played, 0, ["timing"]) == ""
