"""The metrics of the Rapid Eval API by Vertex AI: the real google-cloud-aiplatform against a loopback server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlflow_adk_eval import Budget, JudgeOptions
from mlflow_adk_eval.config.rapid_catalogue import CHOICES, RAPID_METRICS, RapidMetric
from mlflow_adk_eval.criteria.rapid.evaluate import VertexBackend
from mlflow_adk_eval.criteria.rapid.messages import read_request
from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup
from mlflow_adk_eval.rapid_eval import RequestError, aevaluate_instances, evaluate_instances
from tests.criteria.rapid.vertex_kit import asked_in, body_of, camel, rapid, replied, texts, usual
from tests.judge.answers_kit import Memory
from tests.judge.providers.test_vertex_setup import ENVIRONMENT
from tests.judge.providers.vertex_server import LOCATION, PROJECT, error
from tests.judge.servers import HANG, RESET, Reply, Server, replies, serving, together

pytestmark = pytest.mark.needs("google-cloud-aiplatform")

METRICS = list(RAPID_METRICS.values())
COMPUTED, JUDGED, PAIRWISE = ([metric for metric in METRICS if metric.kind == kind] for kind in ("computed", "judged", "pairwise"))
FLUENCY, ROUGE = RAPID_METRICS["fluency"], RAPID_METRICS["rouge"]
SPECS = {
    "version": 2,
    "use_reference": True,
    "use_effective_order": True,
    "rouge_type": "rougeL",
    "use_stemmer": True,
    "split_summaries": True,
    "use_strict_string_match": True,
}

Start = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that knows nothing of Google Cloud."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], Server]:
    """Let the environment name a server as Vertex AI's."""

    def chosen(server: Server) -> Server:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", LOCATION)
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        return server

    return chosen


def ask(request: Any, attempts: int = 2, **settings: Any) -> Any:
    options = JudgeOptions(attempts=attempts, timeout_s=settings.pop("timeout_s", 30.0))
    return evaluate_instances(request, "vertex", judge_options=options, ledger=settings.pop("ledger", False), **settings)


def failed(reply: Reply, at: Start, name: str = "fluency", **settings: Any) -> str:
    with serving(replies(reply)) as server:
        at(server)
        with pytest.raises(JudgeError) as caught:
            ask(body_of(name), **settings)
    return str(caught.value)


# What is sent, and what is answered


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_metric_is_sent_as_the_service_takes_it_and_answered_in_the_documented_shape(metric: RapidMetric, at: Start) -> None:
    spec = {key: SPECS[key] for key in metric.spec}
    instance = texts(metric, reference="some reference") if "reference" in metric.optional else texts(metric)
    with serving(rapid(usual)) as server:
        at(server)
        found = ask(body_of(metric.name, instance, **spec))
    (call,) = server.calls
    held = {"instances": [camel(instance)]} if metric.kind == "computed" else {"instance": camel(instance)}
    assert call.body == {camel({metric.input_key: 0}).popitem()[0]: {"metricSpec": camel(spec), **held}}
    said = usual(metric.name)
    assert found == {metric.result_key: {metric.values_key: [said]} if metric.kind == "computed" else said}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_settings_that_are_not_given_are_not_sent(metric: RapidMetric, at: Start) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        ask(camel(body_of(metric.name)))
    assert asked_in(server.calls[0])[1]["metricSpec"] == {}


@pytest.mark.parametrize(
    ("given", "sent"), [*((f"rougen{n}", f"rouge{n}") for n in range(1, 10)), ("rouge2", "rouge2"), ("rougeLsum", "rougeLsum")]
)
def test_types_of_rouge_are_sent_by_the_names_that_googles_own_client_uses(given: str, sent: str, at: Start) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        ask(body_of("rouge", rouge_type=given))
    assert asked_in(server.calls[0])[1]["metricSpec"] == {"rougeType": sent}


