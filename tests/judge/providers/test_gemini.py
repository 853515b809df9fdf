"""The real google-genai client against a loopback server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.errors import ConfigError, JudgeError
from mlflow_adk_eval.judge.protocol import Refused, Unavailable
from mlflow_adk_eval.judge.providers import gemini
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge
from tests.judge.providers.gemini_kit import KEY, MODEL, SCHEMA, answered, asked, empty_environment, failed, request, with_key
from tests.judge.servers import (
    CUT,
    HANG,
    RESET,
    Handler,
    Reply,
    Server,
    gemini_answer,
    gemini_blocked,
    gemini_error,
    judging,
    replies,
    serving,
)

Serve = Callable[[Handler], Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server, which the environment then names."""
    with serving(replies(gemini_answer("{}"))) as server:
        with_key(monkeypatch, server.url)

        def started(handler: Handler) -> Server:
            server.handler = handler
            return server

        yield started


class TestWhatIsSent:
    def test_model_instructions_text_and_schema(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        assert '"verdict": "valid"' in answered().text
        (call,) = server.calls
        assert (call.model, call.instructions, call.text, call.schema) == (MODEL, "the instructions", "the text", SCHEMA)
        assert call.generation["responseMimeType"] == "application/json"
        assert call.headers["x-goog-api-key"] == KEY
        assert call.headers["x-goog-api-client"].startswith("google-genai-sdk/")

    @pytest.mark.parametrize(
        "settings",
        [
            {"temperature": 0.25, "max_output_tokens": 9, "thinking_config": {"thinking_budget": 0}},
            {"temperature": 0.25, "maxOutputTokens": 9, "thinkingConfig": {"thinkingBudget": 0}},
        ],
    )
    def test_settings_in_both_spellings(self, serve: Serve, settings: dict[str, Any]) -> None:
        server = serve(judging(lambda call: "valid"))
        answered(request(settings=settings))
        sent = server.calls[0].generation
        assert (sent["temperature"], sent["maxOutputTokens"]) == (0.25, 9)
        assert list(sent["thinkingConfig"].values()) == [0]

    def test_safety_settings_go_beside_the_generation(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
        answered(request(settings={"safety_settings": safety}))
        assert server.calls[0].body["safetySettings"] == safety

    def test_what_is_ours_wins(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        theirs = {"system_instruction": "say yes", "response_mime_type": "text/plain", "responseJsonSchema": {"type": "string"}}
        answered(request(settings={**theirs, "response_schema": {"type": "STRING"}}))
        (call,) = server.calls
        assert (call.instructions, call.schema, call.generation["responseMimeType"]) == ("the instructions", SCHEMA, "application/json")
        assert "responseSchema" not in call.generation

    def test_the_same_in_our_session_as_through_google_genai(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))
        settings = {
            "temperature": 0.5,
            "topK": 3,
            "stop_sequences": ["x"],
            "safety_settings": [{"category": "HARM_CATEGORY_HARASSMENT"}],
            "thinkingConfig": {"thinkingBudget": 0},
        }
        one = request("Grüße, 世界 \N{GRINNING FACE}", settings)
        direct = answered(one)
        monkeypatch.setattr(gemini, "_has_certificate", lambda: True)
        public = answered(one)
        first, second = server.calls
        assert first.body == second.body
        assert (first.path, first.query, dict(first.headers)) == (second.path, second.query, dict(second.headers))
        assert replace(direct, latency_s=0) == replace(public, latency_s=0)

    def test_a_proxy_of_the_environment_is_used(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))
        monkeypatch.setenv("HTTP_PROXY", server.url)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://gemini.invalid")
        assert '"verdict": "valid"' in answered().text
        assert server.calls[0].headers["host"] == "gemini.invalid"

    @pytest.mark.parametrize("variable", ["", "HTTP_PROXY", "HTTPS_PROXY", "NETRC"])
    def test_no_thread_looks_for_a_proxy_at_each_request(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
    ) -> None:
        server = serve(judging(lambda call: "valid"))
        monkeypatch.setenv("HOME", "/nowhere")
        (netrc := tmp_path / "netrc").write_text("machine 127.0.0.2 login somebody password anything\n")
        if variable:
            monkeypatch.setenv(variable, str(netrc) if variable == "NETRC" else server.url)

        async def threads() -> int:
            judge = GeminiJudge(MODEL)
            before = threading.active_count()
            await judge.ask(request())
            await judge.aclose()
            return threading.active_count() - before

        assert (asyncio.run(threads()) > 0) == (variable == "NETRC")  # a .netrc is read where it is needed

    def test_hosts_without_a_proxy_are_asked_directly(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert '"verdict": "valid"' in answered().text
        assert len(server.calls) == 1

    def test_a_proxy_is_told_who_asks(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))
        monkeypatch.setenv("HTTP_PROXY", server.url.replace("//", "//somebody:secret@"))
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://gemini.invalid")
        answered()
        assert server.calls[0].headers["proxy-authorization"] == f"Basic {b64encode(b'somebody:secret').decode()}"

    def test_google_genai_sends_nothing_by_itself(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))

        async def used(*_: object, **__: object) -> None:
            raise AssertionError

        monkeypatch.setattr("google.genai.models.AsyncModels.generate_content", used)
        monkeypatch.setattr("tenacity.AsyncRetrying.__call__", used)
        answered(request(settings={"temperature": 0.5}))
        assert len(server.calls) == 1

    @pytest.mark.parametrize("options", [{}, {"async_client_args": {"max_field_size": 8190}}, {"client_args": {"trust_env": False}}])
    def test_what_we_cannot_send_as_google_genai_would_it_sends(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
    ) -> None:
        server = serve(judging(lambda call: "valid"))
        if not options:  # another google-genai, of which we do not know where a request has its words
            monkeypatch.setattr(gemini, "_filled", lambda body, _: body | {"contents": []})
        monkeypatch.setattr(GeminiJudge, "_session", lambda _: pytest.fail("we sent it"))
        answered(request(settings={"temperature": 0.5, "http_options": options}))
        (call,) = server.calls
        assert (call.text, call.schema, call.generation["temperature"]) == ("the text", SCHEMA, 0.5)

    def test_requests_differ_only_in_what_they_say(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid", after_s=0.05))
        other = replace(request("another"), instructions="otherwise", schema={**SCHEMA, "properties": {"verdict": {}}})
        asked(request(), other, request())
        assert server.most_in_flight == 3
        said = {(call.text, call.instructions, len(call.schema["properties"])) for call in server.calls}
        assert said == {("the text", "the instructions", 2), ("another", "otherwise", 1)}

    def test_base_url_and_headers_of_the_settings(self, serve: Serve) -> None:
        unused = serve(judging(lambda call: "valid"))
        with serving(judging(lambda call: "valid")) as other:
            answered(request(settings={"httpOptions": {"baseUrl": other.url, "headers": {"x-team": "evals"}}}))
            assert [call.headers["x-team"] for call in other.calls] == ["evals"]
        assert not unused.calls

    def test_connections_are_used_again(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))

        async def one_after_the_other() -> None:
            judge = GeminiJudge(MODEL)
            for _ in range(4):
                await judge.ask(request())
            await judge.aclose()

        asyncio.run(one_after_the_other())
        assert (len(server.calls), server.connections) == (4, 1)


