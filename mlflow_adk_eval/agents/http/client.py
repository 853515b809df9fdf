"""Requests to an agent behind HTTP: retries, time limits, shared connections, and errors that show no secret.

`HttpClient.send` sends a `HttpRequest` and returns the JSON of the answer. A request is repeated where that can do no harm: after 429, 503 and a
connection that was refused the agent has surely not seen it; after another 5xx or a connection that broke it may have, so that only a
`HttpRequest` that is `harmless` is sent again. Redirects are followed within the same server, where the headers may go. One `Pool` serves all
conversations of an agent. Whatever goes wrong is an `HttpError`, with secrets of headers and addresses masked.
"""

from __future__ import annotations

import asyncio
import base64
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urljoin, urlsplit

import anyio
from pydantic_core import from_json
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random

from mlflow_adk_eval.errors import AgentError, UsageError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.errors import one_line, retry_after_s
from mlflow_adk_eval.redact import redacted, without_credentials

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

Again = Literal["always", "if harmless", "never"]
"""Whether to send a request again. *always*: the agent has surely not seen it; *if harmless*: it may have."""

_NOT_HANDLED = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_SHORTEST = 8
"""A shorter value would be found in every other word."""


class HttpError(AgentError):
    """An agent behind HTTP did not answer, or not with what it was asked for."""

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
    if status in _NOT_HANDLED:
        return "always"
    return "if harmless" if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT else "never"


def hidden_of(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return what no error may show of a request, each with what stands in its place.

    >>> hidden_of("https://agents.acme.com/weather?key=0123456789", {"Authorization": "Bearer abcdefgh"})
    {'Bearer abcdefgh': '[Authorization]', 'abcdefgh': '[Authorization]', '0123456789': '[key]'}
    """
    values = [(part, name) for name, value in headers.items() for part in dict.fromkeys((value, value.rpartition(" ")[2]))]
    values += [(value, name) for name, value in parse_qsl(urlsplit(url).query)]
    return {value: f"[{name}]" for value, name in values if len(value) >= _SHORTEST}


def excerpt(body: bytes, hidden: Mapping[str, str]) -> str:
    """Return the words of a body that is no answer, on one line.

    >>> excerpt(b'{"error": {"message": "model overloaded", "code": 1}}', {})
    'model overloaded'
    """
    try:
        text = _message(from_json(body))
    except ValueError:
        text = body.decode("utf-8", "replace")
    return one_line(redacted(text, hidden)) or "an empty body"


def _message(value: Any) -> str:
    """Return the words in a JSON value that is an error, whatever the server calls them."""
    found = (
        next((value[key] for key in ("error", "message", "detail", "title") if value.get(key)), None) if isinstance(value, dict) else None
    )
    return str(value) if found is None else _message(found)


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


@dataclass(slots=True)
class Pool:
    """One client of httpx for each event loop, since connections cannot leave theirs."""

    opened: dict[AbstractEventLoop, Connections] = field(default_factory=dict[AbstractEventLoop, Connections])

    async def connections(self) -> Connections:
        """Return those of the running loop."""
        from httpx import AsyncClient, Limits  # noqa: PLC0415 - takes a tenth of a second, and few evaluations need it

        loop = asyncio.get_running_loop()
        if loop not in self.opened:
            self.opened = {other: kept for other, kept in self.opened.items() if not other.is_closed()}
            # Requests are limited as a whole, and how many there are at a time is the runner's business.
            client = AsyncClient(timeout=None, limits=Limits(max_connections=None, keepalive_expiry=_KEPT_S))  # noqa: S113 - `HttpClient` limits the whole request
            self.opened[loop] = Connections(client, _closing(client))
            await anext(self.opened[loop].closing)
        return self.opened[loop]


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
_KEEPS_METHOD = frozenset({307, 308})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Sends requests to one agent."""

    pool: Pool
    headers: Mapping[str, str]
    """What every request carries."""
    timeout_s: float
    attempts: int

    async def send(self, request: HttpRequest) -> Any:
        """Return the JSON that the agent answers with.

        Raises:
            HttpError: with what came instead.
        """
        client = (await self.pool.connections()).client
        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: _is_worth_repeating(error, request)),
            stop=stop_after_attempt(self.attempts),
            wait=_wait,
            sleep=anyio.sleep,
            reraise=True,
        )
        try:
            return await retrying(self._send_once, client, request)
        except HttpError as error:
            if _is_worth_repeating(error, request) and self.attempts > 1:
                raise HttpError(f"{error} ({self.attempts} attempts)", status=error.status) from None
            raise

    def unexpected(self, request: HttpRequest, answer: Any, wanted: str) -> HttpError:
        """Return the error that an answer is something else than what was `wanted`."""
        found = excerpt(canonical_json(answer), self.hidden(request))
        return HttpError(f"{shown_url(request.url)} answered with JSON that is not {wanted}: {found}")

    def hidden(self, request: HttpRequest) -> dict[str, str]:
        """Return what no error may show of a request."""
        return hidden_of(request.url, {**self.headers, **request.headers})

    async def _send_once(self, client: AsyncClient, request: HttpRequest) -> Any:
        where = shown_url(request.url)
        hidden = self.hidden(request)
        try:
            with anyio.fail_after(self.timeout_s):
                response = await self._response(client, request)
        except TimeoutError:
            raise HttpError(f"{where} did not answer within {self.timeout_s:g} s") from None
        if not response.is_success:
            raise HttpError(
                f"{where} answered {response.status_code} {response.reason_phrase}: {excerpt(response.content, hidden)}",
                again=again_after(response.status_code),
                status=response.status_code,
                retry_after_s=retry_after_s(response.headers) or 0.0,
            )
        try:
            return from_json(response.content)
        except ValueError:
            text = excerpt(response.content, hidden)
            raise HttpError(f"{where} answered {response.status_code} with what is no JSON: {text}") from None

    async def _response(self, client: AsyncClient, request: HttpRequest) -> Response:
        """Return the response; one that leads to another address of the same server is followed."""
        url = request.url
        response = await self._send_to(client, request, url)
        for _ in range(_REDIRECTS):
            target = urljoin(url, response.headers.get("location", ""))
            follows = response.is_redirect and (request.method == "GET" or response.status_code in _KEEPS_METHOD)
            if not follows or origin(target) != origin(url):
                break
            response, url = await self._send_to(client, request, target), target
        if response.is_redirect:
            target = shown_url(urljoin(url, response.headers.get("location", "")))
            raise HttpError(
                f"{shown_url(url)} answered {response.status_code} and leads to {target}: name that address if it is the agent's"
            )
        return response

    async def _send_to(self, client: AsyncClient, request: HttpRequest, url: str) -> Response:
        from httpx import ConnectError, DecodingError, TransportError, UnsupportedProtocol  # noqa: PLC0415 - as in `Pool.connections`

        where = shown_url(url)
        try:
            return await client.request(request.method, url, json=request.body, headers={**self.headers, **request.headers})
        except (DecodingError, UnsupportedProtocol) as error:
            raise HttpError(f"{where} cannot be understood: {error}") from None
        except ConnectError as error:
            raise HttpError(f"{where} cannot be reached: {str(error) or type(error).__name__}", again="always") from None
        except TransportError as error:
            raise HttpError(f"the connection to {where} broke: {str(error) or type(error).__name__}", again="if harmless") from None


