"""Evaluating an agent: inputs, then an evaluation that is planned once, then its run in MLflow.

The data flows one way. What the user names becomes an eval set, a config and an agent (`inputs_of`); with these, `LoggedEvaluation` makes the
plan, the judges and the set-up of conversations, all before the agent is called. Then it opens the run, has the conversations, judges them
into a report, and logs the report as a bundle. What was paid for is in the ledger meanwhile, so that a killed run can be resumed.

`make_reevaluator` evaluates a champion again, on the cases and by the criteria of a candidate that it could not be compared with.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack, cast
from uuid import uuid4

import anyio.to_thread
from mlflow.entities import Dataset, Experiment

from mlflow_adk_eval.agents.http.http_agent import HttpAgent
from mlflow_adk_eval.agents.protocol import Agent, Limits
from mlflow_adk_eval.agents.recordings import ConversationCache, Recording, load_recording, recording_beside
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.agents.source import UNKNOWN, source_of
from mlflow_adk_eval.agents.traces.spans import is_traces
from mlflow_adk_eval.config.eval_config import EvalConfig, endpoints_in, judged_criteria, load_config
from mlflow_adk_eval.config.inputs import ConfigSource, EvalSetSource, load_inputs
from mlflow_adk_eval.errors import AgentError, UsageError, shown
from mlflow_adk_eval.evalset.files import DatasetInput, Inputs, open_inputs, select
from mlflow_adk_eval.evalset.models import EvalCase, EvalSet, canonical, eval_set_digest
from mlflow_adk_eval.gating.named_runs import run_id_at
from mlflow_adk_eval.gating.policy.model import Holdout, Policy
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.gating.rules.comparable import Reevaluate, ReevaluationRequest
from mlflow_adk_eval.gating.rules.subset import held_out
from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup
from mlflow_adk_eval.ledger import CallCache, StartedRun, opened
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.report import Cases, Report
from mlflow_adk_eval.runner.batches import engine_of
from mlflow_adk_eval.runner.evaluation import CaseExecutor, Engine, Evaluation, Options, wait
from mlflow_adk_eval.runner.keywords import AgentArgs, EvaluateArgs, LogArgs, keywords, selected
from mlflow_adk_eval.runs.anchors import ANCHORS
from mlflow_adk_eval.runs.collect import InParts
from mlflow_adk_eval.runs.examined import ReadableRun, examine
from mlflow_adk_eval.runs.manifest import state_problems
from mlflow_adk_eval.runtime import note, span
from mlflow_adk_eval.store.reaching import HASTY, existing, reaching_mlflow
from mlflow_adk_eval.text import few
from mlflow_adk_eval.tracking.agent_versions import short_label
from mlflow_adk_eval.tracking.anchoring import judge_again
from mlflow_adk_eval.tracking.bundle import AGENT_CHANGED, Bundle, dataset_of
from mlflow_adk_eval.tracking.client import connect, run_named
from mlflow_adk_eval.tracking.earlier_runs import EarlierRun, earlier_run, failed_cases, recording_of_run, world_of_run
from mlflow_adk_eval.tracking.logged_run import LoggedRun, RunTarget, users_run
from mlflow_adk_eval.tracking.storable import StoreCleaner
from mlflow_adk_eval.tracking.until_decided import Rounds

if TYPE_CHECKING:
    from mlflow.data.dataset import Dataset as MlflowDataset
    from mlflow.genai.datasets import EvaluationDataset

    from mlflow_adk_eval.gating.rules.holdout import HoldoutEvaluator, HoldoutRequest

    CasesSource: TypeAlias = EvalSetSource | MlflowDataset | EvaluationDataset

_logger = logging.getLogger(__name__)


@keywords(EvaluateArgs, Options, RunTarget, judge_setup, Rounds)
def evaluate(
    eval_set: CasesSource, agent: Any = None, config: ConfigSource = None, agent_version: str | None = None, **options: Unpack[EvaluateArgs]
) -> Report:
    """Run an agent on an eval set, score its conversations and log everything as an MLflow run.

    Wrong arguments and an unreachable MLflow are reported before the agent is called.

    Args:
        eval_set: an eval set, its path, a selection ``path:eval_1,eval_2``, a folder of ``*.test.json`` files, several paths, or a
            dataset of MLflow; or a file, folder or URI of JSON Lines or Parquet, which is read as a stream.
        agent: a module with a ``root_agent``, an ADK agent, a callable, or a recording: its file, or ``runs:/<id>`` for an earlier
            run's conversations, which then count for the same agent version; ``None``: the conversations in the rows of JSON Lines
            or Parquet.
        config: the criteria; ``None``: ``test_config.json`` in the eval set's folder, else ADK's defaults.
        agent_version: ``models:/<name>/<version>``, ``models:/<name>@<alias>`` or the id of a LoggedModel, with the same source
            as the agent; ``None``: derived from the agent's source.
        failed: the id of an earlier run, also as ``runs:/<id>``: run only the cases that did not pass there; the new run is not
            evidence for the whole eval set; ``None``: all cases.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        concurrency: the number of conversations to run in parallel.
        case_timeout_s: the time limit for one case, in seconds; ``None``: no limit.
        turn_timeout_s: the time limit for one answer of the agent, in seconds; ``None``: no limit.
        user_simulator: plays the user in conversation scenarios: a model's name, a judge object, or a function of the scenario
            and the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the
            config names.
        agent_name: the sub-agent to evaluate instead of the root agent.
        progress: called with the numbers of finished and of all case runs.
        experiment: the MLflow experiment, by name or id; ``None``: the active one.
        run_name: the name of the MLflow run; ``None``: the agent and the time.
        traces: the most traces to log: of all turns or, if there are more, only of turns that did not pass; ``failed``: only of
            those, at most 2,000; ``True``: of all turns; ``False``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        pending_folder: where to save the evaluation if MLflow cannot store it; ``None``: ``adk_eval_pending``.
        register_prompts: whether to save the judges' prompts in MLflow's prompt registry; the run then links their versions.
        signing_key: signs the evaluation at the end: a PEM file with an ed25519 or ECDSA P-256 key, or its
            content; ``sigstore`` for the OIDC identity of this CI job, ``sigstore:FILE`` for the same with the services of a
            Sigstore ClientTrustConfig (extra `sigstore`); ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``, else no signature.
        num_runs: the number of times to run each conversation.
        workers: the number of scoring processes. More than one needs a recording and no judged criteria.
        resume: an earlier run of the same agent version on the same eval set, or ``latest``: its conversations and judges' answers
            are reused. If that run has no result yet, it is continued; otherwise there is a new run.
        baseline: the baseline of pairwise criteria: a recording of another agent, its file, or ``runs:/<id>`` for a run's
            conversations.
        replay: what answers the agent's tool calls instead of its tools: a run, a recording, traces of MLflow or a ``world.json``;
            a call that was never recorded is an error. ``None``: the tools.
        record: whether to record what tools and models answer; with `replay`, tools answer calls that were never recorded.
        replay_models: whether `replay` also answers the agent's requests to its models, where it has the same request.
        policy: the policy that will decide on the run, as for `gate`: the cases that it holds out are not run; ``None``: all cases are.
        until_decided: whether to run only as many cases as decide `policy`.
        max_runs: with `until_decided`: the most runs of each case, if all cases do not decide it.
        max_conversations: with `until_decided`: the most conversations; ``None``: no limit.
        model: with `until_decided`: the registered model of the policy's baseline, if the policy names only an alias or a version.
        on_round: with `until_decided`: called after each round with what is open.

    Returns:
        The report, with the id of its run.

    Raises:
        UsageError: for invalid arguments; its subclass `InputError` lists every problem of a file.
        AgentError: if the agent cannot be loaded.
        JudgeError: if a judge cannot be set up.
        TrackingError: if MLflow is unreachable. If the agent has been called by then, the message names the folder that
            holds everything, and the command that finishes the job.
    """
    with _prepared(eval_set, agent, config, agent_version, options) as evaluation:
        return evaluation.execute()[0]


@keywords(EvaluateArgs, Options, RunTarget, judge_setup, Rounds)
async def aevaluate(
    eval_set: CasesSource, agent: Any = None, config: ConfigSource = None, agent_version: str | None = None, **options: Unpack[EvaluateArgs]
) -> Report:
    """The asynchronous `evaluate`. It writes to MLflow outside the event loop.

    Args:
        eval_set: as for `evaluate`.
        agent: as for `evaluate`.
        config: as for `evaluate`.
        agent_version: as for `evaluate`.
        options: all other keywords of `evaluate`.
    """
    with _prepared(eval_set, agent, config, agent_version, options) as evaluation:
        return (await evaluation.aexecute())[0]


@contextmanager
def _prepared(
    eval_set: CasesSource, agent: Any, config: ConfigSource, agent_version: str | None, options: EvaluateArgs
) -> Generator[LoggedEvaluation]:
    """Provide the evaluation that arguments ask for, with its ledger open."""
    uri = options.get("tracking_uri")
    # 1. How it is done, and as what it is logged.
    judges, baseline, compared = judge_setup(**selected(options, JudgeArgs)), options.get("baseline"), None
    if (earlier := run_named(baseline, uri)) is not None:
        compared = replace(recording_of_run(earlier, uri), name=f"runs:/{earlier}")
    elif baseline is not None:
        compared = load_recording(baseline)
        compared = replace(compared, name=str(baseline)) if isinstance(baseline, str | Path) else compared
    replay = None if (given := options.get("replay")) is None else replay_source(given, uri)
    how = replace(Options(**selected({**options, "replay": replay}, Options)), judges=judges, baseline=compared)
    target = RunTarget(**selected(options, RunTarget), agent_version=agent_version, parent=users_run(uri))
    # 2. The cases and the criteria; perhaps only those cases that did not pass in an earlier run.
    inputs = open_inputs(eval_set)
    loaded, chosen, dataset = inputs_of(inputs, config, tracking_uri=uri)
    if agent is None and (agent := recording_beside(loaded, inputs)) is None:
        wanted = "a module with a root_agent, an ADK agent, a callable, the address of an agent, a recording or traces of MLflow"
        raise UsageError(f"agent: wanted {wanted}")
    policy: Policy | None = None
    if (given := options.get("policy")) is not None:
        from mlflow_adk_eval.gating.policy.load import load_policy  # noqa: PLC0415 - loads what calibrations need

        policy = load_policy(given)
    if policy and policy.holdout:
        loaded, chosen = without_held_out(loaded, chosen, policy.holdout)
    if (failed := options.get("failed")) is not None:
        before = run_id_at(failed, uri)
        target, eval_ids = replace(target, failed_of=before), failed_cases(before, uri)
        loaded, chosen = select(loaded, eval_ids), chosen.without(set(loaded.eval_ids).difference(eval_ids))
    # 3. The agent, or what it did in an earlier run, which is then about the same version.
    if (earlier := run_named(agent, uri)) is not None:
        agent = recording_of_run(earlier, uri)
        target = replace(target, agent_version=agent_version or agent.origin.agent_version)
    limits = Limits(case_s=options.get("case_timeout_s"), turn_s=options.get("turn_timeout_s"))
    resolved = resolve_agent(agent, agent_name=options.get("agent_name"), limits=limits, eval_set=loaded)
    if (how.replay or how.record) and isinstance(resolved, HttpAgent):
        raise UsageError("replay: the tools of an agent behind HTTP run in its own process; wanted the agent's module, or the agent itself")
    # 4. What was paid for before, and the plan.
    asked = selected({**options, "policy": policy}, Rounds)
    rounds = Rounds(**asked) if asked.keys() - {"policy", "tracking_uri"} else None
    if rounds and rounds.until_decided:
        if failed is not None or how.num_runs != 1 or isinstance(resolved, Recording):
            raise UsageError("until_decided: wanted a live agent, all cases (no failed=) and max_runs= instead of num_runs=")
        loaded = loaded.model_copy(update={"eval_cases": tuple(loaded.eval_cases)})
    with opened(judges.ledger, needed=not isinstance(resolved, Recording) or bool(judged_criteria(chosen))) as ledger:
        evaluation = LoggedEvaluation(loaded, resolved, chosen, how, replace(target, dataset=dataset), ledger, options.get("resume"))
        evaluation.rounds = rounds if rounds and rounds.until_decided else None
        yield evaluation


def replay_source(given: Any, uri: str | None) -> Recording:
    """Return what is to answer an agent's calls: what a run, a recording, traces or a world hold of them."""
    if isinstance(given, str) and re.fullmatch(r"[0-9a-f]{32}", given) and not Path(given).exists():
        given = f"runs:/{given}"
    if (earlier := run_named(given, uri)) is not None:
        return world_of_run(earlier, uri)
    found = resolve_agent(given) if is_traces(given) else load_recording(given)
    if not isinstance(found, Recording):
        raise UsageError(f"replay={shown(given)}: wanted a run, a recording, traces of MLflow or a world.json")
    return found