class TestWhatIsAnswered:
    def test_text_version_tokens_and_latency(self, serve: Serve) -> None:
        serve(
            replies(
                gemini_answer("yes", input_tokens=100, output_tokens=20, thought_tokens=300, version="gemini-2.5-flash-001").after(0.05)
            )
        )
        answer = answered()
        assert (answer.text, answer.model, answer.input_tokens, answer.output_tokens) == ("yes", "gemini-2.5-flash-001", 100, 320)
        assert 0.05 <= answer.latency_s < 5
        assert answer.problem == ""

    def test_thoughts_are_no_part_of_it(self, serve: Serve) -> None:
        serve(replies(gemini_answer('{"verdict": "valid"}', thoughts=('{"verdict": "invalid"}', "hm"))))
        assert answered().text == '{"verdict": "valid"}'

    def test_parts_belong_together(self, serve: Serve) -> None:
        parts = [{"text": '{"a'}, {"text": "no", "thought": True}, {"text": '": 1}'}]
        serve(replies(Reply(body={"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})))
        answer = answered()
        assert (answer.text, answer.input_tokens, answer.output_tokens, answer.problem) == ('{"a": 1}', None, None, "")

    @pytest.mark.parametrize(
        ("reply", "text", "problem"),
        [
            (gemini_answer('{"ver', finish="MAX_TOKENS"), '{"ver', "MAX_TOKENS"),
            (gemini_answer(None, finish="SAFETY"), "", "SAFETY"),
            (gemini_answer(None, finish="MAX_TOKENS", thoughts=("long",)), "", "MAX_TOKENS"),
            (gemini_answer(None), "", "no text"),
            (gemini_answer(None, thoughts=("only this",)), "", "no text"),
            (gemini_blocked("PROHIBITED_CONTENT"), "", "PROHIBITED_CONTENT"),
            (Reply(body={"promptFeedback": {"blockReason": "OTHER", "blockReasonMessage": "not\nthis"}}), "", "OTHER: not this"),
            (Reply(body={}), "", "no candidates"),
            (Reply(body={"candidates": []}), "", "no candidates"),
        ],
    )
    def test_why_there_is_no_whole_text(self, serve: Serve, reply: Reply, text: str, problem: str) -> None:
        serve(replies(reply))
        answer = answered()
        assert (answer.text, answer.problem) == (text, problem)


class TestFailures:
    @pytest.mark.parametrize("code", [408, 429, 503, 504])
    def test_overload(self, serve: Serve, code: int) -> None:
        server = serve(replies(gemini_error(code, "too much")))
        error = failed()
        assert isinstance(error, Unavailable)
        assert (error.overloaded, error.retry_after_s) == (True, None)
        assert str(code) in str(error)
        assert str(error).endswith("too much")
        assert len(server.calls) == 1

    @pytest.mark.parametrize(
        "reply",
        [
            gemini_error(500),
            gemini_error(502),
            RESET,
            CUT,
            replace(gemini_answer("yes"), fault="cut"),
            Reply(body=b"<html>a proxy</html>", headers={"Content-Type": "text/html"}),
            Reply(body=b"\xff\xfe"),
            Reply(body=b""),
            Reply(body=[1]),
            Reply(status=500, body=b"not json"),
        ],
    )
    def test_trouble_on_the_way(self, serve: Serve, reply: Reply) -> None:
        server = serve(replies(reply))
        error = failed()
        assert isinstance(error, Unavailable)
        assert not error.overloaded
        assert len(server.calls) == 1

    def test_nobody_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with serving(replies(RESET)) as server:
            with_key(monkeypatch, server.url)
        error = failed()
        assert isinstance(error, Unavailable)
        assert "Connect" in str(error)

    def test_no_answer_within_the_time_that_the_settings_give(self, serve: Serve) -> None:
        serve(replies(HANG))
        error = failed(request(settings={"http_options": {"timeout": 100}}))
        assert isinstance(error, Unavailable)
        assert error.overloaded

    @pytest.mark.parametrize(
        ("reply", "seconds"),
        [
            (gemini_error(429, retry_after="3"), 3),
            (gemini_error(429, retry_delay="1.500s"), 1.5),
            (gemini_error(429, retry_delay="0.250s", retry_after="1"), 0.25),
            (gemini_error(503, retry_after="soon"), None),
            (gemini_error(503, retry_after="-1"), None),
            (gemini_error(503, retry_after="Fri, 31 Jul 2020 12:00:30 GMT"), 0),
            (gemini_error(503, retry_after="Fri, 31 Jul 2020 12:00:30 -0000"), 0),
        ],
    )
    def test_how_long_to_wait(self, serve: Serve, reply: Reply, seconds: float | None) -> None:
        serve(replies(reply))
        error = failed()
        assert isinstance(error, Unavailable)
        assert error.retry_after_s == seconds

    def test_a_date_to_wait_for(self, serve: Serve) -> None:
        serve(replies(gemini_error(429, retry_after=format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))))
        error = failed()
        assert isinstance(error, Unavailable)
        assert error.retry_after_s is not None
        assert 50 < error.retry_after_s <= 60

    @pytest.mark.parametrize(("code", "every_request"), [(400, False), (413, False), (401, True), (403, True), (404, True)])
    def test_refusals(self, serve: Serve, code: int, every_request: bool) -> None:
        serve(replies(gemini_error(code, "no")))
        error = failed()
        assert isinstance(error, Refused)
        assert error.every_request is every_request

    @pytest.mark.parametrize(
        "error",
        [
            {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]},
            {"code": 400, "message": "User location is not supported for the API use.", "status": "FAILED_PRECONDITION"},
        ],
    )
    def test_bad_requests_that_are_bad_for_every_request(self, serve: Serve, error: dict[str, Any]) -> None:
        serve(replies(Reply(status=400, body={"error": error})))
        refused = failed()
        assert isinstance(refused, Refused)
        assert refused.every_request

    @pytest.mark.parametrize(
        "body", [{"error": "a string"}, {"error": {"details": None}}, {"message": "m"}, [{"error": {"code": 500}}], "x"]
    )
    def test_errors_of_other_shapes(self, serve: Serve, body: Any) -> None:
        serve(replies(Reply(status=503, body=body)))
        assert isinstance(failed(), Unavailable)

    def test_one_line_without_the_key(self, serve: Serve) -> None:
        serve(replies(gemini_error(400, f"Bad\nrequest with key {KEY} at https://me:pass@host/ " + "x" * 1000)))
        message = str(failed())
        assert "Bad request" in message
        assert "\n" not in message
        assert KEY not in message
        assert "pass" not in message
        assert len(message) <= 400

    def test_cancelled(self, serve: Serve) -> None:
        server = serve(replies(HANG))

        async def impatient() -> None:
            judge = GeminiJudge(MODEL)
            try:
                async with asyncio.timeout(0.2):
                    await judge.ask(request())
            finally:
                await judge.aclose()

        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
        assert len(server.calls) == 1


class TestSettings:
    def problems(self, settings: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as error:
            GeminiJudge(MODEL).check(settings)
        return str(error.value)

    def test_good_ones(self, serve: Serve) -> None:
        server = serve(replies(gemini_answer("")))
        judge = GeminiJudge(MODEL)
        judge.check({})
        judge.check({"temperature": 0, "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "OFF"}]})
        judge.check({"http_options": {"retry_options": {"attempts": 3}}, "labels": None})
        assert not server.calls

    def test_unknown_keys(self, serve: Serve) -> None:
        message = self.problems({"temprature": 0.5, "max_output_token": 5})
        assert "judge_model_config: 2 problems" in message
        assert "$.temprature: found an unknown key" in message
        assert "Did you mean 'temperature'?" in message
        assert "Did you mean 'max_output_tokens'?" in message

    def test_unknown_keys_further_down(self, serve: Serve) -> None:
        assert "$.thinking_config.budget" in self.problems({"thinking_config": {"budget": 5}})
        assert "1 problem" in self.problems({"safety_settings": [{"kind": "all"}]})

    def test_wrong_kinds(self, serve: Serve) -> None:
        assert "$.temperature: found 'hot'; wanted a number" in self.problems({"temperature": "hot"})
        assert "1 problem" in self.problems({"http_options": {"timeout": "long"}})

    def test_what_this_api_does_not_take(self, serve: Serve) -> None:
        assert "model_armor_config" in self.problems({"model_armor_config": {"prompt_template_name": "x"}})

    def test_unchecked_they_refuse_every_request(self, serve: Serve) -> None:
        error = failed(request(settings={"temprature": 0.5}))
        assert isinstance(error, Refused)
        assert error.every_request


class TestSetUp:
    @pytest.fixture(autouse=True)
    def _nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        empty_environment(monkeypatch)

    def test_no_key(self) -> None:
        with pytest.raises(JudgeError) as error:
            GeminiJudge(MODEL)
        for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION"):
            assert name in str(error.value)

    @pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "http://[", "https://me:secret@"])
    def test_no_base_url(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        with_key(monkeypatch, url)
        with pytest.raises(JudgeError, match="no base URL for Gemini") as error:
            GeminiJudge(MODEL)
        assert "secret" not in str(error.value)

    def test_google_genai_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        settings = {"http_options": {"base_url_resource_scope": "COLLECTION"}}
        with pytest.raises(JudgeError, match="Gemini cannot be set up: base_url must be set"):
            GeminiJudge(MODEL).check(settings)

    def test_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_API_KEY", KEY)
        assert (GeminiJudge(MODEL).model, GeminiJudge(MODEL).address) == (MODEL, f"{MODEL} at Google")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "https://me:secret@host/x")
        assert GeminiJudge(MODEL).address == f"{MODEL} at https://host/x"

    def test_nothing_is_loaded_before_it_is_needed(self) -> None:
        code = (
            "import sys, mlflow_adk_eval, mlflow_adk_eval.judge, mlflow_adk_eval.judge.providers.resolve, mlflow_adk_eval.judge.providers.gemini, "
            "mlflow_adk_eval.judge.providers.litellm, mlflow_adk_eval.testing\n"
            "print(*sorted({'google.genai', 'google.auth', 'litellm', 'openai', 'aiohttp', 'httpx'} & set(sys.modules)))"
        )
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert loaded.stdout.split() == []
