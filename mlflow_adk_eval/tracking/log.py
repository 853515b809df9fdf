"""An evaluation as a run in MLflow: what is said when it starts, and what when it ends."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, Metric, Param, RunTag

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet, eval_set_digest
from mlflow_adk_eval.gating.evidence.integrity import key_of_criterion
from mlflow_adk_eval.redact import without_credentials
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runtime import user_name
from mlflow_adk_eval.tracking.bundle import FOLDER, NOTE, TABLES, Bundle, Run, load
from mlflow_adk_eval.tracking.client import HASTY, connect, existing, reaching_mlflow
from mlflow_adk_eval.tracking.judge_facts import JUDGE_PACKAGES, settings_params
from mlflow_adk_eval.tracking.storable import LONGEST_DIGEST, LONGEST_PARAM, LONGEST_TAG, fitted
from mlflow_adk_eval.tracking.traces import missing_traces, write_traces
from mlflow_adk_eval.tracking.versions import AgentVersion

if TYPE_CHECKING:
    from mlflow_adk_eval.tracking.datasets.eval_sets import Origin

T = TypeVar("T")

_PACKAGES = ("mlflow-adk-eval", "mlflow", "google-adk")
_RUN_TYPE = "genai_evaluate"
_LONGEST_NAME = 500
_ITEMS_PER_REQUEST = 100
_METRICS_PER_REQUEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is known before the agent is called."""

    eval_set: EvalSet
    config: EvalConfig
    agent_name: str
    version: AgentVersion
    experiment_id: str
    run_name: str | None = None
    parent_run_id: str | None = None
    """The user's own run, which is left as it is."""
    dataset: Dataset | None = None
    """What MLflow knows the eval set as; ``None``: as an artifact of the run."""


def start_run(client: MlflowClient, start: Start) -> Run:
    """Create the run and log what is known before the agent is called."""
    name = start.run_name or f"{start.eval_set.eval_set_id} {start.version.label}"
    created = client.create_run(start.experiment_id, tags=_start_tags(start), run_name=fitted(name, _LONGEST_NAME))
    run = _run(client, start, created.info.run_id, created.info.start_time)
    _begin(client, run, start)
    return run


def reopen_run(client: MlflowClient, start: Start, run_id: str, started_ms: int) -> Run:
    """Go on with a run that was interrupted before it came to a result. What it was said to be stays."""
    run = _run(client, start, run_id, started_ms)
    client.update_run(run_id, status="RUNNING")
    client.set_tag(run_id, "adk_eval.status", "running")
    _begin(client, run, start)
    return run


def join_run(client: MlflowClient, start: Start, run_id: str) -> Run:
    """Go into a run that somebody else has opened and will end. Its name and whatever it says of itself stay.

    Raises:
        UsageError: if it has ended, or holds an evaluation already.
    """
    joined = client.get_run(run_id)
    if joined.info.status != "RUNNING" or joined.info.lifecycle_stage != "active":
        raise UsageError(f"run {run_id!r} is not open: its status is {joined.info.status}, its stage {joined.info.lifecycle_stage}")
    if "adk_eval.status" in joined.data.tags:
        raise UsageError(f"run {run_id!r} holds an evaluation already, and its parameters cannot be written twice; start another run")
    run = replace(_run(client, start, run_id, joined.info.start_time), joined=True)
    new = {name: value for name, value in _start_tags(start).items() if name not in joined.data.tags}
    _log(client, run_id, tags={**new, "mlflow.runType": _RUN_TYPE})
    _begin(client, run, start)
    return run


def _run(client: MlflowClient, start: Start, run_id: str, started_ms: int) -> Run:
    dataset = start.dataset or dataset_of(start.eval_set)
    return Run(
        run_id=run_id,
        experiment_id=start.experiment_id,
        model_id=start.version.model_id,
        dataset_name=dataset.name,
        dataset_digest=dataset.digest,
        agent_name=start.agent_name,
        started_ms=started_ms,
        agent_diff=start.version.diff,
        tracking_uri=client.tracking_uri if without_credentials(client.tracking_uri) == client.tracking_uri else None,
    )


