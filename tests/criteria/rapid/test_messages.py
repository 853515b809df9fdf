from __future__ import annotations

from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.criteria.rapid.messages import (
    Rated,
    RequestError,
    answer,
    error_body,
    read_request,
)
from mlflow_adk_eval.errors import JudgeError

METRICS = list(RAPID_METRICS.values())


def instance_of(metric: RapidMetric) -> dict[str, str]:
    return {field: f"some {field}" for field in metric.fields}


def camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {to_camel(key): camel(item) for key, item in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("spelt", [lambda body: body, camel], ids=["snake", "camel"])
@pytest.mark.parametrize("key", ["instance", "instances", "a list"])
def test_each_metric_is_read_in_every_spelling(metric: RapidMetric, spelt: Any, key: str) -> None:
    given = [instance_of(metric)] if key == "a list" else instance_of(metric)
    asked = read_request(spelt({metric.input_key: {"metric_spec": {}, key if key != "a list" else "instances": given}}))
    assert asked.metric == metric
    assert asked.instances == (instance_of(metric),)
    assert asked.spec == {}


def test_null_is_what_is_left_out_and_the_location_says_nothing() -> None:
    body = {
        "location": "projects/p/locations/l",
        "bleu_input": None,
        "fluency_input": {"metric_spec": None, "instance": {"prediction": "x"}},
    }
    assert read_request(body).metric.name == "fluency"


PROBLEMS: dict[str, tuple[Any, str, str]] = {
    "no object": ([], "$", "an object"),
    "nothing": ({}, "$", "exactly one"),
    "two inputs": ({"bleu_input": {}, "rouge_input": {}}, "$", "exactly one"),
    "unknown metric": ({"fluencies_input": {}}, "$.fluencies_input", "Did you mean 'fluency_input'?"),
    "no input": ({"fluency_input": 3}, "$.fluency_input", "an object"),
    "no instance": ({"fluency_input": {}}, "$.fluency_input", "neither"),
    "both": ({"fluency_input": {"instance": {"prediction": "x"}, "instances": []}}, "$.fluency_input", "both"),
    "empty list": ({"bleu_input": {"instances": []}}, "$.bleu_input.instances", "at least one"),
    "missing field": ({"bleu_input": {"instances": [{"prediction": "x"}]}}, "$.bleu_input.instances[0].reference", "a text"),
    "number": ({"fluency_input": {"instance": {"prediction": 3}}}, "$.fluency_input.instance.prediction", "found 3"),
    "unknown field": (
        {"fluency_input": {"instance": {"prediction": "x", "contxt": "y"}}},
        "$.fluency_input.instance.contxt",
        "unknown field",
    ),
    "pair under the wrong key": (
        {
            "question_answering_quality_input": {
                "instance": {"prediction": "x", "baseline_prediction": "y", "instruction": "z", "context": "c"}
            }
        },
        "$.question_answering_quality_input.instance.baseline_prediction",
        "pairwise_question_answering_quality_input",
    ),
    "rouge10": (
        {"rouge_input": {"metric_spec": {"rouge_type": "rouge10"}, "instance": {"prediction": "x", "reference": "y"}}},
        "$.rouge_input.metric_spec.rouge_type",
        "rouge1 to rouge9",
    ),
    "text for a switch": (
        {"rouge_input": {"metric_spec": {"use_stemmer": "yes"}, "instance": {"prediction": "x", "reference": "y"}}},
        "$.rouge_input.metric_spec.use_stemmer",
        "true or false",
    ),
    "unknown setting": (
        {"fluency_input": {"metric_spec": {"versoin": 1}, "instance": {"prediction": "x"}}},
        "$.fluency_input.metric_spec.versoin",
        "Did you mean 'version'?",
    ),
    "no reference to use": (
        {
            "question_answering_correctness_input": {
                "metric_spec": {"use_reference": True},
                "instance": {"prediction": "x", "instruction": "y", "context": "z"},
            }
        },
        "$.question_answering_correctness_input.metric_spec.use_reference",
        "a reference",
    ),
}


@pytest.mark.parametrize(("body", "path", "words"), PROBLEMS.values(), ids=PROBLEMS)
def test_what_is_wrong_is_named_with_its_path(body: Any, path: str, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        read_request(body)
    (problem,) = raised.value.problems
    assert problem.path == path
    assert words in str(problem)


def test_all_problems_are_named_at_once() -> None:
    instances = [{"prediction": 1}, "text", {"prediction": "x", "reference": None}]
    with pytest.raises(RequestError) as raised:
        read_request({"bleu_input": {"metric_spec": {"order": 4}, "instances": instances}})
    assert [problem.path.removeprefix("$.bleu_input.") for problem in raised.value.problems] == [
        "metric_spec.order",
        "instances[0].prediction",
        "instances[0].reference",
        "instances[1]",
        "instances[2].reference",
    ]


def test_an_answer_is_in_the_documented_shape() -> None:
    texts = {"prediction": "x", "reference": "y"}
    computed = read_request({"tool_parameter_kv_match_input": {"instances": [texts, texts]}})
    assert answer(computed, [Rated(score=0.5), Rated(score=1.0)]) == {
        "tool_parameter_kv_match_results": {"tool_parameter_kv_match_metric_values": [{"score": 0.5}, {"score": 1.0}]}
    }
    judged = read_request({"fluency_input": {"instance": {"prediction": "x"}}})
    rated = Rated(score=4.0, explanation="well put", confidence=0.8)
    assert answer(judged, [rated]) == {"fluency_result": {"score": 4.0, "explanation": "well put", "confidence": 0.8}}
    metric = RAPID_METRICS["pairwise_summarization_quality"]
    pair = read_request({metric.input_key: {"instance": instance_of(metric)}})
    choice = Rated(choice="TIE", explanation="alike", confidence=1.0)
    assert answer(pair, [choice]) == {
        "pairwise_summarization_quality_result": {"pairwise_choice": "TIE", "explanation": "alike", "confidence": 1.0}
    }


def test_errors_are_in_googles_shape() -> None:
    with pytest.raises(RequestError) as raised:
        read_request({"fluency_input": {"instance": {"prediction": 3}}})
    error = error_body(raised.value)["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][0]["fieldViolations"][0]["field"] == "fluency_input.instance.prediction"
    assert error_body(JudgeError("down"))["error"] == {"code": 503, "message": "down", "status": "UNAVAILABLE"}
