"""Results that tests wait for while their cases are had and judged in the background."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar

import anyio

from mlflow_adk_eval.errors import RunError
from mlflow_adk_eval.runtime import BACKGROUND, each
from mlflow_adk_eval.testing.cases import Cases, Finished, Job, JobKey

T = TypeVar("T")

_CLOSING_S = 10.0


class Waiting:
    """The results of jobs: those that were announced are had side by side, any other when it is asked for."""

    def __init__(self, cases: Cases) -> None:
        """Begin with nothing announced."""
        self._cases = cases
        self._coming: dict[JobKey, Future[Finished]] = {}
        self._under_way: dict[anyio.CancelScope, anyio.Event] = {}
        self._thread: threading.Thread | None = None

    def announce(self, jobs: Sequence[Job]) -> None:
        """Begin with `jobs`, and come back at once."""
        self._coming = {job.key: Future() for job in jobs}
        self._thread = threading.Thread(target=self._have, args=(jobs, dict(self._coming)), name="adk_cases", daemon=True)
        self._thread.start()

    def result(self, job: Job) -> Finished:
        """Return what came of a job, once it is there. A job that is asked for again is had again.

        Raises:
            RunError: if everything was called off before.
        """
        coming = self._coming.pop(job.key, None)
        try:
            found = coming.result() if coming else BACKGROUND.call(lambda: self._until_closed(lambda: self._cases.finish(job)))
        except CancelledError:
            found = None
        if found is None:
            raise RunError("the session ended before this case was finished")
        return found

    def close(self) -> None:
        """Call off what is under way, wait until it has ended, and give back what the judges hold."""
        BACKGROUND.call(self._end)
        if self._thread:
            self._thread.join(_CLOSING_S)

    def _have(self, jobs: Sequence[Job], coming: dict[JobKey, Future[Finished]]) -> None:
        async def work(index: int) -> None:
            coming[jobs[index].key].set_result(await self._cases.finish(jobs[index]))

        try:
            BACKGROUND.call(lambda: self._until_closed(partial(each, work, len(jobs), limit=self._cases.limit)))
        finally:
            for future in coming.values():
                future.cancel()

    async def _until_closed(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what `work` returns; ``None`` if `close` was called before."""
        scope = anyio.CancelScope()
        ended = self._under_way[scope] = anyio.Event()
        try:
            with scope:
                return await work()
            return None
        finally:
            del self._under_way[scope]
            ended.set()

    async def _end(self) -> None:
        under_way = dict(self._under_way)
        for scope in under_way:
            scope.cancel()
        with anyio.move_on_after(_CLOSING_S):
            for ended in under_way.values():
                await ended.wait()
        await self._cases.aclose()