def _begin(client: MlflowClient, run: Run, start: Start) -> None:
    """Log what is known before the agent is called; of a run that was interrupted, it may be there already."""
    try:
        _log(client, run.run_id, params=start_params(start))
        dataset = start.dataset or dataset_of(start.eval_set, run.run_id)
        evaluated = DatasetInput(dataset, [InputTag("mlflow.data.context", "evaluation")])
        client.log_inputs(run.run_id, [evaluated], [LoggedModelInput(run.model_id)])
    except BaseException:
        abandon_run(client, run, "FAILED")
        raise


def _start_tags(start: Start) -> dict[str, str]:
    tags = {
        "mlflow.runType": _RUN_TYPE,
        "mlflow.user": user_name(),
        "mlflow.source.name": Path(sys.argv[0]).name or "python",
        "mlflow.source.type": "LOCAL",
        **start.version.tags,
        "adk_eval.schema": "1",
        "adk_eval.status": "running",
        "adk_eval.agent_version": start.version.label,
        "adk_eval.eval_set_id": start.eval_set.eval_set_id,
    }
    if start.parent_run_id:
        tags["mlflow.parentRunId"] = start.parent_run_id
    return {name: fitted(value, LONGEST_TAG) for name, value in tags.items()}


def start_params(start: Start) -> dict[str, str]:
    """Return the parameters of a run that are known before the agent is called."""
    params = {f"threshold.{key_of_criterion(name)}": threshold for name, threshold in start.config.thresholds().items()}
    params |= {
        "adk_eval.eval_set_digest": eval_set_digest(start.eval_set),
        "adk_eval.config_digest": start.config.digest(),
        "adk_eval.model_id": start.version.model_id,
        "adk_eval.version.python": platform.python_version(),
    }
    for criteria in (start.config.criteria, *start.config.case_criteria.values()):
        for name, settings in criteria.items():
            if match_type := getattr(settings, "match_type", None):
                params.setdefault(f"adk_eval.match_type.{key_of_criterion(name)}", str(match_type))
    params |= settings_params(start.config)
    for package in (*_PACKAGES, *(JUDGE_PACKAGES if judged_criteria(start.config) else ())):
        with suppress(PackageNotFoundError):
            params[f"adk_eval.version.{package.replace('-', '_') if package == 'mlflow-adk-eval' else package}"] = version(package)
    return params


def dataset_of(eval_set: EvalSet, run_id: str = "", *, origin: Origin | None = None) -> Dataset:
    """Return what MLflow is to know an eval set as.

    Args:
        eval_set: the cases, which the digest is about.
        run_id: the run among whose artifacts it is.
        origin: where it came from instead.
    """
    digest = eval_set_digest(eval_set)
    source = {"eval_set_id": eval_set.eval_set_id, "uri": f"runs:/{run_id}/{FOLDER}/eval_set.json"}
    return Dataset(
        name=fitted(origin.name if origin else eval_set.eval_set_id, _LONGEST_NAME),
        digest=digest.removeprefix("sha256:")[:LONGEST_DIGEST],
        source_type=origin.source_type if origin else "adk_evalset",
        source=origin.source if origin else json.dumps(source),
        profile=json.dumps({"num_cases": len(eval_set.eval_cases), "digest": digest}),
    )