def without_held_out(eval_set: EvalSet, config: EvalConfig, holdout: Holdout | None) -> tuple[EvalSet, EvalConfig]:
    """Return an eval set and its config without the cases that a policy holds out.

    Raises:
        UsageError: if no case is left.
    """
    if not (held := held_out(eval_set, holdout)):
        return eval_set, config
    if not (rest := [eval_id for eval_id in eval_set.eval_ids if eval_id not in held]):
        raise UsageError(f"the policy holds out every case of the eval set {eval_set.eval_set_id!r}")
    return select(eval_set, rest), config.without(held)


def inputs_of(
    eval_set: CasesSource | Inputs, config: ConfigSource, *, tracking_uri: str | None = None
) -> tuple[EvalSet, EvalConfig, Dataset | None]:
    """Return the eval set, the config to evaluate it with, and what MLflow knows the set as, if it is a dataset of MLflow."""
    inputs = open_inputs(eval_set)
    if not isinstance(inputs, DatasetInput):
        return *load_inputs(inputs, config, as_needed=True), None
    from mlflow_adk_eval.tracking.eval_set_datasets import contents_of  # noqa: PLC0415 - loads what most evaluations do not need

    contents, origin = contents_of(inputs, tracking_uri=tracking_uri)
    named = None if inputs.stored or config is not None else inputs.dataset.named  # its file may have a config beside it
    loaded, chosen = load_inputs(contents, load_inputs(named)[1] if named else config)
    return loaded, chosen, dataset_of(loaded, origin=origin)


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
        engine: Callable[[Evaluation, InParts], Engine] | None = None,
    ) -> None:
        """Plan the evaluation; `engine` returns what executes its cases, ``None``: as many processes as the options say. If it is to resume a run, that is looked up in MLflow first, since it says which answers count.

        Raises:
            UsageError: if there is no such run to resume, or it is about something else.
            ConfigError: if a criterion cannot be applied.
            JudgeError: if a judge, or the model that is to play the user, cannot be had.
            TrackingError: if a run is to be resumed, and MLflow cannot be reached.
        """
        self._digest = "" if resume is None else eval_set_digest(eval_set)
        self._source = source_of(agent, _said_version(agent))
        self._new_run = partial(LoggedRun, target, eval_set, config, agent_name=agent.name, source=self._source)
        self._logged: LoggedRun
        """Once it is started, or an earlier run was looked up."""
        self._earlier: EarlierRun | None = None
        if resume:
            self._logged = self._new_run(digest=self._digest)
            self._earlier = earlier_run(resume, self._logged, ledger)
        self._scope = ledger.scope(self._earlier.run_id) if ledger and self._earlier else options.judges.scope or uuid4().hex
        judges = replace(options.judges, answers=ledger, scope=self._scope if ledger else None)
        self._evaluation = planned = Evaluation(eval_set, config, CaseExecutor(agent, replace(options, judges=judges)))
        self._digest = self._digest or eval_set_digest(eval_set)  # which a source that was gone through knows
        self._keep_in = ledger.parts if ledger else None
        can_go_on = planned.plan.judged or self._earlier or not planned.recording or planned.is_kept
        self._ledger = ledger if can_go_on else None
        self._engine_of = engine or (engine_of if options.workers > 1 else None)
        self.rounds: Rounds | None = None
        """How it goes on until it is decided; ``None``: it has all cases."""
        self._facts = {"adk_eval.agent": agent.name, "adk_eval.eval_set": eval_set.eval_set_id}

    def execute(self) -> tuple[Report, Bundle]:
        """Evaluate and log; return the report, with the id of its run, and what was logged."""
        with span("evaluate", self._facts):
            self._start()
            try:
                report = wait(self._report)
            except BaseException as error:
                self._abandon(error)
                raise
            return self._finish(report)

    async def aexecute(self) -> tuple[Report, Bundle]:
        """Do what `execute` does; MLflow is written to outside the event loop."""
        with span("evaluate", self._facts):
            await anyio.to_thread.run_sync(self._start)
            try:
                report = await self._report()
            except BaseException as error:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._abandon, error)
                raise
            return await anyio.to_thread.run_sync(self._finish, report)

    def _start(self) -> None:
        """Open the run, or go on with the earlier one, and let the ledger know."""
        planned, ledger = self._evaluation, self._ledger
        if ledger:
            ledger.hold(self._scope)
            if self._earlier:  # as it is now that nobody else goes on with it
                self._earlier = earlier_run(self._earlier.run_id, self._logged, ledger)
        earlier = self._earlier
        self._logged = logged = self._logged if earlier else self._new_run(digest=self._digest)
        if ledger or planned.plan.judged:
            logged.params["adk_eval.evaluation"] = planned.executor.judges.evaluation
        logged.start(reopen=earlier.run_id if earlier and earlier.open else None)
        run_id = logged.run.run_id
        note({"adk_eval.run_id": run_id})
        if ledger:
            ledger.begin(
                StartedRun(
                    run_id=run_id,
                    eval_set_digest=self._digest,
                    config_digest=planned.config.digest(),
                    agent_name=planned.executor.agent.name,
                    agent_version=logged.run.model_id,
                    started_at=datetime.now(UTC),
                    lineage=self._scope,
                )
            )
            if earlier and earlier.run_id != run_id:
                with reaching_mlflow("the run could not be started", HASTY):
                    logged.client.log_param(run_id, "adk_eval.resumed_from", earlier.run_id)
        self._parts = planned.collector(StoreCleaner(secrets_of()), self._keep_in)

    async def _report(self) -> Report:
        """Have the conversations, and judge them. Those of a live agent are kept, and those that an earlier run had are not had again."""
        planned, store = self._evaluation, None
        if self._ledger and not planned.recording:
            world = planned.replay.key if planned.replay else ""
            store = ConversationCache(self._ledger, self._logged.run.run_id, planned.executor.agent.name, planned.config, world)
        engine = self._engine_of(planned, self._parts) if self._engine_of and self._parts else None
        started = time.monotonic()

        async def anchor(cases: Cases) -> None:
            if self._parts:
                anchors = await judge_again(planned, self._logged, cases, started)
                (self._parts.folder / ANCHORS).write_bytes(anchors.dumps())

        anchored = anchor if planned.plan.judged and planned.config.anchor_share else None
        if self.rounds and self._parts:
            return await self.rounds.evaluate(planned, self._parts, store, anchored)
        return await planned.execute(store, self._parts, engine, anchored)

    def _abandon(self, error: BaseException) -> None:
        self._logged.abandon(error)
        if self._ledger:
            self._ledger.release(self._scope)
            run_id = self._logged.run.run_id
            _logger.warning("finished work is saved: resume with the same command and --resume %s (in Python: resume=%r)", run_id, run_id)

    def _finish(self, report: Report) -> tuple[Report, Bundle]:
        """Log the report with what there is to note, and let the ledger know."""
        note({"adk_eval.verdict": report.verdict})
        planned, logged, ledger = self._evaluation, self._logged, self._ledger
        if report.origin and not planned.recording:
            report = replace(report, origin=replace(report.origin, agent_version=logged.run.model_id))
        told = [ledger.settle()] if ledger else []
        before, now = self._source.said_version, _said_version(planned.executor.agent)
        if now not in ("", before):
            versions = f"{f'version {before}' if before else 'no version'} before the evaluation and version {now} after it"
            told.append(f"the agent reported {versions}, so the evaluation counts for neither")
            logged.target = replace(logged.target, status=AGENT_CHANGED if logged.target.status == "complete" else logged.target.status)
        finished = logged.finish(replace(report, notes=(*report.notes, *filter(None, told))), self._parts)
        if self._parts and self._parts.kept:
            self._parts.kept.forget()
        if ledger:
            ledger.finish(logged.run.run_id)
            ledger.release(self._scope)
        logged.check_attested()
        return finished


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
    """As for `evaluate`."""
    run_id: str | None
    """An open run to log into, which keeps its name and stays open; ``None``: a run of its own."""


