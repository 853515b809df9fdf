"""The same bank without ADK, for tools that evaluate functions. A lie replaces `answer`, `CASES` or a script."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Case:
    """What the user says, and what a good agent does."""

    name: str
    question: str
    expected: str | None
    calls: list[dict[str, Any]] = field(default_factory=list)


CASES = [
    Case(f"o{order}", f"Refund order {order}, please.", f"Order {order} is refunded.", [{"name": "refund", "args": {"order": order}}])
    for order in (7, 8, 9)
]
CASES.append(Case("hours", "When are you open?", "We are open from nine to five."))


def answer(question: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the answer and the calls of tools."""
    found = re.search(r"order (\d+)", question)
    if not found:
        return "We are open from nine to five.", []
    order = int(found[1])
    return f"Order {order} is refunded.", [{"name": "refund", "args": {"order": order}}]
