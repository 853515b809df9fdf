"""The real LiteLLM against a loopback server that speaks OpenAI's language."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlflow_adk_eval.errors import ConfigError, JudgeError, UsageError
from mlflow_adk_eval.judge.protocol import Answer, Refused, Request, Unavailable
from mlflow_adk_eval.judge.providers.lite import LiteLlmJudge
from tests.judge.providers.gemini_kit import SCHEMA, request
from tests.judge.servers import CUT, RESET, Handler, Reply, Server, judging, openai_answer, openai_error, replies, serving

KEY = "sk-never-to-be-seen-0123456789"
MODEL = "openai/gpt-test"
pytestmark = pytest.mark.filterwarnings("ignore:Items? .* using the `ReadOnly` qualifier:UserWarning")  # of LiteLLM's own types

Serve = Callable[[Handler], Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server, which the environment then names."""
    with serving(replies(openai_answer("{}"))) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_API_BASE", f"{server.url}/v1")

        def started(handler: Handler) -> Server:
            server.handler = handler
            return server

        yield started


def answered(one: Request | None = None, model: str = MODEL) -> Answer:
    async def ask() -> Answer:
        judge = LiteLlmJudge(model)
        try:
            return await judge.ask(one or request())
        finally:
            await judge.aclose()

    return asyncio.run(ask())


