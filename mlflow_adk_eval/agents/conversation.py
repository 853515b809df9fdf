"""Having conversations with an agent, turn by turn: no finished turn is lost, whatever ends a conversation.

`conversation_setups` is called once per evaluation, after the agent is resolved (`agents.resolve`), and refuses what cannot work before
the first conversation begins. The runner then asks for a `ConversationSetup` per case and run, which user talks to the agent and what answers
tool calls in place of the tools, and hands it to `converse`.

`converse` opens a session of the agent, asks the user for a message, gives it to the session, keeps the turn, and goes on until the user
has nothing left to say, a turn fails, or a time limit is up. All of that comes back as a `Conversation`; nothing is raised, since an
agent is the user's own code and one that breaks is a result, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anyio

from mlflow_adk_eval.agents.protocol import (
    Agent,
    AgentSession,
    ConversationSetup,
    KnowsItsLimits,
    LiveAgent,
    SeesChanges,
    SeesInnerCalls,
    Turn,
    User,
)
from mlflow_adk_eval.agents.recordings import Recording, plain_state
from mlflow_adk_eval.agents.replay import CaseWorld, Replay
from mlflow_adk_eval.agents.tool_environment import tool_environment
from mlflow_adk_eval.agents.users import FunctionUser, SimulatedUser, check_scenarios, scenario_of
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.surroundings import UserSimulatorConfig
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, foreign_code, shown
from mlflow_adk_eval.evalset.conversation import Conversation, Ending
from mlflow_adk_eval.evalset.model_errors import unrecovered
from mlflow_adk_eval.evalset.models import Content, EvalCase, EvalSet, Invocation, Json
from mlflow_adk_eval.judge.protocol import Judge
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.redact import SHORTEST, redacted, secrets_of
from mlflow_adk_eval.runtime import note, span

_LOG = logging.getLogger(__name__)


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
    return redacted(message, hidden_values(private))


def hidden_values(private: Collection[str]) -> dict[str, str]:
    """Return the values that no message may show, each with what stands in its place; `private`: further variables with such values."""
    values = {name: os.environ.get(name, "") for name in private}
    hidden = {value: f"[{name}]" for name, value in values.items() if len(value) >= SHORTEST}
    return hidden | secrets_of()


def model_failure(turn: int, invocation: Invocation, private: Collection[str] = ()) -> str:
    """Return the error of a model that had the last word in a turn, counted from 1, as a sentence; empty where there is none."""
    error = unrecovered(invocation)
    return f"turn {turn}: {redacted(error, hidden_values(private))}" if error else ""


NO_USER = "this case has a conversation_scenario, but nothing simulates its user here; evaluate it with mlflow_adk_eval.evaluate, or give it a conversation"


def chat_messages(history: Sequence[Invocation], user: Content) -> list[dict[str, str]]:
    """Return a conversation as chat models take it, ``user`` last. A turn in which the agent was silent has no answer.

    >>> from mlflow_adk_eval.evalset.models import Part
    >>> hi = Content(role="user", parts=(Part(text="Hi"),))
    >>> before = Invocation(user_content=hi, final_response=Content(parts=(Part(text="Hello!"),)))
    >>> chat_messages([before], hi)
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello!'}, {'role': 'user', 'content': 'Hi'}]
    """
    messages: list[dict[str, str]] = []
    for turn in history:
        messages.append({"role": "user", "content": turn.user_text})
        if turn.shown_answer:
            messages.append({"role": "assistant", "content": turn.shown_answer})
    return [*messages, {"role": "user", "content": user.text}]


@dataclass(frozen=True, slots=True)
class StaticUser:
    """Sends the messages of a case in order, whatever the agent answers."""

    turns: tuple[Invocation, ...]

    async def say(self, turns: Sequence[Invocation], /) -> Content | None:
        """Return the next message of the case."""
        return self.turns[len(turns)].user_content if len(turns) < len(self.turns) else None


UserSource = str | Judge | Callable[..., Any] | None
"""What simulates the user of scenarios: a model's name, a judge object, or a function of scenario and turns; ``None``: the config's model."""


ConversationSetups = Callable[[EvalCase, int], ConversationSetup]
"""From a case and the run, counted from 0, to what one conversation needs."""


def conversation_setups(
    config: EvalConfig, eval_set: EvalSet, agent: Agent, judging: JudgeSession, user_simulator: UserSource, replay: Replay | None
) -> ConversationSetups | None:
    """Return the set-ups of the conversations with `agent`; ``None`` for one that is no `LiveAgent`, such as a recording.

    Raises:
        UsageError: if `user_simulator` cannot simulate a user, or if the config's tool environment cannot reach the agent's tools.
        ConfigError: if the config asks for a live connection, has a tool environment for a case that is not in the eval set, or settings by
            which no model could simulate a user.
        JudgeError: if the model that is to simulate the user cannot be had.
    """
    environment = tool_environment(config, eval_set)
    if replay and not isinstance(agent, LiveAgent):
        msg = f"replay: {agent.name!r} had its conversations before, or has them as a whole; wanted an agent that calls tools now"
        raise UsageError(msg)
    if not isinstance(agent, LiveAgent):
        if environment and not isinstance(agent, Recording):
            msg = f"agent {agent.name!r} cannot use the config's tool environment, because it does not take one message at a time"
            raise UsageError(msg)
        return None
    if config.live_model_config is not None:
        live = "settings for live (streaming) conversations"
        raise ConfigError("config", [Problem("$.live_model_config", live, "none: live conversations are not supported")])
    scenarios = [case for case in eval_set.eval_cases if case.conversation is None]
    settings, function, model = config.user_simulator_config or UserSimulatorConfig(), cast("Any", user_simulator), None
    if scenarios and (user_simulator is None or isinstance(user_simulator, str) or hasattr(user_simulator, "ask")):
        check_scenarios(settings, scenarios)
        model = judging.user_model(settings, user_simulator)  # type: ignore[arg-type] # a function has no `ask`
    elif scenarios and (not callable(user_simulator) or isinstance(user_simulator, type)):
        raise UsageError(f"user_simulator={shown(user_simulator)}: wanted a model's name, a judge or a function of scenario and turns")

    def setup(case: EvalCase, run_index: int) -> ConversationSetup:
        user: User
        if case.conversation is not None:
            user = StaticUser(case.conversation)
        elif model is not None:
            user = SimulatedUser(settings, model, scenario_of(case), case.eval_id, run_index)
        else:
            user = FunctionUser(function, scenario_of(case), settings.max_allowed_invocations)
        tools = environment(case.eval_id, run_index) if environment else None
        return ConversationSetup(user=user, tools=CaseWorld(replay, case.eval_id, run_index, tools) if replay else tools)

    return setup


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
    progress, world = _Progress(), setup.tools.world if setup.tools else None
    limit = agent.limits.case_s
    with span("conversation", {"adk_eval.agent": agent.name, "adk_eval.eval_id": case.eval_id, "adk_eval.run_index": run_index}):
        with anyio.move_on_after(limit) as scope:
            await _talk(agent, case, run_index, setup, progress)
        if scope.cancelled_caught:
            progress.break_off(f"the case took longer than its limit of {limit:g} s")
        note({"adk_eval.turns": len(progress.turns), **({"error.type": "_OTHER"} if progress.error else {})})
    ending = Ending(reason="error", detail=progress.error) if progress.error else progress.ending
    known: Json = {"calls": tuple(world.calls), "model_calls": tuple(world.model_calls), "listings": world.listings} if world else {}
    unknown = tuple(world.unknown) if world else ()
    if progress.turns:
        unknown += tuple(progress.session.unknown()) if isinstance(progress.session, KnowsItsLimits) else ()
    return Conversation(
        actual=tuple(progress.turns),
        session_state=None if any(entry.what == "state" for entry in unknown) else progress.state,
        error=progress.error,
        unfinished=progress.unfinished,
        ending=ending if case.conversation is None else None,
        injections=setup.tools.injections if setup.tools else (),
        inner_calls=tuple(progress.session.inner_calls) if isinstance(progress.session, SeesInnerCalls) else None,
        changes=tuple(progress.session.changes) if isinstance(progress.session, SeesChanges) else (),
        unknown=unknown,
        **known,
    )


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

    def add(self, turn: Turn, private: Collection[str] = ()) -> None:
        """Keep a turn, and why it failed; `private`: the variables whose values no error may show."""
        self.pending = False
        error = turn.error
        if turn.invocation is not None:
            self.turns.append(turn.invocation)
            error = error or model_failure(len(self.turns), turn.invocation, private)
        if error:
            self.error = error
            self.unfinished = turn.invocation is not None

    def break_off(self, error: str) -> None:
        """Note that the conversation was cancelled; the turn that was under way is kept for what happened in it."""
        if self.error:
            return
        interrupted = self.session.interrupted() if self.session is not None and self.pending else None
        self.add(Turn(invocation=interrupted, error=error))


async def _talk(agent: LiveAgent, case: EvalCase, run_index: int, setup: ConversationSetup, progress: _Progress) -> None:
    """Open a session and have one turn after the other in it, until the user has nothing to say or something fails."""
    try:
        with foreign_code("the agent"):
            async with agent.open(case, run_index, setup.tools) as session:
                progress.session = session
                goes_on = True
                while goes_on:
                    goes_on = await _exchange(agent, session, setup, progress)
                if not progress.error:
                    state = await session.state()
                    progress.state = None if state is None else plain_state(state)
    except Exception as error:  # noqa: BLE001 - the agent is the user's own code: anything can go wrong
        if progress.session is None:
            progress.error = f"the agent could not be started: {described(error, agent.private)}"
        else:
            _LOG.warning("the session of agent %s could not be closed: %s", agent.name, described(error, agent.private))


async def _exchange(agent: LiveAgent, session: AgentSession, setup: ConversationSetup, progress: _Progress) -> bool:
    """Ask the user for a message and have the agent answer it, for as long as that may take. Whether the conversation goes on."""
    message: Content | Ending | None
    try:
        with foreign_code("it"):
            message = await setup.user.say(progress.turns)
    except Exception as error:  # noqa: BLE001 - a user may be anybody's code: the conversation so far must not be lost
        message = Ending(reason="error", detail=f"the simulated user failed: {described(error)}")
    if not isinstance(message, Content):
        progress.ending = message
        progress.error = message.detail if message is not None and message.reason == "error" else ""
        return False
    if setup.tools:
        setup.tools.next_turn()
    progress.pending = True
    number, turn_s = len(progress.turns) + 1, agent.limits.turn_s
    with anyio.move_on_after(turn_s) as scope:
        try:
            with foreign_code("the agent"):
                progress.add(await session.turn(message), agent.private)
        except Exception as error:  # noqa: BLE001 - the session of somebody else's agent need not return its errors
            progress.break_off(failure(number, error, agent.private))
    if scope.cancelled_caught:
        progress.break_off(f"turn {number} took longer than its limit of {turn_s:g} s")
    if setup.tools and setup.tools.world and setup.tools.world.unrecorded:  # whatever the agent made of that
        progress.error, progress.unfinished = f"turn {number}: {setup.tools.world.unrecorded}", len(progress.turns) == number
    return not progress.error
