"""What every agent that is called turn by turn has in common: the end of its time, and how its failures are worded."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection

import anyio

from mlflow_adk_eval.agents.base import Played
from mlflow_adk_eval.evalset import Invocation

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8
"""A shorter value, such as ``1`` or ``true``, would be found in every other word."""


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
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and (name in private or _SECRET.search(name)):
            message = message.replace(value, f"[{name}]")
    return message
