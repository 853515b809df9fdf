"""Any function as an agent: ``fn(user_text, session)``, called once per turn.

`CallableAgent.open` makes a `Session` per conversation: the state, the turns so far, and `Session.tool`, which records tool calls. What
the function returns or yields goes into a `TurnLog`, and so becomes an `Invocation`: a text, an invocation or a dict of one, ``None`` for
silence, or a generator of texts and events. Sync functions run in worker threads.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread

from mlflow_adk_eval.agents.conversation import chat_messages, converse, failure
from mlflow_adk_eval.agents.function_tools import ToolRecorder, is_async, name_of
from mlflow_adk_eval.agents.protocol import NO_LIMITS, Conversation, Limits, Tools, Turn
from mlflow_adk_eval.agents.turn_log import TurnLog
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.foreign import foreign_code

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True, kw_only=True)
class Session:
    """What a callable agent gets besides the user's text."""

    eval_id: str
    run_index: int
    state: dict[str, Any]
    """Lives through the case; starts as the case's session state."""
    history: list[Invocation] = field(default_factory=list)
    """The turns so far."""
    user_content: Content = field(default_factory=Content)
    """What the user says now, with all that is no text."""
    recorder: ToolRecorder = field(default_factory=ToolRecorder, repr=False, compare=False)
    """What records the calls of `tool`."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat models take it: messages with ``role`` and ``content``, the last one what the user says now."""
        return chat_messages(self.history, self.user_content)

    def tool(self, function: F, *, name: str | None = None) -> F:
        """Return `function`, sync or async, as a tool: each call becomes part of the turn, and the tool environment may answer it.

        Args:
            function: what to call.
            name: what the tool is called; ``None``: as the function.

        Raises:
            UsageError: if another function is a tool of this name already.
        """
        return self.recorder.recorded(function, name)


_TWO = 2
_WANTED = "wanted a function of the user's text and the session, or of the text alone"


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

    def __post_init__(self) -> None:
        """Refuse a function that cannot be called like that.

        Raises:
            UsageError: saying what it takes, and what is wanted.
        """
        takes_session(self.function)

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Have the conversation of `case`. Whatever the function raises ends it and is returned."""
        return await converse(self, case, run_index)

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[CallableSession]:
        """Begin a conversation with a state of its own."""
        state = copy.deepcopy(case.session_input.state) if case.session_input else {}
        recorder = ToolRecorder(tools, asyncio.get_running_loop())
        session = CallableSession(self, Session(eval_id=case.eval_id, run_index=run_index, state=state, recorder=recorder))
        try:
            yield session
        finally:
            recorder.log.closed = True


@dataclass(slots=True)
class CallableSession:
    """One conversation with a function."""

    agent: CallableAgent
    session: Session

    async def turn(self, user: Content, /) -> Turn:
        """Call the function. What it raises is the turn's error; what had happened by then is kept."""
        self.session.user_content = user
        log = self.session.recorder.log = TurnLog(author=self.agent.name, user=user)
        try:
            with foreign_code("the agent"):
                await self._call(user.text, log)
        except Exception as error:  # noqa: BLE001 - the function is the user's own code: anything can go wrong
            return Turn(invocation=self.interrupted(), error=failure(len(self.session.history) + 1, error))
        invocation = log.finished()
        self.session.history.append(invocation)
        return Turn(invocation=invocation)

    def interrupted(self) -> Invocation | None:
        """Return what happened in the turn so far."""
        return self.session.recorder.log.unfinished()

    async def state(self) -> Json:
        """Return what the function left in the session's state."""
        return self.session.state

    async def _call(self, text: str, log: TurnLog) -> None:
        function = self.agent.function
        args = (text, self.session) if takes_session(function) else (text,)
        if is_async(function):
            await _settle(await function(*args), log)
            return

        def work() -> Any:
            return _drained(function(*args), log)

        # Without abandoning the thread a function that hangs would hold up the case beyond its time limit.
        await _settle(await anyio.to_thread.run_sync(work, abandon_on_cancel=True), log)


async def _settle(answer: Any, log: TurnLog) -> None:
    """Keep all that an answer is or will be."""
    if inspect.isawaitable(answer):
        await _settle(await answer, log)
    elif isinstance(answer, AsyncIterable):
        async with aclosing(answer) if isinstance(answer, AsyncGenerator) else nullcontext(answer) as items:
            async for item in items:
                log.add(item)
    elif isinstance(answer, Iterator):
        log.add(await anyio.to_thread.run_sync(_drained, answer, log, abandon_on_cancel=True))
    else:
        log.add(answer)


def _drained(answer: Any, log: TurnLog) -> Any:
    """Keep what a generator yields, all in one thread, as it may hold on to what belongs to a thread; return what it returns.

    Anything else is returned as it is.
    """
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
        raise UsageError(f"agent {function.__name__} is a class: pass an object of it; {_WANTED}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
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
