"""Vertex AI's evaluation service, by the real google-cloud-aiplatform against a loopback server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError, TransportError

from mlflow_adk_eval.judge.client import CallResult, JudgeClient
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Refused, Unavailable
from mlflow_adk_eval.judge.providers.vertex import (
    Result,
    RubricVerdict,
    VertexClient,
    VertexService,
    read_result,
)
from mlflow_adk_eval.judge.setup import JudgeOptions
from mlflow_adk_eval.judge.usage import UsageTracker
from mlflow_adk_eval.runtime import gathered
from tests.attackers_host import AttackersHost
from tests.judge.answers_kit import Memory
from tests.judge.providers.vertex_server import LOCATION, PROJECT, client_at, client_of, error, evaluating, row, said_in, verdict
from tests.judge.servers import CUT, HANG, RESET, Reply, replies, serving, together

INSTANCE = {
    "prompt": {"text": "hi"},
    "agent_eval_data": {"turns": [{"events": [{"author": "user", "content": {"parts": [{"text": "hi"}]}}]}]},
}
COHERENT = {"prediction": "hello"}
SAFETY = "safety_v1"
UNIT = (0.0, 1.0)


class Token(Credentials):
    """Credentials that count how often a token is asked for, and may fail to get one."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self.failure = failure
        self.refreshed = 0

    @property
    def expired(self) -> bool:
        return False

    def refresh(self, request: Any) -> None:
        self.refreshed += 1
        if self.failure:
            raise self.failure
        time.sleep(0.05)
        self.token = "the-token"  # noqa: S105 - of a loopback server


async def closing(client: VertexClient, work: Callable[[], Any]) -> Any:
    try:
        return await work()
    finally:
        await client.aclose()


def answer(client: VertexClient, metric: str = SAFETY, instance: dict[str, Any] | None = None) -> Answer:
    return anyio.run(closing, client, partial(client.evaluate, metric, INSTANCE if instance is None else instance))


def failed(*given: Reply) -> Refused | Unavailable:
    with serving(replies(*given)) as server, pytest.raises((Refused, Unavailable)) as caught:
        answer(client_of(server, timeout_s=1))
    return caught.value


def service(client: VertexClient, answers: Any = None, **settings: Any) -> VertexService:
    return VertexService(client, JudgeClient(JudgeOptions(**({"attempts": 2} | settings)), UsageTracker(), answers))


def result(given: VertexService, metric: str = SAFETY, bounds: tuple[float, float] = UNIT) -> Result:
    instance = COHERENT if metric == "coherence" else INSTANCE
    found: Result = anyio.run(closing, given.service, partial(given.evaluate, metric, instance, bounds, unshown=()))
    return found


# What is sent, and what comes back


def test_a_predefined_metric_is_asked_for_by_its_name() -> None:
    with serving(evaluating(lambda *_: row(0.7, "because"))) as server:
        found = answer(client_of(server))
    (call,) = server.calls
    assert (call.method, call.path) == ("POST", f"/v1beta1/projects/{PROJECT}/locations/{LOCATION}:evaluateInstances")
    assert call.body["metrics"] == [{"predefinedMetricSpec": {"metricSpecName": SAFETY}}]
    assert said_in(call) == "hi"
    assert json.loads(found.text) == {"score": 0.7, "explanation": "because"}
    assert (found.model, found.problem, found.input_tokens) == ("vertex:safety_v1", "", None)


def test_coherence_is_asked_of_the_service_itself_without_a_download() -> None:
    with serving(evaluating(lambda *_: {"score": 4, "explanation": "clear", "confidence": 0.9})) as server:
        found = answer(client_of(server), "coherence", COHERENT)
    (call,) = server.calls
    assert call.path.endswith(":evaluateInstances")
    assert call.body["coherenceInput"] == {"metricSpec": {}, "instance": {"prediction": "hello"}}
    assert json.loads(found.text) == {"score": 4, "explanation": "clear", "confidence": 0.9}


def test_verdicts_are_kept_word_for_word() -> None:
    given = row(0.5, "half", verdict("a", met=True, description="It greets — «你好»", reasoning="It does."), verdict("b", met=False))
    with serving(evaluating(lambda *_: given)) as server:
        found = answer(client_of(server))
    assert json.loads(found.text) == given


