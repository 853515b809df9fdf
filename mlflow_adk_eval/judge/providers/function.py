"""The user's own code as a judge."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import anyio.to_thread

from mlflow_adk_eval.errors import shown
from mlflow_adk_eval.judge.protocol import Answer, NoAnswer, Refused, Request
from mlflow_adk_eval.redact import message_of


class CallableJudge:
    """A function from a request to an answer.

    It may be async, or sync, which runs in a thread, and returns an `Answer`, the JSON text, or the JSON object itself. It
    says why it has no answer by raising `Unavailable` or `Refused`; any other error counts as refused. Its attribute
    ``model`` is what reports call it, instead of its name; its attribute ``address`` lets a later run use its answers again.
    """

    def __init__(self, fn: Callable[[Request], Any], *, threads: int = 64) -> None:
        """Make a judge of `fn`, which runs in at most so many threads if it is sync."""
        self._fn = fn
        self._threads = threads
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def model(self) -> str:
        """The function's name for reports."""
        inner = self._fn.func if isinstance(self._fn, partial) else self._fn
        return str(getattr(self._fn, "model", "") or getattr(inner, "__name__", "") or type(inner).__name__)

    @property
    def address(self) -> str | None:
        """What the function says of itself."""
        address = getattr(self._fn, "address", None)
        return address if isinstance(address, str) else None

    async def ask(self, request: Request) -> Answer:
        """Call the function, once."""
        started = perf_counter()
        try:
            answer = _answer(await self._called(request))
        except NoAnswer:
            raise
        except Exception as error:  # the user's own code: whatever it raises is no verdict
            raise Refused(f"{type(error).__name__}: {message_of(error)}") from error
        return answer if answer.latency_s else replace(answer, latency_s=perf_counter() - started)

    async def aclose(self) -> None:
        """Do nothing: the function is its owner's."""

    async def _called(self, request: Request) -> Any:
        if _is_async(self._fn):
            return await self._fn(request)
        self._limiter = self._limiter or anyio.CapacityLimiter(self._threads)
        result = await anyio.to_thread.run_sync(self._fn, request, limiter=self._limiter, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result


def _is_async(fn: Callable[..., Any]) -> bool:
    inner = fn.func if isinstance(fn, partial) else fn
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004 - how it is called matters


def _answer(given: Any) -> Answer:
    match given:
        case Answer():
            return given
        case str():
            return Answer(text=given)
        case dict():
            return Answer(text=json.dumps(given, ensure_ascii=False))
        case _:
            raise Refused(f"the judge returned {shown(given)}; wanted an Answer, JSON text or an object", every_request=True)
