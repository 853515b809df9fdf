"""Gemini as a judge, through google-genai: with an API key, or on Vertex AI.

google-genai reads the same environment here as everywhere. It is loaded when a judge is made, and only then.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import anyio.to_thread
from anyio.lowlevel import cancel_shielded_checkpoint
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.errors import ConfigError, JudgeError, Problem, shown
from mlflow_adk_eval.evalset.models import Json, canonical_json
from mlflow_adk_eval.judge import protocol
from mlflow_adk_eval.judge.hosts import endpoint_named_by, host_of
from mlflow_adk_eval.judge.providers.access import application_default, credentials_failure, refresh, require_settings
from mlflow_adk_eval.redact import without_credentials

if TYPE_CHECKING:
    import httpx
    from aiohttp import ClientSession
    from google.genai import Client
    from google.genai.types import GenerateContentConfig, HttpOptions

_NO_KEY = (
    "no API key for Gemini: set GOOGLE_API_KEY or GEMINI_API_KEY, or for Vertex AI "
    "GOOGLE_GENAI_USE_VERTEXAI=true, GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"
)


class Endpoint:
    """The Gemini API, or a project on Vertex AI, as the environment says."""

    def __init__(self) -> None:
        """Look into the environment."""
        env = os.environ
        switch = env.get("GOOGLE_GENAI_USE_ENTERPRISE", env.get("GOOGLE_GENAI_USE_VERTEXAI", ""))
        self.vertex = switch.lower() in {"true", "1"}
        self._variable = "GOOGLE_VERTEX_BASE_URL" if self.vertex else "GOOGLE_GEMINI_BASE_URL"  # which google-genai reads it from
        self.base_url = env.get(self._variable, "")
        """Instead of Google's own; empty where it is that."""
        self.project = env.get("GOOGLE_CLOUD_PROJECT", "")
        self.location = env.get("GOOGLE_CLOUD_LOCATION", "")
        self.has_key = bool(env.get("GOOGLE_API_KEY") or env.get("GEMINI_API_KEY"))

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
        url = base_url or endpoint_named_by(self._variable) or self.base_url
        try:
            parts = urlsplit(url)
            is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
        except ValueError:
            is_web = False
        if url and not is_web:
            raise JudgeError(f"{shown(without_credentials(url))} is no base URL for Gemini: wanted http://... or https://...")
        if not self.vertex and not self.has_key:
            raise JudgeError(_NO_KEY)
        if not self.vertex or not (self.project or self.location or not (self.has_key or url)):
            return {"vertexai": self.vertex}
        credentials, own_project = application_default()
        if not (project := self.project or own_project):
            raise JudgeError("no project for Gemini on Vertex AI: set GOOGLE_CLOUD_PROJECT")
        return {"vertexai": True, "credentials": credentials, "project": project, "location": self.location or "global"}


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


class _Feedback(_ResponseModel):
    block_reason: str | None = None
    block_reason_message: str | None = None


class _Usage(_ResponseModel):
    prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Reply(_ResponseModel):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    model_version: str | None = None


def answer_of(body: str | bytes) -> protocol.Answer:
    """Return the answer in the body of a response.

    Raises:
        Unavailable: if it is no response of Gemini's, as where something on the way sent a page of its own.
    """
    try:
        reply = _Reply.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise protocol.Unavailable(f"the response cannot be read: {': '.join(filter(None, (place, first['msg'])))}") from None
    if reply.candidates:
        candidate = reply.candidates[0]
        parts = (candidate.content and candidate.content.parts) or []
        # Not what it thought on the way, which may name a verdict that it then dropped.
        text = "".join(part.text or "" for part in parts if not part.thought)
        problem = "" if text else protocol.NO_TEXT
        if candidate.finish_reason not in (None, "STOP", "FINISH_REASON_UNSPECIFIED"):
            problem = _reason(candidate.finish_reason, candidate.finish_message)
    else:
        feedback = reply.prompt_feedback or _Feedback()
        text, problem = "", _reason(feedback.block_reason, feedback.block_reason_message) or "no candidates"
    usage = reply.usage_metadata or _Usage()
    output_tokens = [count for count in (usage.candidates_token_count, usage.thoughts_token_count) if count is not None]
    model, tokens = reply.model_version or "", sum(output_tokens) if output_tokens else None
    return protocol.Answer(text=text, model=model, input_tokens=usage.prompt_token_count, output_tokens=tokens, problem=problem)


