"""A model as the user of conversation scenarios."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import anyio.to_thread

from mlflow_adk_eval.agents.users.cues import user_prompt_of
from mlflow_adk_eval.config.criteria import UserSimulatorConfig
from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset import Content, ConversationScenario, EvalCase, Invocation, Part
from mlflow_adk_eval.evalset.conversation import Ending
from mlflow_adk_eval.judge.user_model import UserMessage, UserModel, user_message_of

UserFunction = Callable[[ConversationScenario, Sequence[Invocation]], Any]
"""From a scenario and the turns so far to the next message; ``None`` ends the conversation. Sync or async."""


@dataclass(frozen=True, slots=True)
class CalledUser:
    """Says what a function returns. The first message is the scenario's starting prompt, as for a model that plays the user."""

    function: UserFunction
    scenario: ConversationScenario
    max_allowed_invocations: int
    """How often it may speak, the starting prompt included; ``-1``: without limit."""

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending:
        """Return the next message, or that the goal was reached or the limit was."""
        if 0 <= self.max_allowed_invocations <= len(turns):
            return limit_reached(self.max_allowed_invocations)
        if not turns:
            return message(self.scenario.starting_prompt)
        return _content(await self._called(turns))

    async def _called(self, turns: Sequence[Invocation]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(self.scenario, turns)
        said = await anyio.to_thread.run_sync(self.function, self.scenario, turns, abandon_on_cancel=True)
        return await said if inspect.isawaitable(said) else said


def message(text: str) -> Content:
    """Return a text as the user's message."""
    return Content(role="user", parts=(Part(text=text),))


def limit_reached(invocations: int) -> Ending:
    """Return that the user may not speak again.

    >>> str(limit_reached(20))
    'limit: max_allowed_invocations of 20'
    """
    return Ending(reason="limit", detail=f"max_allowed_invocations of {invocations}")


def _content(said: Any) -> Content | Ending:
    match said:
        case None:
            return Ending(reason="goal")
        case str() if said.strip():
            return message(said)
        case Content() | Ending():
            return said
        case _:
            raise UsageError(f"the simulated user returned {shown(said)}; wanted a text that is not empty, or None to end the conversation")


_ATTEMPTS = 3
"""How often a model is asked for one message before the conversation is given up."""


@dataclass(frozen=True, slots=True)
class SimulatedUsers:
    """The users of an evaluation's scenarios, all played by one model."""

    settings: UserSimulatorConfig
    speaker: UserModel

    def of(self, case: EvalCase, run_index: int) -> SimulatedUser:
        """Return the user of one conversation."""
        assert case.conversation_scenario is not None  # noqa: S101 - scenes are asked for a user only where there is one
        return SimulatedUser(self.settings, self.speaker, case.conversation_scenario, (case.eval_id, run_index))


@dataclass(slots=True)
class SimulatedUser:
    """The user of one conversation."""

    settings: UserSimulatorConfig
    speaker: UserModel
    scenario: ConversationScenario
    place: tuple[str, int]
    """The case and the run, counted from 0. Each run gets answers of its own."""
    over: Ending | None = None
    """Why the conversation is over, though its last message still has to be heard."""

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending:
        """Return the next message, or why the conversation is over."""
        limit = self.settings.max_allowed_invocations
        if self.over:
            return self.over
        if 0 <= limit <= len(turns):
            return limit_reached(limit)
        if not turns:
            return message(self.scenario.starting_prompt)
        line = await self._line(turns)
        if isinstance(line, Ending):
            return line
        ending = Ending(reason="goal", detail=line.reason)
        if not line.message:
            return ending
        self.over = ending if line.finished else None
        return message(line.message)

    async def _line(self, turns: Sequence[Invocation]) -> UserMessage | Ending:
        """Return what the model says. An answer that cannot be used is asked for again; those that earlier runs paid for do not count."""
        cue = user_prompt_of(self.settings, self.scenario, turns)
        problems: list[str] = []
        paid = 0
        for attempt in count():
            made = await self.speaker.ask(cue, (*self.place, len(turns), attempt))
            read = user_message_of(made.answer) if made.answer else made.error
            if isinstance(read, UserMessage):
                return read
            problems.append(read)
            paid += not made.reused
            if made.answer is None or paid == _ATTEMPTS:
                break
        return Ending(reason="error", detail=f"the simulated user said nothing before turn {len(turns) + 1}: {_told(problems)}")


def _told(problems: Sequence[str]) -> str:
    """Return what was wrong, each thing once.

    >>> _told(["the answer is empty"] * 2 + ["the message is empty"])
    'the answer is empty; the message is empty (3 attempts)'
    """
    attempts = f" ({len(problems)} attempts)" if len(problems) > 1 else ""
    return "; ".join(dict.fromkeys(problems)) + attempts
