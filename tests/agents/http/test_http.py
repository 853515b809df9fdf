"""What all agents behind HTTP have in common: connections, repeats, errors, secrets, addresses."""

from __future__ import annotations

import gc
import socket
from typing import Any

import anyio
import pytest

from mlflow_adk_eval import AgentError, UsageError, score
from mlflow_adk_eval.agents.conversation import StaticUser, converse
from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent
from mlflow_adk_eval.agents.http.http_agent import HttpError, HttpRequest
from mlflow_adk_eval.agents.protocol import ConversationSetup, Limits, LiveAgent
from mlflow_adk_eval.agents.resolve import headers_of_environment, resolve_agent
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Content, EvalCase, EvalSet, Part
from tests.agents.functions.test_function_tools import Environment
from tests.agents.functions.test_functions import case_of
from tests.agents.http.http_kit import completion, echoing, had
from tests.judge.servers import CUT, HANG, RESET, Call, Reply, replies, serving

HELLO = completion("hello")


def chat(url: str, **settings: Any) -> OpenAIChatAgent:
    return OpenAIChatAgent(url, **({"attempts": 3} | settings))


def play(agent: OpenAIChatAgent, *texts: str) -> Conversation:
    return had(agent, case_of(*texts))[0]


@pytest.mark.parametrize("reply", [Reply(status=429), Reply(status=503), Reply(status=500), Reply(status=502), RESET, CUT])
def test_what_passes_is_asked_again(reply: Reply) -> None:
    with serving(replies(reply, HELLO)) as server:
        played = play(chat(server.url), "hi")
    assert (played.error, played.actual[0].final_text) == ("", "hello")
    assert len(server.calls) == 2
    assert server.calls[0].body == server.calls[1].body


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_stays_is_not_asked_again(status: int) -> None:
    with serving(replies(Reply(status=status, body={"error": {"message": "no"}}))) as server:
        played = play(chat(server.url), "hi")
    assert len(server.calls) == 1
    assert played.error == f"turn 1: {server.url}/chat/completions answered {status} Scripted: no"


def test_a_server_that_always_fails_ends_the_conversation_with_its_words_and_keeps_the_turns_before() -> None:
    def handler(call: Call) -> Reply:
        return HELLO if len(call.body["messages"]) == 1 else Reply(status=500, body=b"<h1>out of\n order</h1>")

    with serving(handler) as server:
        played = play(chat(server.url), "hi", "again", "never")
    assert played.error == f"turn 2: {server.url}/chat/completions answered 500 Scripted: <h1>out of order</h1> (3 attempts)"
    assert [turn.final_text for turn in played.actual] == ["hello"]
    assert not played.unfinished
    assert len(server.calls) == 4


def test_the_wait_is_not_shorter_than_the_server_asks_for() -> None:
    with serving(replies(Reply(status=429, headers={"Retry-After": "1"}), HELLO)) as server:
        assert play(chat(server.url), "hi").error == ""
    assert server.calls[1].at - server.calls[0].at >= 1


def test_a_server_that_never_answers_is_asked_once() -> None:
    with serving(replies(HANG)) as server:
        played = play(chat(server.url, timeout_s=0.3), "hi")
    assert played.error == f"turn 1: {server.url}/chat/completions did not answer within 0.3 s"
    assert len(server.calls) == 1


def test_an_address_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    played = play(chat(f"http://127.0.0.1:{port}/v1", attempts=2), "hi")
    assert played.error.startswith(f"turn 1: http://127.0.0.1:{port}/v1/chat/completions cannot be reached: ")
    assert played.error.endswith("(2 attempts)")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(body=b"<html>Sign in</html>"), "answered 200 with a body that is not JSON: <html>Sign in</html>"),
        (Reply(body=b""), "answered 200 with a body that is not JSON: an empty body"),
        (Reply(body=b'{"choices": [', headers={}), "answered 200 with a body that is not JSON"),
        (Reply(body=b"\xff\xfe"), "answered 200 with a body that is not JSON"),
        (Reply(body=b"not gzip", headers={"Content-Encoding": "gzip"}), "gave an invalid answer: "),
    ],
)
def test_bodies_that_are_no_json(reply: Reply, words: str) -> None:
    with serving(replies(reply)) as server:
        played = play(chat(server.url), "hi")
    assert words in played.error
    assert len(server.calls) == 1


@pytest.mark.parametrize("limits", [Limits(case_s=2), Limits(turn_s=2)], ids=["case", "turn"])
def test_a_limit_keeps_the_turns_before(limits: Limits) -> None:
    with serving(lambda call: HELLO if len(call.body["messages"]) == 1 else HANG) as server:
        played = play(chat(server.url, limits=limits), "hi", "hang")
    assert "longer than its limit of 2 s" in played.error
    assert [turn.final_text for turn in played.actual] == ["hello"]


