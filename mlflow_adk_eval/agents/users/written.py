"""The user of a case whose turns are written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_adk_eval.evalset import Content, Invocation


@dataclass(frozen=True, slots=True)
class WrittenUser:
    """Says what is written, whatever the agent answers."""

    turns: tuple[Invocation, ...]

    async def say(self, turns: Sequence[Invocation], /) -> Content | None:
        """Return the next written message."""
        return self.turns[len(turns)].user_content if len(turns) < len(self.turns) else None
