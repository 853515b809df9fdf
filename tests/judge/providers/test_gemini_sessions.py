"""One HTTP session for each event loop: who shares it, who does not, and what closes."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.judge.providers import gemini
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge
from tests.judge.providers.gemini_kit import KEY, MODEL, request, with_key
from tests.judge.servers import Server, judging, serving

OTHER = "gemini-2.5-pro"
OTHER_KEY = "AIza-another-9876543210"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(judging(lambda call: "valid")) as server:
        with_key(monkeypatch, server.url)
        yield server


async def once(model: str = MODEL) -> None:
    judge = GeminiJudge(model)
    await judge.ask(request())
    await judge.aclose()


class TestReuse:
    def test_one_evaluation_after_the_other_has_connections_of_its_own(self, server: Server) -> None:
        asyncio.run(once())
        asyncio.run(once())
        assert (len(server.calls), server.connections) == (2, 2)

    def test_judges_of_one_loop_share_connections_until_the_last_one_gives_them_back(self, server: Server) -> None:
        async def two() -> None:
            one, other = GeminiJudge(MODEL), GeminiJudge(OTHER)
            await one.ask(request())
            await other.ask(request())
            await one.aclose()
            await other.ask(request())
            assert server.connections == 1
            await other.aclose()
            again = GeminiJudge(MODEL)
            await again.ask(request())
            await again.aclose()
            assert server.connections == 2

        asyncio.run(two())
        assert [call.model for call in server.calls] == [MODEL, OTHER, OTHER, MODEL]

    def test_a_judge_that_closes_leaves_those_in_other_threads_their_connections(self, server: Server) -> None:
        opened, closed = threading.Event(), threading.Event()

        async def long() -> None:
            judge = GeminiJudge(MODEL)
            await judge.ask(request())
            opened.set()
            await asyncio.to_thread(closed.wait, 60)
            await judge.ask(request())
            await judge.aclose()

        thread = threading.Thread(target=asyncio.run, args=[long()])
        thread.start()
        assert opened.wait(60)
        asyncio.run(once())
        closed.set()
        thread.join()
        assert (len(server.calls), server.connections) == (3, 2)

    def test_a_judge_that_was_closed_can_ask_again(self, server: Server) -> None:
        async def twice() -> None:
            judge = GeminiJudge(MODEL)
            for _ in range(2):
                await judge.ask(request())
                await judge.aclose()

        asyncio.run(twice())
        assert (len(server.calls), server.connections) == (2, 2)

    def test_a_judge_that_nobody_closed_holds_nothing_back(self, server: Server) -> None:
        async def forgotten() -> None:
            await GeminiJudge(MODEL).ask(request())
            gc.collect()
            await once()

        asyncio.run(forgotten())
        asyncio.run(once())
        assert len(server.calls) == 3

    def test_no_session_is_kept_for_a_loop_that_is_gone(self, server: Server) -> None:
        for _ in range(3):
            asyncio.run(once())
        assert not [loop for _, loop in gemini._SESSIONS if loop.is_closed()]


class TestWhoAsks:
    def test_keys_are_not_mixed_up(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        async def between() -> None:
            first = GeminiJudge(MODEL)
            await first.ask(request())
            monkeypatch.setenv("GEMINI_API_KEY", OTHER_KEY)
            second = GeminiJudge(MODEL)
            await second.ask(request())
            await first.ask(request())
            await second.aclose()
            await first.ask(request())
            await first.aclose()

        asyncio.run(between())
        asyncio.run(once())
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        asyncio.run(once())
        assert [call.headers["x-goog-api-key"] for call in server.calls] == [KEY, OTHER_KEY, KEY, KEY, OTHER_KEY, KEY]

    def test_endpoints_are_not_mixed_up(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(once())
        with serving(judging(lambda call: "valid")) as other:
            monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", other.url)
            asyncio.run(once())
            assert (len(server.calls), len(other.calls)) == (1, 1)

    def test_a_base_url_that_the_program_sets_holds_from_then_on(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(once())
        with serving(judging(lambda call: "valid")) as other:
            monkeypatch.setattr("google.genai._base_url._default_base_gemini_url", other.url)
            asyncio.run(once())
            assert (len(server.calls), len(other.calls)) == (1, 1)

    def test_headers_of_the_settings_stay_with_their_judge(self, server: Server) -> None:
        async def both() -> None:
            one, other = GeminiJudge(MODEL), GeminiJudge(MODEL)
            await one.ask(request(settings={"http_options": {"headers": {"x-team": "evals"}}}))
            await other.ask(request())
            await one.ask(request())
            await one.aclose()
            await other.aclose()

        asyncio.run(both())
        assert [call.headers.get("x-team") for call in server.calls] == ["evals", None, None]


class TestCertificates:
    @pytest.fixture
    def reads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Count how often certificates are read, from now on."""
        gemini._read_certificates.cache_clear()
        found: list[str] = []
        real = ssl.create_default_context

        def counted(*args: object, **kwargs: object) -> ssl.SSLContext:
            found.append(str(kwargs.get("cafile")))
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(ssl, "create_default_context", counted)
        return found

    def test_they_are_read_once(self, server: Server, monkeypatch: pytest.MonkeyPatch, reads: list[str]) -> None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        for key in ("one", "other"):
            monkeypatch.setenv("GEMINI_API_KEY", f"{KEY}-{key}-certificates")
            asyncio.run(once())
        assert reads == [certifi.where()]

    def test_a_file_that_changed_is_read_again(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reads: list[str]
    ) -> None:
        (own := tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes())
        monkeypatch.setenv("SSL_CERT_FILE", str(own))
        asyncio.run(once())
        os.utime(own, ns=(0, own.stat().st_mtime_ns + 1))
        monkeypatch.setenv("GEMINI_API_KEY", OTHER_KEY)
        asyncio.run(once())
        assert reads == [str(own), str(own)]

    def test_a_file_that_is_not_there_is_named(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
        with pytest.raises(
            JudgeError, match=r"^Gemini cannot be set up: the certificates in /nowhere/ca\.pem cannot be read: No such file or directory$"
        ):
            GeminiJudge(MODEL)


@pytest.mark.slow
def test_a_forked_process_opens_connections_of_its_own(server: Server) -> None:
    code = """
import asyncio, os
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge
from tests.judge.providers.gemini_kit import MODEL, request

async def main():
    judge = GeminiJudge(MODEL)
    await judge.ask(request())
    if (child := os.fork()) == 0:
        os._exit(0 if forked() else 1)
    assert os.waitpid(child, 0)[1] == 0
    await judge.ask(request())
    await judge.aclose()

def forked():
    import threading
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(once())))  # this thread has its parent's loop
    thread.start()
    thread.join()
    return found

async def once():
    judge = GeminiJudge(MODEL)
    answer = await judge.ask(request())
    await judge.aclose()
    return answer

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
    assert (len(server.calls), server.connections) == (3, 2)
