"""Evaluating an agent: run it, score it, log it. What the agent did is kept even where MLflow cannot take it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mlflow
from mlflow import MlflowClient

from mlflow_adk_eval.agents import Agent, Recording
from mlflow_adk_eval.agents.kept import KeptPlays
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config import EvalConfig
from mlflow_adk_eval.criteria import plan
from mlflow_adk_eval.errors import AdkEvalError, TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.judge import JudgeOptions
from mlflow_adk_eval.judge.judging import BudgetSource, JudgeSource, Judging, judge_setup
from mlflow_adk_eval.ledger import Ledger, LedgerSource, opened
from mlflow_adk_eval.outcome import Report
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.runner import Options, Progress, arun, wait
from mlflow_adk_eval.tracking.bundle import Bundle, Run, bundle_of
from mlflow_adk_eval.tracking.client import HASTY, connect, experiment_of, reaching_mlflow
from mlflow_adk_eval.tracking.log import Start, abandon_run, finish_run, reopen_run, start_run
from mlflow_adk_eval.tracking.resume import begin, earlier_run
from mlflow_adk_eval.tracking.versions import find_version

_logger = logging.getLogger(__name__)

PENDING = Path("adk_eval_pending")
"""Where evaluations wait for MLflow, each in a folder named by its run."""


def evaluate(  # noqa: PLR0913, PLR0917 - one function is the whole of it
    eval_set: EvalSetSource,
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
    traces: int | bool = 2000,
    tracking_uri: str | None = None,
    progress: Progress | None = None,
    pending_folder: str | Path | None = None,
) -> Report:
    """Run an agent on an eval set, score what it does and log all of it as a run in MLflow.

    Everything that can be wrong with the arguments, and an MLflow that does not answer, is found before the agent is called.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, or several paths.
        agent: a module with a ``root_agent``, an ADK agent, a callable, or a recording of what an agent did.
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
        traces: above how many turns only those that did not pass get a trace; ``True``: never; ``False``: none gets one.
        tracking_uri: the MLflow server or store; ``None``: as MLflow is configured.
        progress: called with the number of finished case runs and of all.
        pending_folder: where the evaluation is kept if MLflow cannot take it; ``None``: ``adk_eval_pending``.

    Returns:
        The report, with the id of its run.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if a judge cannot be had.
        TrackingError: if MLflow cannot be reached. If the agent has been called by then, the message names the folder that
            holds everything, and the command that finishes the job.
    """
    setup = judge_setup(judge, judge_options, budget, rejudge_failed=rejudge_failed)
    options = Options(num_runs=num_runs, concurrency=concurrency, progress=progress, judges=setup)
    where = _Where(
        experiment, run_name, agent_version, tracking_uri, Path(pending_folder or PENDING), _checked(traces), _user_run(tracking_uri)
    )
    job = _job(eval_set, agent, config, options, where, agent_name=agent_name, case_timeout_s=case_timeout_s)
    with opened(ledger) as kept:
        started = job.start(kept, resume)
        try:
            report = wait(started.play)
        except BaseException as error:
            started.abandon(error)
            raise
        return started.finish(report)


async def aevaluate(  # noqa: PLR0913, PLR0917 - as evaluate
    eval_set: EvalSetSource,
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
    traces: int | bool = 2000,
    tracking_uri: str | None = None,
    progress: Progress | None = None,
    pending_folder: str | Path | None = None,
) -> Report:
    """Do what `evaluate` does, from asynchronous code. MLflow is written to outside the event loop."""
    setup = judge_setup(judge, judge_options, budget, rejudge_failed=rejudge_failed)
    options = Options(num_runs=num_runs, concurrency=concurrency, progress=progress, judges=setup)
    where = _Where(
        experiment, run_name, agent_version, tracking_uri, Path(pending_folder or PENDING), _checked(traces), _user_run(tracking_uri)
    )
    job = _job(eval_set, agent, config, options, where, agent_name=agent_name, case_timeout_s=case_timeout_s)
    with opened(ledger) as kept:
        started = await anyio.to_thread.run_sync(job.start, kept, resume)
        try:
            report = await started.play()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(started.abandon, error)
            raise
        return await anyio.to_thread.run_sync(started.finish, report)


def _checked(traces: int | bool) -> int | bool:
    if not isinstance(traces, int) or traces < 0:
        raise UsageError(f"traces={traces!r}: wanted a number of turns, True or False")
    return traces


def _user_run(tracking_uri: str | None) -> Any:
    """Return the run that the caller's thread has open in the same store, if any."""
    return mlflow.active_run() if tracking_uri in (None, mlflow.get_tracking_uri()) else None


