"""What an earlier run holds: to go on with what was paid for, to judge again what the agent did, or as files that others read.

`earlier_run` finds the run to resume, in the ledger and in MLflow; `failed_cases` names what is to be run again; `recording_of_run` makes a
recording of a finished run, once its artifacts are those that its parameter vouches for. `export` writes the eval set and the result as ADK has
them, or rows of cases with what was recorded: a small run has the first two among its artifacts, a large one only its parts, from which they are
made here when they are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from mlflow_adk_eval.agents.recordings import Recording, case_digest, recorded_run, recording_of_set
from mlflow_adk_eval.errors import InputError, TrackingError, UsageError
from mlflow_adk_eval.evalset.conversation import Origin, dumps_result
from mlflow_adk_eval.evalset.conversion import write_cases
from mlflow_adk_eval.evalset.rows import CasesInMemory
from mlflow_adk_eval.evalset.world import WORLD_FILE, parse_world, world_digest
from mlflow_adk_eval.gating.named_runs import only_begun_with, run_id_of
from mlflow_adk_eval.gating.registry import store_at
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.results.outcomes import grouped
from mlflow_adk_eval.results.report import ByCase
from mlflow_adk_eval.runs.examined import readable
from mlflow_adk_eval.runs.manifest import FOLDER, Evidence
from mlflow_adk_eval.runs.stored_run import open_run
from mlflow_adk_eval.store.reaching import existing, reaching_mlflow
from mlflow_adk_eval.tracking.bundle import SELF_COMPARISON
from mlflow_adk_eval.tracking.logged_run import LoggedRun
from mlflow_adk_eval.writing import write_file

_KIND = "adk_eval.evidence"
What = Literal["eval-set", "result", "rows"]


def failed_cases(run_id: str, tracking_uri: str | None = None) -> tuple[str, ...]:
    """Return the ids of the cases that did not pass in a run, in its order.

    Args:
        run_id: the run.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run, it holds no evaluation, or every case passed.
        TrackingError: if MLflow cannot be reached, or the run's evidence cannot be believed.
    """
    evidence = _evidence(run_id, tracking_uri, "its passed cases are unknown")
    run = readable(evidence, lambda why: TrackingError(f"run {run_id}: {why}, so its verdicts cannot be trusted"), whole=False)
    eval_ids = tuple(dict.fromkeys(case.eval_id for case in run.report.cases if case.verdict != "passed"))
    if not eval_ids:
        raise UsageError(f"every case passed in run {run_id}, so there is nothing to run again")
    return eval_ids


def _evidence(run_id: str, tracking_uri: str | None, lacking: str) -> Evidence:
    """Return the evidence of a run that has ended; `lacking` says what it means that there is none."""
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id_of(run_id, store))
    if evidence.manifest is None:
        raise UsageError(f"run {evidence.run_id} contains no finished evaluation, so {lacking}")
    return evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """The run of an earlier evaluation of the same agent version on the same eval set."""

    run_id: str
    open: bool
    """Whether it can be gone on with: it holds no result yet, and was to be judged in the same way."""


def earlier_run(resume: str, logged: LoggedRun, ledger: CallCache | None) -> EarlierRun:
    """Return the run to resume.

    Args:
        resume: its id, or ``latest``.
        logged: the run of the evaluation that goes on with it, not yet started.
        ledger: what it has paid for.

    Raises:
        UsageError: if it does not exist or the ledger does not know it, or if it is about another eval set or another version
            of the agent: what was said and done there is no evidence here.
        TrackingError: if MLflow is unreachable.
    """
    if ledger is None:
        raise UsageError(f"resume {resume!r} needs a ledger, which stores earlier runs")
    if resume == "latest":
        like = (logged.digest, logged.agent.model_id)
        run_id = next((run.run_id for run in ledger.runs() if (run.eval_set_digest, run.agent_version) == like), "")
        if not run_id:
            raise UsageError(f"resume 'latest': the ledger {ledger.name} has no run of this eval set with this agent version")
    elif not (run_id := only_begun_with(resume, [run.run_id for run in ledger.runs()])):
        raise UsageError(f"resume {resume!r}: the ledger {ledger.name} does not have this run; use the ledger of the interrupted run")
    with reaching_mlflow("the run could not be started"), existing(f"resume {run_id!r}"):
        run = logged.client.get_run(run_id)
    params = run.data.params
    for name, what in {"adk_eval.eval_set_digest": "another eval set", "adk_eval.model_id": "another version of the agent"}.items():
        wanted = logged.params[name]
        if params.get(name) != wanted:
            why = f"it evaluated {what}: {name} is {params[name]}, now {wanted}" if name in params else f"it has no parameter {name}"
            raise UsageError(f"resume {run_id!r}: {why}")
    is_open = (
        "adk_eval.manifest_sha256" not in params  # nothing has been said in the run that could not be taken back
        and all(params.get(name, value) == value for name, value in logged.params.items())
        and run.info.lifecycle_stage == "active"
        and run.info.experiment_id == logged.experiment_id
    )
    return EarlierRun(run_id=run_id, open=is_open)


def recording_of_run(run_id: str, tracking_uri: str | None = None) -> Recording:
    """Return what the agent did in a run, if that is as it was when the evaluation ended.

    Args:
        run_id: the run.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run, or it holds no evaluation.
        TrackingError: if MLflow cannot be reached, or the run's artifacts are not those that its parameter vouches for.
    """
    evidence = _evidence(run_id, tracking_uri, "there is nothing to judge again")
    opened = open_run(evidence, f"run {run_id}, {FOLDER}")
    if isinstance(opened, list):
        raise TrackingError(f"run {run_id}: {opened[0]}, so its conversations cannot be trusted")
    run, manifest = opened
    try:
        played = (eval_id or "" for part in run.once() for eval_id, _ in part.run_ids)
        runs = ByCase(played, lambda places: tuple(map(run.conversation, places)))
        known = (eval_id or "" for part in run.once() for eval_id in part.case_ids)
        digests = ByCase(known, lambda places: case_digest(run.case(places[0])))
        content, source = evidence.artifacts.get(WORLD_FILE), f"run {run_id}, {FOLDER}/{WORLD_FILE}"
        world = parse_world(content, source) if content is not None else None
    except InputError as error:
        raise TrackingError(f"{error.source} cannot be read: {error.problems[0]}, so the conversations cannot be judged again") from None
    origin = Origin(
        agent=evidence.tags.get("adk_eval.agent_version", ""),
        agent_version=evidence.params.get("adk_eval.model_id", ""),
        recorded_at=datetime.fromtimestamp((evidence.start_time or 0) / 1000, tz=UTC).isoformat(timespec="seconds"),
        num_runs=max(map(runs.count, runs), default=1),
        eval_set_id=str(manifest.eval_set.get("eval_set_id", "")),
        eval_set_digest=evidence.params.get("adk_eval.eval_set_digest", ""),
        case_digests=digests,
    )
    return Recording(runs, world=world, origin=origin)


def world_of_run(run_id: str, tracking_uri: str | None = None) -> Recording:
    """Return what tools and models answered in a run: all calls if they were recorded, else those that its conversations show.

    Args:
        run_id: the run.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run, or it holds no evaluation.
        TrackingError: if MLflow cannot be reached, or the calls are not those that the run's parameter vouches for.
    """
    recording = recording_of_run(run_id, tracking_uri)
    if (world := recording.world) is None:
        return recording
    try:
        held = recording_of_run(world.run_id, tracking_uri).world if world.run_id else world
    except (UsageError, TrackingError) as error:
        raise TrackingError(f"run {run_id} met the world that run {world.run_id} holds, but that cannot be read: {error}") from None
    if held is None or held.recorded is None or world_digest(held.recorded) != world.digest:
        raise TrackingError(f"run {world.run_id or run_id} does not hold the calls with the digest {world.digest} that run {run_id} met")
    return replace(recording, runs=recording_of_set(held.recorded).runs)


def export(run_id: str, what: What, path: str | Path, *, tracking_uri: str | None = None) -> int:
    """Write what a run holds into a file, and return how many case runs, or cases of an eval set, that are.

    Args:
        run_id: the run.
        what: ``eval-set``: the cases; ``result``: ADK's result file; ``rows``: JSON Lines or Parquet of the cases with what the agent did.
        path: the file. Its ending says in which form an eval set or rows are written. It is overwritten if it exists.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if there is no such run, it holds no evaluation, or the file cannot be written.
        TrackingError: if MLflow cannot be reached, or the run's evidence cannot be believed.
    """
    evidence = _evidence(run_id, tracking_uri, "there is nothing to export")
    if evidence.params.get(_KIND) == SELF_COMPARISON:  # no evidence for the gate, but all of its cases are there
        params = {name: value for name, value in evidence.params.items() if name != _KIND}
        evidence = replace(evidence, tags={**evidence.tags, "adk_eval.status": "complete"}, params=params)
    run = readable(evidence, lambda why: TrackingError(f"run {run_id} cannot be exported: {why}"))
    report = replace(run.report, cases=run.report.cases.in_memory())
    agent, started = evidence.tags.get("adk_eval.agent_version", "") or "agent", (evidence.start_time or 0) / 1000
    if what == "eval-set":
        return write_cases(CasesInMemory(report.eval_set), path)
    if what == "rows":
        recorded = grouped((case.eval_id, recorded_run(case.conversation)) for case in report.cases)
        return write_cases(CasesInMemory(report.eval_set, recorded), path)
    write_file(path, dumps_result(result_of(report, app_name=agent, created=started)))
    return len(report.cases)