def _reason(code: str | None, message: str | None) -> str:
    return ": ".join(filter(None, (code, protocol.one_line(message or ""))))


Send = Callable[[protocol.Request], Awaitable[str]]
"""Sends a request and returns the body of the response."""

_PROBE = protocol.Request(instructions="instructions", text="text", schema={"type": "object"})
"""Stands for any request where it is found out what google-genai makes of one."""
_HTTP_OPTIONS = ("http_options", "httpOptions")
_OF_A_CONNECTION = {"accept", "accept-encoding", "connection", "content-length", "host"}
"""Headers that belong to a connection, not to the request."""
_SESSIONS: dict[tuple[int, AbstractEventLoop], tuple[ClientSession, WeakSet[GeminiJudge]]] = {}
"""The HTTP sessions by process and event loop, each with the judges that use it: the last one closes it. A forked process shares none."""


class GeminiJudge(protocol.ResolvedJudge):
    """A model of Google's.

    What google-genai makes of a request is the same for all but the words in it: the URL, the headers and how the model generates. So it
    is asked once for each set of settings, and requests are sent in the HTTP session of the event loop: at a quarter of what they cost
    google-genai itself, which converts the settings again each time.
    """

    def __init__(self, model: str) -> None:
        """Find out how to reach it. Nothing is sent.

        Args:
            model: its name, as google-genai takes it.

        Raises:
            JudgeError: naming what is missing to reach it.
        """
        self._model = model
        self._endpoint = Endpoint()
        self._recorders: dict[bytes, _Recorder] = {}
        self._routes: dict[bytes, tuple[Send, str]] = {}
        self._senders: list[Client] = []
        self._recorder({})

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
            problem = Problem("$", protocol.one_line(str(error)), f"settings that {self._model} takes")
            raise ConfigError("judge_model_config", [problem]) from None

    async def ask(self, request: protocol.Request) -> protocol.Answer:
        """Send one request, once."""
        from aiohttp import ClientError  # noqa: PLC0415
        from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
        from google.genai.errors import APIError  # noqa: PLC0415

        started = perf_counter()
        try:
            send, host = self._route(request.settings)
            body = await send(request)
        except (APIError, GoogleAuthError, ClientError, OSError, ValueError) as error:
            # google-genai's own message may quote the whole response, and a traceback would print it.
            raise _no_answer(error) from None
        return replace(answer_of(body), latency_s=perf_counter() - started, host=host)

    async def aclose(self) -> None:
        """Give back connections, unless another judge of this event loop uses them."""
        while self._senders:
            await self._senders[-1].aio.aclose()
            self._senders.pop().close()
        self._routes.clear()
        self._recorders.clear()
        await cancel_shielded_checkpoint()  # clients that are gone have each left a task to this loop, which may end now
        here = os.getpid(), asyncio.get_running_loop()
        if here in _SESSIONS:
            session, judges = _SESSIONS[here]
            judges.discard(self)
            if not judges:
                del _SESSIONS[here]
                await session.close()

    def _recorder(self, http_options: Json) -> _Recorder:
        """Return what records requests with these ``http_options``."""
        import httpx  # noqa: PLC0415 - slow to import, and google-genai's anyway
        from google.genai.types import HttpOptions  # noqa: PLC0415
        from google.oauth2.credentials import Credentials as Token  # noqa: PLC0415

        key = canonical_json(http_options)
        if key not in self._recorders:
            options, requests = HttpOptions.model_validate(http_options), list[httpx.Request]()
            access, certificates = self._endpoint.access(options.base_url), _certificates()

            def record(request: httpx.Request) -> httpx.Response:
                requests.append(request)
                return httpx.Response(200, json={})

            transport = httpx.MockTransport(record)
            ours = {
                "client_args": {"verify": certificates},  # else it would read them three times
                "async_client_args": {"verify": certificates, "ssl": certificates},
                "httpx_client": httpx.Client(transport=transport, trust_env=False),
                "httpx_async_client": httpx.AsyncClient(transport=transport, trust_env=False),
            }
            nobody = {"credentials": Token(token="none")} if "credentials" in access else {}  # noqa: S106 - it is not sent
            client = _client(access | nobody, options.model_copy(update=ours))
            self._recorders[key] = _Recorder(client, requests, access, options)
        return self._recorders[key]

    def _route(self, settings: Mapping[str, Any]) -> tuple[Send, str]:
        """Return how to send a request with these settings, and to which host."""
        key = canonical_json(dict(settings)) if settings else b""
        if key in self._routes:
            return self._routes[key]
        from google.genai.types import AutomaticFunctionCallingConfig, GenerateContentConfig  # noqa: PLC0415

        recorder = self._recorder(next((settings[name] for name in _HTTP_OPTIONS if settings.get(name)), {}))
        given = {name: value for name, value in settings.items() if name not in _HTTP_OPTIONS}
        asked = {"system_instruction": _PROBE.instructions, "response_json_schema": _PROBE.schema, "response_mime_type": "application/json"}
        alone = {"automatic_function_calling": AutomaticFunctionCallingConfig(disable=True), "should_return_http_response": True}
        config = GenerateContentConfig.model_validate(given).model_copy(update={**asked, **alone, "response_schema": None})
        recorder.client.models.generate_content(model=self._model, contents=_PROBE.text, config=config)
        recorded = recorder.requests.pop()
        body = json.loads(recorded.content)
        if body != _filled(body, _PROBE) or recorder.options.model_fields_set & {"client_args", "async_client_args"} or _has_certificate():
            send = self._sent_by_google(recorder, config)
        else:
            send = self._sent_here(recorder, recorded, body)
        self._routes[key] = send, host_of(str(recorded.url))
        return self._routes[key]

    def _sent_here(self, recorder: _Recorder, recorded: httpx.Request, body: Json) -> Send:
        """Return what sends requests as google-genai would, in a session of our own."""
        from aiohttp import ClientTimeout  # noqa: PLC0415
        from google.genai.errors import APIError  # noqa: PLC0415

        url, certificates, credentials = str(recorded.url), _certificates(), recorder.access.get("credentials")
        headers = {name: value for name, value in recorded.headers.items() if name not in _OF_A_CONNECTION}
        timeout = ClientTimeout(total=recorder.options.timeout / 1_000 if recorder.options.timeout else None)
        # A session that trusts the environment asks two threads for the proxy at each request; with a .netrc it has to, as that may know its password.
        place, proxies = urlsplit(url), {} if _has_netrc() else getproxies()
        proxy = None if proxy_bypass(place.hostname or "") else proxies.get(place.scheme)
        if proxy and proxy.startswith("https:"):
            proxy = None  # as aiohttp does with one of the environment

        async def send(request: protocol.Request) -> str:
            authorization = {}
            if credentials:
                if not credentials.valid:
                    await anyio.to_thread.run_sync(refresh, credentials, abandon_on_cancel=True)
                authorization = {"authorization": f"Bearer {credentials.token}"}
                if credentials.quota_project_id:
                    authorization["x-goog-user-project"] = credentials.quota_project_id
            # A redirect would take the API key to another host, which then judges.
            how: Json = {"proxy": proxy, "ssl": certificates, "timeout": timeout, "allow_redirects": False}
            data = json.dumps(_filled(body, request)).encode()
            async with self._session().post(url, data=data, headers=headers | authorization, **how) as response:
                await APIError.raise_for_async_response(response)
                return await response.text()

        return send

    def _session(self) -> ClientSession:
        """Return the HTTP session of this event loop, which all judges in it share."""
        here = os.getpid(), asyncio.get_running_loop()
        if here not in _SESSIONS:
            from aiohttp import ClientSession, TCPConnector  # noqa: PLC0415

            for forgotten in [key for key in [*_SESSIONS] if key[1].is_closed()]:
                _SESSIONS.pop(forgotten, None)
            _SESSIONS[here] = ClientSession(connector=TCPConnector(limit=0), trust_env=_has_netrc()), WeakSet[GeminiJudge]()
        session, judges = _SESSIONS[here]
        judges.add(self)
        return session

    def _sent_by_google(self, recorder: _Recorder, config: GenerateContentConfig) -> Send:
        """Return what sends requests as google-genai documents it, with a certificate of this machine and all that its options say."""
        arguments = {**(recorder.options.async_client_args or {}), "follow_redirects": False, "allow_redirects": False}
        client = _client(recorder.access, recorder.options.model_copy(update={"async_client_args": arguments}))
        self._senders.append(client)

        async def send(request: protocol.Request) -> str:
            whole = config.model_copy(update={"system_instruction": request.instructions, "response_json_schema": request.schema})
            response = await client.aio.models.generate_content(model=self._model, contents=request.text, config=whole)
            return (response.sdk_http_response and response.sdk_http_response.body) or ""

        return send


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A client of google-genai that sends nothing, but records what it would send."""

    client: Client
    requests: list[httpx.Request]
    access: Json
    """What a client takes that does send."""
    options: HttpOptions


def _filled(body: Json, request: protocol.Request) -> Json:
    return body | {
        "contents": [{"parts": [{"text": request.text}], "role": "user"}],
        "systemInstruction": {"parts": [{"text": request.instructions}], "role": "user"},
        "generationConfig": body.get("generationConfig", {}) | {"responseJsonSchema": request.schema},
    }


def _client(access: Json, options: HttpOptions) -> Client:
    """Return a client that repeats nothing by itself: we count, limit and time every request.

    Before 2.33 google-genai does repeat a request once where the connection broke, and cannot be told not to.

    Args:
        access: what the client takes to reach the endpoint.
        options: how it sends requests.

    Raises:
        JudgeError: if google-genai cannot be set up like that.
    """
    from google.genai import Client  # noqa: PLC0415
    from google.genai.types import HttpRetryOptions  # noqa: PLC0415

    try:
        return Client(http_options=options.model_copy(update={"retry_options": HttpRetryOptions(attempts=1)}), **access)
    except (ValueError, OSError) as error:
        raise JudgeError(f"Gemini cannot be set up: {protocol.one_line(str(error))}") from None


def _has_certificate() -> bool:
    """Whether google-auth shows Google a certificate of this machine, which only google-genai's own client does."""
    from google.auth.transport import mtls  # noqa: PLC0415

    should_use = getattr(mtls, "should_use_client_cert", None)
    return bool(should_use and should_use())