def _is_worth_repeating(error: BaseException, request: HttpRequest) -> bool:
    return isinstance(error, HttpError) and (error.again == "always" or (error.again == "if harmless" and request.harmless))


def _wait(state: RetryCallState) -> float:
    """Return a random time up to a limit that doubles, and not less than the agent asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked_for = error.retry_after_s if isinstance(error, HttpError) else 0.0
    limit = min(_FIRST_S * 2 ** (state.attempt_number - 1), _LONGEST_S)
    return max(wait_random(0, limit)(state), min(asked_for, _LONGEST_ASKED_S))


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
        found = shown_url(url) if split is not None else "something else"
        raise UsageError(f"an agent behind HTTP has an address such as https://agents.acme.com/weather, not {found}")
    return split


def without_user(split: SplitResult) -> str:
    """Return an address without its user name and password."""
    return split._replace(netloc=split.netloc.rpartition("@")[2]).geturl()


def authorization(split: SplitResult) -> dict[str, str]:
    """Return the header that stands for the user name and the password in an address."""
    if split.username is None:
        return {}
    credentials = f"{unquote(split.username)}:{unquote(split.password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that can be sent.

    Raises:
        UsageError: naming the first one that cannot, without its value.
    """
    for name, value in headers.items():
        sendable = isinstance(value, str) and value.isprintable() and value.isascii()
        if not (isinstance(name, str) and name.isascii() and name.isprintable() and name.strip() and ":" not in name and sendable):
            raise UsageError(f"header {name!r}: wanted a name and a value on one line of ASCII")
    return dict(headers)