def finish_run(client: MlflowClient, bundle: Bundle, *, ends: bool = True) -> None:
    """Log what the evaluation came to, and end the run. Whatever an earlier attempt has logged stays as it is.

    Args:
        client: where the run is.
        bundle: what is to be logged.
        ends: whether to end the run, which others may still be at work on.

    Raises:
        TrackingError: if MLflow has not stored every trace; the run is then marked as *partial*.
    """
    run = bundle.run
    with tempfile.TemporaryDirectory() as folder:
        for name, content in bundle.artifacts.items():
            (Path(folder) / name).write_bytes(content)
        client.log_artifacts(run.run_id, folder, FOLDER)
    # A tag could be rewritten later.
    kind = {} if bundle.status == "complete" else {"adk_eval.evidence": bundle.status}
    _log(client, run.run_id, params={**bundle.params, **kind}, metrics=list(_metrics(bundle)))
    write_traces(client, run, bundle.traces)
    missing = missing_traces(client, run, bundle.traces)
    tags = _beside(client.get_run(run.run_id).data.tags, bundle.tags) if run.joined else bundle.tags
    _log(client, run.run_id, tags={**tags, "adk_eval.status": "partial" if missing else bundle.status})
    if ends:
        client.set_terminated(run.run_id, "FINISHED")
    if missing:
        raise TrackingError(
            f"MLflow has stored {len(bundle.traces) - len(missing)} of {len(bundle.traces)} traces; missing is {missing[0]}"
        )


def _beside(said: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags for a run of which others have said something: their note and their tables stay, before ours."""
    note, tables = said.get(NOTE, ""), json.loads(said.get(TABLES, "[]"))
    ours = [table for table in json.loads(tags[TABLES]) if table not in tables]
    both = note if tags[NOTE] in note else "\n\n".join(filter(None, (note, tags[NOTE])))
    return {**tags, NOTE: fitted(both, LONGEST_TAG), TABLES: json.dumps([*tables, *ours])}


def _metrics(bundle: Bundle) -> Iterator[Metric]:
    run = bundle.run
    steps = ((name, value, step) for name, values in bundle.series.items() for step, value in enumerate(values, 1))
    for name, value, step in (*((name, value, 0) for name, value in bundle.metrics.items()), *steps):
        yield Metric(
            name,
            value,
            run.started_ms,  # the same at each attempt, so that MLflow recognises what it has
            step,
            model_id=run.model_id,
            dataset_name=run.dataset_name,
            dataset_digest=run.dataset_digest,
            run_id=run.run_id,
        )


def abandon_run(client: MlflowClient, run: Run, status: str) -> None:
    """Mark a run as one that did not come to its end, if MLflow can still be reached."""
    with suppress(TrackingError), reaching_mlflow("the run could not be marked", HASTY):
        client.set_tag(run.run_id, "adk_eval.status", "failed")
        if not run.joined:
            client.set_terminated(run.run_id, status)


def _log(
    client: MlflowClient,
    run_id: str,
    *,
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    metrics: Sequence[Metric] = (),
) -> None:
    """Log within MLflow's limits for a request; usually that is one."""
    listed = [Param(name, fitted(value, LONGEST_PARAM)) for name, value in (params or {}).items()]
    tagged = [RunTag(name, value) for name, value in (tags or {}).items()]
    for some_params in _batches(listed, _ITEMS_PER_REQUEST):
        client.log_batch(run_id, params=some_params)
    for some_metrics in _batches(metrics, _METRICS_PER_REQUEST):
        client.log_batch(run_id, metrics=some_metrics)
    for some_tags in _batches(tagged, _ITEMS_PER_REQUEST):
        client.log_batch(run_id, tags=some_tags)


def _batches(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def upload(folder: str | Path, *, tracking_uri: str | None = None) -> str:
    """Log what `folder` holds and return the run's id. What an earlier attempt has logged is neither changed nor doubled.

    Args:
        folder: what an evaluation left in ``adk_eval_pending`` when it could not reach MLflow. It is not deleted.
        tracking_uri: where the run is, if that has changed since.

    Raises:
        UsageError: if the folder is no such thing, or its run does not exist.
        TrackingError: if MLflow can still not be reached, or loses something; everything stays in the folder.
    """
    bundle = load(Path(folder))
    client = connect(tracking_uri or bundle.run.tracking_uri)
    run_id = bundle.run.run_id
    with reaching_mlflow(f"run {run_id} could not be finished, and {folder} still holds it"):
        with existing(f"run {run_id}"):
            client.get_run(run_id)
        finish_run(client, bundle)
    return run_id
