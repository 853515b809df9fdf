"""Gemini as a judge, through google-genai: with an API key, or on Vertex AI.

google-genai reads the same environment here as everywhere. It is loaded when a judge is made, and only then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mlflow_adk_eval.errors import ConfigError, JudgeError, Problem
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.client.errors import failure, one_line, retry_after_s, retry_delay_s
from mlflow_adk_eval.judge.gemini_endpoint import Endpoint, endpoint_of_environment
from mlflow_adk_eval.judge.gemini_reply import answer_of
from mlflow_adk_eval.judge.model_config import problems_of_settings
from mlflow_adk_eval.judge.protocol import (
    Answer,
    NoAnswer,
    Refused,
    Request,
    Unavailable,
)

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError
    from google.genai.types import GenerateContentConfig

Send = Callable[[Request], Awaitable[str]]
"""Sends a request and returns the body of the response."""

_PROBE = Request(instructions="instructions", text="text", schema={"type": "object"})
"""Stands for any request where it is found out what google-genai makes of one."""
_HTTP_OPTIONS = ("http_options", "httpOptions")
_TRANSPORTS = {"aiohttp": "ClientError", "httpx": "HTTPError", "httpx2": "HTTPError"}
"""What google-genai may use to send requests, and the root of the errors of each."""


class GeminiJudge:
    """A model of Google's."""

    def __init__(self, model: str) -> None:
        """Set up the client. Nothing is sent.

        Args:
            model: its name, as google-genai takes it.

        Raises:
            JudgeError: naming what is missing to reach it.
        """
        self._model = model
        self._endpoint = endpoint_of_environment()
        self._clients: dict[bytes, Client] = {}
        self._routes: dict[bytes, Send] = {}
        self._client({})

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    @property
    def address(self) -> str:
        """The model and where it is reached."""
        return f"{self._model} at {self._endpoint}"

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse a ``judge_model_config`` that could not be sent. Nothing is sent.

        Raises:
            ConfigError: with everything that is wrong with it.
        """
        from google.genai.types import GenerateContentConfig  # noqa: PLC0415

        problems = problems_of_settings(GenerateContentConfig, settings)
        if not problems:
            try:
                self._route(settings)
            except ValueError as error:
                problems = [Problem("$", one_line(str(error)), f"settings that {self._model} takes")]
        if problems:
            raise ConfigError("judge_model_config", problems)

    async def ask(self, request: Request) -> Answer:
        """Send one request, once."""
        started = perf_counter()
        try:
            body = await self._route(request.settings)(request)
        except _failures() as error:
            # google-genai's own message may quote the whole response, and a traceback would print it.
            raise _no_answer(error) from None
        return replace(answer_of(body), latency_s=perf_counter() - started)

    async def aclose(self) -> None:
        """Give back connections."""
        for client in self._clients.values():
            await client.aio.aclose()
            client.close()

    def _route(self, settings: Mapping[str, Any]) -> Send:
        """Return how to send a request with these settings: as directly as this google-genai allows."""
        key = canonical_json(dict(settings))
        if key not in self._routes:
            client, config = self._client(settings), _config(settings)
            recorded = _recorded(client, self._model, config)
            self._routes[key] = _direct(client, recorded) if recorded else _public(client, self._model, config)
        return self._routes[key]

    def _client(self, settings: Mapping[str, Any]) -> Client:
        """Return the client for the ``http_options`` in the settings."""
        given: Json = next((settings[name] for name in _HTTP_OPTIONS if settings.get(name)), {})
        key = canonical_json(given)
        if key not in self._clients:
            self._clients[key] = _client(self._endpoint, given)
        return self._clients[key]


def _client(endpoint: Endpoint, http_options: Json) -> Client:
    """Return a client of google-genai that repeats nothing by itself: we count, limit and time every request.

    Before 2.33 it does repeat a request once where the connection broke, and cannot be told not to.
    """
    from google.genai import Client  # noqa: PLC0415
    from google.genai.types import HttpOptions, HttpRetryOptions  # noqa: PLC0415

    options = HttpOptions.model_validate(http_options).model_copy(update={"retry_options": HttpRetryOptions(attempts=1)})
    try:
        return Client(http_options=options, **endpoint.access(options.base_url))
    except ValueError as error:
        raise JudgeError(f"Gemini cannot be set up: {one_line(str(error))}") from None


def _config(settings: Mapping[str, Any]) -> GenerateContentConfig:
    """Return the settings with what is ours to set."""
    from google.genai.types import AutomaticFunctionCallingConfig, GenerateContentConfig  # noqa: PLC0415

    given = {name: value for name, value in settings.items() if name not in _HTTP_OPTIONS}
    ours = {
        "system_instruction": _PROBE.instructions,
        "response_mime_type": "application/json",
        "response_json_schema": _PROBE.schema,
        "response_schema": None,
        "automatic_function_calling": AutomaticFunctionCallingConfig(disable=True),
        "should_return_http_response": True,
    }
    return GenerateContentConfig.model_validate(given).model_copy(update=ours)


class _Recorded(Exception):  # noqa: N818 - it carries a request out of google-genai, before it is sent
    def __init__(self, path: str, body: Json) -> None:
        super().__init__(path)
        self.path = path
        self.body = body


class _Recorder:
    """Stands in for the part of google-genai's client that sends."""

    def __init__(self, *, vertexai: bool) -> None:
        self.vertexai = vertexai

    def request(self, _method: str, path: str, body: Json, _http_options: Any = None) -> None:
        raise _Recorded(path, body)


