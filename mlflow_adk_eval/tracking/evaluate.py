"""Evaluating an agent: inputs, then an evaluation that is planned once, then its run in MLflow.

The data flows one way. What the user names becomes an eval set, a config and an agent (`inputs_of`); with these, `LoggedEvaluation` makes the
plan, the judges and the set-up of conversations, all before the agent is called. Then it opens the run, has the conversations, judges them
into a report, and logs the report as a bundle. What was paid for is in the ledger meanwhile, so that a killed run can be resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack
from uuid import uuid4

import anyio
import anyio.to_thread
from mlflow.entities import Dataset

from mlflow_adk_eval.agents import Agent, Limits, Recording, load_recording
from mlflow_adk_eval.agents.http.session import HttpAgent
from mlflow_adk_eval.agents.recordings import ConversationCache, Recorded
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import UNKNOWN, source_of
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.errors import AgentError, UsageError
from mlflow_adk_eval.evalset import EvalSet, eval_set_digest, select
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import CallCache, StartedRun
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.collect import InParts
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runner import CaseExecutor, Evaluation, Options, wait
from mlflow_adk_eval.runner.batches import engine_of
from mlflow_adk_eval.runner.evaluation import Engine
from mlflow_adk_eval.runner.keywords import AgentArgs, ConversationArgs, EvaluateArgs, LogArgs, keywords, selected
from mlflow_adk_eval.runner.stream import inputs_read_as_needed, kept_beside, ledger_of, recorded_beside
from mlflow_adk_eval.runtime import note, span
from mlflow_adk_eval.tracking.bundle import AGENT_CHANGED, Bundle
from mlflow_adk_eval.tracking.client import HASTY, reaching_mlflow
from mlflow_adk_eval.tracking.earlier_runs import EarlierRun, earlier_run, failed_cases, recording_of_run, run_named
from mlflow_adk_eval.tracking.logged_run import LoggedRun, RunTarget, users_run
from mlflow_adk_eval.tracking.run_facts import dataset_of
from mlflow_adk_eval.tracking.storable import StoreCleaner

if TYPE_CHECKING:
    from mlflow.data.dataset import Dataset as MlflowDataset
    from mlflow.genai.datasets import EvaluationDataset

    DatasetSource: TypeAlias = MlflowDataset | EvaluationDataset

_logger = logging.getLogger(__name__)


@keywords(EvaluateArgs, JudgeArgs, AgentArgs, ConversationArgs, LogArgs, defaults=(Options, RunTarget, judge_setup))
def evaluate(
    eval_set: EvalSetSource | DatasetSource,
    agent: Any = None,
    config: ConfigSource = None,
    agent_version: str | None = None,
    *,
    failed: str | None = None,
    **options: Unpack[EvaluateArgs],
) -> Report:
    """Run an agent on an eval set, score what it does and log all of it as a run in MLflow.

    Everything that can be wrong with the arguments, and an MLflow that does not answer, is found before the agent is called.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, several paths, or a
            dataset of MLflow; also a file, folder or URI of JSON Lines or Parquet, which is read as it is needed.
        agent: a module with a ``root_agent``, an ADK agent, a callable, or a recording of what an agent did: its file, or ``runs:/<id>``
            for what it did in an earlier run, which is then about the same version of the agent; ``None``: what is recorded beside
            the cases, in rows of JSON Lines or Parquet.
        config: the criteria; ``None``: the ``test_config.json`` beside the eval set, else ADK's defaults.
        agent_version: ``models:/<name>/<version>``, ``models:/<name>@<alias>`` or the id of a LoggedModel, made of the same source
            as the agent; ``None``: what the agent's source is.
        failed: the id of an earlier run, also as ``runs:/<id>``: only the cases that did not pass there are run, and the new run is no
            evidence for the whole eval set; ``None``: all cases.

    Returns:
        The report, with the id of its run.

    Raises:
        UsageError: for arguments that make no sense; its kind `InputError` names every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if a judge cannot be had.
        TrackingError: if MLflow cannot be reached. If the agent has been called by then, the message names the folder that
            holds everything, and the command that finishes the job.
    """
    with _prepared(eval_set, agent, config, agent_version, failed, options) as evaluation:
        return evaluation.execute()[0]


@keywords(EvaluateArgs, JudgeArgs, AgentArgs, ConversationArgs, LogArgs, defaults=(Options, RunTarget, judge_setup))
async def aevaluate(
    eval_set: EvalSetSource | DatasetSource,
    agent: Any = None,
    config: ConfigSource = None,
    agent_version: str | None = None,
    *,
    failed: str | None = None,
    **options: Unpack[EvaluateArgs],
) -> Report:
    """Do what `evaluate` does, from asynchronous code. MLflow is written to outside the event loop.

    Args:
        eval_set: as of `evaluate`.
        agent: as of `evaluate`.
        config: as of `evaluate`.
        agent_version: as of `evaluate`.
        failed: as of `evaluate`.
    """
    with _prepared(eval_set, agent, config, agent_version, failed, options) as evaluation:
        return (await evaluation.aexecute())[0]


@contextmanager
def _prepared(
    eval_set: EvalSetSource | DatasetSource,
    agent: Any,
    config: ConfigSource,
    agent_version: str | None,
    failed: str | None,
    options: EvaluateArgs,
) -> Generator[LoggedEvaluation]:
    """Provide the evaluation that arguments ask for, with its ledger open."""
    judges, uri = judge_setup(**selected(options, JudgeArgs)), options.get("tracking_uri")
    given: dict[str, Any] = {**selected(options, Options), "judges": judges, "baseline": _baseline(options.get("baseline"), uri)}
    how = Options(**given)
    target = RunTarget(**selected(options, RunTarget), agent_version=agent_version, parent=users_run(uri))
    loaded, chosen, dataset = inputs_of(eval_set, config, tracking_uri=uri)
    agent = recorded_beside(loaded, eval_set) if agent is None else agent
    if agent is None:
        raise UsageError(
            "agent: wanted a module with a root_agent, an ADK agent, a callable, the address of an agent, a recording or traces of MLflow"
        )
    if failed is not None:
        target = replace(target, failed_of=run_named(failed) or failed)
        loaded, chosen = _only(failed_cases(target.failed_of or "", uri), loaded, chosen)
    if (earlier := run_named(agent)) is not None:
        agent = recording_of_run(earlier, uri)
        target = replace(target, agent_version=agent_version or agent.origin.agent_version)
    limits = Limits(case_s=options.get("case_timeout_s"), turn_s=options.get("turn_timeout_s"))
    resolved = resolve_agent(agent, agent_name=options.get("agent_name"), limits=limits, eval_set=loaded)
    with ledger_of(judges.ledger, needed=not isinstance(resolved, Recording) or bool(judged_criteria(chosen))) as ledger:
        yield LoggedEvaluation(loaded, resolved, chosen, how, replace(target, dataset=dataset), ledger, options.get("resume"))


def _only(eval_ids: tuple[str, ...], eval_set: EvalSet, config: EvalConfig) -> tuple[EvalSet, EvalConfig]:
    """Return an eval set with only the named cases, and its config without what it says of the others."""
    chosen = select(eval_set, eval_ids)
    return chosen, config.without(set(eval_set.eval_ids).difference(eval_ids))


def _baseline(source: Recorded | None, tracking_uri: str | None) -> Recording | None:
    """Return what pairwise criteria compare with."""
    earlier = run_named(source)
    if earlier is not None:
        return replace(recording_of_run(earlier, tracking_uri), name=f"runs:/{earlier}")
    if source is None:
        return None
    found = load_recording(source)
    return replace(found, name=str(source)) if isinstance(source, str | Path) else found


def inputs_of(
    eval_set: EvalSetSource | DatasetSource, config: ConfigSource, *, tracking_uri: str | None = None
) -> tuple[EvalSet, EvalConfig, Dataset | None]:
    """Return the eval set, the config to evaluate it with, and what MLflow knows the set as, if it is a dataset of MLflow."""
    if isinstance(eval_set, str | Path | EvalSet | Sequence):
        return *(inputs_read_as_needed(eval_set, config) or load_inputs(eval_set, config)), None
    from mlflow_adk_eval.tracking.eval_set_datasets import eval_set_of, origin_of  # noqa: PLC0415 - loads what most evaluations do not need

    origin = origin_of(eval_set)
    named = getattr(eval_set, "named", None) if config is None else None  # the file of a dataset may have a config beside it
    loaded, chosen = load_inputs(eval_set_of(eval_set, tracking_uri=tracking_uri), load_inputs(named)[1] if named else config)
    return loaded, chosen, dataset_of(loaded, origin=origin) if origin else None


class LoggedEvaluation:
    """An `Evaluation` with the digest of its eval set, the ledger of what was paid for and the run that its report is logged as.

    Constructing it checks everything and starts nothing. It is executed once, by `execute` or by `aexecute`: the run is opened, the agent has
    its conversations, the judges judge, and MLflow gets the report. Whatever interrupts that marks the run, and leaves in the ledger what
    was paid for.
    """

    def __init__(
        self,
        eval_set: EvalSet,
        agent: Agent,
        config: EvalConfig,
        options: Options,
        target: RunTarget,
        ledger: CallCache | None = None,
        resume: str | None = None,
        engine: Callable[[Evaluation, InParts | None], Engine | None] = engine_of,
    ) -> None:
        """Plan the evaluation; `engine` returns what executes its cases, ``None``: this process. If it is to resume a run, that is looked up in MLflow first, since it says which answers count.

        Raises:
            UsageError: if there is no such run to resume, or it is about something else.
            ConfigError: if a criterion cannot be applied.
            JudgeError: if a judge, or the model that is to play the user, cannot be had.
            TrackingError: if a run is to be resumed, and MLflow cannot be reached.
        """
        self._digest = "" if resume is None else eval_set_digest(eval_set)
        self._source = source_of(agent, _said_version(agent))
        self._target, self._engine_of = target, engine
        self._logged = self._run_of(eval_set, config, agent) if resume else None
        self._earlier: EarlierRun | None = earlier_run(resume, self._logged, ledger) if resume and self._logged else None
        self._scope = ledger.scope(self._earlier.run_id) if ledger and self._earlier else options.judges.scope or uuid4().hex
        judges = replace(options.judges, answers=ledger, scope=self._scope if ledger else None)
        self._evaluation = Evaluation(eval_set, config, CaseExecutor(agent, replace(options, judges=judges)))
        self._digest = self._digest or eval_set_digest(eval_set)  # which a source that was gone through knows
        self._keep_in = kept_beside(ledger)
        can_go_on = self._evaluation.plan.judged or self._earlier or not self._evaluation.recording or self._evaluation.is_kept
        self._ledger = ledger if can_go_on else None

    def _run_of(self, eval_set: EvalSet, config: EvalConfig, agent: Agent) -> LoggedRun:
        return LoggedRun(self._target, eval_set, config, agent_name=agent.name, digest=self._digest, source=self._source)

    def execute(self) -> tuple[Report, Bundle]:
        """Evaluate and log; return the report, with the id of its run, and what was logged."""
        with span("evaluate", self._facts()):
            logged, parts = self._start(), self._parts()
            note({"adk_eval.run_id": logged.run.run_id})
            try:
                report = wait(lambda: self._evaluation.execute(self._conversations(logged), parts, self._engine(parts)))
            except BaseException as error:
                self._abandon(logged, error)
                raise
            note({"adk_eval.verdict": report.verdict})
            return self._finish(logged, report, parts)

    async def aexecute(self) -> tuple[Report, Bundle]:
        """Do what `execute` does; MLflow is written to outside the event loop."""
        with span("evaluate", self._facts()):
            logged, parts = await anyio.to_thread.run_sync(self._start), self._parts()
            note({"adk_eval.run_id": logged.run.run_id})
            try:
                report = await self._evaluation.execute(self._conversations(logged), parts, self._engine(parts))
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._abandon, logged, error)
                raise
            note({"adk_eval.verdict": report.verdict})
            return await anyio.to_thread.run_sync(self._finish, logged, report, parts)

    def _facts(self) -> dict[str, str]:
        """Return what a span says of the evaluation before it begins."""
        return {"adk_eval.agent": self._evaluation.agent.name, "adk_eval.eval_set": self._evaluation.eval_set.eval_set_id}

    def _start(self) -> LoggedRun:
        """Open the run, or go on with the earlier one, and let the ledger know."""
        if self._ledger:
            self._ledger.hold(self._scope)
            if self._earlier and self._logged:  # as it is now that nobody else goes on with it
                self._earlier = earlier_run(self._earlier.run_id, self._logged, self._ledger)
        planned, earlier = self._evaluation, self._earlier
        logged = self._logged or self._run_of(planned.eval_set, planned.config, planned.agent)
        if self._ledger:
            logged.params["adk_eval.evaluation"] = self._scope
        logged.start(reopen=earlier.run_id if earlier and earlier.open else None)
        if self._ledger:
            run_id = logged.run.run_id
            self._ledger.begin(
                StartedRun(
                    run_id=run_id,
                    eval_set_digest=self._digest,
                    config_digest=planned.config.digest(),
                    agent_name=planned.agent.name,
                    agent_version=logged.run.model_id,
                    started_at=datetime.now(UTC),
                    lineage=self._scope,
                )
            )
            if earlier and earlier.run_id != run_id:
                with reaching_mlflow("the run could not be started", HASTY):
                    logged.client.set_tag(run_id, "adk_eval.resumed_from", earlier.run_id)
        return logged

    def _conversations(self, logged: LoggedRun) -> ConversationCache | None:
        """Return where the conversations of a live agent are kept, with those that an earlier run had."""
        if not self._ledger or self._evaluation.recording:
            return None
        return ConversationCache(self._ledger, logged.run.run_id, self._evaluation.agent.name, self._evaluation.config)

    def _abandon(self, logged: LoggedRun, error: BaseException) -> None:
        logged.abandon(error)
        if self._ledger:
            self._ledger.release(self._scope)
            run_id = logged.run.run_id
            _logger.warning(
                "what is finished is kept: the same command with --resume %s goes on from there (in Python: resume=%r)", run_id, run_id
            )

    def _parts(self) -> InParts | None:
        return self._evaluation.collector(StoreCleaner(secrets_of()), self._keep_in)

    def _engine(self, parts: InParts | None) -> Engine | None:
        return self._engine_of(self._evaluation, parts)

    def _finish(self, logged: LoggedRun, report: Report, parts: InParts | None) -> tuple[Report, Bundle]:
        if report.origin and not self._evaluation.recording:
            report = replace(report, origin=replace(report.origin, agent_version=logged.run.model_id))
        if self._ledger and (trouble := self._ledger.settle()):
            report = replace(report, notes=(*report.notes, trouble))
        if changed := self._changed_version():
            report = replace(report, notes=(*report.notes, changed))
            logged.target = replace(logged.target, status=AGENT_CHANGED if logged.target.status == "complete" else logged.target.status)
        finished = logged.finish(report, parts)
        if parts:
            parts.forget_kept()
        if self._ledger:
            self._ledger.finish(logged.run.run_id)
            self._ledger.release(self._scope)
        logged.check_attested()
        return finished

    def _changed_version(self) -> str:
        """Return a sentence if the agent behind an address is another version than it was before it was called."""
        before, now = self._source.said_version, _said_version(self._evaluation.agent)
        if now in ("", before):
            return ""
        return (
            f"the agent said that it is {f'version {before}' if before else 'no version'} before the evaluation and version {now} after it,"
            " so the evaluation is about neither"
        )


def _said_version(agent: Agent) -> str:
    """Return which version an agent behind an address says it is; empty where it does not say, or answer, and for other agents."""
    with suppress(AgentError):
        return wait(agent.version) if isinstance(agent, HttpAgent) else ""
    return ""


class LogReportArgs(LogArgs, total=False):
    """The keywords of `log_report`."""

    agent: Agent | None
    """The agent that was evaluated, whose source is then part of its version; ``None``: nothing is known of its source."""
    agent_version: str | None
    """As of `evaluate`."""
    run_id: str | None
    """An open run to log into, which keeps its name and stays open; ``None``: a run of its own."""


@keywords(LogReportArgs, LogArgs, defaults=(RunTarget,))
def log_report(report: Report, *, agent_name: str, **options: Unpack[LogReportArgs]) -> Report:
    """Log a report that was computed without MLflow, as `evaluate` logs its own, and return it with the id of its run.

    Args:
        report: what was found.
        agent_name: what the agent is called.

    Raises:
        UsageError: if the agent version does not exist, or is made of another source, or the run is not open or holds an evaluation already.
        TrackingError: if MLflow cannot be reached, or loses something.
    """
    parent = None if options.get("run_id") else users_run(options.get("tracking_uri"))
    target = RunTarget(**selected(options, RunTarget), parent=parent)
    agent, digest = options.get("agent"), eval_set_digest(report.eval_set)
    source = UNKNOWN if agent is None else source_of(agent)
    logged = LoggedRun(target, report.eval_set, report.config, agent_name=agent_name, digest=digest, source=source)
    logged.start()
    report = logged.finish(report)[0]
    logged.check_attested()
    return report
