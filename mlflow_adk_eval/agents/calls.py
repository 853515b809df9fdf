"""Any function as an agent."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.agents.base import NO_LIMITS, Limits, Played, Tools, Turn
from mlflow_adk_eval.agents.conversing import converse
from mlflow_adk_eval.agents.recording import invocation_of
from mlflow_adk_eval.agents.session import Session
from mlflow_adk_eval.agents.turns import failure
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.evalset.models import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableAgent:
    """A function that is called once per turn with the user's text and the session."""

    function: Callable[[str, Session], Any]
    """Answers with a text, an `Invocation` or one as a dict, or ``None`` for silence; sync or async.

    Sync functions run in a worker thread, so that several conversations can go on at the same time.
    """
    name: str
    limits: Limits = NO_LIMITS
    private: frozenset[str] = frozenset()

    async def play(self, case: EvalCase, run_index: int) -> Played:
        """Have the written conversation of `case`. Whatever the function raises ends it and is returned."""
        return await converse(self, case, run_index)

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[CallableSession]:  # noqa: ARG002 - functions have tools of their own
        """Begin a conversation with a state of its own."""
        state = copy.deepcopy(case.session_input.state) if case.session_input else {}
        yield CallableSession(self, Session(eval_id=case.eval_id, run_index=run_index, state=state))


@dataclass(slots=True)
class CallableSession:
    """One conversation with a function."""

    agent: CallableAgent
    session: Session

    async def turn(self, user: Content, /) -> Turn:
        """Call the function; what it raises is the turn's error."""
        try:
            answered = await self._answered(user)
        except Exception as error:  # noqa: BLE001 - the function is the user's own code: anything can go wrong
            return Turn(invocation=None, error=failure(len(self.session.history) + 1, error))
        self.session.history.append(answered)
        return Turn(invocation=answered)

    def interrupted(self) -> Invocation | None:
        """Return nothing: what a function did before it answers is not known."""
        return None

    async def state(self) -> Json:
        """Return what the function left in the session's state."""
        return self.session.state

    async def _answered(self, user: Content) -> Invocation:
        started = time.perf_counter()
        answer = await _call(self.agent.function, user.text, self.session)
        seconds = round(time.perf_counter() - started, 3)
        invocation = invocation_of(answer, f"answer of {self.agent.name}", user=user)
        missing: dict[str, Any] = {} if invocation.user_content.parts else {"user_content": user}
        if invocation.duration is None:
            missing["duration"] = seconds
        return invocation.model_copy(update=missing)


async def _call(function: Callable[[str, Session], Any], text: str, session: Session) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - an object may have an async __call__
        return await function(text, session)
    # Without abandoning the thread a function that hangs would hold up the case beyond its time limit.
    answer = await anyio.to_thread.run_sync(function, text, session, abandon_on_cancel=True)
    return await answer if inspect.isawaitable(answer) else answer
