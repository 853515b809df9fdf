"""The least that gets an answer out of a judge with a quota, which fails now and then."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
from judging import MODEL

T = TypeVar("T")

_WAIT = re.compile(rb'"retryDelay": *"([\d.]+)s"')
_ATTEMPTS = 30
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Client:
    """Asks with a limited number of requests in flight, at the pace that the judge's refusals teach."""

    def __init__(self, in_flight: int, timeout_s: float) -> None:
        self._places = asyncio.Semaphore(in_flight)
        self._in_flight, self._timeout = in_flight, aiohttp.ClientTimeout(total=timeout_s)
        self._url = f"{os.environ['GOOGLE_GEMINI_BASE_URL']}/v1beta/models/{MODEL}:generateContent"
        self._next = self._interval = 0.0

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=self._in_flight)
        headers = {"Content-Type": "application/json", "x-goog-api-key": os.environ["GOOGLE_API_KEY"]}
        self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, headers=headers)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._session.close()

    async def ask(self, request: bytes, read: Callable[[str], T]) -> T:
        """Return what `read` makes of an answer, asking again after whatever can pass."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(_ATTEMPTS):
            status, body = await self._send(request)
            if status == 200:
                try:
                    return read(json.loads(body)["candidates"][0]["content"]["parts"][0]["text"])
                except (ValueError, LookupError, TypeError):
                    continue
            if status >= 500:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            elif status != 429:
                raise RuntimeError(f"status {status}: {body[:200]!r}")
        raise RuntimeError(f"no answer after {_ATTEMPTS} attempts")

    async def _send(self, request: bytes) -> tuple[int, bytes]:
        async with self._places:
            await self._leave()
            try:
                async with self._session.post(self._url, data=request) as response:
                    body = await response.read()
            except (aiohttp.ClientError, TimeoutError):
                return 503, b""
            if response.status == 429:
                self._slow(body)
            return response.status, body

    async def _leave(self) -> None:
        """Wait for one's turn."""
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next)
        self._next = turn + self._interval
        if turn > now:
            await asyncio.sleep(turn - now)

    def _slow(self, body: bytes) -> None:
        """Learn the quota's pace: the longest wait that it asks for is that for a whole request."""
        found = _WAIT.search(body)
        wait_s = float(found[1]) if found else 1.0
        self._interval = max(self._interval, wait_s)
        self._next = max(self._next, asyncio.get_running_loop().time() + wait_s)
