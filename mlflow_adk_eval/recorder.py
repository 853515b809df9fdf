"""Having conversations without judging them, so that they can be scored later, and as often as one likes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow_adk_eval.agents import Agent, Limits, Played, Recording
from mlflow_adk_eval.agents.recordings.save import NOT_HAD, on, save_recording
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.setup import UserSource, stage
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.criteria.plan import refuse_duplicates
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.parse import no_rescanning
from mlflow_adk_eval.judge.session import BudgetSource, Judging, judge_setup
from mlflow_adk_eval.ledger import LedgerSource, opened
from mlflow_adk_eval.origin import Origin
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner import Options, Player, Progress, wait
from mlflow_adk_eval.runtime import each


def record(  # noqa: PLR0913 - one function is the whole of it
    eval_set: EvalSetSource,
    agent: Any,
    config: ConfigSource = None,
    *,
    num_runs: int = 1,
    agent_name: str | None = None,
    agent_version: str = "",
    concurrency: int = 4,
    case_timeout_s: float | None = None,
    turn_timeout_s: float | None = None,
    user_simulator: UserSource = None,
    budget: BudgetSource = None,
    ledger: LedgerSource = None,
    progress: Progress | None = None,
    save_to: str | Path | None = None,
) -> Recording:
    """Have every conversation of an eval set with an agent and return what it did. Nothing is judged, and no MLflow is needed.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files or several paths.
        agent: a module with a ``root_agent``, an ADK agent or a callable.
        config: how users are simulated, and which tools are answered for; ``None``: the ``test_config.json`` beside the eval set. Its
            criteria do not matter here.
        num_runs: how often the agent has each conversation.
        agent_name: the sub-agent to speak with instead of the root agent.
        agent_version: what the recording is to say of the agent's version.
        concurrency: how many conversations are had at the same time.
        case_timeout_s: how long one case may take, in seconds; ``None``: as long as it takes.
        turn_timeout_s: how long the agent may take to answer one message, in seconds; ``None``: as long as it takes.
        user_simulator: who plays the user of conversation scenarios; as of `evaluate`.
        budget: how much may be spent on a model that plays users: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``.
        ledger: the file that keeps what such a model said; as of `evaluate`.
        progress: called with the number of finished conversations and of all.
        save_to: a file for the recording. If this is interrupted, it gets whatever was recorded by then.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if the model that is to play the user cannot be had.
    """
    loaded, chosen = load_inputs(eval_set, config)
    limits = Limits(case_s=case_timeout_s, turn_s=turn_timeout_s)
    speaker = resolve_agent(agent, agent_name=agent_name, limits=limits, eval_set=loaded)
    with opened(ledger) as kept:
        options = Options(
            num_runs=num_runs,
            concurrency=concurrency,
            progress=progress,
            judges=replace(judge_setup(None, None, budget), answers=kept),
            user_simulator=user_simulator,
        )
        tape = Tape(loaded, speaker, chosen, options, agent_version)
        try:
            wait(tape.run)
        finally:
            if save_to and tape.played:
                save_recording(tape.recording(), save_to)
    return tape.recording()


@dataclass(slots=True)
class Tape:
    """Conversations that are being recorded. What there is of them can be had at any time, also after an interruption."""

    eval_set: EvalSet
    agent: Agent
    config: EvalConfig
    options: Options
    agent_version: str = ""
    played: dict[tuple[str, int], Played] = field(default_factory=dict[tuple[str, int], Played])
    """What came of the conversations that have ended, by eval id and run."""
    simulating: JudgeUsage | None = None
    """What a model that played users took."""
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    async def run(self) -> None:
        """Have the conversations. Those that fail are recorded with their errors.

        Raises:
            UsageError: before the agent is called, if the eval set holds an id twice.
            JudgeError: before the agent is called, if the model that is to play the user cannot be had.
        """
        refuse_duplicates(self.eval_set)
        judging = Judging(self.options.judges)
        player = Player(self.agent, stage(self.config, self.eval_set, self.agent, judging, self.options.user_simulator))
        jobs = [(case, run_index) for case in self.eval_set.eval_cases for run_index in range(self.options.num_runs)]

        async def work(index: int) -> None:
            case, run_index = jobs[index]
            self.played[case.eval_id, run_index] = await player.play(case, run_index)
            if self.options.progress:
                self.options.progress(len(self.played), len(jobs))

        try:
            with no_rescanning():
                await each(work, len(jobs), limit=self.options.concurrency)
        finally:
            self.simulating = judging.simulating()
            await judging.aclose()

    def recording(self) -> Recording:
        """Return what was recorded. A conversation that was not had to its end is one that failed."""
        num_runs = self.options.num_runs
        not_had = Played(actual=(), error=NOT_HAD)
        runs = {
            eval_id: tuple(self.played.get((eval_id, run_index), not_had) for run_index in range(num_runs))
            for eval_id in self.eval_set.eval_ids
        }
        origin = Origin(agent=self.agent.name, agent_version=self.agent_version, recorded_at=self.began, num_runs=num_runs)
        return Recording(runs, origin=on(self.eval_set, origin), simulating=self.simulating)
