"""What the gate would find in a run, of a report that was never logged as one."""

from __future__ import annotations

import time

from mlflow_adk_eval.gating.evidence.integrity import MANIFEST, SCHEMA, Evidence
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.tracking.bundle import Run, bundle_of
from mlflow_adk_eval.tracking.log import Start, dataset_of, start_params
from mlflow_adk_eval.tracking.names import LONGEST_PARAM, fitted
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