@keywords(LogReportArgs, RunTarget)
def log_report(report: Report, *, agent_name: str, **options: Unpack[LogReportArgs]) -> Report:
    """Log a report that was computed without MLflow, as `evaluate` logs its own, and return it with the id of its run.

    Args:
        report: what was found.
        agent_name: what the agent is called.
        experiment: the MLflow experiment, by name or id; ``None``: the active one.
        run_name: the name of the MLflow run; ``None``: the agent and the time.
        traces: the most traces to log: of all turns or, if there are more, only of turns that did not pass; ``failed``: only of
            those, at most 2,000; ``True``: of all turns; ``False``: none.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        pending_folder: where to save the evaluation if MLflow cannot store it; ``None``: ``adk_eval_pending``.
        register_prompts: whether to save the judges' prompts in MLflow's prompt registry; the run then links their versions.
        signing_key: signs the evaluation at the end: a PEM file with an ed25519 or ECDSA P-256 key, or its
            content; ``sigstore`` for the OIDC identity of this CI job, ``sigstore:FILE`` for the same with the services of a
            Sigstore ClientTrustConfig (extra `sigstore`); ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``, else no signature.
        agent: the agent that was evaluated, whose source is then part of its version; ``None``: nothing is known of its source.
        agent_version: as for `evaluate`.
        run_id: an open run to log into, which keeps its name and stays open; ``None``: a run of its own.

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


class ReevaluationArgs(JudgeArgs, AgentArgs, total=False):
    """The keywords of `make_reevaluator`."""

    tracking_uri: str | None
    """The MLflow server or store; ``None``: MLflow's own setting."""
    signing_key: str | Path | None
    """Signs the new evaluation, as for `evaluate`; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``."""


