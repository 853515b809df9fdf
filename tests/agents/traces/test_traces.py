"""Spans that people write, and those of this package, as invocations; and which case a conversation in traces is of."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces, recording_of_traces
from mlflow_adk_eval.agents.traces.spans import is_traces
from mlflow_adk_eval.errors import InputError, UsageError
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalSet, Invocation, InvocationEvents
from tests.profiles import examples
from tests.tracking.small import eval_set, turn

_START = 1_700_000_000_000_000_000


def span(name: str, number: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a span as MLflow's JSON has it; `took` is in seconds, and `at` when it began."""
    import base64
    import json

    def identity(value: int) -> str:
        return base64.b64encode(value.to_bytes(8, "big")).decode()

    known = {"kind": "mlflow.spanType", "inputs": "mlflow.spanInputs", "outputs": "mlflow.spanOutputs"}
    attributes = {known[key]: json.dumps(value) for key, value in more.items() if key in known}
    attributes |= {key: json.dumps(value) for key, value in more.get("attributes", {}).items()}
    start = _START + round(more.get("at", 0) * 1e9)
    return {
        "span_id": identity(number),
        "parent_span_id": None if parent is None else identity(parent),
        "name": name,
        "start_time_unix_nano": start,
        "end_time_unix_nano": start + round(more.get("took", 0) * 1e9),
        "status": {"code": "STATUS_CODE_ERROR", "message": more["error"]} if "error" in more else {"code": "STATUS_CODE_OK"},
        "attributes": attributes,
    }


def trace(*spans: dict[str, Any], trace_id: str = "tr-1", at: int = 0, session: str = "", **tags: str) -> dict[str, Any]:
    metadata = {"mlflow.trace.session": session} if session else {}
    info = {"trace_id": trace_id, "request_time": 1_700_000_000_000 + at, "state": "OK", "tags": tags, "trace_metadata": metadata}
    moved = [
        {
            **one,
            "start_time_unix_nano": one["start_time_unix_nano"] + at * 10**6,
            "end_time_unix_nano": one["end_time_unix_nano"] + at * 10**6,
        }
        for one in spans
    ]
    return {"info": info, "data": {"spans": moved}}


def said(user: str, answer: str | None, trace_id: str = "tr-1", **more: Any) -> dict[str, Any]:
    return trace(span("ask", 1, kind="AGENT", inputs={"question": user}, outputs=answer), trace_id=trace_id, **more)


def of_case(eval_id: str, index: int, user: str, answer: str, *, run: int = 0) -> dict[str, Any]:
    tags = {"adk.eval_case_id": eval_id, "adk.run_index": str(run), "adk.invocation_index": str(index)}
    root = span("invocation", 1, kind="AGENT", inputs={"user_content": user}, outputs={"final_response": answer})
    return trace(root, trace_id=f"tr-{eval_id}-{run}-{index}", **tags)


def test_a_span_with_inputs_outputs_and_tools_is_a_turn() -> None:
    found = conversation_from_traces(
        trace(
            span("ask", 1, kind="AGENT", inputs={"question": "Warm?", "k": 3}, outputs="Yes.", took=3),
            span("get", 2, 1, kind="TOOL", inputs={"city": "Rome"}, outputs={"t": 20}, at=1, took=1),
            span("inner", 3, 2, kind="TOOL", inputs={}, outputs=1, at=1),
            span("say", 4, 1, kind="TOOL", inputs="loud", error="no voice", at=2),
        )
    ).actual
    assert [(one.user_text, one.final_text, one.duration, one.model_duration) for one in found] == [("Warm?", "Yes.", 3.0, None)]
    assert [(call.name, call.args) for call in found[0].tool_calls] == [("get", {"city": "Rome"}), ("say", {"input": "loud"})]
    assert [(one.name, one.response) for one in found[0].tool_responses] == [("get", {"t": 20}), ("say", {"error": "no voice"})]
    # Nobody wrote down calls of a model, so that there is nothing to count.
    assert not isinstance(found[0].intermediate_data, InvocationEvents)


