"""What a callable agent is told besides the user's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mlflow_adk_eval.agents.functions.tools import Watch
from mlflow_adk_eval.agents.messages import chat_messages
from mlflow_adk_eval.evalset import Content, Invocation

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True, kw_only=True)
class Session:
    """What a callable agent is told besides the user's text."""

    eval_id: str
    run_index: int
    state: dict[str, Any]
    """Lives through the case; starts as the case's session state."""
    history: list[Invocation] = field(default_factory=list)
    """The turns so far."""
    user_content: Content = field(default_factory=Content)
    """What the user says now, with all that is no text."""
    watch: Watch = field(default_factory=Watch, repr=False, compare=False)
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
        return self.watch.watched(function, name)