def test_an_answer_without_a_result_is_a_problem_of_the_answer() -> None:
    with serving(replies(Reply(body={}))) as server:
        assert answer(client_of(server)).problem == "Vertex AI's answer has no result"


def test_the_token_goes_with_the_request_and_is_fetched_once_for_all_threads() -> None:
    token = Token()
    with serving(evaluating(lambda *_: row(1))) as server:
        client = client_of(server, credentials=token)
        anyio.run(closing, client, lambda: gathered(partial(client.evaluate, SAFETY, INSTANCE) for _ in range(12)))
    assert {call.headers["authorization"] for call in server.calls} == {"Bearer the-token"}
    assert (len(server.calls), token.refreshed) == (12, 1)


def test_without_tls_nothing_secret_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-0123456789")
    with serving(evaluating(lambda *_: row(1))) as server:
        answer(client_of(server))
    assert "authorization" not in server.calls[0].headers
    assert "AIza-0123456789" not in str(server.calls[0])


# At the same time


@pytest.mark.slow
def test_requests_wait_for_the_service_at_the_same_time_and_the_event_loop_goes_on() -> None:
    ticks = 0

    async def ticking() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.02)
            ticks += 1

    async def many(client: VertexClient) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ticking)
            await gathered(partial(client.evaluate, SAFETY, INSTANCE) for _ in range(60))
            group.cancel_scope.cancel()

    with serving(together(41, evaluating(lambda *_: row(1), after_s=0.3))) as server:
        client = client_of(server)
        anyio.run(closing, client, partial(many, client))
    assert server.most_in_flight > 40  # where anyio's pool of threads ends
    assert len(server.calls) == 60
    assert ticks > 5


def test_connections_are_used_again() -> None:
    async def one_by_one(client: VertexClient) -> None:
        for _ in range(5):
            await client.evaluate(SAFETY, INSTANCE)

    with serving(evaluating(lambda *_: row(1))) as server:
        client = client_of(server)
        anyio.run(closing, client, partial(one_by_one, client))
    assert (len(server.calls), server.connections) == (5, 1)


@pytest.mark.needs("google-cloud-aiplatform")
def test_a_request_that_hangs_is_given_up_by_the_limit_of_the_run() -> None:
    with serving(replies(HANG)) as server:
        started = time.perf_counter()
        found = result(service(client_of(server, timeout_s=600), timeout_s=0.2, attempts=1))
    assert found.error == "no answer within 0.2 s"
    assert time.perf_counter() - started < 300


# What goes wrong


@pytest.mark.parametrize("status", [429, 503, 504, 408])
def test_an_overloaded_service_is_asked_later_and_less(status: int) -> None:
    found = failed(error(status, "Quota exceeded"))
    assert isinstance(found, Unavailable)
    assert found.overloaded
    assert str(status) in str(found)
    assert "Quota exceeded" in str(found)


@pytest.mark.parametrize(
    "reply",
    [error(500), error(502), RESET, CUT, Reply(body=b"<html>"), Reply(body=b'{"metricResults": [{"score": NaN}]}'), Reply(body=b"12")],
    ids=["500", "502", "reset", "cut", "html", "nan", "number"],
)
def test_a_service_that_fails_is_asked_later(reply: Reply) -> None:
    found = failed(reply)
    assert isinstance(found, Unavailable)
    assert not found.overloaded


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [(503, b"<html>sorry</html>", Unavailable), (503, b'{"error": "down"}', Unavailable), (400, b"<html>no</html>", Refused)],
)
def test_errors_that_are_not_worded_as_google_words_them(status: int, body: bytes, kind: type[Exception]) -> None:
    assert isinstance(failed(Reply(status=status, body=body)), kind)


@pytest.mark.parametrize(
    ("reply", "seconds"), [(error(429, retry_after="7"), 7.0), (error(429, retry_delay="1.5s"), 1.5), (error(429), None)]
)
def test_the_service_says_when_to_come_back(reply: Reply, seconds: float | None) -> None:
    found = failed(reply)
    assert isinstance(found, Unavailable)
    assert found.retry_after_s == seconds


@pytest.mark.parametrize(("status", "every_request"), [(400, False), (413, False), (403, True), (404, True)])
def test_a_refusal_is_final(status: int, every_request: bool) -> None:
    found = failed(error(status, "Vertex AI API has not been used in project acme"))
    assert isinstance(found, Refused)
    assert found.every_request is every_request
    assert "Vertex AI API has not been used in project acme" in str(found)


