"""An evaluation that is logged: opened in MLflow, carried out, written down. What cannot be written down is kept in a folder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mlflow
from mlflow import MlflowClient
from mlflow.entities import Dataset

from mlflow_adk_eval.agents import Agent, Recording
from mlflow_adk_eval.agents.recordings.serialize import ConversationCache
from mlflow_adk_eval.agents.setup import conversation_setups
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.criteria.plan import plan
from mlflow_adk_eval.errors import AdkEvalError, TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.gating.evidence.integrity import key_of_criterion
from mlflow_adk_eval.judge.session import JudgeSession
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.runner import Options, arun, require_baseline, wait
from mlflow_adk_eval.tracking.bundle import Bundle, Run, bundle_of
from mlflow_adk_eval.tracking.client import HASTY, connect, experiment_of, reaching_mlflow
from mlflow_adk_eval.tracking.log import Start, abandon_run, finish_run, join_run, reopen_run, start_run
from mlflow_adk_eval.tracking.resume import begin, earlier_run
from mlflow_adk_eval.tracking.versions import find_version

_logger = logging.getLogger(__name__)

PENDING = Path("adk_eval_pending")
"""RunTarget evaluations wait for MLflow, each in a folder named by its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """RunTarget and as what an evaluation is logged."""

    experiment: str | None = None
    """By name or id; ``None``: the current one."""
    run_name: str | None = None
    agent_version: str | None = None
    """What `find_version` takes."""
    tracking_uri: str | None = None
    pending: Path = PENDING
    """The folder for what MLflow cannot take."""
    traces: int | bool = 2000
    """Above how many turns only those that did not pass get a trace; ``True``: never; ``False``: none gets one."""
    run_id: str | None = None
    """A run that somebody else has opened for this evaluation; ``None``: a run of its own."""
    parent: Any = None
    """The run that the caller's thread has open in the same store, if any."""
    dataset: Dataset | None = None
    """What MLflow knows the eval set as; ``None``: as an artifact of the run."""
    status: str = "complete"
    """What the run is in the end; anything else is no evidence for a promotion."""
    register_prompts: bool = False
    """Whether the judges' prompts are kept in MLflow's prompt registry."""

    def __post_init__(self) -> None:
        """Refuse numbers of traces that are none."""
        if not isinstance(self.traces, int) or self.traces < 0:
            raise UsageError(f"traces={self.traces!r}: wanted a number of turns, True or False")