def test_spans_of_models_say_what_they_cost() -> None:
    usage = {"mlflow.chat.tokenUsage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}, "mlflow.llm.model": "m-1"}
    (found,) = conversation_from_traces(
        trace(
            span("ask", 1, kind="AGENT", inputs={"q": "Hi"}, outputs={"answer": "Ho"}, took=4),
            span("chat", 2, 1, kind="CHAT_MODEL", at=0, took=2, attributes=usage),
            span("get", 3, 1, kind="TOOL", inputs={}, outputs={"ok": True}, at=2, took=1),
        )
    ).actual
    assert [(event.model_version, event.usage_metadata) for event in found.events] == [
        ("m-1", {"prompt_token_count": 7, "candidates_token_count": 2}),
        (None, None),
        (None, None),
    ]
    assert (found.duration, found.model_duration, found.tool_duration) == (4.0, 2.0, 1.0)


MESSAGES = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
CHOICES = {"choices": [{"message": {"role": "assistant", "content": "done"}}]}


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ("three", "done"),
        ({"messages": MESSAGES}, CHOICES),
        ({"input": MESSAGES, "temperature": 0}, {"messages": [*MESSAGES, {"role": "assistant", "content": "done"}]}),
        ({"whatever": "three", "k": 1}, {"result": "done", "model": "m"}),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "three"}]}]}, {"content": "done"}),
        (
            {"user_content": {"role": "user", "parts": [{"text": "three"}]}},
            {"final_response": {"role": "model", "parts": [{"text": "done"}]}},
        ),
    ],
)
def test_the_usual_shapes_of_inputs_and_outputs_are_understood(inputs: Any, outputs: Any) -> None:
    (found,) = conversation_from_traces(trace(span("f", 1, inputs=inputs, outputs=outputs))).actual
    assert (found.user_text, found.final_text) == ("three", "done")


@pytest.mark.parametrize("outputs", [None, {"response": None}, {"response": ""}, ""])
def test_an_agent_that_said_nothing_said_nothing(outputs: Any) -> None:
    (found,) = conversation_from_traces(trace(span("f", 1, inputs="hi", outputs=outputs))).actual
    assert (found.user_text, found.final_text) == ("hi", "")


@pytest.mark.parametrize(
    ("inputs", "outputs", "named"),
    [
        ({"a": "x", "b": "y"}, "ok", "inputs"),
        (None, "ok", "inputs"),
        ("hi", {"a": "x", "b": "y"}, "outputs"),
        ("hi", 3, "outputs"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "ok", "inputs"),
    ],
)
def test_what_is_not_understood_is_an_error_and_no_empty_answer(inputs: Any, outputs: Any, named: str) -> None:
    with pytest.raises(InputError, match=f"span 'f', {named}"):
        conversation_from_traces(trace(span("f", 1, inputs=inputs, outputs=outputs)))


def test_a_stream_of_which_only_the_object_was_kept_is_no_answer() -> None:
    shown = "{'_all_messages': [ModelRequest(parts=[UserPromptPart(content='hi')])]}"
    with pytest.raises(InputError, match=r"outputs: found a stream.*run and run_sync are fully traced"):
        conversation_from_traces(trace(span("Agent.run_stream", 1, kind="AGENT", inputs={"user_prompt": "hi"}, outputs=shown)))


def test_what_the_user_said_is_known_of_a_turn_that_failed_before_a_model_answered() -> None:
    inputs = [{"role": "user", "content": [{"text": "Light on"}]}]
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "lights"}
    outer = span("invoke_agent lights", 1, kind="AGENT", inputs=inputs, attributes=agent, error="no connection")
    model = span("chat", 2, 1, kind="CHAT_MODEL", inputs=inputs, attributes={"gen_ai.operation.name": "chat"}, error="no connection")
    found = conversation_from_traces(trace(outer, model))
    assert ([turn.user_text for turn in found.actual], found.error) == (["Light on"], "turn 1: no connection")


def test_traces_without_spans_or_without_an_end_are_errors() -> None:
    with pytest.raises(InputError, match="no span"):
        conversation_from_traces(trace())
    running = said("hi", "ho")
    running["info"]["state"] = "IN_PROGRESS"
    with pytest.raises(InputError, match="wanted a trace that has ended"):
        conversation_from_traces(running)


def test_a_session_is_in_order_of_time() -> None:
    turns = [said(f"q{n}", f"a{n}", f"tr-{n}", at=n, session="s") for n in (2, 0, 1)]
    assert [one.user_text for one in conversation_from_traces(turns).actual] == ["q0", "q1", "q2"]


def test_several_sessions_are_not_one_conversation() -> None:
    with pytest.raises(UsageError, match="traces of 2 sessions, a, b; wanted those of one"):
        conversation_from_traces([said("x", "y", "tr-1", session="a"), said("x", "y", "tr-2", session="b")])
    with pytest.raises(UsageError, match="wanted at least one"):
        conversation_from_traces([])


