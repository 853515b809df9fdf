"""The user's own code as the user: a function, such as a script for tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset import Content, ConversationScenario, Invocation, Part
from mlflow_adk_eval.results.conversation import Ending

UserFunction = Callable[[ConversationScenario, Sequence[Invocation]], Any]
"""From a scenario and the turns so far to the next message; ``None`` ends the conversation. Sync or async."""


@dataclass(frozen=True, slots=True)
class CalledUser:
    """Says what a function returns. The first message is the scenario's starting prompt, as for a model that plays the user."""

    function: UserFunction
    scenario: ConversationScenario
    max_allowed_invocations: int
    """How often it may speak, the starting prompt included; ``-1``: without limit."""

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending:
        """Return the next message, or that the goal was reached or the limit was."""
        if 0 <= self.max_allowed_invocations <= len(turns):
            return limit_reached(self.max_allowed_invocations)
        if not turns:
            return message(self.scenario.starting_prompt)
        return _content(await self._called(turns))

    async def _called(self, turns: Sequence[Invocation]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(self.scenario, turns)
        said = await anyio.to_thread.run_sync(self.function, self.scenario, turns, abandon_on_cancel=True)
        return await said if inspect.isawaitable(said) else said


def message(text: str) -> Content:
    """Return a text as the user's message."""
    return Content(role="user", parts=(Part(text=text),))


def limit_reached(invocations: int) -> Ending:
    """Return that the user may not speak again.

    >>> str(limit_reached(20))
    'limit: max_allowed_invocations of 20'
    """
    return Ending(reason="limit", detail=f"max_allowed_invocations of {invocations}")


def _content(said: Any) -> Content | Ending:
    match said:
        case None:
            return Ending(reason="goal")
        case str() if said.strip():
            return message(said)
        case Content() | Ending():
            return said
        case _:
            raise UsageError(f"the simulated user returned {shown(said)}; wanted a text that is not empty, or None to end the conversation")