def users_run(tracking_uri: str | None) -> Any:
    """Return the run that the caller's thread has open in the same store, if any."""
    return mlflow.active_run() if tracking_uri in (None, mlflow.get_tracking_uri()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be evaluated, by what, and where that is logged."""

    eval_set: EvalSet
    config: EvalConfig
    agent_name: str
    where: RunTarget

    def start(self, client: MlflowClient) -> Start:
        """Return what is known before the agent is called."""
        where = self.where
        experiment_id = _experiment_id(client, where)
        return Start(
            eval_set=self.eval_set,
            config=self.config,
            agent_name=self.agent_name,
            version=find_version(client, where.agent_version, agent_name=self.agent_name, experiment_id=experiment_id),
            experiment_id=experiment_id,
            run_name=where.run_name,
            parent_run_id=where.parent.info.run_id if where.parent else None,
            dataset=where.dataset,
        )

    def open(self) -> Open:
        """Open the run in MLflow."""
        client = connect(self.where.tracking_uri)
        with reaching_mlflow("the run could not be started", HASTY):
            return Open(client=client, run=_run(client, self.start(client), self.where), where=self.where)


def _run(client: MlflowClient, start: Start, where: RunTarget) -> Run:
    return join_run(client, start, where.run_id) if where.run_id else start_run(client, start)


def _experiment_id(client: MlflowClient, where: RunTarget) -> str:
    if where.run_id:
        return str(client.get_run(where.run_id).info.experiment_id)
    return experiment_of(client, where.experiment, inherited=where.parent.info.experiment_id if where.parent else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A run that is open in MLflow."""

    client: MlflowClient
    run: Run
    where: RunTarget

    def abandon(self, error: BaseException) -> None:
        """Mark the run as one that came to nothing."""
        interrupted = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        abandon_run(self.client, self.run, "KILLED" if interrupted else "FAILED")

    def finish(self, report: Report) -> Logged:
        """Log the report, or keep it in a folder if that does not succeed; return it with the id of its run."""
        report, prompts = self._with_prompts(report) if self.where.register_prompts and report.judging else (report, {})
        with no_collection():
            bundle = bundle_of(report, self.run, traces=self.where.traces, secrets=secrets_of())
        bundle = replace(bundle, params={**bundle.params, **prompts}, status=self.where.status)
        try:
            with reaching_mlflow("MLflow could not take the evaluation"):
                finish_run(self.client, bundle, ends=not self.run.joined)
        except AdkEvalError as error:
            raise TrackingError(f"{error}\n{self._keep(bundle)}") from error
        except BaseException as error:
            error.add_note(self._keep(bundle))
            self.abandon(error)
            raise
        return Logged(report=replace(report, run_id=self.run.run_id), bundle=bundle)

    def _with_prompts(self, report: Report) -> tuple[Report, Mapping[str, str]]:
        """Register the prompts and return the parameters that name them; an evaluation is not given up for their sake."""
        from mlflow_adk_eval.tracking.prompts import register_used_prompts  # noqa: PLC0415 - few want it

        used = report.judging.prompts if report.judging else {}
        try:
            found = register_used_prompts(self.client, self.run.run_id, used)
        except AdkEvalError as error:
            _logger.warning("%s", error)
            return replace(report, notes=(*report.notes, str(error))), {}
        return report, {f"adk_eval.prompt_uri.{key_of_criterion(name)}": uri for name, uri in found.items()}

    def _keep(self, bundle: Bundle) -> str:
        """Save the bundle and return a sentence on how to go on."""
        folder = self.where.pending / self.run.run_id
        try:
            bundle.save(folder)
        except OSError as error:
            return f"Nor could it be kept in {folder}: {error}"
        return f"Everything is kept in {folder}. Once MLflow is back, finish with\n  mlflow-adk-eval upload {folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A report that MLflow has."""

    report: Report
    """With the id of its run."""
    bundle: Bundle
    """What was logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An evaluation whose arguments make sense."""

    target: Target
    agent: Agent
    options: Options
    judged: bool
    """Whether a criterion asks a judge."""

    def start(self, ledger: CallCache | None, resume: str | None = None) -> RunningJob:
        """Open the run in MLflow, or go on with an earlier one."""
        client = connect(self.target.where.tracking_uri)
        with reaching_mlflow("the run could not be started", HASTY):
            start = self.target.start(client)
            earlier = earlier_run(client, resume, start, ledger) if resume else None
            again = earlier if earlier and earlier.open else None
            run = reopen_run(client, start, again.run_id, again.started_ms) if again else _run(client, start, self.target.where)
            paid_for = self.judged or earlier is not None or not isinstance(self.agent, Recording)
            kept = ledger if paid_for else None
            begin(client, kept, run, start, earlier)
        return RunningJob(job=self, place=Open(client=client, run=run, where=self.target.where), ledger=kept)


def job_of(eval_set: EvalSet, agent: Agent, config: EvalConfig, options: Options, where: RunTarget) -> Job:
    """Return the evaluation of `agent`.

    Raises:
        ConfigError: if a criterion cannot be applied.
        JudgeError: if a judge, or the model that is to play the user, cannot be had.
    """
    judging = JudgeSession(options.judges)
    planned = plan(config, eval_set, judging)
    require_baseline(planned, options.baseline)
    conversation_setups(config, eval_set, agent, judging, options.user_simulator)
    return Job(
        target=Target(eval_set=eval_set, config=config, agent_name=agent.name, where=where),
        agent=agent,
        options=options,
        judged=planned.judged,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """An evaluation whose run is open."""

    job: Job
    place: Open
    ledger: CallCache | None

    def play(self) -> Awaitable[Report]:
        """Have the conversations and judge them; what the ledger knows of this run is not paid for again."""
        job, run_id = self.job, self.place.run.run_id
        judges = replace(job.options.judges, answers=self.ledger, scope=self.ledger.scope(run_id) if self.ledger else None)
        live = self.ledger and not isinstance(job.agent, Recording)
        plays = ConversationCache(self.ledger, run_id, job.agent.name, job.target.config) if self.ledger and live else None
        return arun(job.target.eval_set, job.agent, job.target.config, replace(job.options, judges=judges, plays=plays))

    def abandon(self, error: BaseException) -> None:
        """Mark the run as one that came to nothing."""
        self.place.abandon(error)
        if self.ledger:
            _logger.warning("what was paid for is kept: go on with resume=%r", self.place.run.run_id)

    def finish(self, report: Report) -> Logged:
        """Log the report, or keep it in a folder if that does not succeed; return it with the id of its run."""
        if report.origin and not isinstance(self.job.agent, Recording):
            report = replace(report, origin=replace(report.origin, agent_version=self.place.run.model_id))
        if self.ledger and self.ledger.trouble:
            report = replace(report, notes=(*report.notes, self.ledger.trouble))
        logged = self.place.finish(report)
        if self.ledger:
            self.ledger.finish(self.place.run.run_id)
        return logged


def execute(job: Job, ledger: CallCache | None, resume: str | None = None) -> Logged:
    """Evaluate and log."""
    started = job.start(ledger, resume)
    try:
        report = wait(started.play)
    except BaseException as error:
        started.abandon(error)
        raise
    return started.finish(report)


async def aexecute(job: Job, ledger: CallCache | None, resume: str | None = None) -> Logged:
    """Evaluate and log; MLflow is written to outside the event loop."""
    started = await anyio.to_thread.run_sync(job.start, ledger, resume)
    try:
        report = await started.play()
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(started.abandon, error)
        raise
    return await anyio.to_thread.run_sync(started.finish, report)
