"""When a request may be sent: one queue for all requests to a judge, a limit on those in flight, and a pace.

No provider says how much it takes, so both limits are learnt from what comes back. `ConcurrencyLimit` finds out how many requests may
be in flight: it doubles while all is well, adds one a round trip later on, and decreases in proportion to the share of requests that
met an overload (429, 503, no answer in time), as Data Center TCP does. At a server that nobody knows it begins with one, and grows only
as far as the time limit allows. It also notices a judge that becomes slow because requests queue there. That is not enough for a quota
of requests a minute, which refuses the 21st request whether one or sixty are in flight: so `Pace` measures the rate that a quota lets through, probes upwards from there, and makes everybody wait where a provider says
when to come back. `Limiter` joins the two, and a `Quota` where the caller knows one. Nothing here knows of retries or of money.

Several processes keep a `Quota` together. They share an account of *blocks*: permissions for a number of requests, used soon after they were leased,
and counted until the window of the quota has passed since. So no window, wherever it begins, sees more requests than the quota. A block is a part of
the quota, so that an account is looked at once for many requests, and no larger than what waits, so that little of it is lost.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import anyio

from mlflow_adk_eval.judge.protocol import Answers, reached

START = 16
"""In flight at first: what any provider takes, and not far from where many runs end up."""
START_UNKNOWN = 1
"""The same at a server of which nobody knows what it takes, since one slot is what many servers on a desk have."""
HEADROOM = 0.8
"""The share of the time limit that answers of such a server may come to take if it works on no more at a time than before."""
ROUND = 8
"""Requests that a round is judged by, where so many may be in flight."""
SETTLING_S = 1.0
"""The least time between two decreases, so that one burst of refusals is one signal."""
STORM = 0.25
"""The share of overloads from which the limit was certainly too high."""
SLOWER = 3.0
"""How many times slower than lately a judge must be to be taken for overloaded: what it is asked varies, and so does its time."""
EASED = 0.7
"""What a judge that became slow is left with."""
HELPED = 0.85
"""How much faster it is then, at least, if it was slow because requests queued."""
LEAST_EASED = 4
"""No fewer in flight because of slowness alone."""
LATELY = 64
"""Rounds that a round is compared with."""

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
_RECENT = 1 / 32


class CallOutcome(Enum):
    """What came of a request, as far as it tells how much the judge can take."""

    ANSWER = "answer"
    TIMEOUT = "timeout"
    """No answer in time, which says that too much is in flight or that the judge is gone, and nothing of a quota."""
    FAILURE = "failure"
    """For another reason than too much being asked."""
    OVERLOAD = "overload"
    """Too much was asked, as the judge says (429, 503)."""
    NOTHING = "nothing"
    """It was not sent, or not waited for."""


@dataclass(slots=True)
class _Round:
    """The requests that were sent since the last decision: a round trip of them decides again."""

    start: float
    done: int = 0
    overloads: int = 0
    """Those that met an overload, no answer in time included."""
    timeouts: int = 0
    fastest: float = math.inf
    slowest: float = 0.0
    crowded: bool = False


class ConcurrencyLimit:
    """The number of requests that may be in flight: doubled each round trip at first, later one more, and fewer on overload.

    A decrease is in proportion to the share of requests that met an overload, as in Data Center TCP: where all are refused
    it is halved, but a judge that is too busy for one request in thirty, whoever asks, is not abandoned for that.
    A judge that has become several times slower is asked less too, for as long as that makes it faster; one at which all time out is
    asked for one answer at a time.
    """

    def __init__(self, most: int, *, start: int = START, timeout_s: float = math.inf) -> None:
        """Allow at most `most`, and `start` at first.

        Args:
            most: the most that may ever be in flight.
            start: how many at first.
            timeout_s: how long a request may take. If the judge turns out to work on no more of them at a time, each takes as much
                longer as there are more of them; where that is to be feared, growth does not lead beyond this.
        """
        self._most = most
        self._size = float(min(start, most))
        self._longest_s = timeout_s * HEADROOM
        self._careful = start < START
        """Whether growth keeps to the time limit: at a server that nobody knows, and after all requests timed out."""
        self._least_eased = min(LEAST_EASED, start)
        self._doubles_below = float(most)
        """Below this the limit is doubled: half of what was too much, or what was not, before nothing worked at all."""
        self._down = False
        """Whether nothing worked at all in the last round."""
        self._last_cut = -math.inf
        self._round = _Round(start=-math.inf)
        self._lately: deque[float] = deque(maxlen=LATELY)
        self._slow = False
        """Whether the last round was slow."""
        self._eased: tuple[float, float] | None = None
        """The size before it was decreased for slowness, and the slowness, until it is known whether that helped."""

    @property
    def size(self) -> int:
        """How many may be in flight now; at least one."""
        return int(self._size)

    def crowded(self) -> None:
        """Take note that somebody waits for a place, so that a higher limit would be used."""
        self._round.crowded = True

    def note(self, outcome: CallOutcome, *, sent_at: float, now: float, least: float = 1.0) -> None:
        """Take note of what came of a request.

        Args:
            outcome: what came of it.
            sent_at: when it was sent; what was sent before the last decision says nothing about its effect.
            now: the time.
            least: the limit does not go below this.
        """
        if outcome is CallOutcome.NOTHING or sent_at < self._round.start:
            return
        current = self._round
        current.done += 1
        current.overloads += outcome in {CallOutcome.OVERLOAD, CallOutcome.TIMEOUT}
        current.timeouts += outcome is CallOutcome.TIMEOUT
        if outcome is CallOutcome.ANSWER:
            current.fastest, current.slowest = min(current.fastest, now - sent_at), max(current.slowest, now - sent_at)
        settling = current.overloads > 0 and now < self._last_cut + SETTLING_S
        if current.done >= min(self.size, ROUND) and not settling:
            self._decide(current, now, least)
            self._round = _Round(start=now)

    def _decide(self, finished: _Round, now: float, least: float) -> None:
        """Set the size for the next round."""
        share = finished.overloads / finished.done
        if finished.timeouts == finished.done:
            self.alone(now)
        elif share:
            if share > STORM and not self._down:
                self._doubles_below = self._size / 2
            self._eased, self._last_cut = None, now
            self._size = max(self._size * (1 - share / 2), min(least, self._size), 1.0)
        elif self._slower(finished.fastest):
            return
        self._down = share == 1
        if finished.crowded:
            doubles = not share and self._size < self._doubles_below
            more = min(self._size * 2 if doubles else self._size + 1 - share, self._most)
            bearable = self.size * self._longest_s / finished.slowest if self._careful and finished.slowest else math.inf
            self._size = max(min(more, bearable), self._size)

    def alone(self, now: float) -> None:
        """Allow one in flight: the least that tells a judge that is slow from one that is gone."""
        if self._size > 1:
            self._doubles_below = self._size / 2
        self._size, self._eased, self._last_cut, self._careful = 1.0, None, now, True
        self._round = _Round(start=now)

    def _slower(self, fastest: float) -> bool:
        """Whether the judge has become several times slower. If it still is after a second round, less is asked.

        The fastest request of a round tells a queue, where all wait, from long answers, which only some are.
        """
        if math.isinf(fastest):
            return False
        if self._eased is not None:
            size, slowness = self._eased
            self._eased = None
            if fastest > slowness * HELPED:  # it takes this long however little it is asked
                self._size = size
                self._lately.clear()
        self._lately.append(fastest)
        before, self._slow = self._slow, fastest > min(self._lately) * SLOWER
        if before and self._slow and self._size > self._least_eased:
            self._eased, self._doubles_below = (self._size, fastest), 0.0
            self._size = max(self._size * EASED, self._least_eased)
        return self._slow


@dataclass(slots=True)
class Pace:
    """A rate for everybody: measured where a quota refuses requests, probed upwards from there; and pauses that were asked for.

    Until a quota is met there is no rate. Time in which nobody had anything to ask does not count.
    """

    longest_pause_s: float
    """Nobody waits longer for the next request, whatever is asked for or measured."""
    rate: float | None = None
    """Requests a second; ``None``: no quota was met."""
    next_at: float = -math.inf
    """When the next request may be sent."""
    refusing: float = 0.0
    """The share of requests that were refused lately."""
    _growth: float = GENTLE
    _latency: float = 0.0
    _last: float = math.nan
    """When the last request was sent."""
    _since: float = math.nan
    """Since when is measured how many are let through."""
    _accepted: int = 0
    _accepted_lately: int = 0
    """Those since the last decrease."""
    _last_cut: float = -math.inf

    @property
    def in_flight(self) -> float:
        """How many requests must be in flight to keep up the rate, and some: Little's law."""
        return 1.0 if self.rate is None else 1.0 + 1.5 * self.rate * self._latency

    def sent(self, now: float, *, waited: bool) -> None:
        """Take note that a request is sent, and whether it had to wait for that."""
        if math.isnan(self._since):
            self._since = now
        elif not waited:
            self._since += now - max(self._last, self._since)
        self._last = now
        if self.rate is not None:
            self.next_at = max(self.next_at, now - 0.05) + 1 / self.rate  # so much of what timers are late is made up for

    def accepted(self, latency_s: float, now: float) -> None:
        """Take note that a request was let through, whatever came of it then."""
        self._accepted += 1
        self._accepted_lately += 1
        self.refusing -= self.refusing * _RECENT
        self._latency += (latency_s - self._latency) * (0.1 if self._latency else 1)
        if self.rate is not None and self.next_at >= now:  # the rate is what holds requests back
            self.rate *= self._growth

    def refused(self, now: float, *, sent_at: float, in_flight: int, retry_after_s: float | None) -> None:
        """Take note that too much was asked, and slow down, if it is a quota that says so and if it says something new.

        Args:
            now: the time.
            sent_at: when the request was sent that was refused.
            in_flight: how many others are under way.
            retry_after_s: how long nobody should send anything; ``None``: it does not say.
        """
        self.refusing += (1 - self.refusing) * _RECENT
        hinted = retry_after_s is not None
        quota = hinted or self.refusing > (MOST if self.rate is None else MANY)
        if quota and now >= self._last_cut + SETTLING_S and sent_at >= self._last_cut:
            self.rate = self._slower(now, in_flight, floor=(1 if hinted and self._accepted_lately else SLOWEST) / self.longest_pause_s)
            self._last_cut, self._accepted_lately = now, 0
        if retry_after_s is not None:
            self.next_at = max(self.next_at, now + min(retry_after_s, self.longest_pause_s))

    def _slower(self, now: float, in_flight: int, *, floor: float) -> float:
        """Return a lower rate, and begin to measure again where enough was measured."""
        elapsed, accepted = max(now - self._since, 0.2), self._accepted
        if accepted >= ENOUGH:
            self._since, self._accepted = now, 0
        if self.rate is None:  # too early to tell: begin above what may be possible, since the way down is quick
            return max((accepted + in_flight + 1) / elapsed, SLOWEST / self.longest_pause_s)
        measured = (accepted + 1) / elapsed * BELOW if self._accepted_lately else self.rate / 2
        self._growth = GENTLE if self._accepted_lately else STEEP
        return max(min(self.rate, measured), min(self.rate, floor))


