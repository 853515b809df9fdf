from __future__ import annotations

from typing import Any

import pytest

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.criteria.efficiency import SPECS, PerTurn, duration, inference_calls, token_usage, tool_calls
from mlflow_adk_eval.evalset.models import Invocation
from mlflow_adk_eval.results.outcomes import Errored, Scored, Skipped
from tests.kit import call, event, recorded, run_of, turn


def used(*usages: dict[str, Any] | None) -> Invocation:
    return recorded("x", *(event(usage_metadata=usage) for usage in usages))


def test_each_metric_of_the_config_has_a_measure() -> None:
    assert tuple(spec.name for spec in SPECS) == CRITERIA.informative


@pytest.mark.parametrize(
    ("invocation", "count"),
    [(turn("x"), 0), (turn("x", call("a"), call("a")), 2), (recorded("x", event(call("a"), call("b")), event(text="y")), 2)],
)
def test_tool_calls_are_counted(invocation: Invocation, count: int) -> None:
    assert tool_calls(invocation) == Scored(float(count))


def test_a_model_call_is_an_event_that_says_what_it_used_or_which_model_it_was() -> None:
    events = [event(usage_metadata={}), event(model_version="m"), event(text="b"), event(model_version="m", usage_metadata={"x": 1})]
    assert inference_calls(recorded("x", *events)) == Scored(3.0)


def test_what_does_not_say_how_often_a_model_was_asked_is_no_zero() -> None:
    unknown = Skipped("no model call was recorded")
    assert inference_calls(recorded("x")) == unknown
    assert inference_calls(recorded("x", event(text="b"))) == unknown
    assert inference_calls(recorded("x", event(usage_metadata={}), event(call("a")))) == unknown, "a model asked for the call"
    assert inference_calls(turn("x", call("a"))) == unknown
    assert inference_calls(recorded("x").model_copy(update={"inference_call_count": 0})) == Scored(0.0), "it was counted"


def test_tokens_are_those_that_went_in_and_came_out() -> None:
    first = {"prompt_token_count": 10, "tool_use_prompt_token_count": 3, "candidates_token_count": 5, "total_token_count": 999}
    second = {"promptTokenCount": 20, "thoughtsTokenCount": 2, "cachedContentTokenCount": 8}
    assert token_usage(used(first, None, second)) == Scored(
        40.0,
        details={
            "total_tokens": 40.0,
            "input_tokens": 33.0,
            "output_tokens": 7.0,
            "prompt_tokens": 30.0,
            "tool_use_tokens": 3.0,
            "candidates_tokens": 5.0,
            "reasoning_tokens": 2.0,
            "cached_tokens": 8.0,
        },
    )


@pytest.mark.parametrize("usage", [None, {}, {"cached_content_token_count": 8}, {"total_token_count": 5}])
def test_without_tokens_in_or_out_there_is_no_usage(usage: dict[str, Any] | None) -> None:
    assert token_usage(used(usage)) == Skipped("no token usage was recorded")


def test_no_tokens_at_all_are_a_measurement() -> None:
    assert token_usage(used({"prompt_token_count": 0})) == Scored(
        0.0, details={"total_tokens": 0.0, "input_tokens": 0.0, "prompt_tokens": 0.0}
    )


@pytest.mark.parametrize(
    ("seconds", "details"),
    [
        (
            {"duration": 2.0, "model_duration": 1.2, "tool_duration": 0.3},
            {"model_seconds": 1.2, "tool_seconds": 0.3, "framework_seconds": 0.5},
        ),
        (
            {"duration": 1.0, "model_duration": 1.0005, "tool_duration": 0.0},
            {"model_seconds": 1.0005, "tool_seconds": 0.0, "framework_seconds": 0.0},
        ),
        ({"duration": 1.0, "tool_duration": 0.4}, {"tool_seconds": 0.4}),
        ({"duration": 0.0}, {}),
    ],
)
def test_seconds_are_split_where_the_parts_are_known(seconds: dict[str, float], details: dict[str, float]) -> None:
    assert duration(turn("x", **seconds)) == Scored(seconds["duration"], details={"total_seconds": seconds["duration"]} | details)


def test_a_turn_that_was_not_timed_took_no_known_time() -> None:
    assert duration(turn("x", model_duration=1.0)) == Skipped("no duration was recorded")


def test_a_turn_that_is_missing_is_not_a_turn_without_cost() -> None:
    judged = PerTurn(tool_calls)(run_of([turn("x")], [turn("x"), turn("y")]))
    assert judged.per_invocation == (Scored(0.0), Errored("no actual turn: the agent has 1 of 2 turns"))


def test_a_usage_that_is_no_number_is_not_guessed() -> None:
    with pytest.raises(TypeError):
        token_usage(used({"prompt_token_count": "many"}))