def test_a_failed_turn_is_the_last_one() -> None:
    played = conversation_from_traces(
        [
            said("one", "ok", "tr-1", session="s"),
            trace(span("ask", 1, inputs="two", error="KeyError: x"), trace_id="tr-2", at=1, session="s"),
            trace(span("ask", 1, inputs="three", error="KeyError: y"), trace_id="tr-3", at=2, session="s"),
        ]
    )
    assert ([one.user_text for one in played.actual], played.error, played.unfinished) == (["one", "two"], "turn 2: KeyError: x", True)


def recorded(outputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    outer = span("predict", 1, kind="AGENT", inputs={"eval_id": "c", "messages": ["q"]}, outputs=outputs, **more)
    return trace(outer, span("turn 1", 2, 1, kind="AGENT", inputs={"user_content": "other"}, outputs={"final_response": "other"}))


def test_outputs_that_are_a_conversation_are_taken_at_their_word() -> None:
    turns = [turn("q", "a", ("get", {"x": 1})), turn("q2", "a2")]
    played = conversation_from_traces(recorded({"response": "a2", "conversation": turns, "session_state": {"n": 2}}))
    assert [dump(one) for one in played.actual] == turns
    assert (played.session_state, played.error) == ({"n": 2}, "")


def test_the_error_of_a_conversation_is_kept_even_without_a_turn() -> None:
    unfinished = conversation_from_traces(
        recorded({"conversation": [turn("q", "a")], "error": "turn 1: it broke", "unfinished": True}, error="turn 1: it broke")
    )
    assert (len(unfinished.actual), unfinished.error, unfinished.unfinished) == (1, "turn 1: it broke", True)
    short = conversation_from_traces(recorded({"conversation": [turn("q", "a")], "error": "too slow", "unfinished": False}))
    assert (len(short.actual), short.error, short.unfinished) == (1, "too slow", False)
    nothing = recorded({"conversation": [], "error": "it did not start"})
    assert conversation_from_traces(nothing).error == "it did not start"


def test_one_trace_may_hold_a_turn_in_each_span() -> None:
    root = span("predict", 1, inputs={"x": 1}, outputs={"y": 2})
    turns = [
        span(f"turn {n}", n + 1, 1, kind="AGENT", inputs={"user_content": f"q{n}"}, outputs={"final_response": f"a{n}"}, at=n)
        for n in (1, 2)
    ]
    assert [(one.user_text, one.final_text) for one in conversation_from_traces(trace(root, *turns)).actual] == [("q1", "a1"), ("q2", "a2")]


def test_a_turn_that_has_no_trace_is_missed() -> None:
    with pytest.raises(InputError, match="no trace of turn 1, 3"):
        conversation_from_traces([of_case("c", 1, "q", "a"), of_case("c", 3, "q", "a")])


@pytest.mark.parametrize("value", [None, [], "tr-1", {"c": [turn("q", "a")]}, [{"eval_id": "c"}], 3])
def test_what_is_no_trace_is_none(value: Any) -> None:
    assert not is_traces(value)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
leaves = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6)
calls = st.lists(st.tuples(texts, st.dictionaries(texts, values, max_size=3), st.dictionaries(texts, values, max_size=3)), max_size=4)


