"""The real LiteLLM against a loopback server that speaks OpenAI's language."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from mlflow_adk_eval.errors import ConfigError, JudgeError, UsageError
from mlflow_adk_eval.judge.protocol import Answer, Refused, Request, Unavailable
from mlflow_adk_eval.judge.providers.litellm import LiteLlmJudge
from tests.judge.providers.gemini_kit import SCHEMA, request
from tests.judge.servers import CUT, RESET, Call, Handler, Reply, Server, judging, openai_answer, openai_error, replies, serving

KEY = "sk-never-to-be-seen-0123456789"
MODEL = "openai/gpt-test"
pytestmark = [
    pytest.mark.needs("litellm"),
    pytest.mark.filterwarnings("ignore:Items? .* using the `ReadOnly` qualifier:UserWarning"),  # of LiteLLM's own types
]

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


def test_an_answer_says_which_host_gave_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(judging(lambda call: "valid"))
    assert f"http://{answered().host}" == server.url
    monkeypatch.delenv("OPENAI_API_BASE")
    assert LiteLlmJudge(MODEL).host({}) == "openai"
    assert LiteLlmJudge("ollama/qwen3").host({}) == "localhost:11434"


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
            {**SCHEMA, "properties": {**SCHEMA["properties"], "rationale": {"type": "string", "maxLength": 800}}},
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

    def test_an_answer_by_a_schema_has_a_limit_with_room_for_thoughts(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))
        asked = replace(request(), answer_tokens=320)
        answered(asked)  # a server of one's own, by its base URL
        answered(replace(asked, settings={"max_output_tokens": 50}))
        monkeypatch.delenv("OPENAI_API_BASE")
        assert [call.body["max_tokens"] for call in server.calls] == [320 + 2048, 50]
        hosted = LiteLlmJudge("openai/gpt-4o")
        assert hosted._limit(asked) == {"max_tokens": 16384}, "not more than LiteLLM knows that the model takes"
        assert LiteLlmJudge("openai/nobody-knows-it")._limit(asked) == {}

    def test_a_cache_of_others_answers_no_vote(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        LiteLlmJudge(MODEL)  # loads LiteLLM quietly
        import litellm

        monkeypatch.setattr(litellm, "cache", litellm.Cache(type="local"))
        for hooks in ("input_callback", "success_callback", "_async_success_callback"):
            monkeypatch.setattr(litellm, hooks, ["cache"])
        server = serve(judging(lambda call: "valid"))
        answered()
        answered()
        assert len(server.calls) == 2

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


def refusing(forms: Collection[str | None], message: str = "response_format is not supported", status: int = 400) -> Handler:
    """A server that refuses some forms of structured output, `None` being that there is none."""
    good = judging(lambda call: "valid")

    def handler(call: Call) -> Reply:
        return openai_error(status, message) if form_of(call) in forms else good(call)

    return handler


def form_of(call: Call) -> str | None:
    form = call.body.get("response_format") or {}
    return "bounded" if "maxLength" in json.dumps(form) else form.get("type")


class TestForms:
    @pytest.mark.parametrize(
        ("refused", "asked", "note"),
        [
            ((), ["bounded"] * 2, ()),
            (("bounded",), ["bounded", "json_schema", "json_schema"], ()),
            (
                ("bounded", "json_schema"),
                ["bounded", "json_schema", "json_object", "json_object"],
                "rejects response_format json_schema: asked with json_object",
            ),
            (
                ("bounded", "json_schema", "json_object"),
                ["bounded", "json_schema", "json_object", None, None],
                "rejects response_format json_schema and json_object: asked with the schema in words instead",
            ),
        ],
    )
    def test_a_form_that_is_refused_is_left_once_and_for_all(self, serve: Serve, refused: Any, asked: list[Any], note: str) -> None:
        server = serve(refusing(refused))
        assert json.loads(answered().text)["verdict"] == "valid"
        answered()
        assert [form_of(call) for call in server.calls] == asked
        assert note in " ".join(LiteLlmJudge(MODEL).notes) if note else not [*LiteLlmJudge(MODEL).notes]
        for call in server.calls:
            assert ("The JSON schema of the answer" in call.instructions) is (form_of(call) not in {"bounded", "json_schema"})

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            (422, "body.response_format: Extra inputs are not permitted"),
            (400, "'response_format.type' must be 'json_schema' or 'text'"),
            (400, "failed to parse grammar"),
            (400, "guided decoding is not enabled"),
        ],
    )
    def test_the_words_of_known_servers(self, serve: Serve, status: int, message: str) -> None:
        serve(refusing(["bounded", "json_schema", "json_object"], message, status))
        assert json.loads(answered().text)["verdict"] == "valid"

    def test_who_refuses_every_form_has_refused_the_request(self, serve: Serve) -> None:
        server = serve(refusing(["bounded", "json_schema", "json_object", None]))
        with pytest.raises(Refused, match="response_format is not supported"):
            answered()
        assert len(server.calls) == 4

    def test_a_hosted_model_gets_the_schema_as_it_is(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        serve(judging(lambda call: "valid"))
        assert LiteLlmJudge(MODEL)._form == 0
        monkeypatch.delenv("OPENAI_API_BASE")
        assert LiteLlmJudge(MODEL)._form == 1

    def test_another_refusal_changes_nothing(self, serve: Serve) -> None:
        server = serve(refusing(["bounded"], "the prompt is too long"))
        with pytest.raises(Refused, match="too long"):
            answered()
        assert len(server.calls) == 1


def fingerprint(model: str = MODEL) -> str:
    return asyncio.run(LiteLlmJudge(model).fingerprint())


def listing(*entries: dict[str, Any], key: str = "data") -> Handler:
    return replies(Reply(body={key: list(entries)}))


class TestFingerprint:
    def test_it_is_that_of_the_weights_not_of_the_moment(self, serve: Serve) -> None:
        server = serve(listing({"id": "gpt-test", "created": 1, "owned_by": "me", "meta": {"size": 1}}))
        first = fingerprint()
        assert len(first) == 16
        assert server.calls[0].path == "/v1/models"
        server.handler = listing({"id": "other"}, {"id": "gpt-test", "created": 2, "owned_by": "me", "meta": {"size": 1}})
        assert fingerprint() == first
        server.handler = listing({"id": "gpt-test", "created": 1, "owned_by": "me", "meta": {"size": 2}})
        assert fingerprint() not in {first, ""}

    def test_a_server_of_one_model_answers_to_any_name(self, serve: Serve) -> None:
        serve(listing({"id": "/models/a.gguf"}))
        assert fingerprint()

    def test_ollama_has_a_digest(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(listing({"name": "llama3:latest", "digest": "aa"}, {"name": "other:1b", "digest": "bb"}, key="models"))
        monkeypatch.setenv("OLLAMA_API_BASE", server.url)
        first = fingerprint("ollama/llama3")
        assert first
        assert server.calls[0].path == "/api/tags"
        server.handler = listing({"name": "llama3:latest", "digest": "cc"}, key="models")
        assert fingerprint("ollama/llama3") != first

    @pytest.mark.parametrize(
        "reply", [Reply(status=404), Reply(body=b"<html>"), Reply(body=[]), Reply(body={"data": "x"}), Reply(body={"data": []})]
    )
    def test_a_server_without_a_list_has_none(self, serve: Serve, reply: Reply) -> None:
        serve(replies(reply))
        assert fingerprint() == ""

    def test_a_server_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")
        with pytest.raises(Unavailable, match="ConnectError"):
            fingerprint()

    def test_hosted_models_are_not_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.delenv("OPENAI_API_BASE", raising=False)
        assert fingerprint() == ""


class TestSettings:
    def test_a_revision_is_not_sent(self, serve: Serve) -> None:
        server = serve(judging(lambda call: "valid"))
        answered(request(settings={"revision": "2026-11"}))
        assert set(server.calls[0].body) == {"messages", "model", "response_format"}

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
        monkeypatch.delenv("OPENAI_API_BASE", raising=False)
        with pytest.raises(
            JudgeError, match=r"no API key for openai/gpt-test: set OPENAI_API_KEY\. Your own server needs none: set OPENAI_API_BASE"
        ):
            LiteLlmJudge(MODEL)

    def test_no_such_provider(self) -> None:
        with pytest.raises(UsageError, match=r"no provider 'opnai'.*Did you mean 'openai'"):
            LiteLlmJudge("opnai/gpt-4o")

    def test_keys_that_may_be_elsewhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AZURE_API_KEY", raising=False)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        for model in ("azure/mine", "bedrock/anthropic.claude-3-sonnet-20240229-v1:0", "ollama/llama3"):
            assert LiteLlmJudge(model).model == model

    @pytest.mark.parametrize("base", ["http://127.0.0.1:9/v1", "https://models.corp.example/v1"])
    def test_a_server_of_ones_own_needs_no_key(self, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.setenv("OPENAI_API_BASE", base)
        judge = LiteLlmJudge(MODEL)
        assert judge.own_server
        assert judge.address == f"{MODEL} at {base}"

    def test_it_is_asked_without_one(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(judging(lambda call: "valid"))
        monkeypatch.delenv("OPENAI_API_KEY")
        answered()
        assert server.calls[0].headers["authorization"] == "Bearer none"

    def test_a_provider_behind_its_own_address_needs_its_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_BASE", "https://eu.api.openai.com/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        assert not LiteLlmJudge(MODEL).own_server
        monkeypatch.delenv("OPENAI_API_KEY")
        with pytest.raises(JudgeError, match="no API key"):
            LiteLlmJudge(MODEL)

    @pytest.mark.parametrize(
        ("provider", "place"),
        [
            ("hosted_vllm", "http://localhost:8000/v1"),
            ("lm_studio", "http://localhost:1234/v1"),
            ("llamafile", "http://127.0.0.1:8080/v1"),
            ("ollama", "http://localhost:11434"),
            ("ollama_chat", "http://localhost:11434"),
        ],
    )
    def test_local_servers_are_where_their_documentation_says(self, provider: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        variable = f"{provider.removesuffix('_chat').upper()}_API_BASE"
        monkeypatch.delenv(variable, raising=False)
        judge = LiteLlmJudge(f"{provider}/some-model")
        assert (judge.address, judge.own_server) == (f"{provider}/some-model at {place}", True)
        monkeypatch.setenv(variable, "http://127.0.0.1:7777/v1")
        assert LiteLlmJudge(f"{provider}/some-model").address == f"{provider}/some-model at http://127.0.0.1:7777/v1"

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
            "from mlflow_adk_eval.judge.providers.litellm import LiteLlmJudge\n"
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
