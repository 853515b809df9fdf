"""Doing several things at the same time: the one place that starts tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def each(work: Callable[[int], Awaitable[None]], count: int, *, limit: int) -> None:
    """Do `work` on each index, in order, at most `limit` at the same time."""
    indexes = iter(range(count))

    async def worker() -> None:
        for index in indexes:
            await work(index)

    async with anyio.create_task_group() as group:
        for _ in range(min(limit, count)):
            group.start_soon(worker)


async def gathered(jobs: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Do all `jobs` at the same time and return their results, in order. The first one that raises ends the others."""
    listed = list(jobs)
    if len(listed) == 1:
        return [await listed[0]()]
    results: dict[int, T] = {}

    async def work(index: int, job: Callable[[], Awaitable[T]]) -> None:
        results[index] = await job()

    try:
        async with anyio.create_task_group() as group:
            for index, job in enumerate(listed):
                group.start_soon(work, index, job)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[index] for index in range(len(listed))]
