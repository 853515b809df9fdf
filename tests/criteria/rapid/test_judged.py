from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlflow_adk_eval import JudgeOptions
from mlflow_adk_eval.config.rapid_catalogue import RAPID_METRICS, RapidMetric
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.judge.protocol import Refused, Request
from mlflow_adk_eval.rapid_eval import RequestError, aevaluate_instances, evaluate_instances

JUDGED = [metric for metric in RAPID_METRICS.values() if metric.kind == "judged"]
PAIRWISE = [metric for metric in RAPID_METRICS.values() if metric.kind == "pairwise"]
ONCE = JudgeOptions(attempts=1)


class Votes:
    """A judge that answers with labels in turn, and keeps what it was asked."""

    def __init__(self, *labels: str) -> None:
        self.labels: Iterator[str] = itertools.cycle(labels)
        self.asked: list[Request] = []

    def __call__(self, request: Request) -> dict[str, str]:
        self.asked.append(request)
        label = next(self.labels)
        if label == "refuse":
            raise Refused("not today")
        return {"rationale": f"because {label}", "verdict": label}


def body_of(metric: RapidMetric, spec: dict[str, Any] | None = None, **texts: str) -> dict[str, Any]:
    instance = {field: f"some {field}" for field in metric.fields} | texts
    return {metric.input_key: {"metric_spec": spec or {}, "instance": instance}}


def ask(body: Any, judge: Callable[..., Any], **settings: Any) -> Any:
    return evaluate_instances(body, judge=judge, judge_options=ONCE, ledger=False, **settings)


@pytest.mark.parametrize("metric", JUDGED, ids=lambda metric: metric.name)
def test_each_grade_of_each_scale_is_an_answer_with_its_explanation(metric: RapidMetric) -> None:
    for grade in metric.scale:
        judge = Votes(str(grade))
        found = ask(body_of(metric), judge)
        assert found == {metric.result_key: {"score": float(grade), "explanation": f"because {grade}", "confidence": 1.0}}
        assert judge.asked[0].schema["properties"]["verdict"]["enum"] == [str(one) for one in metric.scale]
        assert dict(judge.asked[0].blocks) == {field: f"some {field}" for field in metric.fields}
        assert list(judge.asked[0].blocks)[-1] == "prediction"
        assert judge.asked[0].name == metric.criterion


def test_a_rating_is_the_median_and_its_confidence_the_share_of_votes_for_it() -> None:
    found = ask(body_of(RAPID_METRICS["fluency"]), Votes("2", "5", "4", "4", "1"))
    assert found["fluency_result"] == {"score": 4.0, "explanation": "because 4", "confidence": 0.4}


def test_calls_can_be_saved_at_the_price_of_a_rougher_confidence() -> None:
    judge = Votes("1", "1", "1", "0", "0")
    assert ask(body_of(RAPID_METRICS["safety"]), judge)["safety_result"]["confidence"] == 0.6
    assert len(judge.asked) == 5
    judge = Votes("1")
    assert ask(body_of(RAPID_METRICS["safety"]), judge, early_stop=True)["safety_result"]["confidence"] == 1.0
    assert len(judge.asked) == 3


def test_the_prompts_name_what_they_are_given() -> None:
    for metric in (*JUDGED, *PAIRWISE):
        judge = Votes("tie") if metric.kind == "pairwise" else Votes(str(min(metric.scale)))
        ask(body_of(metric), judge, num_samples=1)
        request = judge.asked[0]
        for block in request.blocks:
            assert f"`{block}`" in request.instructions, (metric.name, block)
        for label in request.schema["properties"]["verdict"]["enum"]:
            assert f"- `{label}`:" in request.instructions, (metric.name, label)


@pytest.mark.parametrize("said", ["", "  \n", "…", "?!"])
def test_an_answer_that_says_nothing_gets_the_least_grade_without_a_call(said: str) -> None:
    judge = Votes("5")
    found = ask(body_of(RAPID_METRICS["fulfillment"], prediction=said), judge)
    assert found["fulfillment_result"]["score"] == 1.0
    assert judge.asked == []


def test_a_reference_is_shown_only_where_the_request_says_so() -> None:
    metric = RAPID_METRICS["question_answering_correctness"]
    for spec, shown in (({}, False), ({"use_reference": False}, False), ({"use_reference": True}, True)):
        judge = Votes("1")
        ask(body_of(metric, spec, reference="Bern"), judge, num_samples=1)
        assert ("reference" in judge.asked[0].blocks) is shown


