"""Sending a request to an agent behind HTTP until there is an answer, within limits."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import anyio
from pydantic_core import from_json
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random

from mlflow_adk_eval.agents.http.pool import Pool
from mlflow_adk_eval.agents.http.refusals import HttpError, again_after, excerpt, hidden_of
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.client.errors import retry_after_s
from mlflow_adk_eval.redact import without_credentials

if TYPE_CHECKING:
    from httpx import AsyncClient, Response

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
class Request:
    """What to ask."""

    url: str
    method: Literal["GET", "POST"] = "POST"
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    harmless: bool = True
    """Whether it does no harm if the agent hears it twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line to an agent."""

    pool: Pool
    headers: Mapping[str, str]
    """What every request carries."""
    timeout_s: float
    attempts: int

    async def ask(self, request: Request) -> Any:
        """Return the JSON that the agent answers with.

        Raises:
            HttpError: saying what came instead.
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
            return await retrying(self._ask_once, client, request)
        except HttpError as error:
            if _is_worth_repeating(error, request) and self.attempts > 1:
                raise HttpError(f"{error} ({self.attempts} attempts)", status=error.status) from None
            raise

    def misfit(self, request: Request, said: Any, wanted: str) -> HttpError:
        """Return the error that an answer is something else than what was `wanted`."""
        found = excerpt(canonical_json(said), self.hidden(request))
        return HttpError(f"{shown_url(request.url)} answered with JSON that is not {wanted}: {found}")

    def hidden(self, request: Request) -> dict[str, str]:
        """Return what no error may show of a request."""
        return hidden_of(request.url, {**self.headers, **request.headers})

    async def _ask_once(self, client: AsyncClient, request: Request) -> Any:
        where = shown_url(request.url)
        hidden = self.hidden(request)
        try:
            with anyio.fail_after(self.timeout_s):
                response = await self._response(client, request)
        except TimeoutError:
            raise HttpError(f"{where} did not answer within {self.timeout_s:g} s") from None
        if not response.is_success:
            said = excerpt(response.content, hidden)
            raise HttpError(
                f"{where} answered {response.status_code} {response.reason_phrase}: {said}",
                again=again_after(response.status_code),
                status=response.status_code,
                retry_after_s=retry_after_s(response.headers) or 0.0,
            )
        try:
            return from_json(response.content)
        except ValueError:
            said = excerpt(response.content, hidden)
            raise HttpError(f"{where} answered {response.status_code} with what is no JSON: {said}") from None

    async def _response(self, client: AsyncClient, request: Request) -> Response:
        """Return the response; one that leads to another address of the same server is followed."""
        url = request.url
        response = await self._sent(client, request, url)
        for _ in range(_REDIRECTS):
            target = urljoin(url, response.headers.get("location", ""))
            follows = response.is_redirect and (request.method == "GET" or response.status_code in _KEEPS_METHOD)
            if not follows or origin(target) != origin(url):
                break
            response, url = await self._sent(client, request, target), target
        if response.is_redirect:
            target = shown_url(urljoin(url, response.headers.get("location", "")))
            raise HttpError(
                f"{shown_url(url)} answered {response.status_code} and leads to {target}: name that address if it is the agent's"
            )
        return response

    async def _sent(self, client: AsyncClient, request: Request, url: str) -> Response:
        from httpx import ConnectError, DecodingError, TransportError, UnsupportedProtocol  # noqa: PLC0415 - see pool.py

        where = shown_url(url)
        try:
            return await client.request(request.method, url, json=request.body, headers={**self.headers, **request.headers})
        except (DecodingError, UnsupportedProtocol) as error:
            raise HttpError(f"{where} cannot be understood: {error}") from None
        except ConnectError as error:
            raise HttpError(f"{where} cannot be reached: {str(error) or type(error).__name__}", again="always") from None
        except TransportError as error:
            raise HttpError(f"the connection to {where} broke: {str(error) or type(error).__name__}", again="if harmless") from None


def _is_worth_repeating(error: BaseException, request: Request) -> bool:
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
    said = f"{unquote(split.username)}:{unquote(split.password or '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(said).decode()}"}


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