def _certificates() -> ssl.SSLContext:
    """Return the certificates that are trusted, where google-genai looks for them, read once.

    Raises:
        JudgeError: if they cannot be read.
    """
    import certifi  # noqa: PLC0415 - google-genai's, too

    file = os.environ.get("SSL_CERT_FILE", certifi.where())
    try:
        return _read_certificates(file, os.environ.get("SSL_CERT_DIR"), Path(file).stat().st_mtime_ns)
    except OSError as error:
        raise JudgeError(f"Gemini cannot be set up: the certificates in {file} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=2)
def _read_certificates(file: str, folder: str | None, changed: int) -> ssl.SSLContext:  # noqa: ARG001 - a changed file is read again
    return ssl.create_default_context(cafile=file, capath=folder)


def _has_netrc() -> bool:
    home = Path(os.path.expanduser("~/.netrc"))  # noqa: PTH111 - pathlib fails where nobody knows the home
    return "NETRC" in os.environ or home.exists()


def _no_answer(error: Exception) -> protocol.NoAnswer:
    """Return what an error of the API or on the way to it means. A wrong key is a bad request (400) to Gemini, not one without permission."""
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415
    from google.genai.errors import APIError  # noqa: PLC0415

    if isinstance(error, GoogleAuthError):
        return credentials_failure(error)
    if not isinstance(error, APIError):
        message = f"{type(error).__name__}: {protocol.one_line(str(error))}"
        if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeError):
            return protocol.Refused(message, every_request=True)
        return protocol.Unavailable(message, overloaded="Timeout" in type(error).__name__)
    body = error.details.get("error") if isinstance(error.details, dict) else None
    details = [detail for detail in (body.get("details") or [] if isinstance(body, dict) else []) if isinstance(detail, dict)]
    wait = protocol.retry_delay_s(details)
    if wait is None:
        wait = protocol.retry_after_s(getattr(error.response, "headers", {}))
    no_request = error.status == "FAILED_PRECONDITION" or any(str(detail.get("reason", "")).startswith("API_KEY") for detail in details)
    message = f"{error.code} {error.status or ''}: {error.message or 'no message'}"
    return protocol.failure(error.code, message, retry_after_s=wait, every_request=no_request)