BLOCKS = 12
"""A block is at most so large a part of the quota: of one a minute, five seconds' worth."""
USED_WITHIN = 1 / 20
"""For how much longer than the window a block counts, as a share of it. It may be used for half of that; the rest is for what takes a
request from its place to the judge."""


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


class Quota:
    """Gives one request after the other its place in a quota. Only one task at a time may wait for it."""

    def __init__(self, requests: int, seconds: float, name: str, accounts: Answers | None = None) -> None:
        """Begin without a block.

        Args:
            requests: how many may be sent in any window.
            seconds: how long a window is.
            name: whose quota it is: a judge's address.
            accounts: where it is shared; ``None``: nowhere.
        """
        self._requests, self._seconds = requests, seconds
        self._name = f"quota {requests}/{seconds:g}: {name}"
        self._accounts = accounts
        self._own: Sequence[Block] = ()
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
                await anyio.sleep(max(block.wait_s, 0.001))
        self._left -= 1
        return waited

    def unused(self) -> None:
        """Give a place back: the request was not sent."""
        self._left += 1

    async def _leased(self, wanted: int) -> Lease:
        accounts = self._accounts
        while True:
            account = await reached(accounts, lambda: accounts.account(self._name)) if accounts is not None else None
            if accounts is None or account is None:  # better a quota of one's own than none, until it is shared again
                leased = lease(self._own, anyio.current_time(), wanted, self._requests, self._seconds)
                self._own = leased.blocks
                return leased
            blocks = [Block(*block) for block in json.loads(account.body or "[]")]
            leased = lease(blocks, account.now, wanted, self._requests, self._seconds)
            body = json.dumps([[block.at, block.requests] for block in leased.blocks])
            keep = partial(accounts.set_account, self._name, body, version=account.version)
            if not leased.granted or await reached(accounts, keep):
                return leased


