"""What the agent did in a run, to be judged again: without the agent, by other criteria, or by another judge."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.agents import Recording, load_recording
from mlflow_adk_eval.agents.recordings.save import on
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.evalset.conversation import Origin
from mlflow_adk_eval.evalset.parse import parse
from mlflow_adk_eval.evalset.result import parse_result
from mlflow_adk_eval.gating.evidence.integrity import EVAL_SET, FOLDER, MANIFEST, SCHEMA, Evidence, integrity_problems
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.bundle import Run, bundle_of
from mlflow_adk_eval.tracking.log import Start, dataset_of, start_params
from mlflow_adk_eval.tracking.storable import LONGEST_PARAM, fitted
from mlflow_adk_eval.tracking.versions import AgentVersion


def evidence_of_report(report: Report) -> Evidence:
    """Return what a run of the report would hold, just ended. Its run id is empty."""
    now_ms = time.time_ns() // 1_000_000
    agent, model_id = (report.origin.agent, report.origin.agent_version) if report.origin else ("", "")
    dataset = dataset_of(report.eval_set)
    run = Run(
        run_id="",
        experiment_id="",
        model_id=model_id,
        dataset_name=dataset.name,
        dataset_digest=dataset.digest,
        agent_name=agent or "agent",
        started_ms=now_ms,
    )
    version = AgentVersion(model_id=model_id, label=agent)
    start = Start(eval_set=report.eval_set, config=report.config, agent_name=run.agent_name, version=version, experiment_id="")
    bundle = bundle_of(report, run, traces=False, secrets=secrets_of())
    params = {name: fitted(value, LONGEST_PARAM) for name, value in (start_params(start) | dict(bundle.params)).items() if value}
    tags = {"adk_eval.schema": SCHEMA, "adk_eval.status": bundle.status, "adk_eval.eval_set_id": report.eval_set.eval_set_id}
    return Evidence(
        run_id="",
        status="FINISHED",
        end_time=now_ms,
        tags={**bundle.tags, **tags},
        params=params,
        metrics=bundle.metrics,
        model_ids=(model_id,) if model_id else (),
        artifacts={name: content for name, content in bundle.artifacts.items() if name != MANIFEST},
        manifest=bundle.artifacts[MANIFEST],
    )


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