def test_credentials_that_are_not_accepted_are_said_to_be_so() -> None:
    with serving(replies(error(401, "Request had invalid authentication credentials."))) as server:
        with pytest.raises(Refused, match=r"401 .*invalid authentication credentials. Are the credentials still valid\?") as caught:
            answer(client_of(server, credentials=Token()))
        assert caught.value.every_request
    assert {call.headers["authorization"] for call in server.calls} == {"Bearer the-token"}


def test_no_one_listening_is_an_outage() -> None:
    client = client_at("http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="ConnectionError"):
        answer(client)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, attackers_host: AttackersHost) -> None:
    elsewhere = Reply(status=status, headers={"Location": f"{attackers_host.url}/v1beta1/projects/p/locations/l:evaluateInstances"})
    with serving(replies(elsewhere)) as server, pytest.raises(NoAnswer):
        answer(client_of(server, credentials=Token()))
    assert len(server.calls) == 1


def test_an_answer_says_which_host_gave_it() -> None:
    with serving(evaluating(lambda *_: row(1))) as server:
        assert f"http://{answer(client_of(server)).host}" == server.url


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(RefreshError("invalid_grant: token expired"), Refused), (TransportError("no route", retryable=True), Unavailable)],
)
def test_a_token_that_cannot_be_had(failure: Exception, kind: type[Exception]) -> None:
    with (
        serving(evaluating(lambda *_: row(1))) as server,
        pytest.raises(kind, match=r"Google Cloud credentials: .*(expired|no route)") as caught,
    ):
        answer(client_of(server, credentials=Token(failure)))
    assert getattr(caught.value, "every_request", True)
    assert server.calls == []


@pytest.mark.parametrize(
    ("code", "kind", "overloaded"),
    [(8, Unavailable, True), (14, Unavailable, True), (13, Unavailable, False), (7, Refused, None), (16, Refused, None)],
)
def test_a_row_that_failed_for_the_services_own_reasons_is_no_answer(code: int, kind: type[Exception], overloaded: bool | None) -> None:
    found = failed(Reply(body={"metricResults": [row(error={"code": code, "message": "judge model busy"})]}))
    assert isinstance(found, kind)
    assert str(found) == "judge model busy"
    assert getattr(found, "overloaded", None) is overloaded


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_cannot_be_written_as_json_is_refused_without_a_call(value: float) -> None:
    part = {"function_call": {"name": "f", "args": {"x": value}}}
    instance = {"agent_eval_data": {"turns": [{"events": [{"content": {"parts": [part]}}]}]}}
    with serving(evaluating(lambda *_: row(1))) as server, pytest.raises(Refused, match="cannot be sent") as caught:
        answer(client_of(server), SAFETY, instance)
    assert not caught.value.every_request
    assert server.calls == []


def test_what_the_service_does_not_take_is_refused_without_a_call() -> None:
    instance = {"agent_eval_data": {"turns": "none"}}
    with serving(evaluating(lambda *_: row(1))) as server, pytest.raises(Refused, match="cannot be sent"):
        answer(client_of(server), SAFETY, instance)
    assert server.calls == []


# Reading


def read(text: str, bounds: tuple[float, float] = UNIT, **more: Any) -> Result:
    return read_result(CallResult(answer=Answer(text=text, **more)), bounds)


def test_a_result_is_read_with_its_reasons() -> None:
    given = row(0.5, "half", verdict("a", met=True, description="greets", reasoning="it does"), verdict("", met=False))
    found = read(json.dumps(given), latency_s=0.25)
    assert (found.score, found.error, found.explanation, found.answer.latency_s) == (0.5, "", "half", 0.25)
    assert found.verdicts == (
        RubricVerdict(rubric_id="a", description="greets", met=True, reasoning="it does"),
        RubricVerdict(rubric_id="rubric_2", description="", met=False),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "Vertex AI gave no score"),
        ('{"explanation": "hm"}', "Vertex AI gave no score"),
        ("not json", "Vertex AI gave no score"),
        ('{"score": "NaN"}', "the score NaN, which is not a number from 0 to 1"),
        ('{"score": "Infinity"}', "the score Infinity"),
        ('{"score": true}', "the score True"),
        ('{"score": 1.5}', "the score 1.5, which is not a number from 0 to 1"),
        ('{"score": -0.1}', "the score -0.1"),
        ('{"score": 1, "error": {"code": 3, "message": "too long"}}', "Vertex AI: too long (code 3)"),
        ('{"error": {"code": 9}}', "Vertex AI: no reason given (code 9)"),
    ],
)
def test_what_is_no_score_is_an_error_and_is_kept(text: str, message: str) -> None:
    found = read(text)
    assert found.score is None
    assert message in found.error
    assert found.answer == Answer(text=text)


