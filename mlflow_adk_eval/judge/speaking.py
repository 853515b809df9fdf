"""Asking a model for the next message of a user that it plays, with the same care for what is paid as for judges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mlflow_adk_eval.judge.base import Request
from mlflow_adk_eval.judge.calls import Made


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model that plays users."""

    model: str
    """What reports call it."""
    ask: Callable[[Request, str | None], Awaitable[Made]]
    """Sends a request, whose answer is kept under an address, at most once."""
