"""Any function as an agent: ``fn(user_text, session)``, called once per turn.

`CallableAgent.open` makes a `Session` per conversation: the state, the turns so far, and `Session.tool`, which records tool calls. What
the function returns or yields goes into a `TurnLog`, and so becomes an `Invocation`: a text, an invocation or a dict of one, ``None`` for
silence, or a generator of texts and events. Sync functions run in worker threads.

`Session.tool` returns a wrapper around the caller's function, which a `ToolRecorder` makes. The wrapper asks `Tools` (the tool environment) for an
answer, calls the function if there is none, and adds the call and its answer to the `TurnLog` of the turn that is under way. Functions may be
sync or async and may be called from other threads than the one in which the conversation runs, which is where `Tools` has to be asked.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import anyio.to_thread

from mlflow_adk_eval.agents.changes import ChangeLog
from mlflow_adk_eval.agents.conversation import chat_messages, converse, described, failure
from mlflow_adk_eval.agents.protocol import NO_LIMITS, UNTOLD, Limits, Turn
from mlflow_adk_eval.agents.recordings import plain_state
from mlflow_adk_eval.agents.replay import Tools, changed, error_of, raised_of
from mlflow_adk_eval.agents.turns import TurnEvent, TurnLog, object_of
from mlflow_adk_eval.errors import AgentError, UsageError, foreign_code
from mlflow_adk_eval.evalset.conversation import CallChange, Conversation, RecordedCall, SessionChange
from mlflow_adk_eval.evalset.events import plain
from mlflow_adk_eval.evalset.models import Content, EvalCase, FunctionCall, FunctionResponse, Invocation, Json, Part
from mlflow_adk_eval.evalset.observation import Unknown
from mlflow_adk_eval.judge.protocol import is_async

F = TypeVar("F", bound=Callable[..., Any])

_ORIGINAL = "adk_eval_original"
"""The attribute that leads from a recorded tool to the function itself."""
_TWO = 2
_ONLY_TEXTS = (
    "the agent is a function that returned only texts; "
    "wrap its tools with session.tool, or return an Invocation with intermediate_data, even if that is empty"
)
_WANTED = "wanted a function of the user's text and the session, or of the text only"


@dataclass(slots=True)
class _Call:
    """A call of a tool that is being made."""

    call_id: str
    args: Json
    since: float
    answer: Any = None


@dataclass(slots=True)
class ToolRecorder:
    """Records the tool calls of one conversation. Its tools may be called from several threads and tasks at a time."""

    tools: Tools | None = None
    """What answers in the place of some tools; ``None``: all calls are real."""
    loop: AbstractEventLoop | None = None
    """Where the conversation runs, and so where `tools` is asked."""
    log: TurnLog = field(default_factory=lambda: TurnLog(author="agent", user=Content()))
    """The turn that is under way."""
    turn: int = 0
    """Its number, counted from 0."""
    homes: dict[str, str] = field(default_factory=dict[str, str])
    """Where the function of each tool's name is defined."""
    numbers: count[int] = field(default_factory=lambda: count(1))
    state: Callable[[], Json] = dict
    """The session's state, which tools may change."""
    changes: ChangeLog = field(default_factory=ChangeLog)
    """What the calls did to the state, where they are neither replayed nor recorded."""

    def recorded(self, function: F, name: str | None) -> F:
        """Return `function` so that its calls are recorded under `name`, after asking `tools` for an answer.

        Raises:
            UsageError: if it has no name, or its name belongs to another function.
        """
        original = getattr(function, _ORIGINAL, function)
        known = name or name_of(original)
        if known == "<lambda>":
            raise UsageError("a tool that is a lambda has no name: give it one, as in session.tool(function, name=…)")
        whole = original
        while isinstance(whole, functools.partial):
            whole = whole.func
        home = f"{whole.__module__}.{getattr(whole, '__qualname__', type(whole).__qualname__)}"
        if self.homes.setdefault(known, home) != home:
            msg = f"two tools are named {known!r}, {self.homes[known]} and {home}: rename one, as in session.tool({known}, name=…)"
            raise UsageError(msg)
        wrapper = functools.wraps(original)(self._async(original, known) if is_async(original) else self._sync(original, known))
        wrapper.__name__ = known
        setattr(wrapper, _ORIGINAL, original)
        return wrapper  # type: ignore[return-value] # it takes and returns what the function does

    def _async(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        signature = _signature(function)

        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._call(name, named(signature, args, kwargs)) as record:
                if self.tools is not None:
                    answer, here = self.tools.answer(name, record.args), asyncio.get_running_loop()
                    there = self.loop or here
                    record.answer = await (
                        answer if there is here else asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, there))
                    )
                if record.answer is None and not self._replayed(name, record):
                    with self._kept(name, record):
                        record.answer = await function(*args, **kwargs)
            return record.answer

        return call

    def _sync(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        signature = _signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._call(name, named(signature, args, kwargs)) as record:
                if self.tools is not None:
                    if self.loop is None or self.loop is _running_loop():
                        # The loop waits for this very call, so the answer has to come from elsewhere.
                        with ThreadPoolExecutor(1) as thread:
                            record.answer = thread.submit(anyio.run, self.tools.answer, name, record.args).result()
                    else:
                        record.answer = asyncio.run_coroutine_threadsafe(self.tools.answer(name, record.args), self.loop).result()
                if record.answer is None and not self._replayed(name, record):
                    with self._kept(name, record):
                        record.answer = function(*args, **kwargs)
                        if inspect.isawaitable(record.answer):  # which would not be recorded
                            if inspect.iscoroutine(record.answer):
                                record.answer.close()
                            raise UsageError(f"tool {name} returned an awaitable but is not an async function: make it one")
            return record.answer

        return call

    def _replayed(self, name: str, record: _Call) -> bool:
        """Answer a call as it was answered before; whether that was recorded."""
        world = self.tools.world if self.tools else None
        found = world.find(name, record.args) if world else None
        if found is None:
            return False
        self.log.record.skip_to(record.since + found.duration_s)
        self.state().update(copy.deepcopy(found.actions.get("state_delta", {})))
        if found.error:
            raise raised_of(found.error)
        record.answer = copy.deepcopy(found.answer)
        return True

    @contextmanager
    def _kept(self, name: str, record: _Call) -> Generator[None]:
        """Record how a call is answered where that is asked for, else only what it does to the state."""
        world = self.tools.world if self.tools else None
        turn = world.turn if world else self.turn
        before, raised = plain_state(self.state()), None
        try:
            yield
        except Exception as error:
            raised = error_of(error)
            raise
        finally:
            change = _change(before, plain_state(self.state()))
            came: Json = {"duration_s": round(self.log.record.now() - record.since, 6)}
            came |= {"error": raised} if raised else {}
            if world is None:
                self.changes.add(CallChange(turn=turn, tool=name, call_id=record.call_id, **came), change)
            elif world.replay.record:
                came |= {} if raised else {"answer": _json(record.answer)}
                came |= {"actions": change.actions} if change else {"unknown": ("state",)}
                where: Json = {"turn": turn, "agent": self.log.author, "tool": name, "args": record.args}
                world.calls.append(RecordedCall(**where, **came))

    @contextmanager
    def _call(self, name: str, args: Json) -> Generator[_Call]:
        """Record a call: that it was made, how long it took, and what it answered or failed with."""
        log, call_id = self.log, f"call_{next(self.numbers)}"
        if log.closed:
            raise AgentError(f"{name} was called after its turn had ended")

        def add(role: str, part: Part) -> None:
            log.add(TurnEvent(author=log.author, kind="call", content=Content(role=role, parts=(part,))))

        def answered(response: Json) -> None:
            add("user", Part(function_response=FunctionResponse(id=call_id, name=name, response=response)))

        record = _Call(call_id, args, log.record.now())
        add("model", Part(function_call=FunctionCall(id=call_id, name=name, args=args)))
        try:
            with foreign_code(f"the tool {name}"):
                yield record
        except Exception as error:
            answered({"error": described(error)})
            raise
        else:
            answered(object_of(_json(record.answer)))
        finally:
            log.record.tool.append((record.since, log.record.now()))


def _change(before: Json, after: Json) -> SessionChange | None:
    """Return how a call changed the state; ``None`` if it removed an entry, which no ``state_delta`` can say."""
    if before.keys() - after.keys():
        return None
    delta = changed(before, after)
    return SessionChange(actions={"state_delta": delta}) if delta else SessionChange()


def _running_loop() -> AbstractEventLoop | None:
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


@dataclass(slots=True, kw_only=True)
class Session:
    """The session that a callable agent gets in addition to the user's text."""

    eval_id: str
    run_index: int
    state: dict[str, Any]
    """The session state; it starts as in the case and lasts for the conversation."""
    history: list[Invocation] = field(default_factory=list)
    """The earlier turns."""
    user_content: Content = field(default_factory=Content)
    """The user's current message, including parts that are not text."""
    recorder: ToolRecorder = field(default_factory=ToolRecorder, repr=False, compare=False)
    """Records the calls of `tool`."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation in chat format: messages with ``role`` and ``content``; the last is the user's current message."""
        return chat_messages(self.history, self.user_content)

    def tool(self, function: F, *, name: str | None = None) -> F:
        """Return `function`, sync or async, as a tool: each call becomes part of the turn, and the tool environment may answer it.

        Args:
            function: what to call.
            name: the tool's name; ``None``: the function's.

        Raises:
            UsageError: if another function already uses this tool name.
        """
        return self.recorder.recorded(function, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableAgent:
    """A function that is called once per turn with the user's text and the session, or with the text alone."""

    function: Callable[..., Any]
    """Answers with a text, an `Invocation` or one as a dict, or ``None`` for silence; or is a generator of texts and events.

    Sync functions and generators run in a worker thread, so that several conversations can go on at the same time.
    """
    name: str
    limits: Limits = NO_LIMITS
    private: frozenset[str] = frozenset()
    with_session: bool = field(init=False, repr=False, compare=False)
    """Whether it takes the session."""

    def __post_init__(self) -> None:
        """Refuse a function that cannot be called like that.

        Raises:
            UsageError: saying what it takes, and what is wanted.
        """
        object.__setattr__(self, "with_session", takes_session(self.function))

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Have the conversation of `case`. Whatever the function raises ends it and is returned."""
        return await converse(self, case, run_index)

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[CallableSession]:
        """Begin a conversation with a state of its own."""
        state = copy.deepcopy(case.session_input.state) if case.session_input else {}
        recorder = ToolRecorder(tools, asyncio.get_running_loop())
        session = CallableSession(self, Session(eval_id=case.eval_id, run_index=run_index, state=state, recorder=recorder))
        recorder.state = lambda: session.session.state
        try:
            yield session
        finally:
            recorder.log.closed = True


@dataclass(slots=True)
class CallableSession:
    """One conversation with a function."""

    agent: CallableAgent
    session: Session
    reports_calls: bool = False
    """Whether a turn so far has said what was called in it."""

    def unknown(self) -> Sequence[Unknown]:
        """Return what a function does not say that returns nothing but texts."""
        recorder = self.session.recorder
        if self.reports_calls or recorder.log.reports_calls or recorder.homes:
            return ()
        return tuple(Unknown(what=what, why=_ONLY_TEXTS) for what in UNTOLD)

    async def turn(self, user: Content, /) -> Turn:
        """Call the function. What it raises is the turn's error; what had happened by then is kept."""
        self.session.user_content = user
        recorder = self.session.recorder
        self.reports_calls = self.reports_calls or recorder.log.reports_calls
        recorder.turn = len(self.session.history)
        log = recorder.log = TurnLog(author=self.agent.name, user=user)
        try:
            with foreign_code("the agent"):
                function, args = self.agent.function, (user.text, self.session) if self.agent.with_session else (user.text,)
                if is_async(function):
                    await _settle(await function(*args), log)
                else:
                    # Without abandoning the thread a function that hangs would hold up the case beyond its time limit.
                    call = functools.partial(_drained, log, function, *args)
                    await _settle(await anyio.to_thread.run_sync(call, abandon_on_cancel=True), log)
        except Exception as error:  # noqa: BLE001 - the function is the user's own code: anything can go wrong
            return Turn(invocation=self.interrupted(), error=failure(len(self.session.history) + 1, error))
        invocation = log.finished()
        self.session.history.append(invocation)
        return Turn(invocation=invocation)

    @property
    def changes(self) -> Sequence[CallChange]:
        """What the tool calls so far did to the state."""
        return self.session.recorder.changes.changes

    def interrupted(self) -> Invocation | None:
        """Return what happened in the turn so far."""
        return self.session.recorder.log.unfinished()

    async def state(self) -> Json:
        """Return what the function left in the session's state."""
        return self.session.state


async def _settle(answer: Any, log: TurnLog) -> None:
    """Keep all that an answer is or will be."""
    if inspect.isawaitable(answer):
        await _settle(await answer, log)
    elif isinstance(answer, AsyncIterable):
        async with aclosing(answer) if isinstance(answer, AsyncGenerator) else nullcontext(answer) as items:
            async for item in items:
                log.add(item)
    elif isinstance(answer, Iterator):
        log.add(await anyio.to_thread.run_sync(_drained, log, lambda: answer, abandon_on_cancel=True))
    else:
        log.add(answer)


def _drained(log: TurnLog, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function does. Keep what a generator yields, all in one thread, as it may hold on to what belongs to one; then return what it returns."""
    answer = function(*args)
    if not isinstance(answer, Iterator):
        return answer
    while not log.closed:
        try:
            item = next(answer)
        except StopIteration as end:
            return end.value
        log.add(item)
    return None


def takes_session(function: Callable[..., Any]) -> bool:
    """Whether `function` is to be called with the user's text and the session; otherwise with the text alone.

    A second parameter with a default is the session only if it is called so.

    >>> takes_session(lambda text, session: text), takes_session(lambda text, temperature=0.5: text)
    (True, False)

    Raises:
        UsageError: if neither is possible.
    """
    if isinstance(function, type):
        raise UsageError(f"agent {function.__name__} is a class: pass an instance; {_WANTED}")
    signature = _signature(function)
    if signature is None:
        return True
    parameters = list(signature.parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    variadic = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    second = positional[1] if len(positional) >= _TWO else None
    with_session = second.default is second.empty or second.name == "session" if second else variadic
    try:
        signature.bind(*("text", "session")[: _TWO if with_session else 1])
    except TypeError:
        raise UsageError(f"agent {name_of(function)} takes {signature}; {_WANTED}") from None
    return with_session


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called: a partial one as what it completes, an object as its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return getattr(function, "__name__", None) or type(function).__name__


def named(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Json:
    """Return what a function is called with, by the names of its parameters, as JSON. Defaults are left out.

    A call that does not fit the function is recorded as it is, with the unnamed arguments under ``args``.

    >>> named(inspect.signature(lambda city, *, days=3, **more: None), ("Basel",), {"lang": "de"})
    {'city': 'Basel', 'lang': 'de'}
    """
    given: Json = {"args": list(args), **kwargs} if args else dict(kwargs)
    if signature is not None:
        with suppress(TypeError):
            arguments = signature.bind(*args, **kwargs).arguments
            given = {}
            for name, value in arguments.items():
                given |= value if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return {key: _json(value) for key, value in given.items()}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return None


def _json(value: Any) -> Any:
    try:
        return plain(value)
    except ValueError:  # a cycle, or bytes that are no text
        return repr(value)
