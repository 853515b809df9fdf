"""What an agent is: the protocols between a conversation and what takes part in it.

Every agent is an `Agent`: it has the whole conversation of a case and returns a `Conversation`. Most are a `LiveAgent`, too: `open` begins
an `AgentSession`, which gets one message of the user at a time and returns a `Turn`, so that a simulated `User` may decide what to say
next and `Tools` may answer tool calls in place of the agent's own. A recording is an `Agent` only.

    source ── agents.resolve ──> Agent ── open ──> AgentSession ── turn, turn, … ──> Conversation ──> criteria
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mlflow_adk_eval.agents.replay import Tools
from mlflow_adk_eval.evalset.conversation import CallChange, Conversation, Ending, InnerCall
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Json
from mlflow_adk_eval.evalset.observation import Observation, Unknown


class Agent(Protocol):
    """Something that can have the conversation of an eval case."""

    @property
    def name(self) -> str:
        """What reports and agent versions call it."""
        ...

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Have the conversation of `case` from a fresh session. Failures of the agent are returned, not raised."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What came of one message of the user."""

    invocation: Invocation | None
    """What happened, also where the agent failed; ``None``: nothing is known of it."""
    error: str = ""
    """Why the agent did not finish the turn; empty where it did."""


class AgentSession(Protocol):
    """One conversation with an agent, from a fresh session."""

    async def turn(self, user: Content, /) -> Turn:
        """Send the agent a message, and return what it did. Its failures are returned, not raised."""
        ...

    def interrupted(self) -> Invocation | None:
        """Return what had happened in a turn that was cancelled because its time was up; ``None``: an answer comes as a whole."""
        return None

    async def state(self) -> Json | None:
        """Return the state of the session, without what is the framework's own; ``None``: it is the agent's own."""
        return None


@runtime_checkable
class SeesInnerCalls(Protocol):
    """A session that knows which tools are called by agents that are tools."""

    @property
    def inner_calls(self) -> Sequence[InnerCall]:
        """Those of all turns so far, in the order in which they began."""
        ...


@runtime_checkable
class SeesChanges(Protocol):
    """A session that sees what its tool calls do to it."""

    @property
    def changes(self) -> Sequence[CallChange]:
        """Those of all turns so far, in the order in which the calls ended."""
        ...


@runtime_checkable
class KnowsItsLimits(Protocol):
    """A session that cannot see everything of its conversation, and says what."""

    def unknown(self) -> Sequence[Unknown]:
        """Return what it does not know of the turns so far."""
        ...


UNTOLD: tuple[Observation, ...] = ("calls", "documents")
"""What is not known of an agent that says nothing but its answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long things may take, in seconds; ``None``: as long as they take."""

    case_s: float | None = None
    """One conversation, from opening the session to its last turn; what the simulated user takes included."""
    turn_s: float | None = None
    """The agent's answer to one message."""


NO_LIMITS = Limits()


@runtime_checkable
class LiveAgent(Agent, Protocol):
    """An agent that takes one message at a time, so that a simulated user may lead the conversation."""

    @property
    def limits(self) -> Limits:
        """How long its conversations may take."""
        ...

    @property
    def private(self) -> frozenset[str]:
        """The environment variables whose values no error may show."""
        ...

    def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AbstractAsyncContextManager[AgentSession]:
        """Begin a session that shares nothing with any other.

        Args:
            case: whose session input and id to use.
            run_index: the run of the case, counted from 0.
            tools: what answers tool calls in the place of some tools; ``None``: all are the real ones.
        """
        ...


class User(Protocol):
    """What writes the user's messages in one conversation; see `agents.users`."""

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending | None:
        """Return the next message, or why there is none: ``None`` after the last message of the case.

        Args:
            turns: the turns so far.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSetup:
    """What a conversation needs besides the agent."""

    user: User
    tools: Tools | None = None
