"""What all agents behind HTTP have in common: an address, retries, time limits, shared connections, and errors that show no secret.

`HttpAgent.send` sends a `HttpRequest` and returns the JSON of the answer. A request is repeated where that can do no harm: after 429, 503 and a
connection that was refused the agent has surely not seen it; after another 5xx or a connection that broke it may have, so that only a
`HttpRequest` that is `harmless` is sent again. Redirects are followed within the same server, where the headers may go. All conversations of an
agent share its connections. Whatever goes wrong is an `HttpError`, with secrets of headers and addresses masked.
"""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urljoin, urlsplit

import anyio
from pydantic_core import from_json
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from mlflow_adk_eval.agents.conversation import converse
from mlflow_adk_eval.agents.protocol import NO_LIMITS, AgentSession, Limits
from mlflow_adk_eval.agents.replay import Tools
from mlflow_adk_eval.errors import AgentError, UsageError, shown
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalCase, Json, canonical_json
from mlflow_adk_eval.judge.protocol import one_line, retry_after_s
from mlflow_adk_eval.redact import SHORTEST, redacted, without_credentials

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

Again = Literal["always", "if harmless", "never"]
"""Whether to send a request again. *always*: the agent has surely not seen it; *if harmless*: it may have."""


class HttpError(AgentError):
    """An HTTP agent did not answer, or gave an invalid answer."""

    def __init__(self, message: str, *, again: Again = "never", status: int | None = None, retry_after_s: float = 0.0) -> None:
        """Describe what came instead.

        Args:
            message: a sentence.
            again: whether to send the request again.
            status: the HTTP status, if there is one.
            retry_after_s: how long the agent asked to wait, in seconds.
        """
        super().__init__(message)
        self.again = again
        self.status = status
        self.retry_after_s = retry_after_s


def again_after(status: int) -> Again:
    """Return whether to send a request again after an HTTP status.

    >>> again_after(429), again_after(502), again_after(404)
    ('always', 'if harmless', 'never')
    """
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        return "always"
    return "if harmless" if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT else "never"