@pytest.mark.parametrize("metric", PAIRWISE, ids=lambda metric: metric.name)
@pytest.mark.parametrize(("preferred", "choice"), [("a longer answer", "CANDIDATE"), ("short", "BASELINE")])
def test_the_same_preference_in_both_orders_is_the_choice(metric: RapidMetric, preferred: str, choice: str) -> None:
    def judge(request: Request) -> dict[str, str]:
        first = request.blocks["first_response"] == preferred
        return {"rationale": "it is better", "verdict": "first" if first else "second"}

    found = ask(body_of(metric, prediction="a longer answer", baseline_prediction="short"), judge)
    assert found[metric.result_key] == {"pairwise_choice": choice, "explanation": "it is better", "confidence": 1.0}


def test_a_judge_that_prefers_a_position_makes_a_tie() -> None:
    judge = Votes("first")
    metric = PAIRWISE[0]
    result = ask(body_of(metric), judge, num_samples=3)[metric.result_key]
    assert result["pairwise_choice"] == "TIE"
    assert result["confidence"] == 0
    assert "changed with the order" in result["explanation"]
    assert {request.blocks["first_response"] for request in judge.asked} == {"some prediction", "some baseline_prediction"}


def test_equal_texts_are_a_tie_without_a_call() -> None:
    judge = Votes("first")
    result = ask(body_of(PAIRWISE[0], prediction="same", baseline_prediction="same"), judge)[PAIRWISE[0].result_key]
    assert (result["pairwise_choice"], judge.asked) == ("TIE", [])


def test_a_judge_without_a_verdict_is_an_error_and_never_a_score() -> None:
    for metric in (JUDGED[0], PAIRWISE[0]):
        with pytest.raises(JudgeError, match=r"instance 1: .*not today"):
            ask(body_of(metric), Votes("refuse"))
        with pytest.raises(JudgeError, match="not one of"):
            ask(body_of(metric), Votes("excellent"))


def test_in_a_batch_one_failure_does_not_cost_the_others() -> None:
    def judge(request: Request) -> dict[str, str]:
        if request.blocks["prediction"] == "bad":
            raise Refused("not this one")
        return {"rationale": "fine", "verdict": "1"}

    safety = RAPID_METRICS["safety"]
    texts = {"prediction": "x", "reference": "x"}
    found = ask([body_of(safety, prediction="good"), body_of(safety, prediction="bad"), {"exact_match_input": {"instance": texts}}], judge)
    assert found[0]["safety_result"]["score"] == 1
    assert found[1]["error"]["status"] == "UNAVAILABLE"
    assert "not this one" in found[1]["error"]["message"]
    assert found[2] == {"exact_match_results": {"exact_match_metric_values": [{"score": 1.0}]}}


def test_a_bad_request_in_a_batch_is_found_before_anybody_is_asked() -> None:
    judge = Votes("1")
    with pytest.raises(RequestError, match="request 2"):
        ask([body_of(RAPID_METRICS["safety"]), {"safety_input": {}}], judge)
    assert judge.asked == []


def test_several_instances_of_a_judged_metric_are_several_results() -> None:
    texts = [{"prediction": "one"}, {"prediction": "two"}]
    found = ask({"fluency_input": {"instances": texts}}, Votes("3"), num_samples=1)
    assert [result["score"] for result in found["fluency_result"]] == [3.0, 3.0]


def test_what_was_paid_for_is_not_asked_again(tmp_path: Path) -> None:
    judge = Votes("4")
    judge.address = "votes"  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - as a callable judge may have it
    body = body_of(RAPID_METRICS["coherence"])
    first = evaluate_instances(body, judge=judge, ledger=tmp_path / "ledger.sqlite")
    asked = len(judge.asked)
    assert evaluate_instances(body, judge=judge, ledger=tmp_path / "ledger.sqlite") == first
    assert (asked, len(judge.asked)) == (5, 5)


@pytest.mark.needs("sacrebleu")
def test_computed_metrics_need_no_judge_and_no_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert evaluate_instances({"bleu_input": {"instance": {"prediction": "a", "reference": "b"}}})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(JudgeError, match="GOOGLE_API_KEY"):
        evaluate_instances(body_of(RAPID_METRICS["fluency"]))


def test_the_async_twin_answers_the_same() -> None:
    body = body_of(RAPID_METRICS["safety"])
    assert anyio.run(partial(aevaluate_instances, body, judge=Votes("1"), ledger=False)) == ask(body, Votes("1"))


@pytest.mark.parametrize(("settings", "words"), [({"backend": "vertx"}, "Did you mean 'vertex'"), ({"num_samples": 0}, "num_samples=0")])
def test_arguments_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        evaluate_instances(body_of(RAPID_METRICS["safety"]), judge=Votes("1"), ledger=False, **settings)
