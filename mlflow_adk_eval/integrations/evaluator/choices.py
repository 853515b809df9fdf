"""What a user may say in ``evaluator_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mlflow_adk_eval.agents.recordings.recording import Recorded
from mlflow_adk_eval.agents.setup import UserSource
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource
from mlflow_adk_eval.errors import UsageError, did_you_mean
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.setup import BudgetSource, JudgeSource, LedgerSource, judge_setup
from mlflow_adk_eval.runner import Options, Progress

_OF_THE_RUN = ("experiment", "run_name", "tracking_uri", "resume")
"""Arguments of `adk_eval.evaluate` that are about the run, which here is MLflow's."""
SIDES = ("actual", "agent", "expected")
"""What the data is held against; at most one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The settings; where nothing else is said, each means what it means as an argument of `adk_eval.evaluate`."""

    config: ConfigSource = None
    actual: Recorded | None = None
    """What the agent did, the data being what was expected."""
    agent: Any = None
    """Who is to have the conversations of the data."""
    expected: EvalSetSource | None = None
    """What was expected, the data being what the agent did."""
    agent_name: str | None = None
    agent_version: str | None = None
    num_runs: int = 1
    concurrency: int | None = None
    """``None``: 4; one at a time with a model, which need not stand more."""
    case_timeout_s: float | None = None
    turn_timeout_s: float | None = None
    user_simulator: UserSource = None
    judge: JudgeSource = None
    judge_options: JudgeOptions | None = None
    budget: BudgetSource = None
    rejudge_failed: bool = False
    ledger: LedgerSource = None
    traces: int | bool = 2000
    progress: Progress | None = None
    pending_folder: str | Path | None = None
    register_prompts: bool = False
    col_mapping: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of a table: which column holds a cell, by the cell's name."""

    def options(self, *, concurrency: int) -> Options:
        """Return how the runner is to work.

        Args:
            concurrency: how many conversations are had at the same time where nothing is said.
        """
        judges = judge_setup(
            judge=self.judge, judge_options=self.judge_options, budget=self.budget, ledger=self.ledger, rejudge_failed=self.rejudge_failed
        )
        return Options(
            num_runs=self.num_runs,
            concurrency=concurrency if self.concurrency is None else self.concurrency,
            progress=self.progress,
            judges=judges,
            user_simulator=self.user_simulator,
        )


def choices_of(evaluator_config: Mapping[str, Any]) -> Choices:
    """Return what `evaluator_config` says.

    Raises:
        UsageError: if it holds an unknown key, or more than one thing to hold the data against.
    """
    known = [one.name for one in fields(Choices)]
    for name in evaluator_config:
        if name in _OF_THE_RUN:
            raise UsageError(f"evaluator_config: {name} is no setting here, since MLflow has opened the run: say it to MLflow")
        if name not in known:
            hint = did_you_mean(str(name), known)
            raise UsageError(f"evaluator_config: unknown key {name!r}; known are {', '.join(known)}. {hint}".rstrip())
    return Choices(**evaluator_config)
