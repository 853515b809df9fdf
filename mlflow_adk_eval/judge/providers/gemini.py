"""Gemini as a judge, through google-genai: with an API key, or on Vertex AI.

google-genai reads the same environment here as everywhere. It is loaded when a judge is made, and only then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.errors import ConfigError, JudgeError, Problem, shown
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.errors import failure, one_line, retry_after_s, retry_delay_s
from mlflow_adk_eval.judge.hosts import endpoint_named_by, host_of
from mlflow_adk_eval.judge.protocol import (
    NO_TEXT,
    Answer,
    NoAnswer,
    Refused,
    Request,
    Unavailable,
)
from mlflow_adk_eval.judge.providers.access import application_default, credentials_failure, require_settings
from mlflow_adk_eval.judge.providers.gemini_clients import Lease, api_of, base_url_of, lease_client
from mlflow_adk_eval.redact import without_credentials

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError
    from google.genai.types import GenerateContentConfig

_NO_KEY = (
    "no API key for Gemini: set GOOGLE_API_KEY or GEMINI_API_KEY, or for Vertex AI "
    "GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The Gemini API, or a project on Vertex AI."""

    vertex: bool
    base_url: str
    """Instead of Google's own; empty where it is that."""
    project: str
    location: str
    has_key: bool

    @property
    def variable(self) -> str:
        """The environment variable that google-genai reads the base URL from."""
        return "GOOGLE_VERTEX_BASE_URL" if self.vertex else "GOOGLE_GEMINI_BASE_URL"

    def __str__(self) -> str:
        """Name the place, without secrets."""
        place = without_credentials(self.base_url) or "Google"
        return f"{place}, project {self.project or '-'}, location {self.location or '-'}" if self.vertex else place

    def access(self, base_url: str | None) -> Json:
        """Return the arguments of a google-genai client that reaches it.

        Args:
            base_url: one that takes the place of the environment's.

        Raises:
            JudgeError: naming what is missing.
        """
        url = base_url or endpoint_named_by(self.variable) or self.base_url
        if url and not _is_web(url):
            raise JudgeError(f"{shown(without_credentials(url))} is no base URL for Gemini: wanted http://... or https://...")
        if not self.vertex and not self.has_key:
            raise JudgeError(_NO_KEY)
        on_vertex = self.vertex and (self.project or self.location or not (self.has_key or url))
        return {"vertexai": self.vertex} | (self._vertex() if on_vertex else {})

    def _vertex(self) -> Json:
        credentials, own_project = application_default()
        if not (project := self.project or own_project):
            raise JudgeError("no project for Gemini on Vertex AI: set GOOGLE_CLOUD_PROJECT")
        return {"credentials": credentials, "project": project, "location": self.location or "global"}


def endpoint_of_environment() -> Endpoint:
    """Return what the environment says."""
    env = os.environ
    switch = env.get("GOOGLE_GENAI_USE_ENTERPRISE", env.get("GOOGLE_GENAI_USE_VERTEXAI", ""))
    vertex = switch.lower() in {"true", "1"}
    return Endpoint(
        vertex=vertex,
        base_url=env.get("GOOGLE_VERTEX_BASE_URL" if vertex else "GOOGLE_GEMINI_BASE_URL", ""),
        project=env.get("GOOGLE_CLOUD_PROJECT", ""),
        location=env.get("GOOGLE_CLOUD_LOCATION", ""),
        has_key=bool(env.get("GOOGLE_API_KEY") or env.get("GEMINI_API_KEY")),
    )


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


_WHOLE = (None, "STOP", "FINISH_REASON_UNSPECIFIED")


class _ResponseModel(BaseModel):
    """A part of the response; what is not needed of it is left out."""

    model_config = ConfigDict(alias_generator=to_camel)


class _Part(_ResponseModel):
    text: str | None = None
    thought: bool | None = None


class _Content(_ResponseModel):
    parts: list[_Part] | None = None


