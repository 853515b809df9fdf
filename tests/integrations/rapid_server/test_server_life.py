"""The server's life: who may ask, how it stops, clients that go away and judges that fail."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.integrations.rapid_server.server_kit import (
    EXACT,
    FLUENCY,
    METRICS,
    PATH,
    Held,
    Running,
    answer_of,
    error_of,
    judged_by,
    post,
    request_of,
    served,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


def test_who_has_no_token_is_refused() -> None:
    with served(*judged_by("judge"), "--host", "0.0.0.0", environment={"MLFLOW_ADK_EVAL_RAPID_TOKEN": "geheim-ü"}) as server:  # noqa: S104
        local = Running(server.url.replace("0.0.0.0", "127.0.0.1"), server.process)  # noqa: S104
        for shown in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic geheim-ü".encode()}):
            response = post(local, FLUENCY, headers=shown)
            assert response.status_code == 401
            assert error_of(response)["status"] == "UNAUTHENTICATED"
            assert response.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer geheim-ü".encode()}
        assert post(local, EXACT, headers=right).status_code == 200
        assert post(local, EXACT, headers={**right, "origin": "https://example.com"}).status_code == 200
        assert httpx.get(f"{local.url}/openapi.json").status_code == 401
        assert httpx.get(f"{local.url}/health").status_code == 200
        described = httpx.get(f"{local.url}/openapi.json", headers=right).json()
        assert described["security"] == [{"token": []}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stop_waits_for_requests_that_are_under_way(held: Held, number: int) -> None:
    answered: list[httpx.Response] = []
    with served(*judged_by("held_judge"), environment=held.environment) as server, httpx.Client(timeout=300) as idle:
        assert idle.get(f"{server.url}/health").status_code == 200  # a connection that is open, with nothing under way
        asking = threading.Thread(target=lambda: answered.append(post(server, FLUENCY)))
        asking.start()
        held.wait_for(5)
        server.interrupt(number)
        assert not answered
        held.answer()
        assert server.ended() == (0, "Judged by held_judge: 5 calls, 0 tokens; 0.0% of 5 votes disagree with the verdict\n")
        asking.join()
        assert answered[0].json()["fluency_result"]["score"] == 5


def test_a_second_interrupt_does_not_wait(held: Held) -> None:
    answered: list[httpx.Response] = []
    with served(*judged_by("held_judge"), "--num-samples", "1", environment=held.environment) as server:
        asking = threading.Thread(target=lambda: answered.append(post(server, FLUENCY)))
        asking.start()
        held.wait_for()
        server.interrupt(signal.SIGINT)  # the second must not arrive before the first was seen: a process cannot count pending signals
        assert not answered
        code, complaints = server.stop(signal.SIGINT)
        asking.join()
    assert error_of(answered[0])["status"] == "UNAVAILABLE"
    assert code == 0
    assert "Traceback" not in complaints


def test_who_goes_away_disturbs_nobody(held: Held) -> None:
    with served(*judged_by("held_judge"), "--num-samples", "1", environment=held.environment) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port)) as leaving:
            body = json.dumps(FLUENCY)
            head = f"POST {PATH} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            leaving.sendall((head + body).encode())
            held.wait_for()
        held.answer()
        other = {"fluency_input": {"instance": {"prediction": "another one"}}}
        assert post(server, other).json()["fluency_result"]["score"] == 5
        assert post(server, EXACT).status_code == 200
        code, said = server.stop()
        assert code == 0
        assert said.startswith("Judged by held_judge: 2 calls, 0 tokens; each of 2 verdicts rests on one vote")


def test_requests_are_judged_at_the_same_time_and_computed_ones_do_not_wait(held: Held) -> None:
    with served(*judged_by("held_judge"), "--num-samples", "1", environment=held.environment) as server:
        answered: list[str] = []

        def ask(number: int) -> None:
            answered.extend(post(server, {"fluency_input": {"instance": {"prediction": f"text {number}"}}}).json())

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(9)]
        for thread in threads:
            thread.start()
        held.wait_for(9)
        assert post(server, EXACT).status_code == 200
        assert not answered
        held.answer()
        for thread in threads:
            thread.join()
        assert answered == ["fluency_result"] * 9


def test_a_judge_that_is_down_is_unavailable_until_it_is_up_again(tmp_path: Path) -> None:
    asleep = tmp_path / "asleep"
    asleep.touch()
    with served(*judged_by("moody_judge"), "--judge-outage", "0.2", environment={"MOODY_JUDGE": str(asleep)}) as server:
        response = post(server, FLUENCY)
        assert response.status_code == 503
        error = error_of(response)
        assert error["status"] == "UNAVAILABLE"
        assert "the judge is asleep" in error["message"]
        assert post(server, EXACT).status_code == 200
        asleep.unlink()
        assert post(server, FLUENCY).json()["fluency_result"]["score"] == 5


def test_without_a_judge_the_server_says_so_and_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"):
        monkeypatch.delenv(name, raising=False)
    with served() as server:
        assert post(server, EXACT).status_code == 200
        code, complaints = server.stop()
    assert code == 0
    assert complaints.startswith("Judged metrics are unavailable: ")


def test_requests_can_be_passed_on_to_vertex() -> None:
    pytest.importorskip("google.cloud.aiplatform_v1beta1")
    vertex = {"GOOGLE_CLOUD_PROJECT": "acme", "GOOGLE_CLOUD_LOCATION": "us-central1"}
    with (
        served(*judged_by("judge")) as server,
        served("--backend", "vertex", environment={**vertex, "GOOGLE_VERTEX_BASE_URL": server.url}) as front,
    ):
        for metric in (METRICS[0], METRICS[7], METRICS[-1]):
            assert post(front, request_of(metric)).json() == answer_of(metric)
