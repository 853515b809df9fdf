"""How many requests may be in flight: as many as the judge takes, found by trying."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum

START = 16
"""In flight at first: what any provider takes, and not far from where many runs end up."""
ENOUGH = 8
"""Requests that a round is judged by, where so many may be in flight."""
SETTLING_S = 1.0
"""The least time between two decreases, so that one burst of refusals is one signal."""
STORM = 0.25
"""The share of overloads from which the window was certainly too large."""
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


class CallOutcome(Enum):
    """What came of a request, as far as it tells how much the judge can take."""

    ANSWER = "answer"
    FAILURE = "failure"
    """For another reason than too much being asked."""
    OVERLOAD = "overload"
    NOTHING = "nothing"
    """It was not sent, or not waited for."""


@dataclass(slots=True)
class _Round:
    """The requests that were sent since the last decision: a round trip of them decides anew."""

    start: float
    came: int = 0
    overloads: int = 0
    fastest: float = math.inf
    crowded: bool = False


class ConcurrencyLimit:
    """The number of requests that may be in flight: doubled each round trip at first, later one more, and fewer on overload.

    A decrease is in proportion to the share of requests that met an overload, as in Data Center TCP: where all are refused
    it is halved, but a judge that is too busy for one request in thirty, whoever asks, is not abandoned for that.
    A judge that has become several times slower is asked less too, for as long as that makes it faster.
    """

    def __init__(self, most: int) -> None:
        """Allow at most `most`."""
        self._most = most
        self._size = float(min(START, most))
        self._steep_to = float(most)
        """Below this the window is doubled: half of what was too much, or what was not, before nothing worked at all."""
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
        """Take note that somebody waits for a place, so that a larger window would be used."""
        self._round.crowded = True

    def note(self, came: CallOutcome, *, sent_at: float, now: float, least: float = 1.0) -> None:
        """Take note of what came of a request.

        Args:
            came: what came of it.
            sent_at: when it was sent; what was sent before the last decision says nothing about its effect.
            now: the time.
            least: the window is not made smaller than this.
        """
        if came is CallOutcome.NOTHING or sent_at < self._round.start:
            return
        current = self._round
        current.came += 1
        current.overloads += came is CallOutcome.OVERLOAD
        if came is CallOutcome.ANSWER:
            current.fastest = min(current.fastest, now - sent_at)
        settling = current.overloads > 0 and now < self._last_cut + SETTLING_S
        if current.came >= min(self.size, ENOUGH) and not settling:
            self._decide(current, now, least)
            self._round = _Round(start=now)

    def _decide(self, done: _Round, now: float, least: float) -> None:
        """Set the size for the next round."""
        share = done.overloads / done.came
        if share:
            self._overloaded(share, now, least)
        elif self._slower(done.fastest):
            return
        self._down = share == 1
        if done.crowded:
            steep = not share and self._size < self._steep_to
            self._size = min(self._size * 2 if steep else self._size + 1 - share, self._most)

    def _overloaded(self, share: float, now: float, least: float) -> None:
        if share > STORM and not self._down:
            self._steep_to = self._size / 2
        self._eased, self._last_cut = None, now
        self._size = max(self._size * (1 - share / 2), min(least, self._size), 1.0)

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
        if before and self._slow and self._size > LEAST_EASED:
            self._eased, self._steep_to = (self._size, fastest), 0.0
            self._size = max(self._size * EASED, LEAST_EASED)
        return self._slow
