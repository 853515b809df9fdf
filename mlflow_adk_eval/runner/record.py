"""Recording what an agent does, without judging it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Unpack

from mlflow_adk_eval.agents import Agent, Conversation, Limits, Recording
from mlflow_adk_eval.agents.recordings import NOT_HAD, on, save_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.setup import conversation_setups
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.criteria.plan import check_ids
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.parse import no_rescanning
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner.evaluation import Options, conversation_with, wait
from mlflow_adk_eval.runner.keywords import AgentArgs, ConversationArgs, RecordArgs, keywords, selected
from mlflow_adk_eval.runtime import each


@dataclass(slots=True)
class Recorder:
    """Conversations that are being recorded. What there is of them can be had at any time, also after an interruption."""

    eval_set: EvalSet
    agent: Agent
    config: EvalConfig
    options: Options
    agent_version: str = ""
    conversations: dict[tuple[str, int], Conversation] = field(default_factory=dict[tuple[str, int], Conversation])
    """What came of the conversations that have ended, by eval id and run."""
    simulating: JudgeUsage | None = None
    """What a model that played users took."""
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    async def run(self) -> None:
        """Have the conversations. Those that fail are recorded with their errors.

        Raises:
            UsageError: before the agent is called, if the eval set holds an id twice.
            ConfigError: before the agent is called, if the config names an endpoint that the caller does not allow.
            JudgeError: before the agent is called, if the model that is to play the user cannot be had.
        """
        check_ids(self.eval_set)
        judges = JudgeSession(self.options.judges)
        judges.check(self.config.model_copy(update={"criteria": {}, "case_criteria": {}}))
        setups = conversation_setups(self.config, self.eval_set, self.agent, judges, self.options.user_simulator)
        runs = [(case, run_index) for case in self.eval_set.eval_cases for run_index in range(self.options.num_runs)]

        async def work(index: int) -> None:
            case, run_index = runs[index]
            self.conversations[case.eval_id, run_index] = await conversation_with(self.agent, case, run_index, setups)
            if self.options.progress:
                self.options.progress(len(self.conversations), len(runs))

        try:
            with no_rescanning():
                await each(work, range(len(runs)), limit=min(self.options.concurrency, len(runs)))
        finally:
            self.simulating = judges.simulating()
            await judges.aclose()

    def recording(self) -> Recording:
        """Return what was recorded. A conversation that was not had to its end is one that failed."""
        num_runs = self.options.num_runs
        not_had = Conversation(actual=(), error=NOT_HAD)
        runs = {
            eval_id: tuple(self.conversations.get((eval_id, run_index), not_had) for run_index in range(num_runs))
            for eval_id in self.eval_set.eval_ids
        }
        origin = Origin(agent=self.agent.name, agent_version=self.agent_version, recorded_at=self.started, num_runs=num_runs)
        return Recording(runs, origin=on(self.eval_set, origin), simulating=self.simulating)


@keywords(RecordArgs, AgentArgs, ConversationArgs, defaults=(Options, Recorder))
def record(eval_set: EvalSetSource, agent: Any, config: ConfigSource = None, **options: Unpack[RecordArgs]) -> Recording:
    """Have every conversation of an eval set with an agent and return what it did. Nothing is judged, and no MLflow is needed.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or several paths.
        agent: a module with a ``root_agent``, an ADK agent or a callable.
        config: how users are simulated, and which tools are answered for; ``None``: the ``test_config.json`` beside the eval set. Its
            criteria do not matter here.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if the model that is to play the user cannot be had.
    """
    loaded, chosen = load_inputs(eval_set, config)
    limits = Limits(case_s=options.get("case_timeout_s"), turn_s=options.get("turn_timeout_s"))
    resolved = resolve_agent(agent, agent_name=options.get("agent_name"), limits=limits, eval_set=loaded)
    save_to = options.get("save_to")
    judges = judge_setup(**selected(options, JudgeArgs))
    with opened(judges.ledger) as ledger:
        how = replace(Options(**selected(options, Options)), judges=replace(judges, answers=ledger))
        recorder = Recorder(loaded, resolved, chosen, how, options.get("agent_version", ""))
        try:
            wait(recorder.run)
        finally:
            if save_to and recorder.conversations:
                save_recording(recorder.recording(), save_to)
    return recorder.recording()