@keywords(ReevaluationArgs, Options, judge_setup)
def make_reevaluator(
    agent: Any = None, *, eval_set: EvalSetSource | None = None, config: ConfigSource = None, **options: Unpack[ReevaluationArgs]
) -> Reevaluate:
    """Return a function for `reevaluate` of `gate` and `promote`: it evaluates the champion on the candidate's cases and config.

    The new run belongs to the champion's LoggedModel, in the candidate's experiment. You supply the eval set and config. They come from
    the candidate's run only if the policy pins their digests: a run must not choose how it is judged.

    Args:
        agent: the champion's agent, as for `evaluate`; ``None``: judge the conversations of its earlier run again, which works if
            the cases have the same user messages.
        eval_set: the candidate's eval set, as for `evaluate`; ``None``: the pinned one.
        config: the candidate's config; ``None``: with `eval_set`, ``test_config.json`` in its folder, else ADK's defaults; without, the pinned one.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        concurrency: the number of conversations to run in parallel.
        case_timeout_s: the time limit for one case, in seconds; ``None``: no limit.
        turn_timeout_s: the time limit for one answer of the agent, in seconds; ``None``: no limit.
        user_simulator: plays the user in conversation scenarios: a model's name, a judge object, or a function of the scenario
            and the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the
            config names.
        agent_name: the sub-agent to evaluate instead of the root agent.
        progress: called with the numbers of finished and of all case runs.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        signing_key: signs the new evaluation, as for `evaluate`; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``.

    Raises:
        InputError: with every problem of a file.
    """
    given_set, given_config = None, None if config is None else load_config(config)
    if eval_set is not None:
        given_set, given_config = load_inputs(eval_set, config)

    def reevaluate(request: ReevaluationRequest) -> str:
        """Evaluate again and return the id of the run."""
        mine, config, candidate = given_set, given_config, request.candidate
        if mine is not None and config is not None:
            mine, config = without_held_out(mine, config, request.policy.holdout)
        _check_inputs(request, mine, config)
        uri = options.get("tracking_uri")
        source, num_runs = (agent, candidate.report.num_runs) if agent is not None else _recorded(request, uri)
        run_id = candidate.evidence.run_id or request.run_id
        experiment = _experiment_of(run_id, uri).name if run_id else None
        how: dict[str, Any] = {**options}
        if (world := candidate.report.world) and agent is not None:
            how |= {"replay": f"runs:/{candidate.evidence.run_id}", "replay_models": world.models}
        report = evaluate(
            mine or candidate.eval_set,
            agent=source,
            config=config or candidate.report.config,
            agent_version=request.model_id,
            num_runs=num_runs,
            experiment=experiment,
            run_name=f"{short_label(request.agent_version)} evaluated again",
            **how,
        )
        return report.run_id or ""

    return reevaluate


