"""What scorers make of rows written by hand, of traces, and of sessions."""

from __future__ import annotations

from typing import Any

import mlflow
import pytest
from mlflow.entities import SpanStatus, SpanStatusCode, SpanType

from mlflow_adk_eval import scorers
from mlflow_adk_eval.errors import ConfigError, UsageError
from mlflow_adk_eval.testing import ScriptedJudge
from tests.integrations.genai import QUIET, errors_of, feedback_of, genai_store, traces_of, values_of
from tests.tracking.small import rooms

pytestmark = QUIET

store = genai_store
TRAJECTORY, ROUGE = "tool_trajectory_avg_score", "response_match_score"
CONFIG = {"criteria": {TRAJECTORY: 1.0, ROUGE: 0.5}}
SWITCH = {"name": "switch", "args": {"room": "hall"}}
EXPECTED = {"expected_response": "the light is on", "expected_tool_calls": [SWITCH]}
QUERY = {"query": "light on"}
LIGHT = rooms().eval_cases[0].model_dump(mode="json", exclude_none=True)


def scored(**row: Any) -> dict[str, Any]:
    """Return the values that a row gets without MLflow's harness, or the message of the error."""
    found = [one(**row) for one in scorers.from_config(CONFIG)]
    return {one.name: one.value if one.error is None else one.error.error_message for one in found}


NO_CALLS = "invocation 1 of 1: the tool calls are unknown: the row has no outputs.tool_calls"


@pytest.fixture(autouse=True)
def _tracked(store: str) -> None:
    """Run on the module's store."""


@pytest.mark.parametrize(
    ("outputs", "trajectory", "rouge"),
    [
        ("the light is on", NO_CALLS, 1.0),
        ({"response": "the light is on"}, NO_CALLS, 1.0),
        ({"response": "the light is on", "tool_calls": [SWITCH]}, 1.0, 1.0),
        ({"response": "the light is on", "tool_calls": []}, 0.0, 1.0),
        ({"final_response": "the light is on", "intermediate_data": {"tool_uses": [SWITCH]}}, 1.0, 1.0),
        ({"response": "no", "tool_calls": [SWITCH]}, 1.0, 0.0),
    ],
)
def test_a_row_written_by_hand(outputs: Any, trajectory: Any, rouge: Any) -> None:
    assert scored(inputs=QUERY, outputs=outputs, expectations=EXPECTED) == {TRAJECTORY: trajectory, ROUGE: rouge}


def test_a_row_without_expectations_is_an_error_that_says_what_is_missing() -> None:
    assert scored(inputs=QUERY, outputs={"response": "x", "tool_calls": []}, expectations=None) == {
        TRAJECTORY: "invocation 1 of 1: the expected tool calls are unknown: the row has no expectations.expected_tool_calls",
        ROUGE: "invocation 1 of 1: the expected response is unknown: the row has no expectations.expected_response",
    }


def test_a_row_that_cannot_be_read_is_an_error_and_raises_nothing() -> None:
    (trajectory, _) = (one(inputs=QUERY, outputs={"score": 1}, expectations=EXPECTED) for one in scorers.from_config(CONFIG))
    assert (trajectory.value, trajectory.error.error_code, trajectory.metadata["status"]) == (None, "ERROR", "errored")
    assert "found an object with score; wanted a text, an Invocation or a dict of one" in trajectory.error.error_message
    assert "found nothing" in scored(inputs=QUERY, outputs=None, expectations=EXPECTED)[ROUGE]


def test_a_scorer_leaves_cases_alone_that_the_config_leaves_to_other_criteria() -> None:
    config = {**CONFIG, "case_criteria": {"light": {ROUGE: 0.9}}}
    trajectory, rouge = scorers.from_config(config)
    row = {"inputs": {"eval_id": "light", **QUERY}, "outputs": "the light is on", "expectations": EXPECTED}
    assert trajectory(**row) is None
    assert rouge(**row).value == 1.0
    assert [rouge.pass_if(value) for value in (0.9, 0.8)] == [True, False]  # the strictest threshold of all cases


