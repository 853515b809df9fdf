"""What ADK exports as spans becomes the invocations that the agent really had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces, conversations_of
from mlflow_adk_eval.agents.traces.spans import Span, model_call
from mlflow_adk_eval.criteria.transcript import content_material
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.files import dump
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, Invocation
from mlflow_adk_eval.runner.recordings import score
from mlflow_adk_eval.testing import Request, ScriptedJudge
from tests.agents.traces.traced import Traced, traced

TIMES = ("creation_timestamp", "duration", "model_duration", "tool_duration")
pytestmark = pytest.mark.slow
COMPLETE = ("single", "team", "nested", "chain", "both")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return traced("content", tmp_path_factory)


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return traced("legacy", tmp_path_factory)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return traced("bare", tmp_path_factory)


@pytest.fixture(params=["content", "legacy"])
def both(request: pytest.FixtureRequest, content: Traced, legacy: Traced) -> Traced:
    return content if request.param == "content" else legacy


def known(turns: Sequence[Invocation], *, versions: bool = True) -> list[dict[str, Any]]:
    """Return turns without what two clocks measure, and, as spans name the model that was asked, without its version.

    Turns that took place have the number of model calls only where events do not show it.
    """
    listed: list[dict[str, Any]] = []
    for turn in turns:
        kept = {name: value for name, value in dump(turn).items() if name not in TIMES}
        listed.append({**kept, "inference_call_count": turn.model_calls})
    for turn in listed if not versions else []:
        for event in turn["intermediate_data"]["invocation_events"]:
            event.pop("model_version", None)
    return listed


@pytest.mark.parametrize("scenario", COMPLETE)
def test_traces_hold_the_agents_own_invocations(scenario: str, both: Traced, legacy: Traced) -> None:
    own = both.own[scenario]
    played = conversation_from_traces(both.of(scenario))
    assert played.error == own.error == ""
    assert known(played.actual, versions=both is legacy) == known(own.actual, versions=both is legacy)


def test_durations_are_those_of_the_spans(content: Traced) -> None:
    for turn in conversation_from_traces(content.of("nested")).actual:
        assert turn.duration is not None
        assert turn.duration > 0
        assert turn.model_duration is not None
        assert turn.tool_duration is not None
        assert turn.model_duration + turn.tool_duration <= turn.duration + 0.002
    for traced_turn, own in zip(conversation_from_traces(content.of("single")).actual, content.own["single"].actual, strict=True):
        assert traced_turn.creation_timestamp == pytest.approx(own.creation_timestamp, abs=5)


def test_a_failed_turn_ends_the_conversation_with_its_error(both: Traced) -> None:
    boom = conversation_from_traces(both.of("boom"))
    assert boom.error == both.own["boom"].error == "turn 2: ValueError: no such room"
    assert boom.unfinished
    assert [[(call.name, call.args) for call in turn.tool_calls] for turn in boom.actual] == [[], [("boom", {"x": 1})]]
    assert boom.actual[1].tool_responses == []
    down = conversation_from_traces(both.of("down"))
    assert (len(down.actual), down.error, down.unfinished) == (2, "turn 2: RuntimeError: model is down", True)


@pytest.mark.needs("google-adk", "2.10")
def test_what_a_callback_answers_for_the_model_is_in_the_legacy_spans_only(content: Traced, legacy: Traced) -> None:
    (own,) = known(legacy.own["guarded"].actual)
    assert own["inference_call_count"] == 0
    seen = own | {"inference_call_count": 1}  # the span of a call, from which nobody can tell who answered
    assert known(conversation_from_traces(legacy.of("guarded")).actual) == [seen]
    with pytest.raises(InputError, match=r"no call of a model.*Add your own span around the agent"):
        conversation_from_traces(content.of("guarded"))


@pytest.mark.parametrize("mode", ["content", "legacy", "bare"])
def test_what_code_answers_without_a_model_is_not_silence(mode: str, request: pytest.FixtureRequest) -> None:
    with pytest.raises(InputError, match="no call of a model"):
        conversation_from_traces(request.getfixturevalue(mode).of("code"))


@pytest.mark.needs("google-adk", "2.10")
@pytest.mark.parametrize("scenario", ["single", "team", "nested", "chain", "both", "boom", "wrapped"])
def test_without_content_there_is_an_error_that_names_the_switch_and_no_empty_answer(scenario: str, bare: Traced) -> None:
    with pytest.raises(InputError, match="OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY"):
        conversation_from_traces(bare.of(scenario))


@pytest.mark.needs("google-adk", "2.10")
def test_without_content_the_error_names_the_tools_and_each_trace_and_gives_its_advice_once(bare: Traced) -> None:
    with pytest.raises(InputError) as raised:
        conversation_from_traces(bare.of("single"))
    message = str(raised.value)
    assert "tools (get_weather, number, number) without arguments" in message
    assert len(raised.value.problems) == 5
    assert message.count("SPAN_ONLY") == 1
    assert all(trace["info"]["trace_id"] in message for trace in bare.of("single"))


def test_legacy_spans_without_content_are_an_error_too(legacy: Traced) -> None:
    traces = json.loads(json.dumps(legacy.of("single")))
    for trace in traces:
        for span in trace["data"]["spans"]:
            for name in ("llm_request", "llm_response", "tool_call_args", "tool_response"):
                if f"gcp.vertex.agent.{name}" in span["attributes"]:
                    span["attributes"][f"gcp.vertex.agent.{name}"] = json.dumps("{}")
    with pytest.raises(InputError, match="ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"):
        conversation_from_traces(traces)


@pytest.mark.needs("google-adk", "2.10")
def test_an_attribute_that_was_cut_off_is_an_error(content: Traced) -> None:
    traces = json.loads(json.dumps(content.of("chain")))
    for span in traces[0]["data"]["spans"]:
        for name, value in span["attributes"].items():
            if name == "gen_ai.input.messages":
                span["attributes"][name] = value[:40]
    with pytest.raises(InputError, match="without their messages"):
        conversation_from_traces(traces)


def test_one_trace_may_hold_several_turns(both: Traced) -> None:
    turns = conversation_from_traces(both.of("wrapped")).actual
    assert [turn.user_text for turn in turns] == ["hello", "weather?"]
    assert [turn.final_text for turn in turns] == ["You are welcome.", "20 °C in Paris."]


def test_the_session_is_the_agents_own_and_not_that_of_a_tool(content: Traced) -> None:
    found = {conversation.session: len(conversation.traces) for conversation in conversations_of(content.traces)}
    wanted = {f"session-{name}": len(own.actual) for name, own in content.own.items()} | {"session-boom": 2, "session-wrapped": 1}
    assert found == wanted


def test_traces_read_the_same_in_any_order_and_shape(content: Traced) -> None:
    import mlflow
    import pandas as pd

    dicts = content.of("single")
    objects = [mlflow.entities.Trace.from_dict(trace) for trace in dicts]
    frame = pd.DataFrame({"trace": [trace.to_json() for trace in objects]})
    wanted = known(conversation_from_traces(dicts).actual)
    for shape in (objects, objects[::-1], [json.dumps(trace) for trace in dicts], frame, tuple(dicts)):
        assert known(conversation_from_traces(shape).actual) == wanted


CRITERIA = {
    "tool_trajectory_avg_score": 1.0,
    "response_match_score": 0.5,
    "tool_call_count_v1": None,
    "inference_call_count_v1": None,
    "token_usage_v1": None,
    "final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}},
    "hallucinations_v1": {"threshold": 0.5},
    "rubric_based_tool_use_quality_v1": {
        "threshold": 0.5,
        "judge_model_options": {"num_samples": 1},
        "rubrics": [{"rubric_id": "r", "rubric_content": {"text_property": "It calls what it needs."}}],
    },
}


def first_label(request: Request) -> Any:
    properties = request.schema["properties"]
    if "verdict" in properties:
        return properties["verdict"]["enum"][0]
    return {key: one["properties"]["verdict"]["enum"][0] for key, one in properties.items()}


@pytest.mark.parametrize("scenario", COMPLETE)
def test_scores_and_judges_prompts_are_those_of_the_agents_own_invocations(scenario: str, both: Traced) -> None:
    own = both.own[scenario].actual
    spoilt = tuple(
        turn.model_copy(update={"final_response": turn.final_response and turn.final_response.model_copy(update={"parts": ()})})
        if index == 1
        else turn
        for index, turn in enumerate(own)
    )
    cases = EvalSet(eval_set_id="s", eval_cases=(EvalCase(eval_id="c", conversation=spoilt),))
    criteria = {name: {"threshold": 10_000} if settings is None else settings for name, settings in CRITERIA.items()}
    judges = [ScriptedJudge(first_label), ScriptedJudge(first_label)]
    reports = [
        score(cases, {"c": list(actual)}, {"criteria": criteria}, judge, ledger=False)
        for actual, judge in zip((own, conversation_from_traces(both.of(scenario)).actual), judges, strict=True)
    ]
    mine, theirs = (
        [replace(result, votes=()) for result in report.cases[0].results if result.criterion != "invocation_duration_v1"]
        for report in reports
    )
    assert mine == theirs
    assert {result.criterion for result in mine} == set(CRITERIA)
    asked, asked_of_traces = (sorted((request.name, sorted(request.blocks.items())) for request in judge.requests) for judge in judges)
    assert asked == asked_of_traces
    assert {name for name, _ in asked} >= {"final_response_match_v2", "rubric_based_tool_use_quality_v1"}


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"type": "blob", "mime_type": "image/png"}, "a file (image/png)"),
        ({"type": "file", "modality": "image", "file_id": "file-7"}, "file-7"),
        ({"type": "uri", "uri": "gs://bucket/a.pdf", "mime_type": "application/pdf"}, "a.pdf (application/pdf)"),
        ({"type": "hologram", "content": "?"}, "a block of type hologram"),
    ],
)
def test_a_block_that_is_no_text_is_no_silence(block: dict[str, Any], named: str) -> None:
    messages = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Here."}, block]}])
    attributes = {"gen_ai.input.messages": "[]", "gen_ai.output.messages": messages}
    span = Span(id="1", name="generate", kind="LLM", start_ns=0, end_ns=1, failed=False, error="", attributes=attributes)
    read = model_call(span, ())
    assert read
    assert read.answer
    assert read.answer.text == "Here."
    assert [str(media) for media in content_material(read.answer).unshown] == [named]
