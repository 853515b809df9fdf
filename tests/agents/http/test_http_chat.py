"""Agents that are spoken with as chat models are."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent, answer_of
from mlflow_adk_eval.criteria.efficiency import inference_calls, token_usage
from mlflow_adk_eval.evalset.model_errors import told_errors
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Part
from mlflow_adk_eval.evalset.observation import Need, unseen
from mlflow_adk_eval.results.outcomes import Scored
from tests.agents.functions.test_functions import case_of
from tests.agents.http.http_kit import calls, completion, echoing, had, tool_call
from tests.judge.servers import Call, Reply, replies, serving


def agent(url: str, **settings: Any) -> OpenAIChatAgent:
    return OpenAIChatAgent(url, **({"attempts": 1} | settings))


def one_turn(reply: Reply, **settings: Any) -> Any:
    with serving(replies(reply)) as server:
        return had(agent(server.url, **settings), case_of("hi"))[0]


def test_each_turn_sends_the_whole_conversation() -> None:
    with serving(lambda call: completion(f"answer {len(call.body['messages'])}")) as server:
        played = had(agent(f"{server.url}/v1", model="home", system="Be brief.", body={"temperature": 0}), case_of("one", "two"))[0]
    assert [turn.final_text for turn in played.actual] == ["answer 2", "answer 4"]
    assert [turn.user_text for turn in played.actual] == ["one", "two"]
    assert played.session_state is None
    assert [call.path for call in server.calls] == ["/v1/chat/completions"] * 2
    assert server.calls[1].body == {
        "model": "home",
        "temperature": 0,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "answer 2"},
            {"role": "user", "content": "two"},
        ],
    }


def test_conversations_at_the_same_time_do_not_mix() -> None:
    with serving(lambda call: echoing(call).after(0.01)) as server:
        played = had(agent(server.url), *[case_of(f"a{n}", f"b{n}") for n in range(8)])
    assert [one.actual[1].final_text for one in played] == [f"u:a{n}|a:u:a{n}|u:b{n}" for n in range(8)]
    assert server.most_in_flight > 1


@pytest.mark.parametrize(
    ("address", "path", "query"),
    [
        ("/v1", "/v1/chat/completions", ""),
        ("/v1/", "/v1/chat/completions", ""),
        ("/v1/chat/completions", "/v1/chat/completions", ""),
        ("/v1/chat/completions/", "/v1/chat/completions", ""),
        ("/deployments/home?api-version=7", "/deployments/home/chat/completions", "api-version=7"),
        ("", "/chat/completions", ""),
    ],
)
def test_the_address_may_be_the_base_or_the_whole(address: str, path: str, query: str) -> None:
    with serving(echoing) as server:
        had(agent(server.url + address), case_of("hi"))
    assert (server.calls[0].path, server.calls[0].query) == (path, query)


def test_tool_calls_are_recorded_with_what_was_said() -> None:
    played = one_turn(completion("Switching.", tool_call("lamp", '{"on": true}'), tool_call("note", "", "t2"), finish="tool_calls"))
    (turn,) = played.actual
    assert calls(turn) == [("lamp", {"on": True}), ("note", {})]
    assert [call.id for call in turn.tool_calls] == ["t1", "t2"]
    assert turn.final_text == "Switching."


@pytest.mark.parametrize(
    ("arguments", "args"),
    [("{broken", {"arguments": "{broken"}), ("[1]", {"arguments": [1]}), (None, {}), ({"on": 1}, {"on": 1}), ("  ", {})],
)
def test_arguments_that_are_no_json_object_are_kept_as_they_are(arguments: Any, args: Any) -> None:
    assert calls(one_turn(completion(None, tool_call("lamp", arguments))).actual[0]) == [("lamp", args)]


def test_tokens_are_told_as_gemini_words_them() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 7,
        "total_tokens": 16,
        "completion_tokens_details": {"reasoning_tokens": 4},
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    (turn,) = one_turn(completion("hello", usage=usage)).actual
    tokens = token_usage(turn)
    assert isinstance(tokens, Scored)
    assert tokens.score == 16
    assert tokens.details == {
        "total_tokens": 16,
        "input_tokens": 9,
        "output_tokens": 7,
        "prompt_tokens": 9,
        "candidates_tokens": 3,
        "reasoning_tokens": 4,
        "cached_tokens": 2,
    }
    assert inference_calls(turn) == Scored(1.0)
    assert turn.events[0].model_version == "home-1"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (completion([{"type": "text", "text": "It "}, {"type": "text", "text": "rains."}]), "It rains."),  # type: ignore[arg-type]
        (completion(None, refusal="I will not."), "I will not."),
        (completion("cut of", finish="length"), "cut of"),
        (completion(""), ""),
        (completion(None), ""),
    ],
)
def test_what_counts_as_the_answer(reply: Reply, text: str) -> None:
    played = one_turn(reply)
    assert (played.error, played.actual[0].final_text) == ("", text)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (completion(None, finish="content_filter"), "a content filter withheld the answer (finish_reason content_filter)"),
        (completion("", finish="length"), "the token limit was reached before the answer began (finish_reason length)"),
    ],
)
def test_an_answer_that_was_withheld_is_an_error_and_is_not_scored(reply: Reply, error: str) -> None:
    played = one_turn(reply)
    assert played.error == f"turn 1: {error}"
    assert played.unfinished
    assert played.actual[0].final_response is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "hello",
        None,
        {"choices": []},
        {"choices": [{"text": "a completion of the old kind"}]},
        {"choices": [{"message": {"content": 7}}]},
        {"choices": "none"},
    ],
)
def test_json_of_another_shape_is_an_error_that_shows_it(body: Any) -> None:
    played = one_turn(Reply(body=body))
    assert "answered with JSON that is not a chat completion: " in played.error
    assert played.actual == ()


def test_an_error_with_status_200_is_in_the_message() -> None:
    assert "that is not a chat completion: credit is used up" in one_turn(Reply(body={"error": {"message": "credit is used up"}})).error


def test_errors_of_an_unexpected_shape_show_no_secrets() -> None:
    with serving(lambda call: Reply(body={"seen": call.headers["x-key"]})) as server:
        played = had(agent(server.url, headers={"X-Key": "key-0123456789"}), case_of("hi"))[0]
    assert "key-0123456789" not in played.error
    assert "[X-Key]" in played.error


def test_what_cannot_be_said_to_a_chat_model_is_not_left_out_in_silence() -> None:
    picture = {"data": base64.b64encode(b"png").decode(), "mime_type": "image/png"}
    user = Content(role="user", parts=(Part(text="What is it?"), Part(inline_data=picture)))
    with serving(echoing) as server:
        played = had(agent(server.url), EvalCase(eval_id="c", conversation=(Invocation(user_content=user),)))[0]
    assert played.error == "turn 1: the user's message has more than text (inline_data); chat completions cannot send it"
    assert server.calls == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["choices", "message", "content", "tool_calls", "function", "usage", "error"]), inner, max_size=4
            )
        ),
        max_leaves=20,
    )
)
def test_no_json_at_all_makes_the_reader_fail(said: Any) -> None:
    found = answer_of(said, "home")
    assert found is None or isinstance(found[0].content, Content | None)


def test_a_silent_turn_is_left_out_of_what_the_agent_is_told_next() -> None:
    def handler(call: Call) -> Reply:
        return completion(None) if len(call.body["messages"]) == 1 else echoing(call)

    with serving(handler) as server:
        played = had(agent(server.url), case_of("one", "two"))[0]
    assert played.actual[1].final_text == "u:one|u:two"


def test_what_a_server_called_by_itself_is_unknown() -> None:
    played = one_turn(completion("hi"))
    needs: tuple[Need, ...] = ("calls", "call_results", "inner_calls", "documents", "state", "model_calls")
    assert all(unseen(played, 0, [need]) for need in needs)
    assert unseen(played, 0, ["timing"]) == ""


def test_calls_in_one_message_show_that_the_server_reports_them() -> None:
    answers = replies(completion(None, tool_call("f", "{}")), completion("hi"))
    with serving(answers) as server:
        played = had(agent(server.url), case_of("one", "two"))[0]
    assert [unseen(played, turn, ["calls", "documents"]) for turn in range(2)] == ["", ""]


@pytest.mark.parametrize(("text", "error"), [("half", ""), ("", "turn 1: the token limit was reached before the answer began")])
def test_an_answer_that_ends_at_the_token_limit_is_cut(text: str, error: str) -> None:
    played = one_turn(completion(text, finish="length"))
    assert played.error.startswith(error)
    assert bool(played.error) is bool(error)
    assert error or told_errors(played.actual[0]) == ["MAX_TOKENS (the text is cut)"]