@keywords(ReevaluationArgs, Options, judge_setup)
def make_holdout_evaluator(
    agent: Any, *, eval_set: EvalSetSource, config: ConfigSource = None, **options: Unpack[ReevaluationArgs]
) -> HoldoutEvaluator:
    """Return what `holdout` of `promote` takes: it evaluates the candidate's agent on the cases that the policy holds out.

    The new run belongs to the candidate's LoggedModel, whose source the agent must have. It is in the experiment of the candidate's run with
    `` holdout`` after its name, so that you can decide who may look into it.

    Args:
        agent: the candidate's agent, as for `evaluate`. A module is imported by the process that promotes; give an address to avoid that.
        eval_set: the eval set with the held-out cases, as for `evaluate`.
        config: the config, which must be that of the candidate's run; ``None``: ``test_config.json`` in the folder of the eval set, else
            ADK's defaults.
        judge: the judge, instead of the config's models: a model's name, a judge object or a callable; a list is a panel that
            votes together.
        judge_hosts: hosts, with or without a port, that the config may use as the endpoint of a judge or simulated user,
            in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``.
        judge_options: parallelism, time limits and retries of requests to judges.
        budget: the limit for judges and simulated users: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and
            ``name``.
        ledger: stores judges' answers: a file or a ``postgresql://`` URL; ``None``: ``MLFLOW_ADK_EVAL_LEDGER``, else
            ``.adk_eval/ledger.sqlite``; ``False``: none.
        rejudge_failed: whether to ask again if a stored answer of a judge cannot be parsed.
        concurrency: the number of conversations to run in parallel.
        case_timeout_s: the time limit for one case, in seconds; ``None``: no limit.
        turn_timeout_s: the time limit for one answer of the agent, in seconds; ``None``: no limit.
        user_simulator: plays the user in conversation scenarios: a model's name, a judge object, or a function of the scenario
            and the turns so far that returns the next message, or ``None`` to end the conversation; ``None``: the model that the
            config names.
        agent_name: the sub-agent to evaluate instead of the root agent.
        progress: called with the numbers of finished and of all case runs.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.
        signing_key: signs the new evaluation, as for `evaluate`; ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``.

    Raises:
        InputError: with every problem of a file.
    """
    whole, given = load_inputs(eval_set, config)

    def score(request: HoldoutRequest) -> str:
        """Evaluate the held-out cases and return the id of the run."""
        ids = held_out(whole, request.holdout)
        if not ids:
            raise UsageError(f"the policy holds out no case of the eval set {whole.eval_set_id!r}: give the one with these cases")
        held, chosen = select(whole, ids), given.without(set(whole.eval_ids) - ids)
        mine, theirs = (given, whole), (request.candidate.report.config, request.candidate.eval_set)
        digests = [one.without(cases.eval_ids).digest() for one, cases in (mine, theirs)]  # apart from what they say of single cases
        if digests[0] != digests[1]:
            raise UsageError(f"the digest of your config is {digests[0]}, but the candidate's run has {digests[1]}; give that config")
        experiment = _experiment_of(request.candidate.evidence.run_id, options.get("tracking_uri")).name
        num_runs = request.candidate.report.num_runs
        logged_as: EvaluateArgs = {"num_runs": num_runs, "experiment": f"{experiment} holdout", "run_name": "holdout"}
        with _prepared(held, agent, chosen, request.model_id, cast("EvaluateArgs", options | logged_as)) as evaluation:
            request.begin(eval_set_digest(held))
            return evaluation.execute()[0].run_id or ""

    return score


