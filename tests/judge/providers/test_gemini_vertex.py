"""The real google-genai client in Vertex mode, with credentials from a key file, against a loopback server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.judge.protocol import Refused, Unavailable
from mlflow_adk_eval.judge.providers import access as adc
from mlflow_adk_eval.judge.providers import gemini
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge
from tests.judge.providers.gemini_kit import KEY, MODEL, SCHEMA, answered, empty_environment, failed, request
from tests.judge.servers import RESET, Call, Reply, Server, gemini_error, judging, serving

_TOKEN = "ya29.loopback-token-0123456789"  # noqa: S105 - the loopback server's


class Google:
    """Gives out tokens, and answers on Vertex's paths."""

    def __init__(self) -> None:
        self.token_reply = Reply(body={"access_token": _TOKEN, "expires_in": 3600, "token_type": "Bearer"})
        self.judge = judging(lambda call: "valid")

    def __call__(self, call: Call) -> Reply:
        return self.token_reply if call.path == "/token" else self.judge(call)


@pytest.fixture
def google() -> Google:
    return Google()


@pytest.fixture
def server(google: Google, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    empty_environment(monkeypatch)
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "TRUE")
    with serving(google) as server:
        monkeypatch.setenv("GOOGLE_VERTEX_BASE_URL", server.url)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:9/not-this-one")
        yield server


@pytest.fixture(scope="module")
def private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


@pytest.fixture
def key_file(server: Server, private_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a service account's key file in the environment."""
    account = {"type": "service_account", "client_email": "judge@acme.iam.gserviceaccount.com", "private_key_id": "1"}
    file = tmp_path / "key.json"
    file.write_text(json.dumps({**account, "private_key": private_key, "project_id": "from-the-key", "token_uri": f"{server.url}/token"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    return file


def judged(server: Server) -> list[Call]:
    return [call for call in server.calls if call.path != "/token"]


@pytest.mark.usefixtures("key_file")
class TestWithCredentials:
    def test_project_and_location(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-west4")
        monkeypatch.setenv("GEMINI_API_KEY", KEY)
        answered()
        (call,) = judged(server)
        assert call.path == f"/v1beta1/projects/acme/locations/europe-west4/publishers/google/models/{MODEL}:generateContent"
        assert (call.headers["authorization"], call.schema, call.text) == (f"Bearer {_TOKEN}", SCHEMA, "the text")
        assert "x-goog-api-key" not in call.headers
        assert GeminiJudge(MODEL).address == f"{MODEL} at {server.url}, project acme, location europe-west4"

    def test_a_location_alone(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-central1")
        answered()
        assert judged(server)[0].path.startswith("/v1beta1/projects/from-the-key/locations/us-central1/")

    def test_a_project_alone(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        answered()
        assert judged(server)[0].path.startswith("/v1beta1/projects/acme/locations/global/")

    def test_the_newer_switch_wins(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_GENAI_USE_ENTERPRISE", "1")
        monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "0")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        answered()
        assert len(judged(server)) == 1

    def test_the_same_in_our_session_as_through_google_genai(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        one = request(settings={"temperature": 0.5, "labels": {"team": "evals"}})
        direct = answered(one)
        monkeypatch.setattr(gemini, "_has_certificate", lambda: True)
        public = answered(one)
        first, second = judged(server)
        assert (first.body, first.path, dict(first.headers)) == (second.body, second.path, dict(second.headers))
        assert replace(direct, latency_s=0) == replace(public, latency_s=0)

    @pytest.mark.parametrize("model", ["publishers/google/models/x-1", "projects/p/locations/l/endpoints/7"])
    def test_full_names(self, server: Server, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
        import asyncio

        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")

        async def ask() -> None:
            judge = GeminiJudge(model)
            await judge.ask(request())
            await judge.aclose()

        asyncio.run(ask())
        assert judged(server)[0].path.endswith(f"/{model}:generateContent")

    @pytest.mark.parametrize(("reply", "kind"), [(RESET, Unavailable), (gemini_error(500), Unavailable)])
    def test_no_token_now(self, google: Google, monkeypatch: pytest.MonkeyPatch, reply: Reply, kind: type[Exception]) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _seconds: None)
        google.token_reply = reply
        assert isinstance(failed(), kind)

    def test_no_token_ever(self, google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        google.token_reply = Reply(status=400, body={"error": "invalid_grant", "error_description": "Invalid JWT\nSignature."})
        error = failed()
        assert isinstance(error, Refused)
        assert error.every_request
        assert str(error) == "Google Cloud credentials: invalid_grant: Invalid JWT Signature."


@pytest.mark.usefixtures("server")
class TestSetUp:
    def test_no_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        with pytest.raises(JudgeError, match="no Google Cloud credentials: run `gcloud auth application-default login`"):
            GeminiJudge(MODEL)

    @pytest.mark.parametrize("text", ["", "{}", '{"type": "service_account"}', None])
    def test_credentials_that_are_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
        file = tmp_path / "key.json"
        if text is not None:
            file.write_text(text)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        with pytest.raises(JudgeError, match=r"no Google Cloud credentials \(.*GOOGLE_APPLICATION_CREDENTIALS"):
            GeminiJudge(MODEL)

    def test_no_project(self, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        account = json.loads(key_file.read_text())
        key_file.write_text(json.dumps({name: value for name, value in account.items() if name != "project_id"}))
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-central1")
        with pytest.raises(JudgeError, match="GOOGLE_CLOUD_PROJECT"):
            GeminiJudge(MODEL)

    def test_a_key_instead_of_a_project(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GOOGLE_API_KEY", KEY)
        answered()
        (call,) = server.calls
        assert (call.path, call.headers["x-goog-api-key"]) == (f"/v1beta1/publishers/google/models/{MODEL}:generateContent", KEY)

    def test_a_gateway_with_ways_of_its_own(self, server: Server) -> None:
        answered(request(settings={"http_options": {"headers": {"x-gateway": "secret"}}}))
        (call,) = server.calls
        assert call.headers["x-gateway"] == "secret"
        assert "authorization" not in call.headers


class TestWhereToLook:
    @pytest.fixture(autouse=True)
    def _nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        empty_environment(monkeypatch)

    def test_nowhere(self) -> None:
        assert not adc._can_exist()

    def test_a_login(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CLOUDSDK_CONFIG")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert not adc._can_exist()
        folder = tmp_path / ".config" / "gcloud"
        folder.mkdir(parents=True)
        (folder / "application_default_credentials.json").write_text("{}")
        assert adc._can_exist()

    @pytest.mark.parametrize(("name", "found"), [("Google Compute Engine", True), ("Standard PC", False), (None, False)])
    def test_a_machine(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str | None, found: bool) -> None:
        file = tmp_path / "product_name"
        if name:
            file.write_text(name)
        monkeypatch.setattr(adc, "_PRODUCT_NAME", file)
        assert not adc._can_exist()
        monkeypatch.delenv("NO_GCE_CHECK")
        assert adc._can_exist() is found

    def test_a_service(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_GCE_CHECK")
        monkeypatch.setenv("K_SERVICE", "evals")
        assert adc._can_exist()