@pytest.mark.parametrize(("score", "bounds"), [(0, UNIT), (1, UNIT), (0.0, UNIT), (1, (1.0, 5.0)), (5, (1.0, 5.0)), (3.5, (1.0, 5.0))])
def test_the_ends_of_the_scale_are_scores(score: float, bounds: tuple[float, float]) -> None:
    found = read(json.dumps({"score": score, "error": {"code": 0}}), bounds)
    assert (found.score, found.error) == (score, "")


@pytest.mark.parametrize("score", [0.0, 0.1, 0.3, 0.7, 0.8, 0.95, 1.0])
@pytest.mark.needs("google-cloud-aiplatform")
def test_scores_arrive_as_they_were_sent_though_the_service_counts_in_32_bits(score: float) -> None:
    with serving(evaluating(lambda *_: row(score))) as server:
        assert result(service(client_of(server))).score == score


# The service with its limits and its ledger


@pytest.mark.needs("google-cloud-aiplatform")
def test_an_outage_of_a_moment_is_waited_for() -> None:
    with serving(replies(error(503), Reply(body={"metricResults": [row(1)]}))) as server:
        found = result(service(client_of(server)))
    assert (found.score, len(server.calls)) == (1, 2)


@pytest.mark.needs("google-cloud-aiplatform")
def test_an_answer_without_a_score_is_asked_for_once_more() -> None:
    with serving(replies(Reply(body={}), Reply(body={"metricResults": [row(1)]}))) as server:
        assert result(service(client_of(server))).score == 1
    with serving(replies(Reply(body={"metricResults": [row(None, "hm")]}))) as server:
        found = result(service(client_of(server)))
    assert (found.score, found.error, found.explanation, len(server.calls)) == (None, "Vertex AI gave no score", "hm", 2)


@pytest.mark.needs("google-cloud-aiplatform")
def test_what_is_paid_for_is_not_paid_for_again() -> None:
    shelf = Memory()
    with serving(evaluating(lambda *_: row(1, "fine"))) as server:
        client = client_of(server)
        first, second = (result(service(client, shelf)) for _ in range(2))
        assert (first.reused, second.reused, len(server.calls)) == (False, True, 1)
        assert replace(second, reused=False, answer=replace(second.answer, asked_in="")) == first, (
            "a client without an evaluation cannot know its own answers"
        )
        other = result(service(replace(client, project="other"), shelf))
    assert (other.score, len(server.calls)) == (None, 2)


@pytest.mark.needs("google-cloud-aiplatform")
def test_an_answer_without_a_score_stays_one_until_it_is_to_be_asked_for_anew() -> None:
    shelf = Memory()
    with serving(replies(*[Reply(body={"metricResults": [row(None)]})] * 2, Reply(body={"metricResults": [row(1)]}))) as server:
        client = client_of(server)
        assert result(service(client, shelf)).score is None
        assert (result(service(client, shelf)).score, len(server.calls)) == (None, 2)
        assert (result(replace(service(client, shelf), rejudge_failed=True)).score, len(server.calls)) == (1, 3)
        assert (result(service(client, shelf)).score, len(server.calls)) == (1, 3)


def test_an_address_tells_apart_what_could_be_answered_differently() -> None:
    client = client_at("http://here")
    others = [replace(client, **{name: "other"}) for name in ("endpoint", "project", "location")]
    found = [
        client.address(SAFETY, INSTANCE),
        client.address("other", INSTANCE),
        client.address(SAFETY, {}),
        client.address(SAFETY, INSTANCE, 1),
    ]
    found += [other.address(SAFETY, INSTANCE) for other in others]
    assert len(set(found)) == len(found)
    assert client.address(SAFETY, dict(reversed(INSTANCE.items()))) == found[0]