@dataclass(frozen=True, slots=True)
class _Where:
    """Where and as what an evaluation is logged."""

    experiment: str | None
    run_name: str | None
    agent_version: str | None
    tracking_uri: str | None
    pending: Path
    traces: int | bool
    user_run: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An evaluation whose arguments make sense."""

    eval_set: EvalSet
    config: EvalConfig
    agent: Agent
    options: Options
    where: _Where
    judged: bool
    """Whether a criterion asks a judge."""

    def start(self, ledger: Ledger | None, resume: str | None) -> _Started:
        """Open the run in MLflow."""
        client = connect(self.where.tracking_uri)
        with reaching_mlflow("the run could not be started", HASTY):
            start = self._start(client)
            earlier = earlier_run(client, resume, start, ledger) if resume else None
            again = earlier if earlier and earlier.open else None
            run = reopen_run(client, start, again.run_id, again.started_ms) if again else start_run(client, start)
            paid_for = self.judged or earlier is not None or not isinstance(self.agent, Recording)
            kept = ledger if paid_for else None
            begin(client, kept, run, start, earlier)
        return _Started(job=self, client=client, run=run, ledger=kept)

    def _start(self, client: MlflowClient) -> Start:
        where = self.where
        inherited = where.user_run.info.experiment_id if where.user_run else None
        experiment_id = experiment_of(client, where.experiment, inherited=inherited)
        return Start(
            eval_set=self.eval_set,
            config=self.config,
            agent_name=self.agent.name,
            version=find_version(client, where.agent_version, agent_name=self.agent.name, experiment_id=experiment_id),
            experiment_id=experiment_id,
            run_name=where.run_name,
            parent_run_id=where.user_run.info.run_id if where.user_run else None,
        )


def _job(
    eval_set: EvalSetSource,
    agent: Any,
    config: ConfigSource,
    options: Options,
    where: _Where,
    *,
    agent_name: str | None,
    case_timeout_s: float | None,
) -> _Job:
    if agent is None:
        raise UsageError("agent: wanted a module with a root_agent, an ADK agent, a callable or a recording")
    loaded, chosen = load_inputs(eval_set, config)
    judged = plan(chosen, loaded, Judging(options.judges)).judged
    resolved = resolve_agent(agent, agent_name=agent_name, timeout_s=case_timeout_s)
    return _Job(eval_set=loaded, config=chosen, agent=resolved, options=options, where=where, judged=judged)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """An evaluation whose run is open."""

    job: _Job
    client: MlflowClient
    run: Run
    ledger: Ledger | None

    def play(self) -> Awaitable[Report]:
        """Have the conversations and judge them; what the ledger knows of this run is not paid for again."""
        job, run_id = self.job, self.run.run_id
        judges = replace(job.options.judges, answers=self.ledger, scope=self.ledger.scope(run_id) if self.ledger else None)
        plays = KeptPlays(self.ledger, run_id, job.agent.name) if self.ledger and not isinstance(job.agent, Recording) else None
        return arun(job.eval_set, job.agent, job.config, replace(job.options, judges=judges, plays=plays))

    def abandon(self, error: BaseException) -> None:
        """Mark the run as one that came to nothing."""
        interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        abandon_run(self.client, self.run.run_id, "KILLED" if interrupted else "FAILED")
        if self.ledger:
            _logger.warning("what was paid for is kept: go on with resume=%r", self.run.run_id)

    def finish(self, report: Report) -> Report:
        """Log the report, or keep it in a folder if that does not succeed; return it with the id of its run."""
        if self.ledger and self.ledger.trouble:
            report = replace(report, notes=(*report.notes, self.ledger.trouble))
        with no_collection():
            bundle = bundle_of(report, self.run, traces=self.job.where.traces, secrets=secrets_of())
        try:
            with reaching_mlflow("MLflow could not take the evaluation"):
                finish_run(self.client, bundle)
        except AdkEvalError as error:
            raise TrackingError(f"{error}\n{self._keep(bundle)}") from error
        except BaseException as error:
            error.add_note(self._keep(bundle))
            self.abandon(error)
            raise
        if self.ledger:
            self.ledger.finish(self.run.run_id)
        return replace(report, run_id=self.run.run_id)

    def _keep(self, bundle: Bundle) -> str:
        """Save the bundle and return a sentence on how to go on."""
        folder = self.job.where.pending / self.run.run_id
        try:
            bundle.save(folder)
        except OSError as error:
            return f"Nor could it be kept in {folder}: {error}"
        return f"Everything is kept in {folder}. Once MLflow is back, finish with\n  mlflow-adk-eval upload {folder}"