class TestWhatIsSent:
    def test_model_instructions_text_and_schema(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        assert '"verdict": "valid"' in answered().text
        (call,) = server.calls
        assert (call.path, call.model, call.instructions, call.text, call.schema) == (
            "/v1/chat/completions",
            "gpt-test",
            "the instructions",
            "the text",
            SCHEMA,
        )
        assert call.headers["authorization"] == f"Bearer {KEY}"

    def test_settings(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        settings = {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 9, "seed": 3, "stop_sequences": ["x"], "presence_penalty": 0.1}
        answered(request(settings=settings))
        body = server.calls[0].body
        sent = [body[name] for name in ("temperature", "top_p", "max_tokens", "seed", "stop", "presence_penalty")]
        assert sent == [0.5, 0.9, 9, 3, ["x"], 0.1]

    def test_no_settings(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        answered()
        assert set(server.calls[0].body) == {"messages", "model", "response_format"}

    def test_the_schema_in_words_where_the_provider_takes_none(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(replies(openai_answer('{"verdict": "valid"}')))
        monkeypatch.setenv("MARITALK_API_KEY", KEY)
        monkeypatch.setenv("MARITALK_API_BASE", f"{server.url}/v1")
        assert answered(model="maritalk/some-model").text == '{"verdict": "valid"}'
        (call,) = server.calls
        assert "response_format" not in call.body
        assert call.instructions == f"the instructions\n\nThe JSON schema of the answer:\n{json.dumps(SCHEMA)}"

    def test_loggers_of_others_hear_nothing(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        LiteLlmJudge(MODEL)  # loads LiteLLM quietly
        import litellm
        from litellm.integrations.custom_logger import CustomLogger

        heard: list[str] = []

        class Logger(CustomLogger):
            async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
                heard.append("success")

            async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
                heard.append("failure")

        monkeypatch.setattr(litellm, "callbacks", [Logger()])
        serve(replies(openai_answer("{}")))
        answered()
        assert heard == []


class TestWhatIsAnswered:
    def test_text_version_tokens_and_latency(self, serve: Serve) -> None:
        serve(replies(openai_answer("yes").after(0.05)))
        answer = answered()
        assert (answer.text, answer.model, answer.input_tokens, answer.output_tokens) == ("yes", "gpt-test-001", 11, 7)
        assert 0.05 <= answer.latency_s < 5
        assert answer.problem == ""

    @pytest.mark.parametrize(
        ("reply", "text", "problem"),
        [
            (openai_answer('{"ver', finish="length"), '{"ver', "length"),
            (openai_answer(None, finish="content_filter"), "", "content_filter"),
            (openai_answer(None, refusal="I\ncannot"), "", "refusal: I cannot"),
            (openai_answer(None), "", "no text"),
        ],
    )
    def test_why_there_is_no_whole_text(self, serve: Serve, reply: Reply, text: str, problem: str) -> None:
        serve(replies(reply))
        answer = answered()
        assert (answer.text, answer.problem) == (text, problem)


class TestFailures:
    @pytest.mark.parametrize("code", [408, 429, 503, 504])
    def test_overload(self, serve: Serve, code: int) -> None:
        server = serve(replies(openai_error(code, "too much", retry_after="2")))
        with pytest.raises(Unavailable, match=f"{code}.*too much") as error:
            answered()
        assert (error.value.overloaded, error.value.retry_after_s) == (True, 2)
        assert len(server.calls) == 1

    @pytest.mark.parametrize("reply", [openai_error(500), openai_error(502), RESET, CUT, Reply(body=b"<html>"), Reply()])
    def test_trouble_on_the_way(self, serve: Serve, reply: Reply) -> None:
        server = serve(replies(reply))
        with pytest.raises(Unavailable) as error:
            answered()
        assert not error.value.overloaded
        assert len(server.calls) == 1

    def test_trouble_on_this_side(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        judge = LiteLlmJudge(MODEL)

        async def broken(**_kwargs: Any) -> None:
            raise ConnectionResetError("by peer")

        monkeypatch.setattr("litellm.acompletion", broken)
        with pytest.raises(Unavailable, match="ConnectionResetError: by peer"):
            asyncio.run(judge.ask(request()))

    @pytest.mark.parametrize(("code", "every_request"), [(400, False), (422, False), (401, True), (403, True), (404, True)])
    def test_refusals(self, serve: Serve, code: int, every_request: bool) -> None:
        serve(replies(openai_error(code, f"Bad\nkey {KEY}")))
        with pytest.raises(Refused, match="Bad key") as error:
            answered()
        assert error.value.every_request is every_request
        assert KEY not in str(error.value)
        assert "\n" not in str(error.value)


class TestSettings:
    def test_what_has_an_equivalent(self, serve: Serve) -> None:
        server = serve(replies(openai_answer("")))
        LiteLlmJudge(MODEL).check({"temperature": 0, "stopSequences": []})
        assert not server.calls

    def test_what_has_none(self, serve: Serve) -> None:
        with pytest.raises(ConfigError) as error:
            LiteLlmJudge(MODEL).check({"thinking_config": {}, "temprature": 0.5, "max_output_tokens": 0})
        assert "judge_model_config: 3 problems" in str(error.value)
        assert "$.thinking_config: found an unknown key; wanted one of temperature, top_p, max_output_tokens" in str(error.value)
        assert "Did you mean 'temperature'?" in str(error.value)


class TestSetUp:
    def test_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(JudgeError, match="no API key for openai/gpt-test: set OPENAI_API_KEY"):
            LiteLlmJudge(MODEL)

    def test_no_such_provider(self) -> None:
        with pytest.raises(JudgeError, match=r"no provider 'opnai'.*Did you mean 'openai'"):
            LiteLlmJudge("opnai/gpt-4o")

    def test_keys_that_may_be_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AZURE_API_KEY", raising=False)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        for model in ("azure/mine", "bedrock/anthropic.claude-3-sonnet-20240229-v1:0", "ollama/llama3"):
            assert LiteLlmJudge(model).model == model

    def test_address(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(replies(openai_answer("")))
        assert LiteLlmJudge(MODEL).address == f"{MODEL} at {server.url}/v1"
        monkeypatch.delenv("OPENAI_API_BASE")
        assert LiteLlmJudge(MODEL).address == MODEL

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "litellm", None)
        with pytest.raises(UsageError, match=r"needs the extra `litellm`: pip install 'mlflow-adk-eval\[litellm\]'"):
            LiteLlmJudge(MODEL)

    @pytest.mark.slow
    def test_quiet(self, tmp_path: Any) -> None:
        (tmp_path / ".env").write_text("FROM_DOTENV=read\n")
        code = (
            "import os, socket, sys\n"
            "def refuse(*args): raise AssertionError(args)\n"
            "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
            "from mlflow_adk_eval.judge.providers.lite import LiteLlmJudge\n"
            "LiteLlmJudge('openai/gpt-test').check({})\n"
            "import litellm\n"
            "print(litellm.telemetry, os.environ.get('FROM_DOTENV'), os.environ.get('LITELLM_MODE'))"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"OPENAI_API_KEY": KEY, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        )
        assert (done.stdout, done.stderr) == ("False None None\n", "")
