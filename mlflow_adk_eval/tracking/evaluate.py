"""Evaluating an agent: run it, score it, log it. What the agent did is kept even where MLflow cannot take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mlflow.entities import Dataset

from mlflow_adk_eval.agents import Limits, Recording, load_recording
from mlflow_adk_eval.agents.recordings.recording import Recorded
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.setup import UserSource
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.setup import BudgetSource, JudgeSource, LedgerSource, judge_setup
from mlflow_adk_eval.ledger import opened
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner import Options, Progress
from mlflow_adk_eval.tracking.job import PENDING, Job, RunTarget, Target, aexecute, execute, job_of, users_run
from mlflow_adk_eval.tracking.log import dataset_of
from mlflow_adk_eval.tracking.replay import recording_of_run, run_named

if TYPE_CHECKING:
    from mlflow.data.dataset import Dataset as MlflowDataset
    from mlflow.genai.datasets import EvaluationDataset

    DatasetSource: TypeAlias = MlflowDataset | EvaluationDataset

__all__ = ["aevaluate", "evaluate", "log_report"]


def evaluate(  # noqa: PLR0913, PLR0917 - one function is the whole of it
    eval_set: EvalSetSource | DatasetSource,
    agent: Any = None,
    config: ConfigSource = None,
    agent_version: str | None = None,
    judge: JudgeSource = None,
    num_runs: int = 1,
    experiment: str | None = None,
    run_name: str | None = None,
    resume: str | None = None,
    budget: BudgetSource = None,
    *,
    judge_options: JudgeOptions | None = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
    agent_name: str | None = None,
    concurrency: int = 4,
    case_timeout_s: float | None = None,
    turn_timeout_s: float | None = None,
    user_simulator: UserSource = None,
    traces: int | bool = 2000,
    tracking_uri: str | None = None,
    progress: Progress | None = None,
    pending_folder: str | Path | None = None,
    register_prompts: bool = False,
    baseline: Recorded | None = None,
) -> Report:
    """Run an agent on an eval set, score what it does and log all of it as a run in MLflow.

    Everything that can be wrong with the arguments, and an MLflow that does not answer, is found before the agent is called.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, several paths, or a
            dataset of MLflow.
        agent: a module with a ``root_agent``, an ADK agent, a callable, or a recording of what an agent did: its file, or ``runs:/<id>``
            for what it did in an earlier run, which is then about the same version of the agent.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        agent_version: ``models:/<name>/<version>``, ``models:/<name>@<alias>`` or the id of a LoggedModel; ``None``: the git
            state of the working directory.
        judge: who judges, instead of the models that the config names: a model's name or a callable.
        num_runs: how often the agent has each conversation.
        experiment: the MLflow experiment, by name or id; ``None``: the current one.
        run_name: the name of the MLflow run; ``None``: the eval set and the agent version.
        resume: the run of an earlier evaluation of the same agent version on the same eval set, or ``latest``: the conversations
            that it had are not had again, and what its judges answered is not paid for again. If it holds no result yet, it is
            gone on with; else there is a new run.
        budget: how much may be spent on judges: a `Budget`, or a dict with ``max_calls`` and ``max_tokens``. What it is not
            enough for stays undecided.
        judge_options: how judges are asked.
        ledger: the file that keeps what was paid for; ``None``: as ``ADK_EVAL_LEDGER`` says, else ``.adk_eval/ledger.sqlite``;
            ``False``: none.
        rejudge_failed: whether to ask again where a judge's kept answer cannot be read.
        agent_name: the sub-agent to evaluate instead of the root agent.
        concurrency: how many conversations are had at the same time.
        case_timeout_s: how long one case may take, in seconds; ``None``: as long as it takes.
        turn_timeout_s: how long the agent may take to answer one message, in seconds; ``None``: as long as it takes.
        user_simulator: who plays the user of conversation scenarios: a model's name, a judge object, or a function of the scenario and
            the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the config names.
        traces: above how many turns only those that did not pass get a trace; ``True``: never; ``False``: none gets one.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.
        progress: called with the number of finished case runs and of all.
        pending_folder: where the evaluation is kept if MLflow cannot take it; ``None``: ``adk_eval_pending``.
        register_prompts: whether to keep the judges' prompts in MLflow's prompt registry; the run then names their versions.

        baseline: what pairwise criteria compare with: a recording of another agent, its file, or ``runs:/<id>`` for what an agent did
            in an earlier run.

    Returns:
        The report, with the id of its run.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if a judge cannot be had.
        TrackingError: if MLflow cannot be reached. If the agent has been called by then, the message names the folder that
            holds everything, and the command that finishes the job.
    """
    options = Options(
        num_runs=num_runs,
        concurrency=concurrency,
        progress=progress,
        judges=judge_setup(judge=judge, judge_options=judge_options, budget=budget, ledger=ledger, rejudge_failed=rejudge_failed),
        user_simulator=user_simulator,
    )
    where = RunTarget(
        experiment=experiment,
        run_name=run_name,
        agent_version=agent_version,
        tracking_uri=tracking_uri,
        pending=Path(pending_folder or PENDING),
        traces=traces,
        parent=users_run(tracking_uri),
        register_prompts=register_prompts,
    )
    options = replace(options, baseline=_baseline(baseline, tracking_uri))
    job = _job(eval_set, agent, config, options, where, agent_name=agent_name, limits=Limits(case_s=case_timeout_s, turn_s=turn_timeout_s))
    with opened(ledger) as kept:
        return execute(job, kept, resume).report


async def aevaluate(  # noqa: PLR0913, PLR0917 - as evaluate
    eval_set: EvalSetSource | DatasetSource,
    agent: Any = None,
    config: ConfigSource = None,
    agent_version: str | None = None,
    judge: JudgeSource = None,
    num_runs: int = 1,
    experiment: str | None = None,
    run_name: str | None = None,
    resume: str | None = None,
    budget: BudgetSource = None,
    *,
    judge_options: JudgeOptions | None = None,
    ledger: LedgerSource = None,
    rejudge_failed: bool = False,
    agent_name: str | None = None,
    concurrency: int = 4,
    case_timeout_s: float | None = None,
    turn_timeout_s: float | None = None,
    user_simulator: UserSource = None,
    traces: int | bool = 2000,
    tracking_uri: str | None = None,
    progress: Progress | None = None,
    pending_folder: str | Path | None = None,
    register_prompts: bool = False,
    baseline: Recorded | None = None,
) -> Report:
    """Do what `evaluate` does, from asynchronous code. MLflow is written to outside the event loop."""
    options = Options(
        num_runs=num_runs,
        concurrency=concurrency,
        progress=progress,
        judges=judge_setup(judge=judge, judge_options=judge_options, budget=budget, ledger=ledger, rejudge_failed=rejudge_failed),
        user_simulator=user_simulator,
    )
    where = RunTarget(
        experiment=experiment,
        run_name=run_name,
        agent_version=agent_version,
        tracking_uri=tracking_uri,
        pending=Path(pending_folder or PENDING),
        traces=traces,
        parent=users_run(tracking_uri),
        register_prompts=register_prompts,
    )
    options = replace(options, baseline=_baseline(baseline, tracking_uri))
    job = _job(eval_set, agent, config, options, where, agent_name=agent_name, limits=Limits(case_s=case_timeout_s, turn_s=turn_timeout_s))
    with opened(ledger) as kept:
        return (await aexecute(job, kept, resume)).report


def _baseline(source: Recorded | None, tracking_uri: str | None) -> Recording | None:
    """Return what pairwise criteria compare with."""
    earlier = run_named(source)
    if earlier is not None:
        return replace(recording_of_run(earlier, tracking_uri), name=f"runs:/{earlier}")
    if source is None:
        return None
    found = load_recording(source)
    return replace(found, name=str(source)) if isinstance(source, str | Path) else found


def _job(
    eval_set: EvalSetSource | DatasetSource,
    agent: Any,
    config: ConfigSource,
    options: Options,
    where: RunTarget,
    *,
    agent_name: str | None,
    limits: Limits,
) -> Job:
    if agent is None:
        raise UsageError(
            "agent: wanted a module with a root_agent, an ADK agent, a callable, the address of an agent, a recording or traces of MLflow"
        )
    if (earlier := run_named(agent)) is not None:
        agent = recording_of_run(earlier, where.tracking_uri)
        where = replace(where, agent_version=where.agent_version or agent.origin.agent_version)
    loaded, chosen, dataset = inputs_of(eval_set, config, tracking_uri=where.tracking_uri)
    resolved = resolve_agent(agent, agent_name=agent_name, limits=limits, eval_set=loaded)
    return job_of(loaded, resolved, chosen, options, replace(where, dataset=dataset))


def inputs_of(
    eval_set: EvalSetSource | DatasetSource, config: ConfigSource, *, tracking_uri: str | None = None
) -> tuple[EvalSet, EvalConfig, Dataset | None]:
    """Return the eval set, the config to evaluate it with, and what MLflow knows the set as, if it is a dataset of MLflow."""
    if isinstance(eval_set, str | Path | EvalSet | Sequence):
        return *load_inputs(eval_set, config), None
    from mlflow_adk_eval.tracking.datasets.eval_sets import eval_set_of, origin_of  # noqa: PLC0415 - loads what most evaluations do not need

    origin = origin_of(eval_set)
    named = getattr(eval_set, "named", None) if config is None else None  # the file of a dataset may have a config beside it
    loaded, chosen = load_inputs(eval_set_of(eval_set, tracking_uri=tracking_uri), load_inputs(named)[1] if named else config)
    return loaded, chosen, dataset_of(loaded, origin=origin) if origin else None


def log_report(  # noqa: PLR0913 - as evaluate
    report: Report,
    *,
    agent_name: str,
    experiment: str | None = None,
    run_name: str | None = None,
    agent_version: str | None = None,
    tracking_uri: str | None = None,
    traces: int | bool = 2000,
    pending_folder: str | Path | None = None,
    run_id: str | None = None,
    register_prompts: bool = False,
) -> Report:
    """Log a report that was computed without MLflow, as `evaluate` logs its own, and return it with the id of its run.

    Args:
        report: what was found.
        agent_name: what the agent is called, and a version of it that is taken from git.
        experiment: the MLflow experiment, by name or id; ``None``: the current one.
        run_name: the name of the MLflow run; ``None``: the eval set and the agent version.
        agent_version: as of `evaluate`.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.
        traces: above how many turns only those that did not pass get a trace; ``True``: never; ``False``: none gets one.
        pending_folder: where the report is kept if MLflow cannot take it; ``None``: ``adk_eval_pending``.
        run_id: an open run to log into, which keeps its name and stays open; ``None``: a run of its own.
        register_prompts: whether to keep the judges' prompts in MLflow's prompt registry.

    Raises:
        UsageError: if the agent version does not exist, or the run is not open or holds an evaluation already.
        TrackingError: if MLflow cannot be reached, or loses something.
    """
    where = RunTarget(
        experiment=experiment,
        run_name=run_name,
        agent_version=agent_version,
        tracking_uri=tracking_uri,
        pending=Path(pending_folder or PENDING),
        traces=traces,
        run_id=run_id,
        parent=None if run_id else users_run(tracking_uri),
        register_prompts=register_prompts,
    )
    target = Target(eval_set=report.eval_set, config=report.config, agent_name=agent_name, where=where)
    return target.open().finish(report).report
