"""What an agent did in an evaluation that no criterion looks at, though its author might expect it: told as notes of the report.

A trajectory compares calls with the expected ones. It does not look at what the tools returned, so an agent may say "refunded" although the
refund tool returned an error. Nor does it look at the calls of agents that are tools, unless ``include_inner_calls`` asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlflow_adk_eval.config.eval_config import Criteria
from mlflow_adk_eval.criteria.trajectory import InnerCallSettings
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.text import counted, listed

_FAILED = frozenset({"error", "failed", "failure"})
_MOST_NAMED = 5


def is_error(response: Json | None) -> bool:
    """Whether a tool says that it failed, in the ways of ADK's tools and of MCP.

    >>> is_error({"error": "no such order"}), is_error({"status": "error"}), is_error({"isError": True}), is_error({"error": None})
    (True, True, True, False)
    """
    if not response:
        return False
    status = response.get("status")
    return bool(response.get("error")) or response.get("isError") is True or (isinstance(status, str) and status.lower() in _FAILED)


@dataclass(slots=True)
class _Some:
    """Some calls, the tools that they are of, and the cases that they stand in."""

    calls: int = 0
    tools: dict[str, None] = field(default_factory=dict[str, None])
    eval_ids: set[str] = field(default_factory=set[str])

    def add(self, tool: str, eval_id: str) -> None:
        self.calls += 1
        self.tools[tool] = None
        self.eval_ids.add(eval_id)

    def __str__(self) -> str:
        """Return them in words: ``2 tool calls in 1 case``."""
        return f"{counted(self.calls, 'tool call')} in {counted(len(self.eval_ids), 'case')}"

    @property
    def named(self) -> str:
        return listed(list(self.tools), _MOST_NAMED)


@dataclass(slots=True)
class Unjudged:
    """Counts, while cases end, what no criterion looks at."""

    errors: _Some = field(default_factory=_Some)
    """Calls whose tool returned an error."""
    inner: _Some = field(default_factory=_Some)
    """Calls of agents that are tools."""

    def see(self, eval_id: str, conversation: Conversation, criteria: Criteria) -> None:
        """Take note of a conversation.

        Args:
            eval_id: its case.
            conversation: what the agent did.
            criteria: what decides the case.
        """
        for turn in conversation.actual:
            for response in turn.tool_responses:
                if is_error(response.response):
                    self.errors.add(response.name or "a tool", eval_id)
        on_calls = [settings for settings in criteria.values() if isinstance(settings, InnerCallSettings)]
        if not on_calls or any(settings.reads_inner_calls for settings in on_calls):
            return
        for call in conversation.inner_calls or ():
            if not call.unseen:
                self.inner.add(call.tool, eval_id)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each kind that there is."""
        if self.errors.calls:
            yield f"{self.errors} returned an error ({self.errors.named}); criteria on calls compare calls, not their results"
        if self.inner.calls:
            advice = "include_inner_calls makes them count"
            yield f"{self.inner} of agents that are tools ({self.inner.named}) are read by no criterion; {advice}"
