"""Time that passes when everybody waits, and a provider with a quota, faults and a queue."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Refused, Unavailable
from mlflow_adk_eval.runtime import gathered

T = TypeVar("T")


class _Clock(selectors.DefaultSelector):
    """Jumps to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            msg = "everybody waits for something that will never happen"
            raise RuntimeError(msg)
        if not ready and timeout:
            self.now += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def simulated(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` in time that starts at 0 and costs nothing."""
    return anyio.run(work, backend_options={"loop_factory": _Loop})


@dataclass(kw_only=True)
class Provider:
    """What is asked, and how it answers. It keeps the times of all requests."""

    latency_s: float = 0.05
    per_s: float | None = None
    """Refilling of the quota, a bucket of `burst` requests."""
    burst: float = 5
    hints: bool = True
    """Whether a refusal says when to come back."""
    servers: int | None = None
    """Requests that are worked on at the same time; the others queue."""
    fault: Callable[[int, float], NoAnswer | None] = lambda number, now: None
    """What goes wrong with the request of a number at a time."""
    hangs: Callable[[int, float], bool] = lambda number, now: False
    sent: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    tokens: int = 10
    _bucket: float = 0.0
    _filled: float | None = None
    _slots: anyio.Semaphore | None = None

    async def __call__(self) -> Answer:
        now = anyio.current_time()
        number = len(self.sent)
        self.sent.append(now)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._answer(number, now)
        finally:
            self.in_flight -= 1

    async def _answer(self, number: int, now: float) -> Answer:
        if (wait := self._quota(now)) > 0:
            self.refused.append(now)
            await anyio.sleep(0.002)
            raise Unavailable("429", retry_after_s=wait if self.hints else None, overloaded=True)
        if self.hangs(number, now):
            await anyio.sleep_forever()
        if error := self.fault(number, now):
            await anyio.sleep(self.latency_s / 2)
            raise error
        if self.servers:
            self._slots = self._slots or anyio.Semaphore(self.servers)
            async with self._slots:
                await anyio.sleep(self.latency_s)
        else:
            await anyio.sleep(self.latency_s)
        return Answer(text="{}", input_tokens=self.tokens - 1, output_tokens=1)

    def _quota(self, now: float) -> float:
        """Take one from the bucket, or return how long it takes until one is there."""
        if self.per_s is None:
            return 0.0
        since = self._filled if self._filled is not None else now - self.burst / self.per_s
        self._bucket = min(self.burst, self._bucket + (now - since) * self.per_s)
        self._filled = now
        if self._bucket < 1 - 1e-9:
            return (1 - self._bucket) / self.per_s
        self._bucket -= 1
        return 0.0


def sometimes(share: float, error: NoAnswer, *, seed: int = 0) -> Callable[[int, float], NoAnswer | None]:
    """A fault that meets a share of the requests."""
    chance = random.Random(seed)
    return lambda number, now: error if chance.random() < share else None


def between(start: float, end: float, error: NoAnswer) -> Callable[[int, float], NoAnswer | None]:
    """A fault that meets all requests of a time."""
    return lambda number, now: error if start <= now < end else None


async def all_of(count: int, ask: Callable[[int], Awaitable[T]]) -> list[T]:
    """Ask for so many things at the same time."""
    return await gathered([lambda number=number: ask(number) for number in range(count)])


DOWN = Unavailable("503 Service Unavailable", overloaded=True)
BROKEN = Unavailable("500 Internal Server Error")
NOT_THIS = Refused("400 the prompt is too long")
