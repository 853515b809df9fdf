"""A loopback proxy before an MLflow server, which spoils the requests that it is told to."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["lost", "cut", "429", "503", "html", "truncated", "broken"]
"""What becomes of a request.

- lost: the server does what it is asked to, and its answer never arrives;
- cut: the connection ends before the server hears of it;
- 429, 503: the server is busy, or away;
- html: a login page answers;
- truncated: the connection ends in the middle of the answer;
- broken: the answer is complete for HTTP, and half of its body is missing.
"""
FAULTS: tuple[Fault, ...] = ("lost", "cut", "429", "503", "html", "truncated", "broken")
_LOGIN = b"<!doctype html><html><body><form action='/login'>Sign in to continue</form></body></html>"
_FULL = b'{"error_code": "BAD_REQUEST", "message": "(sqlalchemy.exc.TimeoutError) QueuePool limit of size 5 overflow 10 reached"}'
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """A request that went through."""

    number: int
    """From 1, since the proxy was told what to spoil."""
    method: str
    path: str


Plan = Callable[[Request], Fault | float | None]
"""What becomes of a request; a number delays it by so many seconds; ``None`` lets it pass."""


def kth(number: int, fault: Fault | float) -> Plan:
    """Spoil one request."""
    return lambda request: fault if request.number == number else None


def at(path: str, fault: Fault | float, *, times: int = 1) -> Plan:
    """Spoil the first requests whose path ends so."""
    left = [None] * times
    return lambda request: fault if request.path.endswith(path) and left and left.pop() is None else None


@dataclass
class Proxy:
    """A proxy on a port of the loopback interface."""

    target: str
    """The address of the server."""
    plan: Plan = lambda _: None
    ahead: timedelta = timedelta()
    """By how much the clock of the server seems to be ahead: what is added to the time of its answers."""
    seen: list[Request] = field(default_factory=list[Request])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    @property
    def uri(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> Proxy:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @contextlib.contextmanager
    def spoiling(self, plan: Plan) -> Iterator[list[Request]]:
        """Spoil what the plan says within, counting from 1; give the requests."""
        with self._lock:
            self.plan, self.seen = plan, []
        try:
            yield self.seen
        finally:
            self.plan = lambda _: None

    def take(self, method: str, path: str) -> Fault | float | None:
        with self._lock:
            request = Request(len(self.seen) + 1, method, path.partition("?")[0])
            self.seen.append(request)
            return self.plan(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Proxy

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle_one_request()

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.take(self.command, self.path)
        if isinstance(fault, float | int):
            time.sleep(fault)
            fault = None
        match fault:
            case "cut":
                self._hang_up()
            case "429" | "503":
                self._answer(int(fault), [("Retry-After", "0")], b"busy")
            case "full":
                self._answer(400, [("Content-Type", "application/json")], _FULL)
            case "html":
                self._answer(200, [("Content-Type", "text/html")], _LOGIN)
            case _:
                self._forward(body, fault)

    def __getattr__(self, name: str) -> object:
        """Treat all methods alike."""
        if name.startswith("do_"):
            return self._pass
        raise AttributeError(name)

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        found = urlsplit(self.owner.target)
        upstream = http.client.HTTPConnection(found.hostname or "", found.port, timeout=120)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THE_CONNECTION}
            upstream.request(self.command, self.path, body=body, headers=headers | {"Content-Length": str(len(body))})
            reply = upstream.getresponse()
            content = reply.read()
        except OSError:  # the server is down
            self._hang_up()
            return
        finally:
            upstream.close()
        kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in {*_OF_THE_CONNECTION, "date"}]
        at = parsedate_to_datetime(reply.headers["Date"]) + self.owner.ahead
        kept.append(("Date", format_datetime(at, usegmt=True)))
        match fault:
            case "lost":
                self._hang_up()
            case "truncated":
                self._answer(reply.status, kept, content[: len(content) // 2], length=len(content) + 1)
                self._hang_up()
            case "broken":
                self._answer(reply.status, kept, content[: len(content) // 2])
            case _:
                self._answer(reply.status, kept, content)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, *, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
