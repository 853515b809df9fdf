"""Going on with an evaluation that was interrupted, or judging again where a judge failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from mlflow import MlflowClient
from mlflow.entities import Run as MlflowRun

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import eval_set_digest
from mlflow_adk_eval.ledger import CallCache, StartedRun
from mlflow_adk_eval.tracking.bundle import Run
from mlflow_adk_eval.tracking.client import existing
from mlflow_adk_eval.tracking.log import Start, start_params

_EVIDENCE = "adk_eval.manifest_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The run of an earlier evaluation of the same agent version on the same eval set."""

    run_id: str
    started_ms: int
    open: bool
    """Whether it can be gone on with: it holds no result yet, and was to be judged in the same way."""


def earlier_run(client: MlflowClient, resume: str, start: Start, ledger: CallCache | None) -> Earlier:
    """Return the run to resume.

    Args:
        client: where it is.
        resume: its id, or ``latest``.
        start: the evaluation that goes on with it.
        ledger: what it has paid for.

    Raises:
        UsageError: if it does not exist or the ledger does not know it, or if it is about another eval set or another version
            of the agent: what was said and done there is no evidence here.
    """
    run_id = _known(resume, start, ledger)
    with existing(f"resume {run_id!r}"):
        run = client.get_run(run_id)
    params = run.data.params
    same = {
        "adk_eval.eval_set_digest": ("another eval set", eval_set_digest(start.eval_set)),
        "adk_eval.model_id": ("another version of the agent", start.version.model_id),
    }
    for name, (what, wanted) in same.items():
        if params.get(name) != wanted:
            found = f"it was about {what}: {name} is {params[name]}, now {wanted}" if name in params else f"it has no parameter {name}"
            raise UsageError(f"resume {run_id!r}: {found}")
    return Earlier(run_id=run_id, started_ms=run.info.start_time, open=_open(run, start))


def _known(resume: str, start: Start, ledger: CallCache | None) -> str:
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
    like = (eval_set_digest(start.eval_set), start.version.model_id)
    found = [run.run_id for run in runs if (run.eval_set_digest, run.agent_version) == like]
    if not found:
        raise UsageError(f"resume 'latest': the ledger {ledger.path} knows no run of this eval set with this version of the agent")
    return found[0]


def begin(client: MlflowClient, ledger: CallCache | None, run: Run, start: Start, earlier: Earlier | None) -> None:
    """Record that the run has started, or that it goes on."""
    if ledger is None:
        return
    ledger.begin(
        StartedRun(
            run_id=run.run_id,
            eval_set_digest=eval_set_digest(start.eval_set),
            config_digest=start.config.digest(),
            agent_name=start.agent_name,
            agent_version=start.version.model_id,
            started_at=datetime.now(UTC),
        )
    )
    if earlier and earlier.run_id != run.run_id:
        ledger.adopt(earlier.run_id, run.run_id)
        client.set_tag(run.run_id, "adk_eval.resumed_from", earlier.run_id)


def _open(run: MlflowRun, start: Start) -> bool:
    """Whether nothing has been said in the run that could not be taken back."""
    params = run.data.params
    return (
        _EVIDENCE not in params
        and all(params.get(name, value) == value for name, value in start_params(start).items())
        and run.info.lifecycle_stage == "active"
        and run.info.experiment_id == start.experiment_id
    )