def test_a_criterion_that_is_left_out_where_nothing_is_expected_gives_no_feedback_there() -> None:
    made = scorers.final_session_state(threshold=1.0, only_where_expected=True)
    done = {"response": "ok", "session_state": {"light": "on"}}
    assert made(inputs=QUERY, outputs=done, expectations={}) is None
    assert made(inputs=QUERY, outputs=done, expectations={"expected_session_state": {"light": "on"}}).value == 1.0


def test_what_passes_is_a_number_that_reaches_the_threshold_in_its_own_direction() -> None:
    rouge, calls = scorers.response_match_score(threshold=0.7), scorers.tool_call_count_v1(threshold=2)
    assert [rouge.pass_if(value) for value in (0.7, 0.7 - 1e-12, 0.69, None, True, "yes", float("nan"))] == [True, True] + [False] * 5
    assert [calls.pass_if(value) for value in (2, 0.0, 3.0)] == [True, True, False]


def test_a_function_has_the_settings_of_its_criterion_and_no_others() -> None:
    made = scorers.tool_trajectory_avg_score(threshold=0.5, match_type="IN_ORDER")
    assert (made.name, made.settings["match_type"], made.settings["threshold"]) == (TRAJECTORY, "IN_ORDER", 0.5)
    with pytest.raises(ConfigError, match="Did you mean 'threshold'"):
        scorers.response_match_score(treshold=0.9)


def test_a_name_that_mlflow_would_hide_half_of_is_changed() -> None:
    config = {
        "criteria": {"acme/tone": 0.5},
        "custom_metrics": {"acme/tone": {"code_config": {"name": "tests.criteria.user_metrics.always"}}},
    }
    (made,) = scorers.from_config(config)
    assert made.criterion == "acme/tone"
    assert "/" not in made.name


def served(text: str, session: str | None = None, answer: str = "the light is on", error: str = "") -> str:
    """Return the id of a trace as an application leaves it."""
    with mlflow.start_span("agent", span_type=SpanType.AGENT) as root:
        root.set_inputs({"query": text})
        if session:
            mlflow.update_current_trace(metadata={"mlflow.trace.session": session})
        with mlflow.start_span("switch", span_type=SpanType.TOOL) as tool:
            tool.set_inputs({"room": "hall"})
            tool.set_outputs({"ok": True})
        if error:
            root.set_status(SpanStatus(SpanStatusCode.ERROR, error))
        else:
            root.set_outputs(answer)
    mlflow.flush_trace_async_logging()
    return str(root.trace_id)


def evaluated(trace_ids: list[str], **how: Any) -> tuple[Any, list[Any]]:
    traces = [mlflow.get_trace(trace_id) for trace_id in trace_ids]
    result = mlflow.genai.evaluate(data=traces, scorers=scorers.from_config(CONFIG, **how))
    return result, [mlflow.get_trace(trace_id) for trace_id in trace_ids]


def test_a_trace_tells_which_tools_were_called() -> None:
    trace_id = served("light on")
    for name, value in EXPECTED.items():
        mlflow.log_expectation(trace_id=trace_id, name=name, value=value)
    result, (trace,) = evaluated([trace_id])
    assert values_of(trace, result.run_id) == {TRAJECTORY: 1.0, ROUGE: 1.0}


def test_a_trace_that_ended_in_an_error_is_no_answer() -> None:
    trace_id = served("light on", error="the house does not answer")
    mlflow.log_expectation(trace_id=trace_id, name="expected_response", value="the light is on")
    result, (trace,) = evaluated([trace_id])
    errors = errors_of(trace, result.run_id)
    assert values_of(trace, result.run_id) == {TRAJECTORY: None, ROUGE: None}
    assert "the house does not answer" in errors[ROUGE][1]


def test_tools_are_taken_from_the_trace_and_the_answer_from_the_outputs() -> None:
    @mlflow.trace
    def app(query: str) -> str:
        with mlflow.start_span("switch", span_type=SpanType.TOOL) as tool:
            tool.set_inputs({"room": "hall"})
        return "the light is on"

    result = mlflow.genai.evaluate(data=[{"inputs": QUERY, "expectations": EXPECTED}], predict_fn=app, scorers=scorers.from_config(CONFIG))
    (trace,) = traces_of(result.run_id)
    assert values_of(trace, result.run_id) == {TRAJECTORY: 1.0, ROUGE: 1.0}


