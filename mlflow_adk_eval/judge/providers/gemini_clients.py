"""The clients of google-genai in this process: one for equal settings, used by every judge and every evaluation after it.

To make a client, google-genai reads the certificates three times, and its HTTP session belongs to one event loop. So a client that an API
key opens is kept for the process, under all that the environment says; each event loop has one session of it, which is closed when the last
judge in that loop gives the client back. A client with credentials or HTTP options of its own is one judge's alone: files that may have
changed since say who asks. The certificates are read once for all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies
from weakref import WeakSet

from mlflow_adk_eval.errors import JudgeError
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.judge.errors import one_line

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.types import HttpOptions

_MOST_IDLE = 4
"""So many clients are kept that no judge uses."""


class Lease:
    """A client for as long as a judge uses it, in one event loop."""

    def __init__(self, client: Client, shared: WeakSet[Lease] | None = None) -> None:
        """Take a client: the judge's own, or one that is `shared` with the leases of others."""
        self.client = client
        self._shared = shared
        self.loop: asyncio.AbstractEventLoop | None = None
        """Where requests were sent, if there were any."""

    def enter(self) -> None:
        """Take note that a request is about to be sent in this event loop."""
        if self.loop is None:
            self.loop = asyncio.get_running_loop()

    async def aclose(self) -> None:
        """Give back the client, and its connections in this loop unless another judge uses them."""
        if self._shared is None:
            await self.client.aio.aclose()
            self.client.close()
            return
        with _POOL.lock:
            self._shared.discard(self)
            here = asyncio.get_running_loop()
            used = self.loop is not here or any(other.loop is here for other in self._shared)
        if not used:
            # What google-genai offers would close the sessions of all loops.
            session = api_of(self.client)._aiohttp_sessions.pop(here, None)  # noqa: SLF001
            if session is not None:
                await session.close()


class _Pool:
    """The clients that any judge of the process may use. A forked process begins with none."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.lock = threading.Lock()
        self._clients: dict[str, tuple[Client, WeakSet[Lease]]] = {}
        """By key, with those who use it; the one that was asked for last is last."""

    def lease(self, key: str, make: Callable[[], Client]) -> Lease:
        """Return the client of a key, which is made where there is none."""
        with self.lock:
            client, leases = self._clients.pop(key) if key in self._clients else (make(), WeakSet[Lease]())
            if not hasattr(api_of(client), "_aiohttp_sessions"):  # another google-genai, whose client may be bound to one loop
                return Lease(client)
            self._clients[key] = client, leases
            taken = Lease(client, leases)
            leases.add(taken)
            idle = [key for key, (_, leases) in self._clients.items() if not leases]
            for oldest in idle[:-_MOST_IDLE]:
                self._clients.pop(oldest)[0].close()
            return taken


_POOL = _Pool()


def lease_client(access: Json, options: HttpOptions) -> Lease:
    """Return a client that repeats nothing by itself: we count, limit and time every request.

    Before 2.33 google-genai does repeat a request once where the connection broke, and cannot be told not to.

    Args:
        access: what google-genai's client takes to reach the endpoint.
        options: what a config says of the requests.

    Raises:
        JudgeError: if google-genai cannot be set up like that.
    """
    if options.model_fields_set or "credentials" in access:
        return Lease(_client(access, options))
    return _POOL.lease(_key(access), lambda: _client(access, options))


def api_of(client: Client) -> Any:
    """Return the part of a client that sends; ``None`` in a google-genai that is built otherwise."""
    return getattr(client, "_api_client", None)


def base_url_of(client: Client) -> str:
    """Return where a client sends requests; empty in a google-genai that does not say."""
    return str(getattr(getattr(api_of(client), "_http_options", None), "base_url", None) or "")


def _key(access: Json) -> str:
    """Return what tells clients apart: a hash, since the environment holds the API key."""
    defaults = vars(sys.modules.get("google.genai._base_url", object)).get("_default_base_gemini_url")
    said = (sorted(os.environ.items()), sorted(access.items()), defaults)
    return hashlib.sha256(repr(said).encode()).hexdigest()


def _client(access: Json, options: HttpOptions) -> Client:
    from google.genai import Client  # noqa: PLC0415
    from google.genai.types import HttpRetryOptions  # noqa: PLC0415

    own = not (options.client_args or options.async_client_args or _has_certificate())
    context = {"verify": (certificates := _certificates()), "ssl": certificates} if own else {}
    ours: Json = {
        "retry_options": HttpRetryOptions(attempts=1),
        # Neither httpx nor aiohttp: a redirect would take the API key to another host, which then judges.
        "async_client_args": {**(options.async_client_args or {}), **context, "follow_redirects": False, "allow_redirects": False},
    } | ({"client_args": {"verify": context["verify"]}} if own else {})
    try:
        client = Client(http_options=options.model_copy(update=ours), **access)
    except (ValueError, OSError) as error:
        raise JudgeError(f"Gemini cannot be set up: {one_line(str(error))}") from None
    api = api_of(client)
    if hasattr(api, "_get_aiohttp_session"):
        api._get_aiohttp_session = _without_lookups(api, api._get_aiohttp_session)  # noqa: SLF001
    return client


def _has_certificate() -> bool:
    """Whether google-auth shows Google a certificate of this machine, with which google-genai then makes what reads the others."""
    from google.auth.transport import mtls  # noqa: PLC0415

    asked = getattr(mtls, "should_use_client_cert", None)
    return bool(asked and asked())


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


def _without_lookups(api: Any, session_of: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Return what makes sessions that know their proxy, instead of asking two threads for it and for a ``.netrc`` at each request."""

    async def session() -> Any:
        found = await session_of()
        if getattr(found, "trust_env", False) and hasattr(found, "_default_proxy") and not _has_netrc():
            found._default_proxy, found._default_proxy_auth = _proxy_for(api)  # noqa: SLF001 - google-genai offers no other way
            found._trust_env = False  # noqa: SLF001
        return found

    return session


def _has_netrc() -> bool:
    home = Path(os.path.expanduser("~/.netrc"))  # noqa: PTH111 - pathlib fails where nobody knows the home
    return "NETRC" in os.environ or home.exists()


def _proxy_for(api: Any) -> tuple[Any, Any]:
    """Return the proxy and its credentials on the way to the endpoint, as aiohttp reads them from the environment."""
    if not getproxies():
        return None, None
    from aiohttp.helpers import get_env_proxy_for_url  # noqa: PLC0415 - google-genai's, too
    from yarl import URL  # noqa: PLC0415

    try:
        return get_env_proxy_for_url(URL(api._http_options.base_url))  # noqa: SLF001
    except LookupError:
        return None, None