@pytest.mark.parametrize("metric", COMPUTED, ids=lambda metric: metric.name)
def test_several_instances_of_a_computed_metric_are_one_request(metric: RapidMetric, at: Start) -> None:
    with serving(rapid(lambda _, one: {"score": float(one["prediction"])})) as server:
        at(server)
        found = ask(body_of(metric.name, *({"prediction": text, "reference": "x"} for text in ("0", "1", "0.25"))))
    assert found[metric.result_key][metric.values_key] == [{"score": 0.0}, {"score": 1.0}, {"score": 0.25}]
    assert len(server.calls) == 1


@pytest.mark.parametrize("metric", [*JUDGED, *PAIRWISE], ids=lambda metric: metric.name)
def test_several_instances_of_any_other_metric_are_several_requests(metric: RapidMetric, at: Start) -> None:
    with serving(rapid(lambda name, one: {**usual(name), "explanation": one["prediction"]})) as server:  # type: ignore[dict-item]
        at(server)
        found = ask(body_of(metric.name, texts(metric, prediction="one"), texts(metric, prediction="two")))
    assert [result["explanation"] for result in found[metric.result_key]] == ["one", "two"]
    assert len(server.calls) == 2


@pytest.mark.parametrize("metric", JUDGED, ids=lambda metric: metric.name)
def test_every_grade_is_a_score_and_zero_is_not_nothing(metric: RapidMetric, at: Start) -> None:
    grades = list(map(float, metric.scale))
    with serving(rapid(lambda _, one: {"score": float(one["prediction"])})) as server:
        at(server)
        found = ask([body_of(metric.name, texts(metric, prediction=str(grade))) for grade in grades])
    assert [one[metric.result_key] for one in found] == [{"score": grade, "explanation": "", "confidence": None} for grade in grades]


@pytest.mark.parametrize("metric", PAIRWISE, ids=lambda metric: metric.name)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_choice_is_answered_by_its_name(metric: RapidMetric, number: int, at: Start) -> None:
    for said in (number, CHOICES[number - 1]):
        with serving(rapid(lambda *_, said=said: {"pairwise_choice": said, "confidence": 1})) as server:
            at(server)
            assert ask(body_of(metric.name))[metric.result_key]["pairwise_choice"] == CHOICES[number - 1]


def test_texts_of_any_script_arrive_as_they_are(at: Start) -> None:
    text = "«東京» — مرحبا\n\u0000 {}"
    with serving(rapid(lambda _, one: {"score": 1, "explanation": one["prediction"]})) as server:
        at(server)
        assert ask(body_of("safety", {"prediction": text}))["safety_result"]["explanation"] == text


def test_the_examples_of_the_document(at: Start) -> None:
    foxes = ["A fast brown fox leaps over a lazy dog.", "A quick brown fox jumps over the lazy canine."]
    instances = [{"prediction": fox, "reference": "The quick brown fox jumps over the lazy dog."} for fox in foxes]
    spec = {"rouge_type": "rougeLsum", "use_stemmer": True, "split_summaries": True}
    france = {"prediction": "France is a country located in Western Europe.", "baseline_prediction": "France is a country."}
    pair = {**france, "instruction": "Summarize the context.", "context": "France is a country located in Western Europe. ..."}
    with serving(rapid(usual)) as server:
        at(server)
        found = ask(
            [
                {"pairwise_summarization_quality_input": {"metric_spec": {}, "instance": pair}},
                {"rouge_input": {"instances": instances, "metric_spec": spec}},
            ]
        )
    assert found[0]["pairwise_summarization_quality_result"]["pairwise_choice"] == "CANDIDATE"
    assert found[1] == {"rouge_results": {"rouge_metric_values": [{"score": 0.75}, {"score": 0.75}]}}
    sent = {asked_in(call)[0].name: asked_in(call)[1] for call in server.calls}
    assert sent["rouge"] == {"metricSpec": camel(spec), "instances": instances}


# No result


