"""Earlier runs that an evaluation starts from: to go on with what was paid for, or to judge again what the agent did.

`earlier_run` finds the run to resume, in the ledger and in MLflow; `recording_of_run` makes a recording of a finished run, once its artifacts
are those that its parameter vouches for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Recording, load_recording
from mlflow_adk_eval.agents.recordings import on
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.result import parse_result
from mlflow_adk_eval.gating.evidence.integrity import EVAL_SET, FOLDER, Evidence, integrity_problems
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.ledger import CallCache
from mlflow_adk_eval.tracking.client import existing, reaching_mlflow
from mlflow_adk_eval.tracking.logged_run import LoggedRun

_EVIDENCE = "adk_eval.manifest_sha256"


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
        TrackingError: if MLflow cannot be reached.
    """
    run_id = _known(resume, logged, ledger)
    with reaching_mlflow("the run could not be started"), existing(f"resume {run_id!r}"):
        run = logged.client.get_run(run_id)
    params = run.data.params
    for name, what in {"adk_eval.eval_set_digest": "another eval set", "adk_eval.model_id": "another version of the agent"}.items():
        wanted = logged.params[name]
        if params.get(name) != wanted:
            found = f"it was about {what}: {name} is {params[name]}, now {wanted}" if name in params else f"it has no parameter {name}"
            raise UsageError(f"resume {run_id!r}: {found}")
    is_open = (
        _EVIDENCE not in params  # nothing has been said in the run that could not be taken back
        and all(params.get(name, value) == value for name, value in logged.params.items())
        and run.info.lifecycle_stage == "active"
        and run.info.experiment_id == logged.experiment_id
    )
    return EarlierRun(run_id=run_id, open=is_open)


def _known(resume: str, logged: LoggedRun, ledger: CallCache | None) -> str:
    """Return the id of the run, if the ledger knows it."""
    if ledger is None:
        raise UsageError(f"resume {resume!r}: without a ledger nothing is known of earlier runs")
    runs = ledger.runs()
    if resume != "latest":
        if resume not in {run.run_id for run in runs}:
            raise UsageError(
                f"resume {resume!r}: the ledger {ledger.path} does not know this run; it keeps what was paid for, so resume where it is"
            )
        return resume
    like = (logged.digest, logged.agent.model_id)
    found = [run.run_id for run in runs if (run.eval_set_digest, run.agent_version) == like]
    if not found:
        raise UsageError(f"resume 'latest': the ledger {ledger.path} knows no run of this eval set with this version of the agent")
    return found[0]


RESULT = "result.evalset_result.json"
_SCHEME = "runs:/"
_EVAL_SET = TypeAdapter(EvalSet)


def run_named(source: Any) -> str | None:
    """Return the id of the run that ``runs:/<id>`` names; ``None`` for anything else.

    >>> run_named("runs:/0123abcd"), run_named("my_agent")
    ('0123abcd', None)
    """
    return source.removeprefix(_SCHEME).strip("/") if isinstance(source, str) and source.startswith(_SCHEME) else None


def recording_of_run(run_id: str, tracking_uri: str | None = None) -> Recording:
    """Return what the agent did in a run, if that is as it was when the evaluation ended.

    Args:
        run_id: the run.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if there is no such run, or it holds no evaluation.
        TrackingError: if MLflow cannot be reached, or the run's artifacts are not those that its parameter vouches for.
    """
    with store_at(tracking_uri) as store:
        evidence = store.evidence(run_id)
    if evidence.manifest is None or RESULT not in evidence.artifacts:
        raise UsageError(f"run {run_id} holds no finished evaluation, so that there is nothing to judge again")
    problems = integrity_problems(evidence)
    if problems:
        raise TrackingError(f"run {run_id}: {problems[0]}, so what the agent did in it cannot be believed")
    return _recording(evidence)


def _recording(evidence: Evidence) -> Recording:
    eval_set = parse(_EVAL_SET, evidence.artifacts[EVAL_SET], f"run {evidence.run_id}, {FOLDER}/{EVAL_SET}")
    result = parse_result(evidence.artifacts[RESULT], f"run {evidence.run_id}, {FOLDER}/{RESULT}")
    recording = load_recording(result)
    origin = Origin(
        agent=evidence.tags.get("adk_eval.agent_version", ""),
        agent_version=evidence.params.get("adk_eval.model_id", ""),
        recorded_at=datetime.fromtimestamp(result.creation_timestamp, tz=UTC).isoformat(timespec="seconds"),
        num_runs=recording.num_runs(eval_set.eval_ids),
    )
    return replace(recording, origin=on(eval_set, origin))
