"""Having a conversation with an agent, turn by turn: nothing that was said is lost, whatever ends it."""

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
from mlflow_adk_eval.agents.recordings.serialize import plain_state
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.evalset.conversation import Ending
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.redact import redacted, secrets_of

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


@dataclass(frozen=True, slots=True)
class WrittenUser:
    """Says what is written, whatever the agent answers."""

    turns: tuple[Invocation, ...]

    async def say(self, turns: Sequence[Invocation], /) -> Content | None:
        """Return the next written message."""
        return self.turns[len(turns)].user_content if len(turns) < len(self.turns) else None


_LOG = logging.getLogger(__name__)


async def converse(agent: LiveAgent, case: EvalCase, run_index: int, scene: ConversationSetup | None = None) -> Conversation:
    """Have one conversation with `agent`. Whatever goes wrong ends it and is returned with all turns so far.

    Args:
        agent: who answers.
        case: what the conversation is about.
        run_index: the run of the case, counted from 0.
        scene: who speaks, and with which tools; ``None``: the written turns of the case, with the agent's own tools.
    """
    chosen = scene or _written(case)
    if chosen is None:
        return Conversation(actual=(), error=NO_USER, ending=Ending(reason="error", detail=NO_USER))
    course = _Course()
    limit = agent.limits.case_s
    with anyio.move_on_after(limit) as scope:
        await _led(agent, case, run_index, chosen, course)
    if scope.cancelled_caught:
        course.break_off(f"the case took longer than its limit of {limit:g} s")
    return course.played(chosen, simulated=case.conversation is None)


NO_USER = "this case has a conversation_scenario, and nobody plays its user here; evaluate it with mlflow_adk_eval.evaluate, or write its turns down"


def _written(case: EvalCase) -> ConversationSetup | None:
    return None if case.conversation is None else ConversationSetup(user=WrittenUser(case.conversation))


@dataclass(slots=True)
class _Course:
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
        """Keep what came of a turn."""
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

    def played(self, scene: ConversationSetup, *, simulated: bool) -> Conversation:
        """Return what came of it."""
        ending = self.ending
        if simulated and self.error:
            ending = Ending(reason="error", detail=self.error)
        return Conversation(
            actual=tuple(self.turns),
            session_state=self.state,
            error=self.error,
            unfinished=self.unfinished,
            ending=ending if simulated else None,
            injections=scene.tools.injections if scene.tools else (),
        )


async def _led(agent: LiveAgent, case: EvalCase, run_index: int, scene: ConversationSetup, course: _Course) -> None:
    """Open a session and have the conversation in it."""
    try:
        async with agent.open(case, run_index, scene.tools) as session:
            course.session = session
            await _talk(session, scene, course, agent.limits.turn_s)
    except Exception as error:  # noqa: BLE001 - the agent is the user's own code: anything can go wrong
        if course.session is None:
            course.error = f"the agent could not be started: {described(error, agent.private)}"
        else:
            _LOG.warning("the session of agent %s could not be closed: %s", agent.name, described(error, agent.private))


async def _talk(session: AgentSession, scene: ConversationSetup, course: _Course, turn_s: float | None) -> None:
    """Have one turn after the other, until the user has nothing to say or something fails."""
    while not course.error:
        said = await _next(scene.user, course.turns)
        if not isinstance(said, Content):
            course.ending = said
            if said is not None and said.reason == "error":
                course.error = said.detail
            break
        if scene.tools:
            scene.tools.next_turn()
        await _answered(session, said, course, turn_s)
    if not course.error:
        state = await session.state()
        course.state = None if state is None else plain_state(state)


async def _next(user: User, turns: Sequence[Invocation]) -> Content | Ending | None:
    try:
        return await user.say(turns)
    except Exception as error:  # noqa: BLE001 - a user may be anybody's code: the conversation so far must not be lost
        return Ending(reason="error", detail=f"the simulated user failed: {described(error)}")


async def _answered(session: AgentSession, said: Content, course: _Course, turn_s: float | None) -> None:
    """Say something to the agent and keep what it does, for as long as it may take."""
    course.pending = True
    number = len(course.turns) + 1
    with anyio.move_on_after(turn_s) as scope:
        course.add(await session.turn(said))
    if scope.cancelled_caught:
        course.break_off(f"turn {number} took longer than its limit of {turn_s:g} s")