class _Candidate(_ResponseModel):
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None

    @property
    def text(self) -> str:
        """What the model says; not what it thought on the way, which may name a verdict that it then dropped."""
        parts = (self.content and self.content.parts) or []
        return "".join(part.text or "" for part in parts if not part.thought)

    @property
    def problem(self) -> str:
        """Why the text is not whole; empty where it is."""
        if self.finish_reason not in _WHOLE:
            return ": ".join(filter(None, (self.finish_reason, one_line(self.finish_message or ""))))
        return "" if self.text else NO_TEXT


class _Feedback(_ResponseModel):
    block_reason: str | None = None
    block_reason_message: str | None = None

    @property
    def problem(self) -> str:
        """Why the prompt was not taken; empty where it was."""
        return ": ".join(filter(None, (self.block_reason, one_line(self.block_reason_message or ""))))


class _Usage(_ResponseModel):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None

    @property
    def output_tokens(self) -> int | None:
        """The tokens of answer and thoughts, as far as the provider counts them."""
        counts = [count for count in (self.candidates_token_count, self.thoughts_token_count) if count is not None]
        return sum(counts) if counts else None


class _Reply(_ResponseModel):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None

    @property
    def problem(self) -> str:
        """Why there is no whole text; empty where there is one."""
        if self.candidates:
            return self.candidates[0].problem
        return (self.prompt_feedback and self.prompt_feedback.problem) or "no candidates"


def answer_of(body: str | bytes) -> Answer:
    """Return the answer in the body of a response.

    Raises:
        Unavailable: if it is no response of Gemini's, as where something on the way sent a page of its own.
    """
    try:
        reply = _Reply.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Unavailable(f"the response cannot be read: {': '.join(filter(None, (place, first['msg'])))}") from None
    usage = reply.usage_metadata or _Usage()
    return Answer(
        text=reply.candidates[0].text if reply.candidates else "",
        model=reply.model_version or "",
        input_tokens=usage.prompt_token_count,
        output_tokens=usage.output_tokens,
        problem=reply.problem,
    )


Send = Callable[[Request], Awaitable[str]]
"""Sends a request and returns the body of the response."""

