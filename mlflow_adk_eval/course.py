"""The course that a conversation took, besides what was said in it: how it ended, and where its tools were not the real ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EndReason = Literal["goal", "limit", "error"]
"""*goal*: the simulated user had nothing left to say; *limit*: it had said as much as it may; *error*: agent or user failed."""
InjectionKind = Literal["error", "response", "latency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a conversation with a simulated user ended."""

    reason: EndReason
    detail: str = ""
    """What the user gave as its reason, the limit that was reached, or what went wrong."""

    def __str__(self) -> str:
        """Return it as a clause: ``limit: 20 turns``."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A tool call that the tool environment answered or delayed."""

    invocation_index: int
    """The turn, counted from 0."""
    tool: str
    kind: InjectionKind
    """*latency*: the call was delayed only, and the tool itself answered."""
    latency_s: float = 0.0
    """How long it was delayed, in seconds."""
