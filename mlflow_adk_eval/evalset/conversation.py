"""The course that a conversation took, besides what was said in it: how it ended, and where its tools were not the real ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Whose conversations these are, since when, and on which eval set they were had. What is not known is empty."""

    agent: str = ""
    """The name of the agent."""
    agent_version: str = ""
    """Which version of it: a LoggedModel of MLflow, or a commit."""
    recorded_at: str = ""
    """When it began, as ISO 8601 in UTC."""
    eval_set_id: str = ""
    eval_set_digest: str = ""
    case_digests: Mapping[str, str] = field(default_factory=dict[str, str])
    """The hash of each case as it was then, by eval id."""
    num_runs: int = 1
    """How often each conversation was to be had."""


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
    call_index: int | None = None
    """Which call of this tool in the turn it was, counted from 0; ``None``: not known."""

    def __str__(self) -> str:
        """Return it in a few words: ``injected error after 2 s``."""
        if self.kind == "latency":
            return f"delayed by {self.latency_s:g} s"
        return f"injected {self.kind}" + (f" after {self.latency_s:g} s" if self.latency_s else "")


def by_call(injections: Iterable[Injection], turn: int, tools: Sequence[str]) -> list[Injection | None]:
    """Return for each call of a turn what was done to it, as far as that can be told.

    Args:
        injections: all of the conversation.
        turn: the turn, counted from 0.
        tools: the names of the tools that were called, in order.

    >>> first = Injection(invocation_index=0, tool="book", kind="error", call_index=0)
    >>> [found is first for found in by_call([first], 0, ["find", "book", "book"])]
    [False, True, False]
    """
    here = [injection for injection in injections if injection.invocation_index == turn]
    known = {(found.tool, found.call_index): found for found in here if found.call_index is not None}
    for tool in dict.fromkeys(found.tool for found in here if found.call_index is None):
        silent = [found for found in here if found.tool == tool and found.call_index is None]
        if len(silent) == tools.count(tool):  # only then each call is one of them
            known |= {(tool, index): found for index, found in enumerate(silent)}
    numbered = ((tool, tools[:place].count(tool)) for place, tool in enumerate(tools))
    return [known.get(call) for call in numbered]