_PROBE = Request(instructions="instructions", text="text", schema={"type": "object"})
"""Stands for any request where it is found out what google-genai makes of one."""
_HTTP_OPTIONS = ("http_options", "httpOptions")
_SENDING = ("_build_request", "_async_request_once")
"""What google-genai's client sends a request with, once."""
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
        self._leases: dict[bytes, Lease] = {}
        self._routes: dict[bytes, tuple[Send, str]] = {}
        self._lease({})

    @property
    def model(self) -> str:
        """The model's name."""
        return self._model

    @property
    def address(self) -> str:
        """The model and where it is reached."""
        return f"{self._model} at {self._endpoint}"

    def host(self, settings: Mapping[str, Any]) -> str:
        """Return the host that is asked with these settings."""
        return self._route(settings)[1]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuse a ``judge_model_config`` that could not be sent. Nothing is sent.

        Raises:
            ConfigError: with everything that is wrong with it.
        """
        from google.genai.types import GenerateContentConfig  # noqa: PLC0415

        require_settings(GenerateContentConfig, settings)
        try:
            self._route(settings)
        except ValueError as error:
            problem = Problem("$", one_line(str(error)), f"settings that {self._model} takes")
            raise ConfigError("judge_model_config", [problem]) from None

    async def ask(self, request: Request) -> Answer:
        """Send one request, once."""
        started = perf_counter()
        try:
            send, host = self._route(request.settings)
            body = await send(request)
        except _failures() as error:
            # google-genai's own message may quote the whole response, and a traceback would print it.
            raise _no_answer(error) from None
        return replace(answer_of(body), latency_s=perf_counter() - started, host=host)

    async def aclose(self) -> None:
        """Give back connections."""
        self._routes.clear()
        while self._leases:
            await self._leases.popitem()[1].aclose()

    def _route(self, settings: Mapping[str, Any]) -> tuple[Send, str]:
        """Return how to send a request with these settings, as directly as this google-genai allows, and to which host."""
        key = canonical_json(dict(settings)) if settings else b""
        if key not in self._routes:
            lease, config = self._lease(settings), _config(settings)
            recorded = _recorded(lease.client, self._model, config)
            send = _direct(lease, recorded) if recorded else _public(lease, self._model, config)
            self._routes[key] = send, host_of(base_url_of(lease.client))
        return self._routes[key]

    def _lease(self, settings: Mapping[str, Any]) -> Lease:
        """Return the client for the ``http_options`` in the settings."""
        given: Json = next((settings[name] for name in _HTTP_OPTIONS if settings.get(name)), {})
        key = canonical_json(given)
        if key not in self._leases:
            from google.genai.types import HttpOptions  # noqa: PLC0415

            options = HttpOptions.model_validate(given)
            self._leases[key] = lease_client(self._endpoint.access(options.base_url), options)
        return self._leases[key]


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
    """Return what google-genai would send for the probe; ``None`` if that is not known, or cannot be filled in for other requests.

    Converting a config costs google-genai more than sending it does, and the outcome only differs in the three places
    that `_filled` fills. So it is converted once.
    """
    from google.genai.models import Models  # noqa: PLC0415

    recorder: Any = _Recorder(vertexai=client.vertexai)
    try:
        Models(recorder).generate_content(model=model, contents=_PROBE.text, config=config)
    except _Recorded as recorded:
        sends = all(hasattr(api_of(client), name) for name in _SENDING)
        return recorded if sends and recorded.body == _filled(recorded.body, _PROBE) else None
    except (AttributeError, TypeError):  # another google-genai than those that this was written for
        return None
    return None


def _filled(body: Json, request: Request) -> Json:
    return body | {
        "contents": [{"parts": [{"text": request.text}], "role": "user"}],
        "systemInstruction": {"parts": [{"text": request.instructions}], "role": "user"},
        "generationConfig": body.get("generationConfig", {}) | {"responseJsonSchema": request.schema},
    }


def _direct(lease: Lease, recorded: _Recorded) -> Send:
    """Return what sends requests through google-genai's client below its models and its retries, a third of their cost."""
    api = api_of(lease.client)

    async def send(request: Request) -> str:
        lease.enter()
        response = await api._async_request_once(api._build_request("post", recorded.path, _filled(recorded.body, request)))  # noqa: SLF001
        return str(response.response_stream[0] if response.response_stream else "")

    return send


def _public(lease: Lease, model: str, config: GenerateContentConfig) -> Send:
    """Return what sends requests as google-genai documents it."""

    async def send(request: Request) -> str:
        ours = {"system_instruction": request.instructions, "response_json_schema": request.schema}
        asked = config.model_copy(update=ours)
        lease.enter()
        response = await lease.client.aio.models.generate_content(model=model, contents=request.text, config=asked)
        return (response.sdk_http_response and response.sdk_http_response.body) or ""

    return send


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors with which a request may end."""
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.genai.errors import APIError  # noqa: PLC0415

    transports = [getattr(sys.modules[name], root) for name, root in _TRANSPORTS.items() if name in sys.modules]
    return (APIError, GoogleAuthError, OSError, ValueError, *transports)


def _no_answer(error: Exception) -> NoAnswer:
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.genai.errors import APIError  # noqa: PLC0415

    if isinstance(error, APIError):
        return _refusal(error)
    if isinstance(error, GoogleAuthError):
        return credentials_failure(error)
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
    no_request = error.status == "FAILED_PRECONDITION" or any(str(detail.get("reason", "")).startswith("API_KEY") for detail in details)
    message = f"{error.code} {error.status or ''}: {error.message or 'no message'}"
    return failure(error.code, message, retry_after_s=wait, every_request=no_request)
