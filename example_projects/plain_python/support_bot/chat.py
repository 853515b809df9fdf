"""What goes between the agent and its model: the chat so far, and the model's next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call of a tool that the model asks for."""

    tool: str
    args: dict[str, Any]


@dataclass
class Chat:
    """What the model sees."""

    text: str
    """What the customer said last."""
    history: list[tuple[str, str]]
    """What was said before: the customer's messages with the agent's answers."""
    tools: Mapping[str, Callable[..., dict[str, Any]]]
    """What the model may call, by name."""
    results: list[tuple[Call, dict[str, Any]]] = field(default_factory=list)
    """The calls since the customer's last message, and what they returned."""


Model = Callable[[Chat], Call | str]
"""From the chat to the next step: a call, or the answer."""
