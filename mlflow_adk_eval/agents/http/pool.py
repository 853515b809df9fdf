"""The connections of an agent behind HTTP: kept from turn to turn and shared by its conversations."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from httpx import AsyncClient

_KEPT_S = 3.0
"""How long an idle connection is kept; many servers drop theirs after five seconds, perhaps just as a request arrives."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What belongs to one event loop."""

    client: AsyncClient
    closing: AsyncGenerator[None]
    """Closes the client when the loop ends, which closes the asynchronous generators that were begun in it."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held by the conversation that finds out what all of them need to know."""


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
            client = AsyncClient(timeout=None, limits=Limits(max_connections=None, keepalive_expiry=_KEPT_S))  # noqa: S113 - see asking.py
            self.opened[loop] = Connections(client, _closing(client))
            await anext(self.opened[loop].closing)
        return self.opened[loop]


async def _closing(client: AsyncClient) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await client.aclose()