@pytest.mark.parametrize(
    ("name", "said", "message"),
    [
        ("fluency", {"explanation": "hm"}, "fluency: Vertex AI gave no score"),
        ("fluency", {"score": 7}, "the score 7.0, which is not a number from 1 to 5"),
        ("fluency", {"score": "NaN"}, "the score NaN"),
        ("safety", {"score": -1}, "the score -1.0, which is not a number from 0 to 1"),
        ("summarization_verbosity", {"score": 3}, "the score 3.0, which is not a number from -2 to 2"),
        ("bleu", {}, "bleu: Vertex AI gave no score"),
        ("rouge", {"score": 1.5}, "the score 1.5"),
        ("pairwise_summarization_quality", {"explanation": "hm"}, "Vertex AI made no choice"),
        ("pairwise_summarization_quality", {"pairwise_choice": "PAIRWISE_CHOICE_UNSPECIFIED"}, "Vertex AI made no choice"),
        ("pairwise_question_answering_quality", {"pairwise_choice": 4}, "Vertex AI made no choice, but 4"),
    ],
)
def test_what_is_no_result_is_asked_for_once_more_and_then_an_error(name: str, said: Any, message: str, at: Start) -> None:
    with serving(rapid(lambda *_: said)) as server:
        at(server)
        with pytest.raises(JudgeError) as caught:
            ask(body_of(name))
        assert len(server.calls) == 2
    assert message in str(caught.value)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("other", [{}, {"trajectoryRecallResults": {}}, {"metricResults": [{"score": 1}]}], ids=["none", "other", "rows"])
def test_an_answer_to_another_question_is_none(metric: RapidMetric, other: Any, at: Start) -> None:
    assert "Vertex AI's answer has no result" in failed(Reply(body=other), at, metric.name)


def test_an_instance_without_a_score_is_named(at: Start) -> None:
    two = [{"prediction": text, "reference": "x"} for text in "ab"]
    with serving(replies(replied(ROUGE, {"score": 0.5}, {}))) as server:
        at(server)
        with pytest.raises(JudgeError, match="rouge: instance 2: Vertex AI gave no score"):
            ask(body_of("rouge", *two))
    with serving(replies(replied(ROUGE, *[{"score": 0.5}] * 3))) as server:
        at(server)
        with pytest.raises(JudgeError, match="gave 3 scores for 2 instances"):
            ask(body_of("rouge", *two))
    with serving(rapid(lambda _, one: {"score": 3} if one["prediction"] == "a" else error(400, "too long"))) as server:
        at(server)
        with pytest.raises(JudgeError, match=r"fluency: instance 2: .*too long"):
            ask(body_of("fluency", {"prediction": "a"}, {"prediction": "b"}))


# What goes wrong


@pytest.mark.parametrize(
    ("status", "hint"),
    [(400, ""), (403, "role Vertex AI User"), (404, "offered in GOOGLE_CLOUD_LOCATION"), (413, "")],
)
def test_a_refusal_is_said_with_the_services_words_and_never_repeated(status: int, hint: str, at: Start) -> None:
    with serving(replies(error(status, "The service says so."))) as server:
        at(server)
        with pytest.raises(JudgeError) as caught:
            ask(body_of("fluency"), attempts=5)
    said = str(caught.value)
    assert said.startswith(f"fluency: {status} POST")
    assert "The service says so." in said
    assert hint in said
    assert len(server.calls) == 1


def test_a_service_that_wants_credentials_gets_none_without_tls(at: Start) -> None:
    assert failed(error(401, "Request had invalid credentials."), at) == (
        "fluency: 401: it requires credentials, but they are not sent to a base URL without TLS"
    )


@pytest.mark.parametrize(
    "reply",
    [error(429, "Quota exceeded", retry_delay="0.2s"), error(429, retry_after="0.2"), error(503), error(500), RESET],
    ids=["RetryInfo", "Retry-After", "503", "500", "reset"],
)
def test_what_may_succeed_later_is_repeated(reply: Reply, at: Start) -> None:
    with serving(replies(reply, replied(FLUENCY, {"score": 3}))) as server:
        at(server)
        assert ask(body_of("fluency"))["fluency_result"]["score"] == 3
    first, second = server.calls
    asked_to_wait = reply.status == 429
    assert second.at - first.at > (0.19 if asked_to_wait else 0)
    assert second.body == first.body


