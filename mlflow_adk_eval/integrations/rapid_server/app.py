"""The server's application: routes, what it refuses, and errors in the shape of Google's APIs. It knows nothing of sockets.

The JSON of a request is read as leniently as the API's documentation writes it. Its examples for curl have trailing commas and say
``instances`` once for each instance, within one object. Both are understood here; anything else that is not JSON, or that says nothing in
particular, such as another key given twice, is refused.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import islice
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mlflow_adk_eval.criteria.rapid.evaluate import LocalBackend, VertexBackend, computed_answer
from mlflow_adk_eval.criteria.rapid.messages import RequestError, error_body, read_request
from mlflow_adk_eval.errors import AdkEvalError, Problem, json_path, shown
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.integrations.rapid_server.openapi import MAX_KEY, MAX_KEYS, VERSIONS, openapi

_SEVERAL = "instances"
"""The key that may be repeated."""
_COMMAS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{:,]\s*+,|(,)(?=\s*+[\]}])', re.DOTALL)
"""Strings, commas that follow no value, and, as a group, commas after the last value. Possessive, so that no text takes it long."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_DIGITS = 400
"""No number with more digits is finite as a float."""
_MAX_PROBLEMS = 50


def read_json(raw: bytes, source: str = "request") -> Any:
    r"""Return what the body of a request says.

    Args:
        raw: the body.
        source: what messages call it.

    Raises:
        RequestError: if it is no JSON in UTF-8, is nested too deeply, repeats a key other than ``instances``, or holds what no
            other reader of JSON would take (numbers that are not finite, halves of surrogate pairs), or keys without measure.

    >>> read_json(b'{"instances": {"prediction": "a",}, "instances": {"prediction": "b"}}')
    {'instances': [{'prediction': 'a'}, {'prediction': 'b'}]}
    """
    try:
        text = raw.decode("utf-8-sig")
        try:
            body = _decoded(text)
        except json.JSONDecodeError:
            # A space in place of each comma, so that the position of what else is wrong stays.
            body = _decoded(_COMMAS.sub(lambda comma: " " if comma[1] else comma[0], text))
        problems = list(islice(_faults(body, []), _MAX_PROBLEMS))
    except RecursionError:
        problems = [Problem("$", "too deeply nested brackets", "an object with the input of a metric")]
    except UnicodeDecodeError as error:
        problems = [Problem("$", f"a byte that is not UTF-8 at offset {error.start}", "JSON in UTF-8")]
    except json.JSONDecodeError as error:
        problems = [Problem("$", f"text that is not JSON: {error.msg}, line {error.lineno}, column {error.colno}", "a JSON object")]
    else:
        if not problems:
            return body
    raise RequestError(source, problems)


class _Repeating(dict[str, Any]):
    """An object that had some of its keys more than once."""

    repeated: tuple[str, ...] = ()


def _decoded(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object, parse_int=lambda digits: int(digits) if len(digits) < _DIGITS else math.inf)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    counts = Counter(key for key, _ in pairs)
    if counts.pop(_SEVERAL, 0) > 1:
        given = (value for key, value in pairs if key == _SEVERAL)
        found[_SEVERAL] = [item for value in given for item in (value if isinstance(value, list) else [value])]
    repeating = _Repeating(found)
    repeating.repeated = tuple(key for key, count in counts.items() if count > 1)
    return repeating


def _faults(value: Any, path: list[str | int]) -> Iterator[Problem]:
    """Yield what must not be said at `path` or below."""
    match value:
        case str() if _SURROGATES.search(value):
            yield Problem(json_path("$", path), f"half of a surrogate pair in {shown(value)}", "valid Unicode text")
        case float() if not math.isfinite(value):
            yield Problem(json_path("$", path), shown(value), "a finite number")
        case dict() if len(value) > MAX_KEYS:
            yield Problem(json_path("$", path), f"an object with {len(value)} keys", f"one with at most {MAX_KEYS}")
        case dict():
            for key in value.repeated if isinstance(value, _Repeating) else ():
                yield Problem(json_path("$", [*path, key]), "the key more than once", "each key once")
            yield from _faults_within(value.items(), path)
        case list():
            yield from _faults_within(enumerate(value), path)
        case _:
            pass


def _faults_within(items: Iterable[tuple[str | int, Any]], path: list[str | int]) -> Iterator[Problem]:
    for step, item in items:
        if isinstance(step, str) and len(step) > MAX_KEY:
            yield Problem(json_path("$", path), f"a key of {len(step)} characters", f"keys of at most {MAX_KEY}")
            continue
        path.append(step)
        yield from _faults(step, path) if isinstance(step, str) else ()
        yield from _faults(item, path)
        path.pop()