def _experiment_of(run_id: str, tracking_uri: str | None) -> Experiment:
    client = connect(tracking_uri)
    with reaching_mlflow("the run's experiment could not be looked up"), existing(f"run {run_id!r}"):
        return client.get_experiment(client.get_run(run_id).info.experiment_id)


def _check_inputs(request: ReevaluationRequest, eval_set: EvalSet | None, config: EvalConfig | None) -> None:
    """Refuse an eval set or a config on the word of the candidate's run alone.

    Raises:
        UsageError: if one is neither given nor pinned, is given and another than the run's, or says where requests go and is not given.
    """
    theirs, of_run, policy = request.candidate.report.config, eval_set_digest(request.candidate.eval_set), request.policy
    for what, option, given, pin, run in (
        ("eval set", "--eval-set FILE", eval_set and eval_set_digest(eval_set), policy.eval_set, of_run),
        ("config", "--config-file-path FILE", config and config.digest(), policy.config, theirs.digest()),
    ):
        if given is None and not (pin and pin.digest):
            name = what.replace(" ", "_")
            give = f"give it with {option} or make_reevaluator({name}=...), or pin it in the policy: {name}: {{digest: {run}}}"
            raise UsageError(f"the {what} is known only from the candidate's run; {give}")
        if given not in (None, run):
            give = f"give the {what} of the candidate's run, or evaluate the candidate again"
            raise UsageError(f"the digest of your {what} is {given}, but the candidate's run has {run}; {give}")
    if config is None and (endpoints := endpoints_in(theirs)):
        path, host = endpoints[0]
        give = "only your own config may do that: give it with --config-file-path FILE or make_reevaluator(config=...)"
        at = f"{path}{f' ({host})' if host else ''}"
        raise UsageError(f"the config of the candidate's run sets at {at} where or how to send requests; {give}")


