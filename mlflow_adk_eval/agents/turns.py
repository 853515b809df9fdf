"""What every agent that is called turn by turn has in common: the end of its time, and how its failures are worded."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection

import anyio

from mlflow_adk_eval.agents.base import Played
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.redact import redacted, secrets_of

_SHORTEST_VALUE = 8
"""A shorter one, such as ``1`` or ``true``, would be found in every other word."""


def no_simulated_user(agents: str) -> Played:
    """Return that agents of this kind cannot play a scenario, and what to do instead."""
    way_out = "write its turns down in a conversation, or record them with `adk eval` and score its result file"
    return Played(
        actual=(), error=f"a simulated user is not supported for {agents} yet, and this case has a conversation_scenario; {way_out}"
    )


async def within(timeout_s: float | None, talk: Callable[[list[Invocation]], Awaitable[Played]]) -> Played:
    """Return what came of `talk`, or the turns it had finished when its time was up.

    Args:
        timeout_s: how long it may take, in seconds; ``None``: as long as it takes.
        talk: has the conversation and puts each finished turn into the list it is given.
    """
    turns: list[Invocation] = []
    with anyio.move_on_after(timeout_s):
        return await talk(turns)
    return Played(actual=tuple(turns), error=f"the case took longer than its limit of {timeout_s:g} s")


def failure(turn: int, error: BaseException, private: Collection[str] = ()) -> str:
    """Return what went wrong in a turn, counted from 1, as one sentence without a traceback.

    >>> failure(2, ValueError("no such room"))
    'turn 2: ValueError: no such room'
    """
    return f"turn {turn}: {described(error, private)}"


def described(error: BaseException, private: Collection[str] = ()) -> str:
    """Return an error's type and message without the values of secret environment variables.

    Args:
        error: what was raised; a group of one stands for that one.
        private: the names of further variables whose values must not be seen.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    values = {name: os.environ.get(name, "") for name in private}
    hidden = {value: f"[{name}]" for name, value in values.items() if len(value) >= _SHORTEST_VALUE}
    return redacted(message, hidden | secrets_of())
