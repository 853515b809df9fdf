"""Leave to send: one queue for all requests to a judge."""

from __future__ import annotations

import math
from dataclasses import dataclass

import anyio

from mlflow_adk_eval.judge.client.concurrency_limit import START, CallOutcome, ConcurrencyLimit

GENTLE = 1.004
"""What the rate grows by with each request that is let through: a probe."""
STEEP = 2.0
"""The same after a time in which none was let through, so that the rate says nothing about now."""
BELOW = 0.95
"""The rate, as a share of what the quota let through."""
ENOUGH = 10
"""Requests that are enough to measure something by."""
SLOWEST = 12
"""Requests that are sent while the longest pause would last, if none is let through: somebody has to find out how things are."""
MOST = 0.9
"""The share of refusals from which they are taken for a quota, even if none of them says when to come back."""
MANY = 0.5
"""The same once there is a rate."""
SETTLING_S = 1.0
"""The least time between two decreases, so that one burst of refusals is one signal."""
_SHORTEST_S = 0.2
_RECENT = 1 / 32
_LATE_S = 0.05
"""How much of what timers are late may be made up for."""


class Pace:
    """A rate for everybody: measured where a quota refuses requests, probed upwards from there; and pauses that were asked for.

    Until a quota is met there is no rate. Time in which nobody had anything to ask does not count.
    """

    def __init__(self, longest_s: float) -> None:
        """Let nobody wait longer than `longest_s` for the next request, whatever is asked for or measured."""
        self._longest = longest_s
        self._rate: float | None = None
        self._growth = GENTLE
        self._latency = 0.0
        self._opens = -math.inf
        self._last = math.nan
        """When the last request was sent."""
        self._since = math.nan
        """Since when is measured how many are let through."""
        self._through = 0
        self._lately = 0
        """Those since the last decrease."""
        self._last_cut = -math.inf
        self._refusing = 0.0

    @property
    def opens(self) -> float:
        """When the next request may be sent."""
        return self._opens

    @property
    def rate(self) -> float | None:
        """Requests a second; ``None``: no quota was met."""
        return self._rate

    @property
    def refusing(self) -> float:
        """The share of requests that were refused lately."""
        return self._refusing

    @property
    def in_flight(self) -> float:
        """How many requests must be in flight to keep up the rate, and some: Little's law."""
        return 1.0 if self._rate is None else 1.0 + 1.5 * self._rate * self._latency

    def sent(self, now: float, *, waited: bool) -> None:
        """Take note that a request is sent, and whether it had to wait for that."""
        if math.isnan(self._since):
            self._since = now
        elif not waited:
            self._since += now - max(self._last, self._since)
        self._last = now
        if self._rate is not None:
            self._opens = max(self._opens, now - _LATE_S) + 1 / self._rate

    def through(self, latency_s: float, now: float) -> None:
        """Take note that a request was let through, whatever came of it then."""
        self._through += 1
        self._lately += 1
        self._refusing -= self._refusing * _RECENT
        self._latency += (latency_s - self._latency) * (0.1 if self._latency else 1)
        if self._rate is not None and self._opens >= now:  # the rate is what holds requests back
            self._rate *= self._growth

    def refused(self, now: float, *, sent_at: float, in_flight: int, retry_after_s: float | None) -> None:
        """Take note that too much was asked, and slow down, if it is a quota that says so and if it says something new.

        Args:
            now: the time.
            sent_at: when the request was sent that was refused.
            in_flight: how many others are under way.
            retry_after_s: how long nobody should send anything; ``None``: it does not say.
        """
        self._refusing += (1 - self._refusing) * _RECENT
        hinted = retry_after_s is not None
        quota = hinted or self._refusing > (MOST if self._rate is None else MANY)
        if quota and now >= self._last_cut + SETTLING_S and sent_at >= self._last_cut:
            self._rate = self._slower(now, in_flight, floor=(1 if hinted and self._lately else SLOWEST) / self._longest)
            self._last_cut, self._lately = now, 0
        if retry_after_s is not None:
            self._opens = max(self._opens, now + min(retry_after_s, self._longest))

    def _slower(self, now: float, in_flight: int, *, floor: float) -> float:
        """Return a lower rate, and begin to measure anew where enough was measured."""
        elapsed, through = max(now - self._since, _SHORTEST_S), self._through
        if through >= ENOUGH:
            self._since, self._through = now, 0
        if self._rate is None:  # too early to tell: begin above what may be possible, since the way down is quick
            return max((through + in_flight + 1) / elapsed, SLOWEST / self._longest)
        measured = (through + 1) / elapsed * BELOW if self._lately else self._rate / 2
        self._growth = GENTLE if self._lately else STEEP
        return max(min(self._rate, measured), min(self._rate, floor))


@dataclass(slots=True, eq=False)
class Permit:
    """The leave to send one request."""

    sent_at: float


class Limiter:
    """Lets requests through, first come first served, as many and as fast as the judge can take.

    Only the first in the queue waits for a place and for the moment; the others wait for their turn.
    """

    def __init__(self, most: int, *, patience_s: float) -> None:
        """Allow at most `most` in flight, and let nobody be paused for more than `patience_s`."""
        self.window = ConcurrencyLimit(most)
        self.pace = Pace(patience_s)
        self._turnstile = anyio.Lock()
        self._out: dict[Permit, None] = {}
        self._place: anyio.Event | None = None

    @property
    def in_flight(self) -> int:
        """Requests that were let through and have not come back."""
        return len(self._out)

    @property
    def oldest(self) -> float | None:
        """When the request was sent that is out for the longest time; ``None`` without any."""
        return next(iter(self._out)).sent_at if self._out else None

    async def enter(self) -> Permit:
        """Wait for leave to send. Whoever gets it must `leave`."""
        queued = self._turnstile.locked()
        async with self._turnstile:
            waited = await self._free_place() | await self._right_moment() | queued
            now = anyio.current_time()
            self.pace.sent(now, waited=waited)
            passage = Permit(now)
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

    def leave(self, passage: Permit, came: CallOutcome, *, retry_after_s: float | None = None) -> None:
        """Give the place back and learn from what came of the request.

        Args:
            passage: what `enter` returned.
            came: what came of it.
            retry_after_s: how long an overloaded judge asked to wait; all wait together.
        """
        now = anyio.current_time()
        del self._out[passage]
        if came is CallOutcome.OVERLOAD:
            self.pace.refused(now, sent_at=passage.sent_at, in_flight=len(self._out), retry_after_s=retry_after_s)
        elif came is not CallOutcome.NOTHING:
            self.pace.through(now - passage.sent_at, now)
        self.window.note(came, sent_at=passage.sent_at, now=now, least=self._least())
        if self._place is not None:
            self._place.set()

    def _least(self) -> float:
        """Return how many may be in flight in any case: what the pace needs, or what any judge takes, less the share it refuses."""
        return max(self.pace.in_flight, START * (1 - self.pace.refusing))