def _recorded(request: ReevaluationRequest, tracking_uri: str | None) -> tuple[Recording, int]:
    """Return what the champion did in its earlier run, and how often it had each conversation.

    Raises:
        UsageError: if that says nothing about the candidate's cases.
    """
    run_id, instead = request.run_id, "name its agent to run it instead"
    if not run_id:
        raise UsageError(f"{request.agent_version} has no run to judge again; {instead}")
    with store_at(tracking_uri) as store:
        run = examine(store.evidence(run_id))
    if not isinstance(run, ReadableRun):
        state = state_problems(run.evidence)  # which does not matter: what it did then may be whole all the same
        why = next(problem for problem in run.problems if problem not in state)
        raise UsageError(f"its conversations in run {run_id} cannot be judged again: {why}; {instead}")
    if missing := few(_unplayed(request.candidate, run.report), limit=4):
        raise UsageError(f"its conversations in run {run_id} are not enough: {'; '.join(missing)}; {instead}")
    return recording_of_run(run_id, tracking_uri), min(request.candidate.report.num_runs, run.report.num_runs)


def _unplayed(candidate: ReadableRun, then: Report) -> Iterator[str]:
    """Yield the cases in which the champion was not asked what the candidate was."""
    known = {case.eval_id: case for case in then.eval_set.eval_cases}
    now, worlds = candidate.report.config, [world and world.digest for world in (candidate.report.world, then.world)]
    if worlds[0] != worlds[1]:
        yield "it met another recorded world than the candidate, or none"
    for case in candidate.eval_set.eval_cases:
        before = known.get(case.eval_id)
        if before is None:
            yield f"it never ran case {case.eval_id!r}"
        elif _asked(before) != _asked(case):
            yield f"case {case.eval_id!r} has different user messages now"
        elif then.config.environment_of(case.eval_id) != now.environment_of(case.eval_id):
            yield f"case {case.eval_id!r} has a different tool environment now"
        elif case.conversation is None and then.config.user_simulator_config != now.user_simulator_config:
            yield f"case {case.eval_id!r} has a different simulated user now"


def _asked(case: EvalCase) -> list[Any]:
    """Return all of a case that reaches the agent."""
    messages = [canonical(turn.user_content) for turn in case.conversation or ()]
    rest = (case.session_input, case.conversation_scenario)
    return [messages, *(None if part is None else canonical(part) for part in rest)]