def test_connections_are_kept_and_shared() -> None:
    with serving(echoing) as server:
        had(chat(server.url), *[case_of("a", "b", "c") for _ in range(3)])
    assert len(server.calls) == 9
    assert server.connections <= 3


@pytest.mark.slow
@pytest.mark.filterwarnings("error::ResourceWarning")
def test_connections_end_with_their_event_loop() -> None:
    with serving(echoing) as server:
        agent = chat(server.url)
        for _ in range(3):
            assert play(agent, "hi").error == ""
        assert len(agent.pool) == 1
    gc.collect()
    assert all(connections.client.is_closed for connections in agent.pool.values())
    assert server.connections == 3


def test_another_address_of_the_same_server_is_followed() -> None:
    def handler(call: Call) -> Reply:
        if call.path.endswith("/"):
            return completion(f"{call.method} {call.headers['x-team']} {call.body['messages'][0]['content']}")
        return Reply(status=307, headers={"Location": f"{call.path}/"})

    with serving(handler) as server:
        played = play(chat(server.url, headers={"X-Team": "blue"}), "hi")
    assert played.actual[0].final_text == "POST blue hi"


@pytest.mark.parametrize(("status", "location"), [(307, "http://localhost:1/elsewhere"), (302, "/login"), (308, "/v1/chat/completions")])
def test_a_detour_is_named_and_not_taken(status: int, location: str) -> None:
    with serving(replies(Reply(status=status, headers={"Location": location}))) as server:
        played = play(chat(f"{server.url}/v1", headers={"Authorization": "Bearer s3cret-s3cret"}), "hi")
    assert f"answered {status} and redirects to " in played.error
    assert location in played.error
    assert {call.path for call in server.calls} == {"/v1/chat/completions"}


def test_neither_errors_nor_reprs_show_secrets() -> None:
    secret = "sk-9876543210"  # noqa: S105 - none of anybody's

    def handler(call: Call) -> Reply:
        return Reply(
            status=401, body={"error": {"message": f"bad key {call.headers['authorization']} / {call.headers['x-key']} / {call.query}"}}
        )

    with serving(handler) as server:
        url = server.url.replace("http://", "http://ada:pass-word-1@") + "/v1?tenant=acme&api_key=query-secret"
        agent = chat(url, headers={"Authorization": f"Bearer {secret}", "X-Key": "another-secret"})
        played = play(agent, "hi")
    assert "[Authorization] / [X-Key]" in played.error
    for hidden in (secret, "another-secret", "query-secret", "pass-word-1"):
        assert hidden not in played.error + repr(agent) + agent.name
    assert server.calls[0].headers["authorization"] == f"Bearer {secret}"
    assert server.calls[0].query == "tenant=acme&api_key=query-secret"


def test_user_and_password_of_an_address_are_sent_as_a_header() -> None:
    with serving(echoing) as server:
        play(chat(server.url.replace("http://", "http://ada:p%40ss@")), "hi")
    assert server.calls[0].headers["authorization"] == "Basic YWRhOnBAc3M="


@pytest.mark.parametrize(
    "url", ["", "agents.acme.com", "ftp://agents.acme.com", "http://", "http://me:secret-word@", "http://h:port/", None, 7]
)
def test_what_is_no_address_is_refused(url: Any) -> None:
    with pytest.raises(UsageError, match="an HTTP agent needs an address such as") as refusal:
        OpenAIChatAgent(url)
    assert "secret-word" not in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"headers": {"X-Key": "two\r\nlines"}}, "header 'X-Key'"),
        ({"headers": {"X-Key": "schlüssel"}}, "header 'X-Key'"),
        ({"headers": {"X Key:": "a"}}, "header 'X Key:'"),
        ({"headers": {"": "a"}}, "header ''"),
        ({"timeout_s": 0}, "timeout_s=0: wanted a number above 0"),
        ({"attempts": True}, "attempts=true"),
        ({"attempts": "3"}, "attempts='3'"),
    ],
)
def test_settings_that_cannot_be_sent_are_refused_without_their_values(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        OpenAIChatAgent("http://localhost/v1", **settings)
    assert words in str(refusal.value)
    assert "lines" not in str(refusal.value)
    assert "schlüssel" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "kind", "name"),
    [
        ("https://api.acme.com/v1/chat/completions", OpenAIChatAgent, "api.acme.com/v1/chat/completions"),
        ("HTTP://api.acme.com/v1/chat/completions/?api-version=7", OpenAIChatAgent, "api.acme.com/v1/chat/completions"),
        (" https://me:pw@agents.acme.com:8443/weather/ ", A2AAgent, "agents.acme.com:8443/weather"),
        ("http://localhost:8000", A2AAgent, "localhost:8000"),
    ],
)
def test_an_address_is_an_agent(url: str, kind: type, name: str) -> None:
    agent = resolve_agent(url, limits=Limits(case_s=3))
    assert isinstance(agent, kind)
    assert isinstance(agent, LiveAgent)
    assert (agent.name, agent.limits) == (name, Limits(case_s=3))


