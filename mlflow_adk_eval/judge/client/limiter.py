"""Leave to send: one queue for all requests to a judge."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from mlflow_adk_eval.judge.client.concurrency_limit import START, Came, Window
from mlflow_adk_eval.judge.pace import Pace


@dataclass(slots=True, eq=False)
class Passage:
    """The leave to send one request."""

    sent_at: float


class Limiter:
    """Lets requests through, first come first served, as many and as fast as the judge can take.

    Only the first in the queue waits for a place and for the moment; the others wait for their turn.
    """

    def __init__(self, most: int, *, patience_s: float) -> None:
        """Allow at most `most` in flight, and let nobody be paused for more than `patience_s`."""
        self.window = Window(most)
        self.pace = Pace(patience_s)
        self._turnstile = anyio.Lock()
        self._out: dict[Passage, None] = {}
        self._place: anyio.Event | None = None

    @property
    def in_flight(self) -> int:
        """Requests that were let through and have not come back."""
        return len(self._out)

    @property
    def oldest(self) -> float | None:
        """When the request was sent that is out for the longest time; ``None`` without any."""
        return next(iter(self._out)).sent_at if self._out else None

    async def enter(self) -> Passage:
        """Wait for leave to send. Whoever gets it must `leave`."""
        queued = self._turnstile.locked()
        async with self._turnstile:
            waited = await self._free_place() | await self._right_moment() | queued
            now = anyio.current_time()
            self.pace.sent(now, waited=waited)
            passage = Passage(now)
            self._out[passage] = None
        return passage

    async def _free_place(self) -> bool:
        """Wait until one more may be in flight. Return whether there was anything to wait for."""
        waited = False
        while len(self._out) >= self.window.size:
            waited = True
            self.window.crowded()
            self._place = anyio.Event()
            await self._place.wait()
        return waited

    async def _right_moment(self) -> bool:
        """Wait until the pace allows the next request. Return whether there was anything to wait for."""
        waited = False
        while (delay := self.pace.opens - anyio.current_time()) > 0:  # who came back meanwhile may have been told to pause
            waited = True
            await anyio.sleep(delay)
        return waited

    def leave(self, passage: Passage, came: Came, *, retry_after_s: float | None = None) -> None:
        """Give the place back and learn from what came of the request.

        Args:
            passage: what `enter` returned.
            came: what came of it.
            retry_after_s: how long an overloaded judge asked to wait; all wait together.
        """
        now = anyio.current_time()
        del self._out[passage]
        if came is Came.OVERLOAD:
            self.pace.refused(now, sent_at=passage.sent_at, in_flight=len(self._out), retry_after_s=retry_after_s)
        elif came is not Came.NOTHING:
            self.pace.through(now - passage.sent_at, now)
        self.window.note(came, sent_at=passage.sent_at, now=now, least=self._least())
        if self._place is not None:
            self._place.set()

    def _least(self) -> float:
        """Return how many may be in flight in any case: what the pace needs, or what any judge takes, less the share it refuses."""
        return max(self.pace.in_flight, START * (1 - self.pace.refusing))