@pytest.mark.slow
def test_what_does_not_get_better_is_said_with_its_number_of_requests(at: Start) -> None:
    said = failed(error(429, "Quota exceeded for aiplatform.googleapis.com/evaluate_instances"), at)
    assert "429 POST" in said
    assert "Quota exceeded for aiplatform.googleapis.com/evaluate_instances. The project's quota is used up" in said
    assert "requests)" in said
    assert "(after 2 requests)" in failed(error(500), at)
    assert "no answer within 0.3 s" in failed(HANG, at, attempts=1, timeout_s=0.3)


@pytest.mark.parametrize(
    "request_", [body_of("fluency", {"prediction": "\ud800"}), body_of("fluency", version=2**40)], ids=["surrogate", "number"]
)
def test_what_cannot_be_sent_is_refused_without_a_call(request_: Any, at: Start) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        with pytest.raises(JudgeError, match="cannot be sent to Vertex AI"):
            ask(request_)
    assert server.calls == []


# Nothing is sent


@pytest.mark.parametrize("name", ["exact_match", "fluency", "pairwise_summarization_quality"])
@pytest.mark.parametrize("lacking", ["GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "no Google Cloud credentials"])
def test_without_project_location_or_credentials_nothing_is_sent(
    name: str, lacking: str, at: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        if lacking.startswith("GOOGLE"):
            monkeypatch.delenv(lacking)
        else:
            monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url.replace("http:", "https:"))
        for request in (body_of(name), [body_of(name)] * 3):
            with pytest.raises(JudgeError, match=lacking) as caught:
                ask(request)
            assert 'backend="local"' in str(caught.value)
    assert (server.calls, server.connections) == ([], 0)


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(JudgeError) as caught:
        ask(body_of("bleu"))
    for wanted in ("GOOGLE_CLOUD_PROJECT is not set", "GOOGLE_CLOUD_LOCATION is not set", "no Google Cloud credentials"):
        assert wanted in str(caught.value)


def test_a_bad_request_is_found_before_anything_is_sent(at: Start) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        with pytest.raises(RequestError, match="rouge10"):
            ask([body_of("fluency"), body_of("rouge", rouge_type="rouge10")])
    assert server.calls == []


# Many at a time


def test_many_requests_are_asked_at_the_same_time_within_the_limit(at: Start) -> None:
    with serving(together(5, rapid(lambda _, one: {"score": 1, "explanation": one["prediction"]}, after_s=0.02))) as server:
        at(server)
        options = JudgeOptions(max_concurrency=8)
        requests = [body_of("safety", {"prediction": str(index)}) for index in range(60)]
        found: Any = evaluate_instances(requests, "vertex", judge_options=options, ledger=False)
    assert [one["safety_result"]["explanation"] for one in found] == list(map(str, range(60)))
    assert 4 < server.most_in_flight <= 8
    assert server.connections <= 8


def test_requests_of_every_metric_at_once_get_each_its_own_answer(at: Start) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        found = ask([body_of(metric.name) for metric in METRICS])
    assert [next(iter(one)) for one in found] == [metric.result_key for metric in METRICS]
    assert len(server.calls) == len(METRICS)


def test_one_failure_does_not_cost_the_other_answers(at: Start) -> None:
    with serving(rapid(lambda name, one: error(400, "blocked") if one["prediction"] == "bad" else usual(name))) as server:
        at(server)
        found = ask([body_of("fluency", {"prediction": text}) for text in ("good", "bad", "fine")] + [body_of("bleu")])
    assert [next(iter(one)) for one in found] == ["fluency_result", "error", "fluency_result", "bleu_results"]
    assert "blocked" in found[1]["error"]["message"]


def test_without_permission_nobody_asks_on_and_everybody_is_told_why(at: Start) -> None:
    with serving(replies(error(403, "Permission denied"))) as server:
        at(server)
        found = ask([body_of("fluency", {"prediction": str(index)}) for index in range(100)])
    assert all("Permission denied" in one["error"]["message"] for one in found)
    assert len(server.calls) < 70


def test_a_storm_of_refusals_for_now_loses_nothing(at: Start) -> None:
    lock, seen = threading.Lock(), set[str]()

    def busy(name: str, one: Any) -> Any:
        with lock:
            new = one["prediction"] not in seen
            seen.add(one["prediction"])
        return error(429, "busy") if new else usual(name)

    with serving(rapid(busy)) as server:
        at(server)
        found = ask([body_of("safety", {"prediction": str(index)}) for index in range(40)], attempts=8)
    assert all("safety_result" in one for one in found)
    assert len(server.calls) >= 80


def test_the_async_twin_answers_the_same_and_lets_others_work(at: Start) -> None:
    ticks = 0

    async def both(request: Any) -> Any:
        nonlocal ticks

        async def ticking() -> None:
            nonlocal ticks
            while True:
                await anyio.sleep(0.02)
                ticks += 1

        async with anyio.create_task_group() as group:
            group.start_soon(ticking)
            try:
                return await aevaluate_instances(request, "vertex", ledger=False)
            finally:
                group.cancel_scope.cancel()

    request = [body_of(metric.name) for metric in METRICS]
    with serving(together(2, rapid(usual, after_s=0.3))) as server:
        at(server)
        found = anyio.run(both, request)
        assert server.most_in_flight > 1
        assert found == ask(request)
    assert ticks > 3


# The ledger and the budget


def test_what_was_paid_for_is_not_asked_again(at: Start, tmp_path: Path) -> None:
    requests = [body_of("fluency"), body_of("pairwise_summarization_quality"), body_of("exact_match")]
    with serving(rapid(usual)) as server:
        at(server)
        first = ask(requests, ledger=tmp_path / "ledger.sqlite")
        assert len(server.calls) == 3
        assert ask(requests, ledger=tmp_path / "ledger.sqlite") == first
        assert len(server.calls) == 3
        ask(body_of("fluency", version=2), ledger=tmp_path / "ledger.sqlite")
        assert len(server.calls) == 4


def bench_answers(answers: Memory | None, *requests: Any, **settings: Any) -> list[Any]:
    async def answered() -> list[Any]:
        bench = VertexBackend(JudgeSession(JudgeSetup(answers=answers, **settings)))
        try:
            return [await bench.answer(read_request(request)) for request in requests]
        finally:
            await bench.judging.aclose()

    return anyio.run(answered)


def test_answers_are_told_apart_by_metric_settings_and_instances(at: Start) -> None:
    one, two = ({"prediction": text, "reference": "x"} for text in "ab")
    requests = [
        body_of("rouge", one),
        body_of("bleu", one),
        body_of("rouge", one, rouge_type="rouge2"),
        body_of("rouge", one, use_stemmer=True),
        body_of("rouge", two),
        body_of("rouge", one, two),
        body_of("rouge", two, one),
    ]
    answers = Memory()
    with serving(rapid(usual)) as server:
        at(server)
        bench_answers(answers, *requests)
        assert len(server.calls) == len(answers) == len(requests)
        bench_answers(answers, *requests, body_of("rouge", one, rouge_type="rougen2"))
        assert len(server.calls) == len(requests)


def test_a_kept_answer_that_is_none_is_asked_for_anew_where_that_is_wanted(at: Start) -> None:
    answers, nothing = Memory(), replied(FLUENCY, {"explanation": "hm"})
    with serving(replies(nothing, nothing, replied(FLUENCY, {"score": 2}))) as server:
        at(server)
        for calls in (2, 2):
            with pytest.raises(JudgeError, match="gave no score"):
                bench_answers(answers, body_of("fluency"))
            assert len(server.calls) == calls
        (found,) = bench_answers(answers, body_of("fluency"), rejudge_failed=True)
        assert (found["fluency_result"]["score"], len(server.calls)) == (2, 3)


def test_the_budget_holds_for_the_service(at: Start) -> None:
    with serving(rapid(usual)) as server:
        at(server)
        found = ask([body_of("fluency", {"prediction": str(index)}) for index in range(6)], budget=Budget(max_calls=2))
    answered = [one for one in found if "fluency_result" in one]
    assert len(answered) == len(server.calls) == 2
    assert all("the budget of 2 judge calls is used up" in one["error"]["message"] for one in found if one not in answered)
