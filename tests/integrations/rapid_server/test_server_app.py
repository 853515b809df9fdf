"""The server within this process: what a client would have to be strange to see, and one life from start to stop."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio
import httpx
import pytest

from mlflow_adk_eval.criteria.rapid.evaluate import LocalBackend, voting_settings
from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.integrations.rapid_server import app as server_app
from mlflow_adk_eval.integrations.rapid_server.app import application
from mlflow_adk_eval.integrations.rapid_server.server import Serving, serve
from mlflow_adk_eval.judge.protocol import Request
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeSetup
from tests.integrations.rapid_server.server_kit import EXACT, FLUENCY, PATH, judge

JSON = {"content-type": "application/json"}


def app_of(decide: Callable[..., Any], **settings: Any) -> Any:
    bench = LocalBackend(judging=JudgeSession(JudgeSetup(judge=decide)), settings=voting_settings(1))
    given: dict[str, Any] = {"token": "", "max_body": 1000, "concurrency": 4} | settings
    return application(bench, **given)


def answered(decide: Callable[..., Any], method: str = "POST", path: str = PATH, **given: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app_of(decide), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, **given)

    return anyio.run(ask)


def status_of(messages: list[dict[str, Any]], *received: dict[str, Any]) -> int:
    """Send a request whose body arrives in the given messages, the last of which never comes, and return the status of the answer."""
    given = iter(received)

    async def receive() -> dict[str, Any]:
        message = next(given, None)
        if message is None:
            await anyio.sleep_forever()
        return message or {}

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": PATH, "headers": headers, "query_string": b"", "scheme": "http"}
    anyio.run(app_of(judge), scope, receive, send)
    return int(messages[0]["status"])


def test_a_body_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "_PATIENCE_S", 0.05)
    sent: list[dict[str, Any]] = []
    assert status_of(sent, {"type": "http.request", "body": b"{", "more_body": True}) == 408
    assert b"DEADLINE_EXCEEDED" in sent[1]["body"]


def test_who_goes_away_within_a_request_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    assert status_of([], {"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}) == 408
    assert not caplog.records


def test_what_is_beyond_the_limit_is_read_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "_SPILT", 5000)
    pieces = [{"type": "http.request", "body": b" " * 1000, "more_body": True}] * 7
    assert status_of([], *pieces) == 413

    async def endless() -> AsyncIterator[bytes]:
        yield b" "

    response = answered(judge, content=endless(), headers={**JSON, "content-length": "10000"})
    assert response.status_code == 413


REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "a form": (415, {"data": {"a": "b"}}),
    "latin-1": (415, {"content": b"{}", "headers": {"content-type": "application/json; charset=latin-1"}}),
    "compressed": (415, {"json": {}, "headers": {"content-encoding": "gzip"}}),
    "too large": (413, {"content": b" " * 1001, "headers": JSON}),
    "a web page": (403, {"json": {}, "headers": {"origin": "http://localhost"}}),
    "no request": (400, {"json": {}}),
    "another path": (404, {"path": "/v2" + PATH}),
    "another method": (405, {"method": "GET"}),
}


@pytest.mark.parametrize(("status", "given"), REFUSALS.values(), ids=REFUSALS)
def test_each_refusal_is_in_the_same_shape(status: int, given: dict[str, Any]) -> None:
    response = answered(judge, **given)
    assert response.status_code == response.json()["error"]["code"] == status


def test_json_in_utf_8_may_be_named_as_such() -> None:
    response = answered(judge, content=json.dumps(EXACT), headers={"content-type": 'Application/JSON; charset="UTF-8"'})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("shown", "status"), [("", 401), ("Bearer", 401), ("Bearer wrong", 401), ("Basic right", 401), ("bearer right", 200)]
)
def test_a_token_must_be_the_right_one(shown: str, status: int) -> None:
    async def ask() -> int:
        transport = httpx.ASGITransport(app_of(judge, token="right"))  # noqa: S106 - of a test
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post(PATH, json=EXACT, headers={"authorization": shown})).status_code

    assert anyio.run(ask) == status


def test_halves_of_characters_in_an_explanation_do_no_harm() -> None:
    def decide(_: Request) -> dict[str, str]:
        return {"rationale": "half of \ud83d", "verdict": "4"}

    response = answered(decide, json=FLUENCY)
    assert response.json()["fluency_result"] == {"score": 4.0, "explanation": "half of ?", "confidence": 1.0}


def test_a_bug_is_told_in_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server_app, "read_request", broken)
    response = answered(judge, json=FLUENCY)
    assert response.status_code == 500
    assert response.json()["error"]["status"] == "INTERNAL"
    assert "Zero" not in response.text


def test_no_more_requests_than_allowed_are_evaluated_at_a_time() -> None:
    most = now = 0

    async def decide(_: Request) -> dict[str, str]:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await anyio.sleep(0.02)
        now -= 1
        return {"rationale": "", "verdict": "4"}

    async def ask() -> None:
        transport = httpx.ASGITransport(app_of(decide, concurrency=2))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client, anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(partial(client.post, PATH, json={"fluency_input": {"instance": {"prediction": f"text {number}"}}}))

    anyio.run(ask)
    assert most == 2


def lived(setup: JudgeSetup, *bodies: Any) -> tuple[Any, str, list[Any]]:
    """Serve until all bodies are answered, and return what the judges took, why there is none, and the answers."""
    notes: list[str] = []
    answers: list[Any] = []

    def use(url: str) -> None:
        try:
            answers.extend(httpx.post(url + PATH, json=body, timeout=300).json() for body in bodies)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def ready(url: str, note: str) -> None:
        notes.append(note)
        threading.Thread(target=use, args=(url,)).start()

    usage = serve(Serving(port=0, host="localhost"), setup, "local", voting_settings(3), ledger=False, ready=ready)
    return usage, notes[0], answers


def test_a_life_from_start_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGTERM)
    usage, note, answers = lived(JudgeSetup(judge=judge), FLUENCY, EXACT)
    assert (usage.calls, usage.models, note) == (3, ("judge",), "")
    assert [next(iter(answer)) for answer in answers] == ["fluency_result", "exact_match_results"]
    assert signal.getsignal(signal.SIGTERM) == before
    assert not caplog.records


def test_a_judge_that_cannot_be_had_matters_if_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    usage, note, answers = lived(JudgeSetup(), EXACT, FLUENCY)
    assert usage is None
    assert "GOOGLE_API_KEY" in note
    assert "exact_match_results" in answers[0]
    assert (answers[1]["error"]["status"], answers[1]["error"]["message"]) == ("UNAVAILABLE", note)
    with pytest.raises(JudgeError, match="GOOGLE_API_KEY"):
        lived(JudgeSetup(judge="gemini-2.5-pro"))