def _recorded(client: Client, model: str, config: GenerateContentConfig) -> _Recorded | None:
    """Return what google-genai would send for the probe; ``None`` if that cannot be told, or not be filled in for other requests.

    Converting a config costs google-genai more than sending it does, and the outcome only differs in the three places
    that `_filled` fills. So it is converted once.
    """
    from google.genai.models import Models  # noqa: PLC0415

    recorder: Any = _Recorder(vertexai=client.vertexai)
    try:
        Models(recorder).generate_content(model=model, contents=_PROBE.text, config=config)
    except _Recorded as recorded:
        sends = hasattr(_api(client), "async_request")
        return recorded if sends and recorded.body == _filled(recorded.body, _PROBE) else None
    except (AttributeError, TypeError):  # another google-genai than those that this was written for
        return None
    return None


def _api(client: Client) -> Any:
    return getattr(client, "_api_client", None)


def _filled(body: Json, request: Request) -> Json:
    return body | {
        "contents": [{"parts": [{"text": request.text}], "role": "user"}],
        "systemInstruction": {"parts": [{"text": request.instructions}], "role": "user"},
        "generationConfig": body.get("generationConfig", {}) | {"responseJsonSchema": request.schema},
    }


def _direct(client: Client, recorded: _Recorded) -> Send:
    """Return what sends requests through google-genai's client below its models, a third of their cost."""
    api = _api(client)

    async def send(request: Request) -> str:
        response = await api.async_request("post", recorded.path, _filled(recorded.body, request))
        return str(response.body or "")

    return send


def _public(client: Client, model: str, config: GenerateContentConfig) -> Send:
    """Return what sends requests as google-genai documents it."""

    async def send(request: Request) -> str:
        ours = {"system_instruction": request.instructions, "response_json_schema": request.schema}
        asked = config.model_copy(update=ours)
        response = await client.aio.models.generate_content(model=model, contents=request.text, config=asked)
        return (response.sdk_http_response and response.sdk_http_response.body) or ""

    return send


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors with which a request may end."""
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.genai.errors import APIError  # noqa: PLC0415

    transports = [getattr(sys.modules[name], root) for name, root in _TRANSPORTS.items() if name in sys.modules]
    return (APIError, GoogleAuthError, OSError, ValueError, *transports)


def _no_answer(error: Exception) -> NoAnswer:
    from google.auth.exceptions import GoogleAuthError, TransportError  # noqa: PLC0415
    from google.genai.errors import APIError  # noqa: PLC0415

    if isinstance(error, APIError):
        return _refusal(error)
    if isinstance(error, GoogleAuthError):
        message = f"Google Cloud credentials: {one_line(str(error.args[0] if error.args else error))}"
        later = error.retryable or isinstance(error, TransportError)
        return Unavailable(message) if later else Refused(message, every_request=True)
    message = f"{type(error).__name__}: {one_line(str(error))}"
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeError):
        return Refused(message, every_request=True)
    return Unavailable(message, overloaded="Timeout" in type(error).__name__)


def _refusal(error: APIError) -> NoAnswer:
    """Return what an error of the API means. A wrong key is a bad request (400) to Gemini, not one without permission."""
    said = error.details.get("error") if isinstance(error.details, dict) else None
    details = [detail for detail in (said.get("details") or [] if isinstance(said, dict) else []) if isinstance(detail, dict)]
    wait = retry_delay_s(details)
    if wait is None:
        wait = retry_after_s(getattr(error.response, "headers", {}))
    hopeless = error.status == "FAILED_PRECONDITION" or any(str(detail.get("reason", "")).startswith("API_KEY") for detail in details)
    message = f"{error.code} {error.status or ''}: {error.message or 'no message'}"
    return failure(error.code, message, retry_after_s=wait, every_request=hopeless)
