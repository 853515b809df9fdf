"""Calls, results and documents that stand only in the messages of models, or in spans of retrievers; and what spans cannot tell."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlflow_adk_eval.agents.traces.chats import calls_in, context_in, documents_in, results_in, since_the_user, tells_calls
from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces
from mlflow_adk_eval.agents.traces.manual import UNTRACED
from mlflow_adk_eval.criteria.transcript import knowledge
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.evalset.observation import observed
from tests.agents.traces.test_traces import span, trace

CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"tz": "UTC"}'}}
ASKED = {"role": "user", "content": "What time is it?"}


def completion(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}


def answered(text: str) -> dict[str, Any]:
    return completion({"content": text})


PROVIDERS: dict[str, tuple[Any, Any, Any]] = {
    "OpenAI's chats": (
        completion({"content": None, "tool_calls": [CALL]}, "tool_calls"),
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
            ]
        },
        answered("It is noon."),
    ),
    "OpenAI's responses": (
        {"output": [{"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"tz": "UTC"}'}]},
        {
            "input": [
                ASKED,
                {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"tz": "UTC"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
            ]
        },
        {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is noon."}]}]},
    ),
    "Anthropic": (
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "now", "input": {"tz": "UTC"}}],
            "stop_reason": "tool_use",
        },
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "now", "input": {"tz": "UTC"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "12:00"}]},
            ]
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It is noon."}], "stop_reason": "end_turn"},
    ),
    "Gemini": (
        {"candidates": [{"content": {"role": "model", "parts": [{"function_call": {"name": "now", "args": {"tz": "UTC"}}}]}}]},
        {
            "contents": [
                {"role": "user", "parts": [{"text": "What time is it?"}]},
                {"role": "model", "parts": [{"function_call": {"name": "now", "args": {"tz": "UTC"}}}]},
                {"role": "user", "parts": [{"function_response": {"name": "now", "response": {"result": "12:00"}}}]},
            ]
        },
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "It is noon."}]}}]},
    ),
    "Bedrock": (
        {
            "output": {
                "message": {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "now", "input": {"tz": "UTC"}}}]}
            }
        },
        {
            "messages": [
                {"role": "user", "content": [{"text": "What time is it?"}]},
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "now", "input": {"tz": "UTC"}}}]},
                {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "12:00"}]}}]},
            ]
        },
        {"output": {"message": {"role": "assistant", "content": [{"text": "It is noon."}]}}},
    ),
    "LangChain": (
        {
            "generations": [
                [
                    {
                        "message": {
                            "type": "ai",
                            "content": "",
                            "tool_calls": [{"type": "tool_call", "id": "c1", "name": "now", "args": {"tz": "UTC"}}],
                            "additional_kwargs": {"tool_calls": [CALL]},
                        }
                    }
                ]
            ]
        },
        [
            [
                {"type": "human", "content": "What time is it?"},
                {"type": "ai", "content": "", "tool_calls": [{"type": "tool_call", "id": "c1", "name": "now", "args": {"tz": "UTC"}}]},
                {"type": "tool", "tool_call_id": "c1", "content": "12:00"},
            ]
        ],
        {"generations": [[{"message": {"type": "ai", "content": "It is noon."}}]]},
    ),
}
"""By provider: an answer that calls a tool, the request with the result, and the answer to that."""


def clock(first: Any, second: Any, last: Any, *tools: dict[str, Any]) -> dict[str, Any]:
    return trace(
        span("ask", 1, kind="AGENT", inputs={"question": "What time is it?"}, outputs="It is noon.", took=9),
        span("chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": [ASKED]}, outputs=first, at=1, took=1),
        *tools,
        span("chat", 3, 1, kind="CHAT_MODEL", inputs=second, outputs=last, at=4, took=1),
    )


def only(played: Any) -> Invocation:
    (turn,) = played.actual
    return turn  # type: ignore[no-any-return]


def of_calls(played: Any) -> list[str]:
    """Why the calls of a conversation are unknown."""
    return [entry.why for entry in played.unknown if entry.what == "calls"]


def said(turn: Invocation) -> list[tuple[Any, ...]]:
    return [(call.name, call.args, response and response.response) for call, response in turn.answered_calls()]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_calls_that_stand_only_in_the_messages_of_models_are_calls(provider: str) -> None:
    played = conversation_from_traces(clock(*PROVIDERS[provider]))
    assert said(only(played)) == [("now", {"tz": "UTC"}, {"result": "12:00"})]
    assert of_calls(played) == []
    assert observed(played, 0)["calls"] == "seen"
    assert only(played).model_calls == 2


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_call_that_has_a_span_as_well_is_one_call(provider: str) -> None:
    tool = span("now", 4, 1, kind="TOOL", inputs={"tz": "UTC"}, outputs="12:00", at=3)
    assert said(only(conversation_from_traces(clock(*PROVIDERS[provider], tool)))) == [("now", {"tz": "UTC"}, {"result": "12:00"})]


def test_a_span_of_another_name_is_the_call_if_there_is_one_for_each() -> None:
    tool = span("tool_runner", 4, 1, kind="TOOL", inputs={"tz": "UTC"}, outputs="12:00", at=3)
    assert [name for name, *_ in said(only(conversation_from_traces(clock(*PROVIDERS["Anthropic"], tool))))] == ["tool_runner"]


HAND_OVER = {"id": "c2", "type": "function", "function": {"name": "hand_over", "arguments": "{}"}}
BOTH = completion({"content": None, "tool_calls": [CALL, HAND_OVER]}, "tool_calls")


def test_where_tools_have_spans_a_call_without_one_counts_if_the_model_went_on() -> None:
    tool = span("now", 4, 1, kind="TOOL", inputs={"tz": "UTC"}, outputs="12:00", at=3)
    _, second, last = PROVIDERS["OpenAI's chats"]
    assert [name for name, *_ in said(only(conversation_from_traces(clock(BOTH, second, last, tool))))] == ["now", "hand_over"]
    assert [name for name, *_ in said(only(conversation_from_traces(clock(BOTH, second, last))))] == ["now", "hand_over"]


def test_a_call_beside_one_that_has_a_span_is_unknown_if_nothing_shows_that_it_was_made() -> None:
    model = span("chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": [ASKED]}, outputs=BOTH, at=1, took=1)
    tool = span("now", 3, 1, kind="TOOL", inputs={"tz": "UTC"}, outputs="12:00", at=3)
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "Time?"}, outputs="Noon.", took=5), model, tool))
    assert observed(played, 0)["calls"] == "unknown"
    assert "hand_over" in played.unknown[0].why


def test_the_output_that_a_framework_asks_for_as_a_tool_is_no_call() -> None:
    final = completion({"content": None, "tool_calls": [HAND_OVER]}, "tool_calls")
    first, second, _ = PROVIDERS["OpenAI's chats"]
    tool = span("now", 4, 1, kind="TOOL", inputs={"tz": "UTC"}, outputs="12:00", at=3)
    played = conversation_from_traces(clock(first, second, final, tool))
    assert [call.name for call in only(played).tool_calls] == ["now"]
    assert of_calls(played) == []


def test_calls_of_earlier_turns_are_not_counted_again() -> None:
    _, second, _ = PROVIDERS["OpenAI's chats"]
    later = [*second["messages"], {"role": "assistant", "content": "It is noon."}, {"role": "user", "content": "Thanks!"}]
    turns = [
        clock(*PROVIDERS["OpenAI's chats"]),
        trace(
            span("ask", 1, kind="AGENT", inputs={"question": "Thanks!"}, outputs="Welcome.", took=3),
            span("chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": later}, outputs=answered("Welcome."), at=1, took=1),
            trace_id="tr-2",
            at=60_000,
            session="s",
        ),
    ]
    turns[0]["info"]["trace_metadata"] = {"mlflow.trace.session": "s"}
    played = conversation_from_traces(turns)
    assert [len(turn.tool_calls) for turn in played.actual] == [1, 0]
    assert [observed(played, index)["calls"] for index in (0, 1)] == ["seen", "none"]


def test_the_same_call_twice_is_two_calls_also_without_ids() -> None:
    first, second, last = PROVIDERS["Gemini"]
    again = {"contents": [*second["contents"], *second["contents"][1:]]}
    spans = trace(
        span("ask", 1, kind="AGENT", inputs={"question": "What time is it?"}, outputs="It is noon.", took=9),
        span("chat", 2, 1, kind="CHAT_MODEL", inputs={"contents": second["contents"][:1]}, outputs=first, at=1, took=1),
        span("chat", 3, 1, kind="CHAT_MODEL", inputs=second, outputs=first, at=3, took=1),
        span("chat", 4, 1, kind="CHAT_MODEL", inputs=again, outputs=last, at=5, took=1),
    )
    assert said(only(conversation_from_traces(spans))) == [("now", {"tz": "UTC"}, {"result": "12:00"})] * 2


def test_calls_that_a_stream_lost_stand_in_the_next_request() -> None:
    _, second, last = PROVIDERS["OpenAI's chats"]
    lost = completion({"content": ""}, "stop")  # as MLflow puts a streamed answer together
    assert said(only(conversation_from_traces(clock(lost, second, last)))) == [("now", {"tz": "UTC"}, {"result": "12:00"})]


@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
def test_calls_that_are_lost_for_good_are_unknown(finish: str) -> None:
    lost = completion({"content": ""}, finish)
    played = conversation_from_traces(clock(lost, {"messages": [ASKED]}, answered("It is noon.")))
    assert observed(played, 0)["calls"] == "unknown"
    assert "has not the message that would hold them" in played.unknown[0].why


def test_arguments_that_cannot_be_read_leave_the_calls_unknown() -> None:
    broken = {**CALL, "function": {"name": "now", "arguments": '{"tz": '}}
    played = conversation_from_traces(clock(completion({"tool_calls": [broken]}), {"messages": [ASKED]}, answered("It is noon.")))
    assert of_calls(played) == ["the arguments of now cannot be read"]
    assert only(played).final_text == "It is noon."


@pytest.mark.parametrize("arguments", ["", None, "{}", {}])
def test_no_arguments_are_empty_ones(arguments: Any) -> None:
    call = {**CALL, "function": {"name": "now", "arguments": arguments}}
    assert [one.args for one in calls_in(completion({"tool_calls": [call]}))] == [{}]


def test_a_trace_of_a_function_alone_says_nothing_of_calls() -> None:
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "Hi"}, outputs="Ho")))
    assert of_calls(played) == [UNTRACED]
    sights = observed(played, 0)
    assert {what for what, sight in sights.items() if sight == "unknown"} >= {"calls", "call_results", "state", "usage", "model_calls"}


def test_a_model_that_shows_its_message_made_no_call() -> None:
    chat = span("chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": [ASKED]}, outputs=answered("Noon."))
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "Hi"}, outputs="Ho"), chat))
    assert observed(played, 0)["calls"] == "none"


def test_a_model_that_shows_only_a_text_does_not_say() -> None:
    chat = span("chat", 2, 1, kind="LLM", inputs="Hi", outputs="Noon.")
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "Hi"}, outputs="Ho"), chat))
    assert observed(played, 0)["calls"] == "unknown"


def test_a_tool_anywhere_in_the_session_shows_that_tools_are_traced() -> None:
    tool = span("now", 2, 1, kind="TOOL", inputs={}, outputs="12:00")
    first = trace(span("ask", 1, kind="AGENT", inputs={"q": "Time?"}, outputs="Noon."), tool, session="s")
    second = trace(span("ask", 1, kind="AGENT", inputs={"q": "Thanks"}, outputs="Welcome."), trace_id="tr-2", at=9000, session="s")
    assert of_calls(conversation_from_traces([first, second])) == []


def test_calls_inside_a_tool_are_not_those_of_the_turn() -> None:
    inner = span("chat", 3, 2, kind="CHAT_MODEL", inputs={"messages": [ASKED]}, outputs=PROVIDERS["OpenAI's chats"][0], at=1)
    tool = span("expert", 2, 1, kind="TOOL", inputs={"q": 1}, outputs="12:00", took=3)
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "Hi"}, outputs="Ho", took=5), tool, inner))
    assert [call.name for call in only(played).tool_calls] == ["expert"]


DOCUMENTS = [{"page_content": "The tower has a height of 330 metres.", "metadata": {"doc_uri": "tower.md"}}]


@pytest.mark.parametrize("found", [DOCUMENTS, {"documents": DOCUMENTS}, [DOCUMENTS], [{"text": DOCUMENTS[0]["page_content"]}]])
@pytest.mark.parametrize("depth", [1, 2])
def test_retrieved_documents_are_evidence_for_judges_and_no_calls(found: Any, depth: int) -> None:
    chain = [span("chain", 2, 1, kind="CHAIN", inputs={}, outputs={})] if depth > 1 else []
    search = span("search", 3, depth, kind="RETRIEVER", inputs={"query": "tower height"}, outputs=found, at=1)
    played = conversation_from_traces(
        trace(span("ask", 1, kind="AGENT", inputs={"q": "How tall?"}, outputs="330 m", took=3), *chain, search)
    )
    grounding = knowledge(played.actual)["grounding_metadata"].text
    assert "The tower has a height of 330 metres." in grounding
    assert "tower height" in grounding
    sights = observed(played, 0)
    assert (sights["documents"], sights["calls"]) == ("seen", "none")


def test_a_retriever_inside_a_tool_is_in_the_result_of_that() -> None:
    tool = span("lookup", 2, 1, kind="TOOL", inputs={"q": 1}, outputs="330 metres", took=3)
    inner = span("search", 3, 2, kind="RETRIEVER", inputs={"query": "x"}, outputs=DOCUMENTS, at=1)
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "How tall?"}, outputs="330 m", took=5), tool, inner))
    assert not any(event.grounding_metadata for event in only(played).events)


def test_context_in_the_message_to_a_model_is_evidence() -> None:
    stuffed = "Context: The tower has a height of 330 metres.\n\nQuestion: How tall?"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": stuffed}]
    chat = span("chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": messages}, outputs=answered("330 m"), at=1)
    played = conversation_from_traces(trace(span("ask", 1, kind="AGENT", inputs={"q": "How tall?"}, outputs="330 m", took=5), chat))
    known = {name: one.text for name, one in knowledge(played.actual).items()}
    assert "330 metres" in known["grounding_metadata"]
    assert "Be brief." not in known["grounding_metadata"], "those are the instructions"
    assert known["developer_instructions"]


def test_the_words_of_the_agent_are_no_evidence() -> None:
    draft = "The tower is surely 999 metres tall."
    first = span(
        "chat", 2, 1, kind="CHAT_MODEL", inputs={"messages": [{"role": "user", "content": "How tall?"}]}, outputs=answered(draft), at=1
    )
    revise = {"messages": [{"role": "user", "content": f"Revise this: {draft}"}]}
    second = span("chat", 3, 1, kind="CHAT_MODEL", inputs=revise, outputs=answered("999 m"), at=2)
    played = conversation_from_traces(
        trace(span("ask", 1, kind="AGENT", inputs={"q": "How tall?"}, outputs="999 m", took=5), first, second)
    )
    assert knowledge(played.actual)["grounding_metadata"].text == ""


def test_earlier_turns_of_the_user_are_no_context_of_this_one() -> None:
    request = {
        "messages": [{"role": "user", "content": "before"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "now"}]
    }
    assert context_in(request, known=["now"], own=[]) == []
    assert since_the_user(request) == []


def test_a_json_text_is_no_call() -> None:
    assert calls_in(answered(json.dumps({"tool_calls": [CALL]}))) == []
    assert results_in({"messages": [{"role": "user", "content": json.dumps({"tool_call_id": "c1", "content": "x"})}]}) == []


@pytest.mark.parametrize("value", [None, "", "text", 3, [], {}, {"choices": []}, {"content": None}])
def test_what_holds_no_message_does_not_tell(value: Any) -> None:
    assert not tells_calls(value)
    assert calls_in(value) == []
    assert documents_in(value) == ([{"retrieved_context": {"text": "text"}}] if value == "text" else [])
