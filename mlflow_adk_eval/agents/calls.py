"""Any function as an agent."""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.agents.base import Played, Session
from mlflow_adk_eval.agents.recording import invocation_of
from mlflow_adk_eval.agents.turns import failure, no_simulated_user, within
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
    timeout_s: float | None = None
    """How long one case may take, in seconds; ``None``: as long as it takes."""

    async def play(self, case: EvalCase, run_index: int) -> Played:
        """Have the conversation of `case`. Whatever the function raises ends it and is returned."""
        if case.conversation is None:
            return no_simulated_user("callables")
        written = [turn.user_content for turn in case.conversation]
        session = Session(eval_id=case.eval_id, run_index=run_index, state=_initial_state(case))

        async def talk(turns: list[Invocation]) -> Played:
            for number, user in enumerate(written, start=1):
                try:
                    answered = await self._turn(user, session)
                except Exception as error:  # noqa: BLE001 - the function is the user's own code: anything can go wrong
                    return Played(actual=tuple(turns), error=failure(number, error))
                turns.append(answered)
                session.history.append(answered)
            return Played(actual=tuple(turns), session_state=session.state)

        return await within(self.timeout_s, talk)

    async def _turn(self, user: Content, session: Session) -> Invocation:
        started = time.perf_counter()
        answer = await _call(self.function, user.text, session)
        seconds = round(time.perf_counter() - started, 3)
        invocation = invocation_of(answer, f"answer of {self.name}", user=user)
        missing: dict[str, Any] = {} if invocation.user_content.parts else {"user_content": user}
        if invocation.duration is None:
            missing["duration"] = seconds
        return invocation.model_copy(update=missing)


def _initial_state(case: EvalCase) -> Json:
    return copy.deepcopy(case.session_input.state) if case.session_input else {}


async def _call(function: Callable[[str, Session], Any], text: str, session: Session) -> Any:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - an object may have an async __call__
        return await function(text, session)
    # Without abandoning the thread a function that hangs would hold up the case beyond its time limit.
    answer = await anyio.to_thread.run_sync(function, text, session, abandon_on_cancel=True)
    return await answer if inspect.isawaitable(answer) else answer