def hidden_of(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return what no error may show of a request, each with what stands in its place.

    >>> hidden_of("https://agents.acme.com/weather?key=0123456789", {"Authorization": "Bearer abcdefgh"})
    {'Bearer abcdefgh': '[Authorization]', 'abcdefgh': '[Authorization]', '0123456789': '[key]'}
    """
    values = [(part, name) for name, value in headers.items() for part in dict.fromkeys((value, value.rpartition(" ")[2]))]
    values += [(value, name) for name, value in parse_qsl(urlsplit(url).query)]
    return {value: f"[{name}]" for value, name in values if len(value) >= SHORTEST}


def excerpt(body: bytes, hidden: Mapping[str, str]) -> str:
    """Return the words of a body that is no answer, on one line.

    >>> excerpt(b'{"error": {"message": "model overloaded", "code": 1}}', {})
    'model overloaded'
    """
    try:
        value = from_json(body)
        while isinstance(value, dict):
            keys = [key for key in ("error", "message", "detail", "title") if value.get(key)]  # whatever the server calls its words
            value = value[keys[0]] if keys else str(value)
        text = str(value)
    except ValueError:
        text = body.decode("utf-8", "replace")
    return one_line(redacted(text, hidden)) or "an empty body"


_KEPT_S = 3.0
"""How long an idle connection is kept; many servers drop theirs after five seconds, perhaps just as a request arrives."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What belongs to one event loop."""

    client: AsyncClient
    closing: AsyncGenerator[None]
    """Closes the client when the loop ends, which closes the asynchronous generators that were begun in it."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by the conversation that fetches what all of them need."""


async def _closing(client: AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()


_FIRST_S = 0.5
"""The longest wait before the second attempt."""
_LONGEST_S = 16.0
"""The longest wait that doubling leads to."""
_LONGEST_ASKED_S = 60.0
"""The longest wait that an agent is granted."""
_REDIRECTS = 3
_SAME_METHOD = {HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request to an agent."""

    url: str
    method: Literal["GET", "POST"] = "POST"
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    harmless: bool = True
    """Whether it does no harm if the agent gets it twice."""


@dataclass(frozen=True, slots=True)
class HttpAgent(ABC):
    """An agent at an address. Its conversations share connections and nothing else."""

    url: str = field(repr=False)
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent with each request, to the server of `url` only. No error shows their values."""
    name: str = ""
    """What reports and agent versions call it; empty: as its address."""
    timeout_s: float = 120.0
    """The time limit for one request, in seconds."""
    attempts: int = 4
    """How often a request is tried whose failure is no fault of the agent's, such as 429, 503 or a broken connection."""
    limits: Limits = NO_LIMITS
    private: frozenset[str] = frozenset()
    pool: dict[AbstractEventLoop, Connections] = field(default_factory=dict[AbstractEventLoop, Connections], repr=False, compare=False)
    """One client of httpx for each event loop, since connections cannot leave theirs. All conversations share them."""

    def __post_init__(self) -> None:
        """Refuse what could not be sent.

        Raises:
            UsageError: naming the field, without secrets.
        """
        split = checked_url(self.url)
        for header, content in self.headers.items():
            sendable = isinstance(content, str) and content.isprintable() and content.isascii()
            named = isinstance(header, str) and header.isascii() and header.isprintable() and header.strip() and ":" not in header
            if not (named and sendable):
                raise UsageError(f"header {header!r}: wanted a name and a value on one line of ASCII")
        for name in ("timeout_s", "attempts"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise UsageError(f"{name}={shown(value)}: wanted a number above 0")
        object.__setattr__(self, "name", self.name or f"{split.netloc.rpartition('@')[2]}{split.path}".rstrip("/"))

    @property
    def address(self) -> str:
        """Its address without a user name and a password."""
        split = checked_url(self.url)
        return split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()

    @property
    def sent_headers(self) -> dict[str, str]:
        """What each request carries: `headers`, and what stands for a user name and a password in `url`."""
        split = checked_url(self.url)
        if split.username is None:
            return dict(self.headers)
        credentials = f"{unquote(split.username)}:{unquote(split.password or '')}".encode()
        return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}", **self.headers}

    async def version(self) -> str:
        """Return which version the agent says it is; empty where it does not say.

        Raises:
            AgentError: if it does not answer.
        """
        return ""

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Have the conversation of `case`. Whatever goes wrong ends it and is returned."""
        return await converse(self, case, run_index)

    @abstractmethod
    def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AbstractAsyncContextManager[AgentSession]:
        """Begin a conversation that shares nothing with any other."""

    async def connections(self) -> Connections:
        """Return those of the running event loop."""
        from httpx import AsyncClient, Limits  # noqa: PLC0415 - takes a tenth of a second, and few evaluations need it

        loop = asyncio.get_running_loop()
        if loop not in self.pool:
            for closed in [other for other in self.pool if other.is_closed()]:
                del self.pool[closed]
            # `_send_once` limits the whole request, and how many there are at a time is the runner's business.
            client = AsyncClient(timeout=None, limits=Limits(max_connections=None, keepalive_expiry=_KEPT_S))  # noqa: S113
            self.pool[loop] = Connections(client, _closing(client))
            await anext(self.pool[loop].closing)
        return self.pool[loop]

    async def send(self, request: HttpRequest) -> Any:
        """Return the JSON that the agent answers with.

        Raises:
            HttpError: with what came instead.
        """
        again, stop = retry_if_exception(lambda error: _is_worth_repeating(error, request)), stop_after_attempt(int(self.attempts))
        retrying = AsyncRetrying(retry=again, stop=stop, wait=_wait, sleep=anyio.sleep, reraise=True)
        try:
            return await retrying(self._send_once, request)
        except HttpError as error:
            if _is_worth_repeating(error, request) and int(self.attempts) > 1:
                raise HttpError(f"{error} ({int(self.attempts)} attempts)", status=error.status) from None
            raise

    def unexpected(self, request: HttpRequest, answer: Any, wanted: str) -> HttpError:
        """Return the error that an answer is something else than what was `wanted`."""
        words = excerpt(canonical_json(answer), self.hidden(request))
        return HttpError(f"{shown_url(request.url)} answered with JSON that is not {wanted}: {words}")

    def hidden(self, request: HttpRequest) -> dict[str, str]:
        """Return what no error may show of a request."""
        return hidden_of(request.url, {**self.sent_headers, **request.headers})

    async def _send_once(self, request: HttpRequest) -> Any:
        where = shown_url(request.url)
        hidden = self.hidden(request)
        try:
            with anyio.fail_after(self.timeout_s):
                response = await self._response(request)
        except TimeoutError:
            raise HttpError(f"{where} did not answer within {self.timeout_s:g} s") from None
        if not response.is_success:
            status, wait_s = response.status_code, retry_after_s(response.headers) or 0.0
            msg = f"{where} answered {status} {response.reason_phrase}: {excerpt(response.content, hidden)}"
            raise HttpError(msg, again=again_after(status), status=status, retry_after_s=wait_s)
        try:
            return from_json(response.content)
        except ValueError:
            text = excerpt(response.content, hidden)
            raise HttpError(f"{where} answered {response.status_code} with a body that is not JSON: {text}") from None

    async def _response(self, request: HttpRequest) -> Response:
        """Return the response; one that leads to another address of the same server is followed."""
        from httpx import ConnectError, DecodingError, TransportError, UnsupportedProtocol  # noqa: PLC0415 - as in `connections`

        client, headers = (await self.connections()).client, {**self.sent_headers, **request.headers}
        url, redirects = request.url, 0
        while True:
            where = shown_url(url)
            try:
                response = await client.request(request.method, url, json=request.body, headers=headers)
            except (DecodingError, UnsupportedProtocol) as error:
                raise HttpError(f"{where} gave an invalid answer: {error}") from None
            except ConnectError as error:
                raise HttpError(f"{where} cannot be reached: {str(error) or type(error).__name__}", again="always") from None
            except TransportError as error:
                raise HttpError(f"the connection to {where} broke: {str(error) or type(error).__name__}", again="if harmless") from None
            target = urljoin(url, response.headers.get("location", ""))
            follows = response.is_redirect and (request.method == "GET" or response.status_code in _SAME_METHOD)
            if not follows or redirects == _REDIRECTS or origin(target) != origin(url):
                break
            url, redirects = target, redirects + 1
        if response.is_redirect:
            leads = shown_url(target)
            raise HttpError(f"{where} answered {response.status_code} and redirects to {leads}: use that address if it is the agent's")
        return response


def _is_worth_repeating(error: BaseException, request: HttpRequest) -> bool:
    return isinstance(error, HttpError) and (error.again == "always" or (error.again == "if harmless" and request.harmless))


def _wait(state: RetryCallState) -> float:
    """Return a random time up to a limit that doubles, and not less than the agent asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked_for = error.retry_after_s if isinstance(error, HttpError) else 0.0
    return max(wait_random_exponential(_FIRST_S, _LONGEST_S)(state), min(asked_for, _LONGEST_ASKED_S))


def shown_url(url: str) -> str:
    """Return an address as it may be shown: without credentials and query.

    >>> shown_url("https://me:secret@agents.acme.com/weather?key=1")
    'https://agents.acme.com/weather'
    """
    return without_credentials(urlsplit(url)._replace(query="", fragment="").geturl())


def origin(url: str) -> tuple[str, str, int | None]:
    """Return the server that an address belongs to: scheme, host and port.

    >>> origin("https://Agents.acme.com/a") == origin("https://agents.acme.com:443/b")
    True
    """
    split = urlsplit(url)
    return split.scheme.lower(), (split.hostname or "").lower(), split.port or _PORTS.get(split.scheme.lower())


def checked_url(url: str) -> SplitResult:
    """Return an address, split up.

    Raises:
        UsageError: if it is none of HTTP.
    """
    try:
        split = urlsplit(url.strip())
        split.port  # noqa: B018 - raises where it is no number
    except (AttributeError, ValueError):
        split = None
    if split is None or split.scheme.lower() not in _PORTS or not split.hostname:
        given = shown_url(url) if split is not None else "something else"
        raise UsageError(f"an HTTP agent needs an address such as https://agents.acme.com/weather, not {given}")
    return split


def require_real_tools(tools: Tools | None) -> None:
    """Refuse a tool environment: faults that are asked for and never happen would be no evidence.

    Raises:
        UsageError: if there is one.
    """
    if tools is not None:
        raise UsageError("environment_simulation_config: the tools of an HTTP agent cannot be simulated")
