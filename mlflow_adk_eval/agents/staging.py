"""How the conversations of an evaluation are set up: who speaks in each, and what answers tool calls in place of the tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.base import Agent, LiveAgent, Scene, User
from mlflow_adk_eval.agents.environment import ToolEnvironment
from mlflow_adk_eval.agents.users.called import CalledUser
from mlflow_adk_eval.agents.users.simulated import SimulatedUsers
from mlflow_adk_eval.agents.users.written import WrittenUser
from mlflow_adk_eval.config import EvalConfig
from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.judge import Judge
from mlflow_adk_eval.judge.judging import Judging
from mlflow_adk_eval.settings import UserSimulatorConfig

UserSource = str | Judge | Callable[..., Any] | None
"""Who plays the user of scenarios: a model's name, a judge object, or a function of scenario and turns; ``None``: the config's model."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The set-up of an evaluation's conversations."""

    users: Callable[[EvalCase, int], User]
    environment: ToolEnvironment | None = None

    def scene(self, case: EvalCase, run_index: int, /) -> Scene:
        """Return what one conversation needs."""
        user = self.users(case, run_index) if case.conversation is None else WrittenUser(case.conversation)
        return Scene(user=user, tools=self.environment.open(case.eval_id, run_index) if self.environment else None)


def stage(config: EvalConfig, eval_set: EvalSet, agent: Agent, judging: Judging, user_simulator: UserSource = None) -> Stage | None:
    """Return how `agent` gets its conversations; ``None`` for one that is not spoken with turn by turn, such as a recording.

    Raises:
        UsageError: if `user_simulator` is nobody who could play a user.
        JudgeError: if the model that is to play the user cannot be had.
    """
    if not isinstance(agent, LiveAgent):
        return None
    simulated = any(case.conversation is None for case in eval_set.eval_cases)
    settings = config.user_simulator_config or UserSimulatorConfig()
    users = _users(settings, judging, user_simulator) if simulated else _nobody
    environment = config.environment_simulation_config
    return Stage(users, ToolEnvironment(environment) if environment else None)


def _nobody(case: EvalCase, run_index: int) -> User:
    msg = f"case {case.eval_id!r}, run {run_index + 1}: there is no scenario"
    raise AssertionError(msg)


def _users(settings: UserSimulatorConfig, judging: Judging, source: UserSource) -> Callable[[EvalCase, int], User]:
    is_model = source is None or isinstance(source, str) or hasattr(source, "ask")
    if is_model:
        return SimulatedUsers(settings, judging.speaker(settings, source)).of  # type: ignore[arg-type] # narrowed above
    if not callable(source) or isinstance(source, type):
        raise UsageError(f"user_simulator={shown(source)}: wanted a model's name, a judge or a function of scenario and turns")
    function = source

    def called(case: EvalCase, run_index: int) -> User:  # noqa: ARG001 - a function is told nothing of runs
        assert case.conversation_scenario is not None  # noqa: S101 - scenes are asked for a user only where there is one
        return CalledUser(function, case.conversation_scenario, settings.max_allowed_invocations)

    return called
