"""Where actual invocations come from, as one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mlflow_adk_eval.evalset import EvalCase, Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of an agent having one conversation."""

    actual: tuple[Invocation, ...]
    """One per turn that the agent finished, silent ones included; then perhaps the one in which it failed."""
    session_state: Mapping[str, Any] | None = None
    """The state after the last turn; ``None`` where it is not known."""
    error: str = ""
    """Why the conversation ended early; empty where it did not."""
    unfinished: bool = False
    """Whether the last turn is the one in which the agent failed, kept for what happened in it."""


class Agent(Protocol):
    """Something that can have the conversation of an eval case."""

    @property
    def name(self) -> str:
        """What reports and agent versions call it."""
        ...

    async def play(self, case: EvalCase, run_index: int) -> Played:
        """Have the conversation of `case` from a fresh session. Failures of the agent are returned, not raised."""
        ...


@dataclass(slots=True, kw_only=True)
class Session:
    """What a callable agent is told besides the user's text."""

    eval_id: str
    run_index: int
    state: dict[str, Any]
    """Lives through the case; starts as the case's session state."""
    history: list[Invocation] = field(default_factory=list)
    """The turns so far."""
