"""What the package needs of the process it runs in: tasks and the event loop, the environment, the user, objects by name, telemetry.

It is the one place that starts tasks. Work is asynchronous inside; a synchronous caller that has no event loop, such as MLflow's scorers,
goes through `BACKGROUND`.
"""

from __future__ import annotations

import asyncio
import atexit
import getpass
import importlib
import math
import os
import re
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mlflow_adk_eval.errors import AdkEvalError, ExitError, UsageError, did_you_mean, foreign_code, refused

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.trace import Span, Tracer, TracerProvider

_TELEMETRY = "mlflow_adk_eval"
T = TypeVar("T")


@contextmanager
def environment(values: Mapping[str, str], *, unless_set: bool = False) -> Generator[None]:
    """Set environment variables within; `unless_set`: except those that the user has set."""
    before = {name: os.environ.get(name) for name in values if not unless_set or name not in os.environ}
    os.environ.update({name: values[name] for name in before})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def user_name() -> str:
    """Return who runs the process, or ``unknown``: a container may run as a user without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def user_at_host() -> str:
    """Return who runs the process, and where."""
    return f"{user_name()}@{socket.gethostname()}"


@cache
def _tracer_of(provider: TracerProvider) -> Tracer:
    return provider.get_tracer(_TELEMETRY)


@cache
def histogram(name: str, unit: str, description: str) -> Histogram:
    """Return an instrument of OpenTelemetry's meter of this package.

    Args:
        name: of the metric.
        unit: in UCUM, such as ``s``.
        description: what is measured.
    """
    from opentelemetry import metrics  # noqa: PLC0415

    return metrics.get_meter(_TELEMETRY).create_histogram(name, unit, description)


OPERATION = "adk_eval.operation"
"""The attribute that each of our spans has, by which it is told from what agents do."""
_UNDER_WAY: ContextVar[Span | None] = ContextVar("span", default=None)
"""Our innermost span. It is not OpenTelemetry's current one: an agent's spans would no longer be traces of their own."""


@contextmanager
def span(name: str, attributes: Mapping[str, str | int] | None = None) -> Generator[None]:
    """Report what happens within as a span, and an exception as its error. It goes nowhere unless the process has configured an exporter.

    Args:
        name: what is done.
        attributes: the facts that are known before.
    """
    from opentelemetry import trace  # noqa: PLC0415 - who only validates a file has no spans

    provider = trace.get_tracer_provider()
    collectors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ())
    # MLflow's own tracer is none of ours: each request to a judge would be a trace among those of the agents.
    only_mlflow = collectors and all(type(one).__module__.startswith("mlflow.") for one in collectors)
    tracer = trace.NoOpTracer() if only_mlflow else _tracer_of(provider)
    outer = _UNDER_WAY.get()
    facts = {OPERATION: name.partition(" ")[0], **(attributes or {})}
    with tracer.start_span(name, trace.set_span_in_context(outer) if outer else None, attributes=facts) as started:
        token = _UNDER_WAY.set(started)
        try:
            yield
        finally:
            _UNDER_WAY.reset(token)


def note(attributes: Mapping[str, str | int]) -> None:
    """Add what has come out to the span that is under way."""
    under_way = _UNDER_WAY.get()
    if under_way is not None:
        under_way.set_attributes(attributes)


def guarded_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that goes on where a task raises `SystemExit`: frameworks run tools in tasks, and asyncio would end with them."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(lambda loop, work, **how: asyncio.Task(_kept_in(work), loop=loop, **how))
    return loop


async def _kept_in(work: Any) -> Any:
    try:
        return await work
    except SystemExit as stop:
        raise refused("a task", stop) from stop


OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How an object of a module is named: ``module:name``."""


def model_or_object(named: str | None, option: str, *, error: type[AdkEvalError] = UsageError) -> Any:
    """Return the object that ``module:name`` names, also of a module in the working directory; any other name as it is.

    Args:
        named: what was given.
        option: what it was given to.
        error: what is raised where the module cannot be imported.

    Raises:
        UsageError: if there is no such module or object.
        AdkEvalError: of the given kind, if the module cannot be imported.
    """
    if named is None or not OBJECT.fullmatch(named):
        return named
    module, _, name = named.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        with foreign_code(f"{option}={named}"):
            loaded = importlib.import_module(module)
    except (ImportError, AttributeError) as problem:
        unknown = isinstance(problem, ModuleNotFoundError) and f"{module}.".startswith(f"{problem.name}.")
        raise (UsageError if unknown else error)(f"{option}={named}: {problem}") from problem
    if not hasattr(loaded, name):
        raise UsageError(f"{option}={named}: module {module!r} has no attribute {name!r}. {did_you_mean(name, vars(loaded))}".rstrip())
    return getattr(loaded, name)