@dataclass(slots=True, eq=False)
class Permit:
    """The permission to send one request."""

    sent_at: float


class Limiter:
    """Lets requests through, first come first served, as many and as fast as the judge can take.

    Only the first in the queue waits for a free slot and for the moment; the others wait for their turn. Where nobody waits and nothing
    has to be waited for, `acquire_nowait` gives a permit without a turn of the event loop.
    """

    def __init__(
        self, most: int, *, longest_pause_s: float, quota: Quota | None = None, start: int = START, timeout_s: float = math.inf
    ) -> None:
        """Begin to let requests through.

        Args:
            most: the most that may be in flight.
            longest_pause_s: nobody is paused for longer, unless by the `quota`.
            quota: what the caller knows of the judge's quota.
            start: how many may be in flight at first.
            timeout_s: see `ConcurrencyLimit`.
        """
        self.concurrency = ConcurrencyLimit(most, start=start, timeout_s=timeout_s)
        self._start = start
        self.pace = Pace(longest_pause_s)
        self._quota = quota
        self._queue = anyio.Lock()
        self._out: dict[Permit, None] = {}
        self._released: anyio.Event | None = None

    @property
    def oldest(self) -> float | None:
        """When the request was sent that is out for the longest time; ``None`` without any."""
        return next(iter(self._out)).sent_at if self._out else None

    def acquire_nowait(self) -> Permit | None:
        """Return a permit, which must be released; ``None`` if it takes waiting."""
        now = anyio.current_time()
        free = self._quota is None and not self._queue.locked() and len(self._out) < self.concurrency.size and self.pace.next_at <= now
        return self._permit(now, waited=False) if free else None

    async def acquire(self) -> Permit:
        """Wait for a permit, which must be released."""
        waited = self._queue.locked()
        async with self._queue:
            while len(self._out) >= self.concurrency.size:
                waited = True
                self.concurrency.crowded()
                self._released = anyio.Event()
                await self._released.wait()
            waited |= await self._right_moment()
            while self._quota is not None:
                waited |= await self._quota.place(self._queue.statistics().tasks_waiting)
                if not await self._right_moment():
                    break
                self._quota.unused()  # who came back meanwhile was told to pause, and a place does not last
            return self._permit(anyio.current_time(), waited=waited)

    def _permit(self, now: float, *, waited: bool) -> Permit:
        self.pace.sent(now, waited=waited)
        permit = Permit(now)
        self._out[permit] = None
        return permit

    async def _right_moment(self) -> bool:
        """Wait until the pace allows the next request. Return whether there was anything to wait for."""
        waited = False
        while (delay := self.pace.next_at - anyio.current_time()) > 0:  # who came back meanwhile may have been told to pause
            waited = True
            await anyio.sleep(delay)
        return waited

    def forgo(self, permit: Permit) -> None:
        """Give a permit back that was not used."""
        if self._quota is not None:
            self._quota.unused()
        self.release(permit, CallOutcome.NOTHING)

    def release(self, permit: Permit, outcome: CallOutcome, *, retry_after_s: float | None = None) -> None:
        """Give a permit back and learn from what came of the request.

        Args:
            permit: what `acquire` returned.
            outcome: what came of the request.
            retry_after_s: how long an overloaded judge asked to wait; all wait together.
        """
        now = anyio.current_time()
        del self._out[permit]
        if outcome is CallOutcome.OVERLOAD:
            self.pace.refused(now, sent_at=permit.sent_at, in_flight=len(self._out), retry_after_s=retry_after_s)
        elif outcome in {CallOutcome.ANSWER, CallOutcome.FAILURE}:
            self.pace.accepted(now - permit.sent_at, now)
        # How many may be in flight in any case: what the pace needs, or what any judge takes, less the share it refuses.
        least = max(self.pace.in_flight, self._start * (1 - self.pace.refusing))
        self.concurrency.note(outcome, sent_at=permit.sent_at, now=now, least=least)
        if self._released is not None:
            self._released.set()
