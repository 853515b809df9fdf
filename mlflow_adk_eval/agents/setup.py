"""How the conversations of an evaluation are set up: who speaks in each, and what answers tool calls in place of the tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.conversation import WrittenUser
from mlflow_adk_eval.agents.protocol import Agent, ConversationSetup, LiveAgent, User
from mlflow_adk_eval.agents.recordings.recording import Recording
from mlflow_adk_eval.agents.tool_environment import ToolEnvironment, tool_environment
from mlflow_adk_eval.agents.users.cues import check_scenarios
from mlflow_adk_eval.agents.users.simulated import CalledUser, SimulatedUsers
from mlflow_adk_eval.config.criteria import UserSimulatorConfig
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.judge import Judge
from mlflow_adk_eval.judge.session import JudgeSession

UserSource = str | Judge | Callable[..., Any] | None
"""Who plays the user of scenarios: a model's name, a judge object, or a function of scenario and turns; ``None``: the config's model."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The set-up of an evaluation's conversations."""

    users: Callable[[EvalCase, int], User]
    environment: ToolEnvironment | None = None

    def scene(self, case: EvalCase, run_index: int, /) -> ConversationSetup:
        """Return what one conversation needs."""
        user = self.users(case, run_index) if case.conversation is None else WrittenUser(case.conversation)
        return ConversationSetup(user=user, tools=self.environment.open(case.eval_id, run_index) if self.environment else None)


def conversation_setups(
    config: EvalConfig, eval_set: EvalSet, agent: Agent, judging: JudgeSession, user_simulator: UserSource = None
) -> Setup | None:
    """Return how `agent` gets its conversations; ``None`` for one that is not spoken with turn by turn, such as a recording.

    Raises:
        UsageError: if `user_simulator` is nobody who could play a user, or if the config's tool environment cannot reach the agent's tools.
        ConfigError: if the config asks for a live connection, has a tool environment for a case that is not in the eval set, or settings by
            which no model could play a user.
        JudgeError: if the model that is to play the user cannot be had.
    """
    environment = tool_environment(config, eval_set)
    if not isinstance(agent, LiveAgent):
        if environment and not isinstance(agent, Recording):
            raise UsageError(f"agent {agent.name!r} cannot be given the config's tool environment: it is not spoken with turn by turn")
        return None
    if config.live_model_config is not None:
        found = "settings of conversations over a live connection, in both directions at once"
        raise ConfigError("config", [Problem("$.live_model_config", found, "none: an agent is spoken with turn by turn")])
    scenarios = [case for case in eval_set.eval_cases if case.conversation is None]
    settings = config.user_simulator_config or UserSimulatorConfig()
    users = _users(settings, scenarios, judging, user_simulator) if scenarios else _nobody
    return Setup(users, environment)


def _nobody(case: EvalCase, run_index: int) -> User:
    msg = f"case {case.eval_id!r}, run {run_index + 1}: there is no scenario"
    raise AssertionError(msg)


def _users(
    settings: UserSimulatorConfig, scenarios: Sequence[EvalCase], judging: JudgeSession, source: UserSource
) -> Callable[[EvalCase, int], User]:
    is_model = source is None or isinstance(source, str) or hasattr(source, "ask")
    if is_model:
        check_scenarios(settings, scenarios)
        return SimulatedUsers(settings, judging.user_model(settings, source)).of  # type: ignore[arg-type] # narrowed above
    if not callable(source) or isinstance(source, type):
        raise UsageError(f"user_simulator={shown(source)}: wanted a model's name, a judge or a function of scenario and turns")
    function = source

    def called(case: EvalCase, run_index: int) -> User:  # noqa: ARG001 - a function is told nothing of runs
        assert case.conversation_scenario is not None  # noqa: S101 - scenes are asked for a user only where there is one
        return CalledUser(function, case.conversation_scenario, settings.max_allowed_invocations)

    return called