@examples(60)
@given(user=texts, answer=texts, made=calls)
def test_what_spans_say_comes_back(user: str, answer: str, made: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
    tools = [span(name, n, 1, kind="TOOL", inputs=args, outputs=result, at=n) for n, (name, args, result) in enumerate(made, 2)]
    root = span("invocation", 1, kind="AGENT", inputs={"user_content": user}, outputs={"final_response": answer})
    (found,) = conversation_from_traces(trace(root, *tools[::-1])).actual
    assert (found.user_text, found.final_text) == (user, answer)
    assert [(call.name, call.args) for call in found.tool_calls] == [(name, args) for name, args, _ in made]
    assert [one.response for one in found.tool_responses] == [result for *_, result in made]


CASES = eval_set(
    {"a": [turn("hello", "hi"), turn("bye", "ciao")], "b": [turn("hello", "hi")], "c": [turn("twin", "x")], "d": [turn("twin", "y")]}
)


def play(recording: Recording, eval_id: str, run_index: int = 0, cases: EvalSet = CASES) -> tuple[list[str], str]:
    (case,) = (case for case in cases.eval_cases if case.eval_id == eval_id)
    played = anyio.run(recording.converse, case, run_index)
    return [one.final_text for one in played.actual], played.error


def test_tags_decide_before_sessions_and_texts() -> None:
    found = recording_of_traces(
        [of_case("b", 1, "bye", "2"), of_case("b", 0, "hello", "1"), of_case("b", 0, "hello", "again", run=1)], CASES
    )
    assert (play(found, "b"), play(found, "b", 1)) == ((["1", "2"], ""), (["again"], ""))
    assert found.num_runs(CASES.eval_ids) == 2


def test_sessions_decide_before_texts() -> None:
    found = recording_of_traces([said("hello", "mine", session="c")], CASES)
    assert play(found, "c") == (["mine"], "")
    sessions = [{"app_name": "x", "user_id": "u", "session_id": f"s-{eval_id}"} for eval_id in CASES.eval_ids]
    listed = [dump(case) | {"session_input": session} for case, session in zip(CASES.eval_cases, sessions, strict=True)]
    with_session = EvalSet.model_validate({"eval_set_id": "with sessions", "eval_cases": listed})
    assert play(recording_of_traces([said("twin", "mine", session="s-d")], with_session), "d") == (["mine"], "")


def test_what_the_user_said_decides_exactly_and_several_conversations_are_runs() -> None:
    traces = [
        said("hello", "1", "tr-1", session="x"),
        said("bye", "2", "tr-2", session="x", at=1),
        said("hello", "3", "tr-3", session="y", at=2),
        said("hello", "4", "tr-4", at=3),
    ]
    found = recording_of_traces(traces, CASES)
    assert play(found, "a") == (["1", "2"], "")
    assert (play(found, "b"), play(found, "b", 1)) == ((["3"], ""), (["4"], ""))
    assert found.num_runs(CASES.eval_ids) == 2
    assert play(found, "a", 1)[1] == "the recording does not contain run 2 of case 'a'"


def test_a_conversation_that_could_be_of_two_cases_is_an_error_of_both() -> None:
    found = recording_of_traces([said("twin", "?", session="s9")], CASES)
    for eval_id in ("c", "d"):
        answers, error = play(found, eval_id)
        assert answers == []
        assert error.startswith("session s9 matches several cases, 'c', 'd'; name the cases")


def test_a_conversation_of_no_case_is_named() -> None:
    from mlflow_adk_eval.config.eval_config import load_config
    from mlflow_adk_eval.runner.evaluation import run

    agent = resolve_agent([said("hello", "hi", "tr-1"), said("what?", "hm", "tr-2", session="s7")], eval_set=CASES)
    report = run(CASES, agent, load_config({"criteria": {"response_match_score": 0.5}}))
    assert report.notes == ("1 recorded case is not in the eval set: session s7",)
    assert [case.error for case in report.cases] == [
        "the recording does not contain case 'a'",
        "",
        "the recording does not contain case 'c'",
        "the recording does not contain case 'd'",
    ]
    assert not report.passed


def test_an_unreadable_conversation_is_the_error_of_its_case_or_of_all() -> None:
    unreadable = trace(span("f", 1, inputs={"a": "x", "b": "y"}, outputs="z"), session="b")
    answers, error = play(recording_of_traces([unreadable], CASES), "b")
    assert answers == []
    assert "span 'f', inputs" in error
    nowhere = trace(span("f", 1, inputs={"a": "x", "b": "y"}, outputs="z"), trace_id="tr-9")
    with pytest.raises(InputError, match="tr-9"):
        recording_of_traces([nowhere], CASES)


def test_without_cases_a_conversation_is_kept_by_the_name_it_has() -> None:
    found = resolve_agent([of_case("b", 0, "hello", "1"), said("x", "2", session="s", at=1), said("x", "3", "tr-3", at=2)])
    assert isinstance(found, Recording)
    assert list(found.runs) == ["b", "s", "trace tr-3"]
    assert found.name == "ask"


def test_a_frame_without_a_column_of_traces_is_read_from_its_other_columns() -> None:
    import pandas as pd

    one = said("hello", "hi", session="s")
    row = {
        **{key: one["info"][key] for key in ("trace_id", "request_time", "state", "tags", "trace_metadata")},
        "spans": one["data"]["spans"],
    }
    frame = pd.DataFrame([row])
    assert is_traces(frame)
    assert [dump(turn) for turn in conversation_from_traces(frame).actual] == [dump(turn) for turn in conversation_from_traces(one).actual]
    assert not is_traces(pd.DataFrame({"inputs": [1]}))


def test_secrets_do_not_come_along_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret-4242")
    played = conversation_from_traces(trace(span("f", 1, inputs="hi", error="401 for s3cret-4242")))
    assert played.error == "turn 1: 401 for [SOME_API_KEY]"


def test_an_invocation_is_one_of_ours() -> None:
    assert isinstance(conversation_from_traces(said("a", "b")).actual[0], Invocation)
