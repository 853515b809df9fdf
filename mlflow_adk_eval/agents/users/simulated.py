"""A model as the user of conversation scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_adk_eval.course import Ending
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.judge.speaking import Speaker
from mlflow_adk_eval.settings import UserSimulatorConfig


@dataclass(frozen=True, slots=True)
class SimulatedUsers:
    """The users of an evaluation's scenarios, all played by one model."""

    settings: UserSimulatorConfig
    speaker: Speaker

    def of(self, case: EvalCase, run_index: int) -> SimulatedUser:
        """Return the user of one conversation."""
        return SimulatedUser(self.settings, self.speaker, case, run_index)


@dataclass(frozen=True, slots=True)
class SimulatedUser:
    """The user of one conversation."""

    settings: UserSimulatorConfig
    speaker: Speaker
    case: EvalCase
    run_index: int

    async def say(self, turns: Sequence[Invocation], /) -> Content | Ending:
        """Return the next message, or why the conversation is over."""
        raise NotImplementedError