HEALTH = "/health"
_STATUS: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
"""Google's names for what went wrong; a bad request where there is none."""
_NO_PATH = "no such path; wanted POST /v1beta1/projects/PROJECT/locations/LOCATION:evaluateInstances, GET /health or GET /openapi.json"
_PATIENCE_S = 30.0
"""How long the body of a request may take to arrive."""
_SPILT = 64_000_000
"""How many bytes beyond the limit are read and thrown away: a client that is still sending does not read the answer."""


def application(bench: LocalBackend | VertexBackend, *, token: str, max_body: int, concurrency: int) -> Starlette:
    """Return the application.

    Args:
        bench: who evaluates.
        token: what clients must show; empty: nothing, but then the pages of browsers are refused.
        max_body: the most bytes of a request.
        concurrency: how many requests are evaluated at the same time; others wait.
    """
    places = anyio.CapacityLimiter(concurrency)

    async def evaluate(request: Request) -> Response:
        """Return the answer to a request, or what is wrong with it."""
        _check_type(request.headers)
        try:
            raw = await _body(request, max_body)
            async with places:
                asked = await anyio.to_thread.run_sync(lambda: read_request(read_json(raw)))
                if asked.metric.kind == "computed" and isinstance(bench, LocalBackend):
                    # In a thread, so that a long text does not keep everybody waiting.
                    return _response(200, await anyio.to_thread.run_sync(computed_answer, asked))
                bench.judging.recover()
                return _response(200, await bench.answer(asked))
        except AdkEvalError as error:
            told = error_body(error)
            return _response(told["error"]["code"], told)
        except anyio.get_cancelled_exc_class():  # the event loop ends, and nobody else waits for this task
            return _error(503, "the server was stopped before it could answer")

    described = openapi(token=bool(token))
    path = "projects/{project}/locations/{location}"
    app = Starlette(
        routes=[
            # Google's own clients are known to write a slash before the colon.
            *(Route(f"/{v}/{path}{end}:evaluateInstances", evaluate, methods=["POST"]) for v in VERSIONS for end in ("", "/")),
            Route(HEALTH, _saying({"status": "ok"}), methods=["GET"]),
            Route("/openapi.json", _saying(described), methods=["GET"]),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={HTTPException: _told, Exception: _told},
    )
    app.router.redirect_slashes = False
    return app


class Guard:
    """Refuses who has no token, or, where none is demanded, browsers."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Stand before an application."""
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or not."""
        refusal = self._refusal(Headers(scope=scope)) if scope["path"] != HEALTH else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> Response | None:
        if self._token:
            scheme, _, shown = headers.get("authorization", "").partition(" ")
            if scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode("latin-1"), self._token):
                return None
            return _error(401, "wanted the header Authorization: Bearer, with the token of this server", {"WWW-Authenticate": "Bearer"})
        if "origin" in headers:  # any page that is open in a browser could spend the judge's budget
            return _error(403, "a server without a token refuses requests from web pages")
        return None


def _check_type(headers: Headers) -> None:
    """Refuse what is no JSON.

    Raises:
        HTTPException: with status 415.
    """
    kind, *parameters = (part.strip().lower() for part in headers.get("content-type", "").split(";"))
    if kind != "application/json":
        raise HTTPException(415, f"found Content-Type {kind or 'missing'}; wanted application/json")
    if any(part.startswith("charset=") and part.removeprefix("charset=").strip('"') not in {"utf-8", "utf8"} for part in parameters):
        raise HTTPException(415, "wanted JSON in UTF-8")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "wanted a body without Content-Encoding")


async def _body(request: Request, limit: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: if it is too large (413), or does not arrive (408).
    """
    too_large = HTTPException(413, f"the request is larger than {limit} bytes")
    if int(request.headers.get("content-length", 0)) > limit + _SPILT:
        raise too_large
    found = bytearray()
    size = 0
    try:
        with anyio.fail_after(_PATIENCE_S):
            async for piece in request.stream():
                size += len(piece)
                found += piece if size <= limit else b""
                if size > limit + _SPILT:
                    break
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, "the request arrived incomplete") from None
    if size > limit:
        raise too_large
    return bytes(found)


def _saying(content: Json) -> Any:
    async def say(_: Request) -> Response:
        return _response(200, content)

    return say


async def _told(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return _error(500, "the server failed; see its log")
    detail = _NO_PATH if error.status_code == HTTPStatus.NOT_FOUND else error.detail
    return _error(error.status_code, detail, error.headers)


def _error(code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    status = _STATUS.get(code, "INVALID_ARGUMENT")
    return _response(code, {"error": {"code": code, "message": message, "status": status}}, headers)


def _response(code: int, content: Json, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    # A judge's explanation may hold halves of surrogate pairs.
    return Response(text.encode(errors="replace"), code, headers=headers, media_type="application/json")
