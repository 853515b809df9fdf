"""How the failures of agents are worded."""

from __future__ import annotations

import os
from collections.abc import Collection

from mlflow_adk_eval.redact import redacted, secrets_of

_SHORTEST_VALUE = 8
"""A shorter one, such as ``1`` or ``true``, would be found in every other word."""


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
