"""A quota of requests that several processes keep together.

The processes share an account of *blocks*: permissions for a number of requests, used soon after they were leased, and counted until the
window of the quota has passed since. So no window, wherever it begins, sees more requests than the quota. A block is a part of
the quota, so that an account is looked at once for many requests, and no larger than what waits, so that little of it is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from mlflow_adk_eval.judge.protocol import Account, Accounts, reached

BLOCKS = 12
"""A block is at most so large a part of the quota: of one a minute, five seconds' worth."""
USED_WITHIN = 1 / 20
"""For how much longer than the window a block counts, as a share of it. It may be used for half of that; the rest is for what takes a
request from its place to the judge."""
_LEAST_WAIT_S = 0.001


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that somebody may send from `at` on."""

    at: float
    requests: int


@dataclass(frozen=True, slots=True)
class Lease:
    """What came of asking for a block."""

    blocks: tuple[Block, ...]
    """All that count, the new one included."""
    granted: int
    """How many requests may be sent."""
    wait_s: float
    """When to ask again, if none; in seconds from now."""


def lease(blocks: Sequence[Block], now: float, wanted: int, quota: int, quota_s: float) -> Lease:
    """Return as much of what is wanted as the quota has left.

    >>> lease([], 100.0, 3, 10, 60.0)
    Lease(blocks=(Block(at=100.0, requests=3),), granted=3, wait_s=0.0)
    >>> lease([Block(100.0, 10)], 130.0, 3, 10, 60.0).wait_s
    33.0
    """
    counted_s = quota_s * (1 + USED_WITHIN)
    # A clock that was put back would make blocks count for longer, perhaps for ever.
    counting = tuple(Block(min(block.at, now), block.requests) for block in blocks if block.at + counted_s > now)
    granted = min(wanted, quota - sum(block.requests for block in counting))
    if granted > 0:
        return Lease((*counting, Block(now, granted)), granted, 0.0)
    return Lease(counting, 0, min(block.at for block in counting) + counted_s - now)


class OwnAccounts:
    """The accounts of a process that shares nothing."""

    def __init__(self) -> None:
        self._bodies: dict[str, tuple[int, str]] = {}

    def account(self, name: str, /) -> Account:
        """Return the account, by the clock of this process."""
        return Account(anyio.current_time(), *self._bodies.get(name, (0, "")))

    def set_account(self, name: str, body: str, /, *, version: int) -> bool:
        """Change the account: nobody else does."""
        self._bodies[name] = version + 1, body
        return True


class Quota:
    """Gives one request after the other its place in a quota. Only one task at a time may wait for it."""

    def __init__(self, requests: int, seconds: float, name: str, accounts: Accounts | None = None, *, remote: bool = False) -> None:
        """Begin without a block.

        Args:
            requests: how many may be sent in any window.
            seconds: how long a window is.
            name: whose quota it is: a judge's address.
            accounts: where it is shared; ``None``: nowhere.
            remote: whether that is reached over a network.
        """
        self._requests, self._seconds = requests, seconds
        self._name = f"quota {requests}/{seconds:g}: {name}"
        self._own = OwnAccounts()
        self._accounts: Accounts = accounts or self._own
        self._remote = remote
        self._left = 0
        self._until = -math.inf

    async def place(self, waiting: int) -> bool:
        """Wait until a request may be sent. Return whether it took waiting.

        Args:
            waiting: how many others wait for the same.
        """
        waited = False
        while not (self._left and anyio.current_time() < self._until):
            waited = True
            asked_at = anyio.current_time()  # the block begins later, by the other clock, so it ends in time by this one
            block = await self._leased(min(waiting + 1, max(self._requests // BLOCKS, 1)))
            self._left, self._until = block.granted, asked_at + self._seconds * USED_WITHIN / 2
            if not block.granted:
                await anyio.sleep(max(block.wait_s, _LEAST_WAIT_S))
        self._left -= 1
        return waited

    def unused(self) -> None:
        """Give a place back: the request was not sent."""
        self._left += 1

    async def _leased(self, wanted: int) -> Lease:
        while True:
            account = await reached(lambda: self._accounts.account(self._name), remote=self._remote)
            # Better a quota of one's own than none, until it is shared again.
            accounts: Accounts = self._own if account is None else self._accounts
            account = account or self._own.account(self._name)
            blocks = [Block(*block) for block in json.loads(account.body or "[]")]
            found = lease(blocks, account.now, wanted, self._requests, self._seconds)
            body = json.dumps([[block.at, block.requests] for block in found.blocks])
            keep = partial(accounts.set_account, self._name, body, version=account.version)
            if not found.granted or await reached(keep, remote=self._remote):
                return found
