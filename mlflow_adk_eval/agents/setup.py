"""How the conversations of an evaluation are set up: which user talks to the agent, and what answers tool calls in place of the tools.

`conversation_setups` is called once per evaluation, after the agent is resolved (`agents.resolve`), and refuses what cannot work before
the first conversation begins. The runner then asks for a `ConversationSetup` per case and run, and hands it to `converse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.agents.protocol import Agent, ConversationSetup, LiveAgent, User
from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.agents.tool_environment import ToolEnvironment, tool_environment
from mlflow_adk_eval.agents.users import FunctionUser, SimulatedUser, StaticUser, check_scenarios, scenario_of
from mlflow_adk_eval.config.criteria import UserSimulatorConfig
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import ConfigError, Problem, UsageError, shown
from mlflow_adk_eval.evalset import EvalCase, EvalSet
from mlflow_adk_eval.judge import Judge
from mlflow_adk_eval.judge.session import JudgeSession

UserSource = str | Judge | Callable[..., Any] | None
"""What simulates the user of scenarios: a model's name, a judge object, or a function of scenario and turns; ``None``: the config's model."""
_SimulateUser = Callable[[EvalCase, int], User]


@dataclass(frozen=True, slots=True)
class ConversationSetups:
    """The set-ups of all conversations of an evaluation."""

    simulate_user: _SimulateUser
    """From a case with a scenario and the run, counted from 0, to its user."""
    environment: ToolEnvironment | None = None

    def setup(self, case: EvalCase, run_index: int, /) -> ConversationSetup:
        """Return what one conversation needs."""
        user = self.simulate_user(case, run_index) if case.conversation is None else StaticUser(case.conversation)
        return ConversationSetup(user=user, tools=self.environment.open(case.eval_id, run_index) if self.environment else None)


def conversation_setups(
    config: EvalConfig, eval_set: EvalSet, agent: Agent, judging: JudgeSession, user_simulator: UserSource = None
) -> ConversationSetups | None:
    """Return the set-ups of the conversations with `agent`; ``None`` for one that is no `LiveAgent`, such as a recording.

    Raises:
        UsageError: if `user_simulator` cannot simulate a user, or if the config's tool environment cannot reach the agent's tools.
        ConfigError: if the config asks for a live connection, has a tool environment for a case that is not in the eval set, or settings by
            which no model could simulate a user.
        JudgeError: if the model that is to simulate the user cannot be had.
    """
    environment = tool_environment(config, eval_set)
    if not isinstance(agent, LiveAgent):
        if environment and not isinstance(agent, Recording):
            raise UsageError(f"agent {agent.name!r} cannot be given the config's tool environment: it does not take one message at a time")
        return None
    if config.live_model_config is not None:
        found = "settings of conversations over a live connection, in both directions at once"
        raise ConfigError("config", [Problem("$.live_model_config", found, "none: an agent gets one message at a time")])
    scenarios = [case for case in eval_set.eval_cases if case.conversation is None]
    settings = config.user_simulator_config or UserSimulatorConfig()
    simulate = _user_simulator(settings, scenarios, judging, user_simulator) if scenarios else _no_scenario
    return ConversationSetups(simulate, environment)


def _no_scenario(case: EvalCase, run_index: int) -> User:
    msg = f"case {case.eval_id!r}, run {run_index + 1}: there is no scenario"
    raise AssertionError(msg)


def _user_simulator(
    settings: UserSimulatorConfig, scenarios: Sequence[EvalCase], judging: JudgeSession, source: UserSource
) -> _SimulateUser:
    if source is None or isinstance(source, str) or hasattr(source, "ask"):
        check_scenarios(settings, scenarios)
        model = judging.speaker(settings, source)  # type: ignore[arg-type] # a function has no `ask`
        return lambda case, run_index: SimulatedUser(settings, model, scenario_of(case), case.eval_id, run_index)
    if not callable(source) or isinstance(source, type):
        raise UsageError(f"user_simulator={shown(source)}: wanted a model's name, a judge or a function of scenario and turns")
    return lambda case, run_index: FunctionUser(source, scenario_of(case), settings.max_allowed_invocations)  # noqa: ARG005 - a function gets no run