def test_a_trace_that_does_not_say_what_was_said_leaves_the_answer_to_the_outputs() -> None:
    with mlflow.start_span("invoke_agent house", span_type=SpanType.AGENT) as root:
        root.set_attribute("gen_ai.operation.name", "invoke_agent")
    mlflow.flush_trace_async_logging()
    trace = mlflow.get_trace(root.trace_id)
    found = scored(inputs=QUERY, outputs="the light is on", expectations=EXPECTED, trace=trace)
    assert found == {TRAJECTORY: NO_CALLS, ROUGE: 1.0}
    assert root.trace_id in scored(inputs=QUERY, outputs=None, expectations=EXPECTED, trace=trace)[ROUGE]


def test_a_session_is_one_conversation_of_which_the_first_trace_tells_what_is_expected() -> None:
    first, second = served("light on", "s1"), served("thanks", "s1", "you are welcome")
    mlflow.log_expectation(trace_id=first, name="eval_case", value=LIGHT)
    result, (one, two) = evaluated([second, first][::-1], session_level=True)
    assert values_of(one, result.run_id) == {TRAJECTORY: 0.5, ROUGE: 1.0}  # nobody asked for the second switch
    assert "**turn 2: 0**" in feedback_of(one, result.run_id)[TRAJECTORY].rationale
    assert feedback_of(one, result.run_id)[ROUGE].metadata["mlflow.trace.session"] == "s1"
    assert values_of(two, result.run_id) == {}


def test_each_trace_of_a_session_may_say_what_is_expected_of_its_turn() -> None:
    turns = [served("light on", "s2"), served("again", "s2", "it is on already")]
    for trace_id, answer in zip(turns, ("the light is on", "it is on already"), strict=True):
        mlflow.log_expectation(trace_id=trace_id, name="expected_response", value=answer)
        mlflow.log_expectation(trace_id=trace_id, name="expected_tool_calls", value=[SWITCH])
    result, (first, _) = evaluated(turns, session_level=True)
    assert values_of(first, result.run_id) == {TRAJECTORY: 1.0, ROUGE: 1.0}


def test_expectations_given_beside_the_traces_of_a_session_count() -> None:
    turns = [served("light on", "s3"), served("thanks", "s3", "you are welcome")]
    rows = [{"trace": mlflow.get_trace(one), "expectations": {"eval_case": LIGHT} if one == turns[0] else {}} for one in turns]
    result = mlflow.genai.evaluate(data=rows, scorers=scorers.from_config(CONFIG, session_level=True))
    assert values_of(mlflow.get_trace(turns[0]), result.run_id) == {TRAJECTORY: 0.5, ROUGE: 1.0}


def test_rows_without_a_session_are_no_pass() -> None:
    """MLflow takes a result without any score for a pass."""
    made = scorers.from_config({"criteria": {ROUGE: 0.5}}, session_level=True)
    with pytest.raises(UsageError, match="response_match_score has scored no session: no trace had a session id"):
        mlflow.genai.evaluate(data=[{"inputs": QUERY, "outputs": "x", "expectations": EXPECTED}], scorers=made)


def test_passed_is_true_only_with_the_companions_and_false_when_a_judge_is_down() -> None:
    rows = [{"inputs": QUERY, "outputs": "the light is on", "expectations": {"expected_response": "the light is on"}}]
    config = {"criteria": {ROUGE: 0.5, "final_response_match_v2": 0.5}}

    def passed(script: str, *companions: Any) -> bool:
        made = scorers.from_config(config, judge=ScriptedJudge(script, fail_every=None))
        return bool(mlflow.genai.evaluate(data=rows, scorers=[*made, *companions]).passed)

    assert passed("valid", *scorers.expectations())
    assert passed("valid", *scorers.expectations("expected_response"))
    assert not passed("invalid", *scorers.expectations())
    assert not passed("a word that is no verdict", *scorers.expectations())
    assert not passed("valid")  # MLflow takes the expected response for a score
