"""The server's application: routes, what it refuses, and errors in the shape of Google's APIs. It knows nothing of sockets."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast

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

from mlflow_adk_eval.criteria.rapid.computed import computed_score
from mlflow_adk_eval.criteria.rapid.evaluate import LocalBackend
from mlflow_adk_eval.criteria.rapid.messages import (
    RapidRequest,
    Rated,
    answer,
    error_body,
    read_request,
)
from mlflow_adk_eval.criteria.rapid.vertex import VertexBackend
from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.integrations.rapid_server.json_body import read_json
from mlflow_adk_eval.integrations.rapid_server.openapi import VERSIONS, openapi

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
    endpoint = RapidEndpoint(bench=bench, max_body=max_body, places=anyio.CapacityLimiter(concurrency))
    described = openapi(token=bool(token))
    path = "projects/{project}/locations/{location}"
    app = Starlette(
        routes=[
            # Google's own clients are known to write a slash before the colon.
            *(Route(f"/{v}/{path}{end}:evaluateInstances", endpoint.evaluate, methods=["POST"]) for v in VERSIONS for end in ("", "/")),
            Route(HEALTH, _saying({"status": "ok"}), methods=["GET"]),
            Route("/openapi.json", _saying(described), methods=["GET"]),
        ],
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class RapidEndpoint:
    """Answers requests."""

    bench: LocalBackend | VertexBackend
    max_body: int
    places: anyio.CapacityLimiter

    async def evaluate(self, request: Request) -> Response:
        """Return the answer to a request, or what is wrong with it."""
        _check_type(request.headers)
        try:
            raw = await _body(request, self.max_body)
            async with self.places:
                return _response(200, await self._answer(await anyio.to_thread.run_sync(_asked, raw)))
        except AdkEvalError as error:
            told = error_body(error)
            return _response(told["error"]["code"], told)
        except anyio.get_cancelled_exc_class():  # the event loop ends, and nobody else waits for this task
            return _error(503, "the server was stopped before there was an answer")

    async def _answer(self, asked: RapidRequest) -> Json:
        if asked.metric.kind == "computed" and isinstance(self.bench, LocalBackend):
            return await anyio.to_thread.run_sync(_computed, asked)  # so that a long text does not keep everybody waiting
        self.bench.judging.recover()
        return await self.bench.answer(asked)


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
            return _error(403, "requests of web pages are refused where no token is demanded")
        return None


def _asked(raw: bytes) -> RapidRequest:
    return read_request(read_json(raw))


def _computed(asked: RapidRequest) -> Json:
    return answer(asked, [Rated(score=computed_score(asked.metric.name, asked.spec, one)) for one in asked.instances])


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
        raise HTTPException(408, "the request did not arrive as a whole") from None
    if size > limit:
        raise too_large
    return bytes(found)


def _saying(content: Json) -> Any:
    async def say(_: Request) -> Response:
        return _response(200, content)

    return say


async def _refused(_: Request, refused: Exception) -> Response:
    refused = cast("HTTPException", refused)
    detail = _NO_PATH if refused.status_code == HTTPStatus.NOT_FOUND else refused.detail
    return _error(refused.status_code, detail, refused.headers)


async def _failed(_: Request, __: Exception) -> Response:
    return _error(500, "the server failed; its log says why")


def _error(code: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    status = _STATUS.get(code, "INVALID_ARGUMENT")
    return _response(code, {"error": {"code": code, "message": message, "status": status}}, headers)


def _response(code: int, content: Json, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    # A judge's explanation may hold halves of surrogate pairs.
    return Response(text.encode(errors="replace"), code, headers=headers, media_type="application/json")
