"""The Rapid Eval API as a server: the REST path of Google's, on this machine."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from mlflow_adk_eval.config.spec import JudgedSettings
from mlflow_adk_eval.criteria.rapid.evaluate import Backend, LocalBackend, backend_of
from mlflow_adk_eval.errors import JudgeError, UsageError
from mlflow_adk_eval.judge.setup import JudgeSetup, LedgerSource
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runtime import require_extra

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

TOKEN = "MLFLOW_ADK_EVAL_RAPID_TOKEN"  # noqa: S105 - the name of a variable
_BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where a server listens, and what it lets in."""

    host: str = "127.0.0.1"
    port: int = 8085
    """0: any that is free."""
    token: str = field(default="", repr=False)
    """What clients must show; empty: nothing, which other machines may not."""
    max_body: int = 1_000_000
    """The most bytes of a request."""
    concurrency: int = 256
    """How many requests are evaluated at the same time; others wait."""


Ready = Callable[[str, str], None]
"""Told the base URL once the server listens, and why judged metrics cannot be had; empty where they can."""


def serve(
    serving: Serving, setup: JudgeSetup, backend: Backend, settings: JudgedSettings, *, ledger: LedgerSource = None, ready: Ready
) -> JudgeUsage | None:
    """Serve until a signal says to stop, answer the requests that are under way, and return what the judges took.

    It belongs into a main thread, as it minds signals: a first SIGTERM or SIGINT is patient, a SIGINT after it is not.

    Args:
        serving: where to listen.
        setup: who judges, and how.
        backend: ``local`` or ``vertex``.
        settings: how local judges vote.
        ledger: what keeps their answers, as for `evaluate_instances`.
        ready: told when it listens.

    Raises:
        UsageError: if it cannot listen there, other machines could reach it without a token, or starlette or uvicorn is not installed.
        JudgeError: if the judge that was named, or Vertex's service, cannot be had.
    """
    with require_extra("rapid-server", "the Rapid Eval server"):
        import uvicorn  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport] - an extra, which takes a quarter of a second to load

        from mlflow_adk_eval.integrations.rapid_server.app import application  # noqa: PLC0415 - likewise, as it loads starlette

    async def work() -> JudgeUsage | None:
        bench = backend_of(replace(setup, answers=kept), backend, settings)
        try:
            note = ""
            try:
                if isinstance(bench, LocalBackend):  # its judge is loaded here, so that no request waits for it
                    bench.judging.vote_collector(bench.settings)
            except JudgeError as error:
                if setup.judge is not None:
                    raise
                note = str(error)
            app = application(bench, token=serving.token, max_body=serving.max_body, concurrency=serving.concurrency)
            server = quiet_server(app, proxy_headers=False, backlog=_BACKLOG)
            with stopped_by_signals(server):
                ready(url_of(listener), note)
                await server.serve(sockets=[listener])
            return bench.judging.usage()
        finally:
            await bench.judging.aclose()

    with listening(serving) as listener, opened(ledger) as kept:
        return anyio.run(work)


@contextmanager
def listening(serving: Serving) -> Generator[socket.socket]:
    """Provide a socket that listens.

    Raises:
        UsageError: if there can be none.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(serving.host, serving.port, type=socket.SOCK_STREAM)[0]
        if not (serving.token or ipaddress.ip_address(address[0]).is_loopback):
            msg = f"--host {serving.host} is reachable from other machines: set --token or {TOKEN}, so that clients must authenticate"
            raise UsageError(msg)
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen at --host {serving.host} --port {serving.port}: {error.strerror}") from None
    # Connections have it from here. asyncio leaves it out where a socket names no protocol, and then each answer takes 40 ms longer.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def quiet_server(app: Starlette, **more: Any) -> uvicorn.Server:
    """Return a server that tells of no request and not what it is; without a log config, its errors go where the process's own go."""
    import uvicorn  # noqa: PLC0415 - an extra

    config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False, **more)
    return uvicorn.Server(config)


@contextmanager
def stopped_by_signals(server: uvicorn.Server) -> Generator[None]:
    """Let signals stop a server, and nothing else: once it has stopped, uvicorn raises them again for whoever minded them before."""

    def stop(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def url_of(listener: socket.socket) -> str:
    """Return the address of what listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
