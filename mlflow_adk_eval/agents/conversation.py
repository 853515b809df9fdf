"""Having a conversation with an agent, turn by turn: no finished turn is lost, whatever ends the conversation.

`converse` opens a session of the agent, asks the user for a message, gives it to the session, keeps the turn, and goes on until the user
has nothing left to say, a turn fails, or a time limit is up. All of that comes back as a `Conversation`; nothing is raised, since an
agent is the user's own code and one that breaks is a result, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import anyio

from mlflow_adk_eval.agents.protocol import (
    AgentSession,
    Conversation,
    ConversationSetup,
    LiveAgent,
    Turn,
    User,
)
from mlflow_adk_eval.agents.recordings import plain_state
from mlflow_adk_eval.agents.users import StaticUser
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.evalset.conversation import Ending
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.runtime import note, span

_SHORTEST_VALUE = 8
"""A shorter one, such as ``1`` or ``true``, would be found in every other word."""


def failure(turn: int, error: BaseException, private: Collection[str] = ()) -> str:
    """Return what went wrong in a turn, counted from 1, as one sentence without a traceback.

    >>> failure(2, ValueError("no such room"))
    'turn 2: ValueError: no such room'
    """
    return f"turn {turn}: {described(error, private)}"


def described(error: BaseException, private: Collection[str] = ()) -> str:
    """Return an error's type and message without the values of secret environment variables.

    Args:
        error: what was raised; a group of one stands for that one.
        private: the names of further variables whose values must not be seen.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    values = {name: os.environ.get(name, "") for name in private}
    hidden = {value: f"[{name}]" for name, value in values.items() if len(value) >= _SHORTEST_VALUE}
    return redacted(message, hidden | secrets_of())


_LOG = logging.getLogger(__name__)


NO_USER = "this case has a conversation_scenario, and nothing simulates its user here; evaluate it with mlflow_adk_eval.evaluate, or give it a conversation"


def chat_messages(history: Sequence[Invocation], user: Content) -> list[dict[str, str]]:
    """Return a conversation as chat models take it, ``user`` last. A turn in which the agent was silent has no answer.

    >>> from mlflow_adk_eval.evalset import Part
    >>> hi = Content(role="user", parts=(Part(text="Hi"),))
    >>> before = Invocation(user_content=hi, final_response=Content(parts=(Part(text="Hello!"),)))
    >>> chat_messages([before], hi)
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello!'}, {'role': 'user', 'content': 'Hi'}]
    """
    texts = [
        pair for turn in history for pair in (("user", turn.user_text), ("assistant", turn.final_text)) if pair[0] == "user" or pair[1]
    ]
    return [{"role": role, "content": text} for role, text in (*texts, ("user", user.text))]


async def converse(agent: LiveAgent, case: EvalCase, run_index: int, setup: ConversationSetup | None = None) -> Conversation:
    """Have one conversation with `agent`. Whatever goes wrong ends it and is returned with all turns so far.

    Args:
        agent: the agent.
        case: what the conversation is about.
        run_index: the run of the case, counted from 0.
        setup: the user, and what answers tool calls; ``None``: the case's own messages, with the agent's own tools.
    """
    if setup is None:
        if case.conversation is None:
            return Conversation(actual=(), error=NO_USER, ending=Ending(reason="error", detail=NO_USER))
        setup = ConversationSetup(user=StaticUser(case.conversation))
    progress = _Progress()
    limit = agent.limits.case_s
    with span("conversation", {"adk_eval.agent": agent.name, "adk_eval.eval_id": case.eval_id, "adk_eval.run_index": run_index}):
        with anyio.move_on_after(limit) as scope:
            await _open_and_talk(agent, case, run_index, setup, progress)
        if scope.cancelled_caught:
            progress.break_off(f"the case took longer than its limit of {limit:g} s")
        note({"adk_eval.turns": len(progress.turns), **({"error.type": "_OTHER"} if progress.error else {})})
    return progress.conversation(setup, simulated=case.conversation is None)


@dataclass(slots=True)
class _Progress:
    """A conversation under way."""

    turns: list[Invocation] = field(default_factory=list[Invocation])
    session: AgentSession | None = None
    pending: bool = False
    """Whether the agent is about to answer."""
    state: Json | None = None
    error: str = ""
    unfinished: bool = False
    ending: Ending | None = None

    def add(self, turn: Turn) -> None:
        """Keep a turn."""
        self.pending = False
        if turn.invocation is not None:
            self.turns.append(turn.invocation)
        if turn.error:
            self.error = turn.error
            self.unfinished = turn.invocation is not None

    def break_off(self, error: str) -> None:
        """Note that the conversation was cancelled; the turn that was under way is kept for what happened in it."""
        if self.error:
            return
        interrupted = self.session.interrupted() if self.session is not None and self.pending else None
        self.add(Turn(invocation=interrupted, error=error))

    def conversation(self, setup: ConversationSetup, *, simulated: bool) -> Conversation:
        """Return the conversation as it is now."""
        ending = Ending(reason="error", detail=self.error) if self.error else self.ending
        return Conversation(
            actual=tuple(self.turns),
            session_state=self.state,
            error=self.error,
            unfinished=self.unfinished,
            ending=ending if simulated else None,
            injections=setup.tools.injections if setup.tools else (),
        )


async def _open_and_talk(agent: LiveAgent, case: EvalCase, run_index: int, setup: ConversationSetup, progress: _Progress) -> None:
    """Open a session and have the conversation in it."""
    try:
        with foreign_code("the agent"):
            async with agent.open(case, run_index, setup.tools) as session:
                progress.session = session
                await _talk(session, setup, progress, agent)
    except Exception as error:  # noqa: BLE001 - the agent is the user's own code: anything can go wrong
        if progress.session is None:
            progress.error = f"the agent could not be started: {described(error, agent.private)}"
        else:
            _LOG.warning("the session of agent %s could not be closed: %s", agent.name, described(error, agent.private))


async def _talk(session: AgentSession, setup: ConversationSetup, progress: _Progress, agent: LiveAgent) -> None:
    """Have one turn after the other, until the user has nothing to say or something fails."""
    while not progress.error:
        message = await _next_message(setup.user, progress.turns)
        if not isinstance(message, Content):
            progress.ending = message
            if message is not None and message.reason == "error":
                progress.error = message.detail
            break
        if setup.tools:
            setup.tools.next_turn()
        await _take_turn(session, message, progress, agent)
    if not progress.error:
        state = await session.state()
        progress.state = None if state is None else plain_state(state)


async def _next_message(user: User, turns: Sequence[Invocation]) -> Content | Ending | None:
    try:
        with foreign_code("it"):
            return await user.say(turns)
    except Exception as error:  # noqa: BLE001 - a user may be anybody's code: the conversation so far must not be lost
        return Ending(reason="error", detail=f"the simulated user failed: {described(error)}")


async def _take_turn(session: AgentSession, message: Content, progress: _Progress, agent: LiveAgent) -> None:
    """Send a message to the agent and keep what it does, for as long as it may take."""
    progress.pending = True
    number, turn_s = len(progress.turns) + 1, agent.limits.turn_s
    with anyio.move_on_after(turn_s) as scope:
        try:
            with foreign_code("the agent"):
                progress.add(await session.turn(message))
        except Exception as error:  # noqa: BLE001 - the session of somebody else's agent need not return its errors
            progress.break_off(failure(number, error, agent.private))
    if scope.cancelled_caught:
        progress.break_off(f"turn {number} took longer than its limit of {turn_s:g} s")
