"""How long one answer is tried for, and how long to wait in between."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random

from mlflow_adk_eval.judge.client.limiter import Pace
from mlflow_adk_eval.judge.options import JudgeOptions
from mlflow_adk_eval.judge.protocol import Unavailable

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


FIRST_S = 0.5
"""The longest wait before the second request."""
LONGEST_S = 16.0
"""The longest wait that doubling leads to."""
_DOUBLINGS = 10
PACED = 0.25
"""How much of an attempt it costs to be refused by an overloaded judge that takes other requests. If it takes none, it costs less:
that is how a provider sets a pace, and nobody's failure.
"""
BRIEF = 3
"""After so many attempts, those that are left are spread over the time that a judge is given to recover, if it fails for everybody."""
EVERYBODY = 16
"""Failures in a row that cannot be the bad luck of a few requests."""


class TimedOut(Unavailable):
    """No answer in time. It may be the judge's fault or the request's."""

    def __init__(self, timeout_s: float) -> None:
        """Say how long the request took."""
        super().__init__(f"no answer within {timeout_s:g} s", overloaded=True)


class Patience:
    """The state of trying to get one answer."""

    def __init__(self, options: JudgeOptions, outage: Outage, pace: Pace) -> None:
        """Begin with all attempts."""
        self._options = options
        self._outage = outage
        self._pace = pace
        self._spent = 0.0
        self.failures = 0
        """Requests that failed."""

    def retrying(self, sleep: Callable[[float], Awaitable[None]]) -> AsyncRetrying:
        """Return what repeats a function while it raises `Unavailable`, and at last lets that through."""
        return AsyncRetrying(
            retry=retry_if_exception_type(Unavailable), after=self._count, wait=self._wait, stop=self._stop, sleep=sleep, reraise=True
        )

    def _count(self, state: RetryCallState) -> None:
        error = _error(state)
        self.failures += 1
        paced = error.overloaded and not isinstance(error, TimedOut)
        self._spent += PACED * (1 - self._pace.refusing) if paced else 1

    def _stop(self, _: RetryCallState) -> bool:
        return self._spent >= self._options.attempts

    def _wait(self, state: RetryCallState) -> float:
        """Return a random time up to a limit that grows, and not less than the judge asked for."""
        asked_for = min(_error(state).retry_after_s or 0.0, self._options.outage_s)
        return max(wait_random(0, self._limit(anyio.current_time()))(state), asked_for)

    def _limit(self, now: float) -> float:
        limit = min(FIRST_S * 2 ** min(self._spent - 1, _DOUBLINGS), LONGEST_S)
        remaining = self._outage.remaining(now)
        if remaining is None:
            return limit
        if self._spent > BRIEF and self._outage.failures >= EVERYBODY:
            limit = max(limit, 2 * remaining / max(self._options.attempts - self._spent, 1))
        return min(limit, max(remaining, FIRST_S))


def _error(state: RetryCallState) -> Unavailable:
    """Return what the request failed with."""
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, Unavailable) else Unavailable("")