def test_agents_behind_http_have_no_sub_agents() -> None:
    with pytest.raises(UsageError, match=r"only an ADK agent has sub-agents, but agents\.acme\.com is not one"):
        resolve_agent("https://me:pw@agents.acme.com", agent_name="billing")


def test_limits_of_an_evaluation_hold_for_agents_that_are_given_as_objects() -> None:
    own = OpenAIChatAgent("http://localhost/v1", limits=Limits(case_s=5, turn_s=1))
    assert resolve_agent(own, limits=Limits(turn_s=2)).limits == Limits(case_s=5, turn_s=2)  # type: ignore[attr-defined]
    assert resolve_agent(own).limits == own.limits  # type: ignore[attr-defined]


def test_headers_and_model_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ADK_EVAL_AGENT_TOKEN", "tok-0123456789")
    monkeypatch.setenv("MLFLOW_ADK_EVAL_AGENT_HEADERS", "X-Team=blue, X-Key=a%2Cb%3Dc")
    monkeypatch.setenv("MLFLOW_ADK_EVAL_AGENT_MODEL", "home-large")
    with serving(replies(Reply(status=400, body={"message": "no tok-0123456789"}))) as server:
        agent = resolve_agent(f"{server.url}/v1/chat/completions")
        played = anyio.run(agent.converse, case_of("hi"), 0)
    (call,) = server.calls
    assert (call.headers["authorization"], call.headers["x-team"], call.headers["x-key"]) == ("Bearer tok-0123456789", "blue", "a,b=c")
    assert call.body["model"] == "home-large"
    assert "tok-0123456789" not in played.error


def test_a_variable_that_does_not_say_what_it_must_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ADK_EVAL_AGENT_HEADERS", "X-Team=blue,secret-word")
    with pytest.raises(UsageError) as refusal:
        headers_of_environment()
    assert str(refusal.value) == "MLFLOW_ADK_EVAL_AGENT_HEADERS: entry 2 is not name=value"


@pytest.mark.parametrize("agent", [OpenAIChatAgent("http://localhost:1/v1"), A2AAgent("http://localhost:1")])
def test_tools_that_are_out_of_reach_are_not_claimed_to_be_simulated(agent: Any) -> None:
    case = case_of("hi")
    scene = ConversationSetup(user=StaticUser(case.conversation or ()), tools=Environment(lambda tool, args: None))
    played = anyio.run(converse, agent, case, 0, scene)
    assert "the tools of an HTTP agent cannot be simulated" in played.error


@pytest.mark.parametrize(
    ("harmless", "status", "asked"), [(True, 500, 2), (False, 500, 1), (False, 503, 2), (False, 429, 2), (True, 404, 1)]
)
def test_what_the_agent_may_have_heard_is_repeated_only_where_that_does_no_harm(harmless: bool, status: int, asked: int) -> None:
    async def ask(url: str) -> None:
        agent = OpenAIChatAgent(url, timeout_s=10, attempts=2)
        await agent.send(HttpRequest(url=url, body={}, harmless=harmless))

    with serving(replies(Reply(status=status))) as server, pytest.raises(HttpError) as refusal:
        anyio.run(ask, server.url)
    assert len(server.calls) == asked
    assert isinstance(refusal.value, AgentError)
    assert refusal.value.status == status


def passes(agent: OpenAIChatAgent, *answers: str) -> bool:
    """Whether an agent answers to ``a`` and ``b`` what is expected."""
    (played,) = had(agent, case_of("a", "b"))
    conversation = tuple(
        turn.model_copy(update={"final_response": Content(parts=(Part(text=answer),)), "intermediate_data": None})
        for turn, answer in zip(played.actual, answers, strict=True)
    )
    expected = EvalSet(eval_set_id="s", eval_cases=(EvalCase(eval_id="c1", conversation=conversation),))
    return score(expected, {"c1": list(played.actual)}, {"criteria": {"response_match_score": 1.0}}).passed


def test_answers_are_scored_like_any_others() -> None:
    with serving(lambda call: completion(f"you said {call.body['messages'][-1]['content']}")) as server:
        assert passes(chat(server.url), "you said a", "you said b")
        assert not passes(chat(server.url), "you said a", "never mind")
