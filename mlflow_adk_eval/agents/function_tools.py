"""Tools of agents that are plain functions: each call is recorded, and may be answered by the tool environment.

`Session.tool` returns a wrapper around the caller's function. The wrapper asks `Tools` (the tool environment) for an answer, calls the
function if there is none, and adds the call and its answer to the `TurnLog` of the turn that is under way. Functions may be sync or async
and may be called from other threads than the one in which the conversation runs, which is where `Tools` has to be asked.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import anyio

from mlflow_adk_eval.agents.adk.events import plain
from mlflow_adk_eval.agents.conversation import described
from mlflow_adk_eval.agents.protocol import Tools
from mlflow_adk_eval.agents.turn_log import TurnEvent, TurnLog
from mlflow_adk_eval.errors import AgentError, UsageError
from mlflow_adk_eval.evalset import Content, FunctionCall, FunctionResponse, Part
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.foreign import foreign_code

F = TypeVar("F", bound=Callable[..., Any])

_ORIGINAL = "adk_eval_original"
"""The attribute that leads from a recorded tool to the function itself."""


@dataclass(slots=True)
class ToolRecorder:
    """Records the tool calls of one conversation. Its tools may be called from several threads and tasks at a time."""

    tools: Tools | None = None
    """What answers in the place of some tools; ``None``: all calls are real."""
    loop: AbstractEventLoop | None = None
    """Where the conversation runs, and so where `tools` is asked."""
    log: TurnLog = field(default_factory=lambda: TurnLog(author="agent", user=Content()))
    """The turn that is under way."""
    homes: dict[str, str] = field(default_factory=dict[str, str])
    """Where the function of each tool's name is defined."""
    numbers: count[int] = field(default_factory=lambda: count(1))

    def recorded(self, function: F, name: str | None) -> F:
        """Return `function` so that its calls are recorded under `name`, after asking `tools` for an answer.

        Raises:
            UsageError: if it has no name, or its name belongs to another function.
        """
        original = getattr(function, _ORIGINAL, function)
        known = name or name_of(original)
        self._claim(known, original)
        wrapper = functools.wraps(original)(self._async(original, known) if is_async(original) else self._sync(original, known))
        wrapper.__name__ = known
        setattr(wrapper, _ORIGINAL, original)
        return wrapper  # type: ignore[return-value] # it takes and returns what the function does

    def _claim(self, name: str, function: Callable[..., Any]) -> None:
        if name == "<lambda>":
            raise UsageError("a tool that is a lambda has no name: give it one, as in session.tool(function, name=…)")
        whole = _completed(function)
        home = f"{whole.__module__}.{getattr(whole, '__qualname__', type(whole).__qualname__)}"
        if self.homes.setdefault(name, home) != home:
            raise UsageError(
                f"two tools are called {name!r}, {self.homes[name]} and {home}: give one of them another name, as in session.tool({name}, name=…)"
            )

    def _async(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        signature = _signature(function)

        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._call(name, named(signature, args, kwargs)) as record:
                record.answer = await self._answer(name, record.args)
                if record.answer is None:
                    record.answer = await function(*args, **kwargs)
            return record.answer

        return call

    def _sync(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        signature = _signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._call(name, named(signature, args, kwargs)) as record:
                record.answer = self._answer_now(name, record.args)
                if record.answer is None:
                    record.answer = _not_awaitable(function(*args, **kwargs), name)
            return record.answer

        return call

    @contextmanager
    def _call(self, name: str, args: Json) -> Generator[_Call]:
        """Record a call: that it was made, how long it took, and what it answered or failed with."""
        log, call_id = self.log, f"call_{next(self.numbers)}"
        if log.closed:
            raise AgentError(f"the turn in which {name} was to be called is over")

        def add(role: str, part: Part) -> None:
            log.add(TurnEvent(author=log.author, kind="call", content=Content(role=role, parts=(part,))))

        def answered(response: Json) -> None:
            add("user", Part(function_response=FunctionResponse(id=call_id, name=name, response=response)))

        record = _Call(args)
        add("model", Part(function_call=FunctionCall(id=call_id, name=name, args=args)))
        began = time.perf_counter()
        try:
            with foreign_code(f"the tool {name}"):
                yield record
        except Exception as error:
            answered({"error": described(error)})
            raise
        else:
            answered(_response(record.answer))
        finally:
            log.record.tool.append((began, time.perf_counter()))

    async def _answer(self, name: str, args: Json) -> Json | None:
        if self.tools is None:
            return None
        if self.loop in (None, asyncio.get_running_loop()):
            return await self.tools.answer(name, args)
        return await asyncio.wrap_future(_asked(self.tools, name, args, self.loop))

    def _answer_now(self, name: str, args: Json) -> Json | None:
        if self.tools is None:
            return None
        if self.loop is None or self.loop is _running():
            # The loop waits for this very call, so the answer has to come from elsewhere.
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(anyio.run, self.tools.answer, name, args).result()
        return _asked(self.tools, name, args, self.loop).result()


@dataclass(slots=True)
class _Call:
    """A call that is being made."""

    args: Json
    answer: Any = None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives something to await; an object may have an async ``__call__``."""
    whole = _completed(function)
    return inspect.iscoroutinefunction(whole) or inspect.iscoroutinefunction(getattr(whole, "__call__", None))  # noqa: B004 - that is what is asked


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called: a partial one as what it completes, an object as its class."""
    whole = _completed(function)
    return getattr(whole, "__name__", None) or type(whole).__name__


def _completed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a partial one completes."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def named(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Json:
    """Return what a function is called with, by the names of its parameters, as JSON. Defaults are left out.

    A call that does not fit the function is recorded as it is, with the unnamed arguments under ``args``.

    >>> named(inspect.signature(lambda city, *, days=3, **more: None), ("Basel",), {"lang": "de"})
    {'city': 'Basel', 'lang': 'de'}
    """
    found: Json = {"args": list(args)} if args else {}
    try:
        bound = signature.bind(*args, **kwargs) if signature else None
    except TypeError:
        bound = None
    if signature is None or bound is None:
        found |= kwargs
    else:
        found = {}
        for name, value in bound.arguments.items():
            found |= value if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return {key: _json(value) for key, value in found.items()}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _not_awaitable(answer: Any, name: str) -> Any:
    """Return what a tool answered, unless it has yet to be awaited, which would not be recorded."""
    if not inspect.isawaitable(answer):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()
    raise UsageError(f"tool {name} answers with something to await, and is no async function: make it one")


def _json(value: Any) -> Any:
    try:
        return plain(value)
    except ValueError:  # a cycle, or bytes that are no text
        return repr(value)


def _response(answer: Any) -> Json:
    """Return what a tool answered as ADK words it: an object, or another value under ``result``."""
    found = _json(answer)
    return found if isinstance(found, dict) else {"result": found}


def _asked(tools: Tools, name: str, args: Json, loop: AbstractEventLoop) -> Future[Json | None]:
    async def answer() -> Json | None:
        return await tools.answer(name, args)

    return asyncio.run_coroutine_threadsafe(answer(), loop)


def _running() -> AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