@contextmanager
def require_extra(extra: str, feature: str) -> Generator[None]:
    """Import what an extra of this package installs, or say how to install it, or that what is installed cannot be imported.

    Args:
        extra: the extra, as pyproject.toml calls it.
        feature: what needs it, as the subject of a sentence.

    Raises:
        UsageError: if an import within fails.

    >>> with require_extra("adk", "running ADK agents"):
    ...     import no_such_package
    Traceback (most recent call last):
    mlflow_adk_eval.errors.UsageError: running ADK agents needs the extra `adk`: pip install 'mlflow-adk-eval[adk]' (No module named 'no_such_package')
    """
    try:
        yield
    except ImportError as error:
        importing = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        importer = next(name for name in reversed(importing) if not name.startswith("importlib"))
        # What this package imports itself is not there, or what fsspec looks for, which says so; else a package is there that lacks another one.
        if importer.startswith("mlflow_adk_eval.") or error.__cause__:
            raise UsageError(f"{feature} needs the extra `{extra}`: pip install 'mlflow-adk-eval[{extra}]' ({error})") from None
        broken = f"{feature} could not import what the extra `{extra}` installs, because {importer} failed ({error})"
        raise UsageError(f"{broken}: pip install --upgrade --force-reinstall 'mlflow-adk-eval[{extra}]'") from None


async def each(work: Callable[[T], Awaitable[None]], items: Iterable[T], *, limit: int) -> None:
    """Do `work` on each item, in order, at most `limit` at the same time. An item is taken when its work begins; the first error ends all."""
    left, host = iter(items), asyncio.current_task()

    async def worker() -> None:
        for item in left:
            try:
                await work(item)
            except asyncio.CancelledError:
                if anyio.current_effective_deadline() == -math.inf or (host is not None and host.cancelling()):  # it was called off
                    raise
                raise ExitError("code that the case runs cancelled its task") from None  # the case must not be lost

    try:
        async with anyio.create_task_group() as group:
            for _ in range(limit):
                group.start_soon(worker)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def gathered(jobs: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Do all `jobs` at the same time and return their results, in order. The first one that raises ends the others."""
    listed = list(jobs)
    if len(listed) == 1:
        return [await listed[0]()]
    results: dict[int, T] = {}

    async def work(index: int) -> None:
        results[index] = await listed[index]()

    await each(work, range(len(listed)), limit=len(listed))
    return [results[index] for index in range(len(listed))]


class Background:
    """One event loop in a thread of its own, for callers that have none: connections opened in it stay usable from call to call.

    The loop is anyio's `BlockingPortal`. What anyio has no answer to stays ours: the portal is opened at the first call rather than for a
    ``with`` block (`BlockingPortalProvider` closes it whenever nobody is inside, and connections with it), what callers opened in it is
    closed once nobody holds it any longer, and a forked process, which has no such thread, begins with another loop.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._closing: dict[int, Callable[[], Awaitable[None]]] = {}

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` in the loop and return its result. What several threads call is done at the same time."""
        with self._lock:
            if self._portal is None:
                opened = start_blocking_portal(backend_options={"loop_factory": guarded_loop})
                self._portal = opened.__enter__()
                atexit.register(self._end, opened)
            portal = self._portal
        return portal.call(work)

    def closes(self, owner: object, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close` done in the loop once nobody holds `owner` any longer, at the latest when the process ends."""
        self._closing[id(owner)] = close
        weakref.finalize(owner, self._close, id(owner)).atexit = False

    def _close(self, owner: int) -> None:
        close = self._closing.pop(owner, None)
        if close is not None and self._portal is not None:
            with suppress(RuntimeError):  # the loop is ending
                self._portal.start_task_soon(close)

    def _end(self, opened: AbstractContextManager[BlockingPortal]) -> None:
        for owner in list(self._closing):
            self._close(owner)
        self._portal = None
        opened.__exit__(None, None, None)


BACKGROUND = Background()
"""The loop of this process."""
