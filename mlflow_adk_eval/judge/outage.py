"""When a judge is out of order: nothing but failures for too long."""

from __future__ import annotations

import math

HANDFUL = 3
"""Fewer failures are no outage, however long they took."""


class Outage:
    """Tells a judge that fails altogether from one that fails sometimes.

    The clock starts when the first request is sent that fails. While a request is out that was sent before the time is up,
    nothing is decided: it may be the one that comes back.
    """

    def __init__(self, after_s: float) -> None:
        """Allow for `after_s` seconds of failures."""
        self._after = after_s
        self._answered_at = -math.inf
        self._since: float | None = None
        self.failures = 0
        """In a row, without any request that was answered in between."""

    def answered(self, now: float) -> None:
        """Take note that the judge said something, if only that it refuses this one request."""
        self._answered_at, self._since, self.failures = now, None, 0

    def failed(self, sent_at: float) -> None:
        """Take note that a request brought nothing."""
        if self._since is None:
            self._since = max(sent_at, self._answered_at)
        self.failures += 1

    def remaining(self, now: float) -> float | None:
        """Return how many seconds are left for the judge to recover; ``None``: it works."""
        return None if self._since is None else max(self._since + self._after - now, 0.0)

    def total(self, now: float, *, oldest: float | None) -> bool:
        """Whether the judge is to be given up.

        Args:
            now: the time.
            oldest: when the request was sent that is out for the longest time.
        """
        if self._since is None or self.failures < HANDFUL:
            return False
        end = self._since + self._after
        return now >= end and (oldest is None or oldest >= end)
