"""Runs as an evaluation leaves them, as plain evidence and in a real MLflow store, whole or spoilt on purpose."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow_adk_eval.agents.protocol import Conversation
from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.config.eval_config import EvalConfig, dumps_config, load_config
from mlflow_adk_eval.evalset import EvalSet, Invocation, dumps, eval_set_digest
from mlflow_adk_eval.gating.evidence.examine import examine
from mlflow_adk_eval.gating.evidence.integrity import Evidence, key_of_criterion
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import table_of
from mlflow_adk_eval.results.votes import dump_votes, judged_criteria
from mlflow_adk_eval.runner import run

TRAJECTORY, RESPONSE = "tool_trajectory_avg_score", "response_match_score"
CONFIG = {"criteria": {TRAJECTORY: 1.0, RESPONSE: 0.5}}
CONVERSATIONS = {
    "lights": [("Turn on the light.", "The light is on.", "set_light"), ("Turn it off again.", "The light is off.", "set_light")],
    "heating": [("Make it warmer.", "The heating is up by one degree.", "set_heating")],
    "film": [("It is film night.", "The scene film night is set.", "set_scene"), ("Thank you.", "You are welcome.", "")],
}
Row = dict[str, Any]
Edit = Callable[[list[Row]], Iterable[Row] | None]


def turn(user: str, answer: str, tool: str) -> Invocation:
    return Invocation.model_validate({
        "user_content": {"role": "user", "parts": [{"text": user}]},
        "final_response": {"role": "model", "parts": [{"text": answer}]},
        "intermediate_data": {"tool_uses": [{"name": tool, "args": {"on": True}}] if tool else []},
    })  # fmt: skip


def eval_set_of(conversations: Mapping[str, list[tuple[str, str, str]]] | None = None) -> EvalSet:
    cases = (CONVERSATIONS if conversations is None else conversations).items()
    return EvalSet.model_validate({
        "eval_set_id": "home",
        "eval_cases": [{"eval_id": eval_id, "conversation": [turn(*texts) for texts in turns]} for eval_id, turns in cases],
    })  # fmt: skip


def report_of(
    *,
    wrong: Iterable[str] = (),
    silent: Iterable[str] = (),
    num_runs: int = 1,
    config: Mapping[str, Any] | EvalConfig = CONFIG,
    eval_set: EvalSet | None = None,
) -> Report:
    """Return the report on an agent that does as expected, but calls other tools in the cases `wrong` and stops early in those `silent`."""
    expected = eval_set or eval_set_of()
    played = {}
    for case in expected.eval_cases:
        turns = tuple(case.conversation or ())
        if case.eval_id in wrong:
            turns = tuple(turn(found.user_text, found.final_text, "other_tool") for found in turns)
        if case.eval_id in silent:
            played[case.eval_id] = (Conversation(actual=turns[:-1], error="the model is down"),) * num_runs
        else:
            played[case.eval_id] = (Conversation(actual=turns),) * num_runs
    return run(expected, Recording(played), load_config(config))


def evidence_of(report: Report, *, model_id: str = "m-1", run_id: str = "r-1") -> Evidence:
    """Return the evidence of a run that logged `report`."""
    params = {
        "adk_eval.model_id": model_id,
        "adk_eval.eval_set_digest": eval_set_digest(report.eval_set),
        "adk_eval.config_digest": report.config.digest(),
        "adk_eval.num_runs": str(report.num_runs),
        **{f"threshold.{key_of_criterion(name)}": text for name, text in report.config.thresholds().items()},
    }
    artifacts = {
        "eval_set.json": dumps(report.eval_set).encode(),
        "config.json": dumps_config(report.config).encode(),
        "invocations.json": table_of(report.cases, report.criteria).dumps().encode(),
        "result.evalset_result.json": b"{}",
    }
    if judged_criteria(report.config):
        artifacts["votes.parquet"] = dump_votes(vote for case in report.cases for result in case.results for vote in result.votes)
    tags = {
        "adk_eval.schema": "1",
        "adk_eval.status": "complete",
        "adk_eval.verdict": report.verdict,
        "adk_eval.eval_set_id": report.eval_set.eval_set_id,
    }
    metrics = {f"{key_of_criterion(name)}/mean": score for name, score in report.scores.items() if score is not None}
    return sealed(
        Evidence(
            run_id=run_id,
            status="FINISHED",
            end_time=1,
            tags=tags,
            params=params,
            metrics=metrics,
            model_ids=(model_id,),
            artifacts=artifacts,
        )
    )


def decide_on(evidence: Evidence, *demands: Any, **more: Any) -> Decision:
    """Decide on a run by its evidence."""
    return decide(examine(evidence), *demands, **more)


def sealed(evidence: Evidence) -> Evidence:
    """Return the evidence with a manifest and its parameter made for the artifacts that it has, as the writer of the run would."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in evidence.artifacts.items()}
    return with_manifest(evidence, json.dumps({"schema": 1, "artifacts": hashes}).encode())


def with_manifest(evidence: Evidence, manifest: bytes) -> Evidence:
    """Return the evidence with another manifest and the parameter for it."""
    digest = hashlib.sha256(manifest).hexdigest()
    return replace(evidence, manifest=manifest, params={**evidence.params, "adk_eval.manifest_sha256": digest})


def with_artifact(evidence: Evidence, name: str, content: bytes | None) -> Evidence:
    """Return the evidence with another artifact, or without it, and with a manifest for it."""
    kept = {found: value for found, value in evidence.artifacts.items() if found != name}
    return sealed(replace(evidence, artifacts=kept if content is None else {**kept, name: content}))


def with_table(evidence: Evidence, edit: Edit) -> Evidence:
    """Return the evidence with an edited table, and with a manifest for it: what a faulty writer would have left."""
    table = json.loads(evidence.artifacts["invocations.json"])
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    edited = edit(rows)
    rows = rows if edited is None else list(edited)
    columns = list(rows[0]) if rows else table["columns"]
    content = json.dumps({"columns": columns, "data": [[row[column] for column in columns] for row in rows]})
    return with_artifact(evidence, "invocations.json", content.encode())


def with_eval_set(evidence: Evidence, edit: Callable[[Any], object]) -> Evidence:
    """Return the evidence with an edited eval set, and with a manifest and a digest for it."""
    value = json.loads(evidence.artifacts["eval_set.json"])
    edit(value)
    digest = eval_set_digest(EvalSet.model_validate(value))
    return with_artifact(changed(evidence, "params", {"adk_eval.eval_set_digest": digest}), "eval_set.json", json.dumps(value).encode())


def changed(evidence: Evidence, field: str, values: Mapping[str, Any]) -> Evidence:
    """Return the evidence with other tags, params or metrics; ``None`` removes one."""
    merged = {**getattr(evidence, field), **values}
    return replace(evidence, **{field: {key: value for key, value in merged.items() if value is not None}})


def row_of(rows: Iterable[Row], eval_id: str, invocation_index: int = 0, run_index: int = 0) -> Row:
    wanted = (eval_id, run_index, invocation_index)
    return next(row for row in rows if (row["eval_id"], row["run_index"], row["invocation_index"]) == wanted)


@dataclass(frozen=True)
class Lab:
    """A real MLflow store with one experiment, reached as a file or through a server."""

    client: Any
    uri: str
    experiment_id: str
    folder: Path
    """Where the store's ``mlflow.db`` and its artifacts lie."""

    def artifacts(self, run_id: str) -> Path:
        """Return the folder of a run's artifacts, behind the back of whoever serves them."""
        uri = str(self.client.get_run(run_id).info.artifact_uri)
        return (
            self.folder / "artifacts" / uri.removeprefix((self.folder / "artifacts").as_uri()).removeprefix("mlflow-artifacts:").strip("/")
        )

    def execute(self, statement: str, *values: str) -> None:
        """Change the store behind MLflow's back."""
        with closing(sqlite3.connect(self.folder / "mlflow.db", timeout=30)) as database, database:
            database.execute(statement, values)

    def agent(self, name: str = "agent") -> str:
        """Create a LoggedModel and return its id."""
        model = self.client.create_logged_model(self.experiment_id, name=name)
        return str(self.client.finalize_logged_model(model.model_id, "READY").model_id)

    def register(self, name: str, source: str) -> str:
        """Create a model version and return its number."""
        from mlflow.exceptions import MlflowException
        from mlflow.tracking._tracking_service.utils import _use_tracking_uri

        with suppress(MlflowException):  # it may exist already
            self.client.create_registered_model(name)
        with _use_tracking_uri(self.uri):  # MLflow's registry looks for the LoggedModel in whatever store is the default
            model_id = source.removeprefix("models:/") if source.startswith("models:/") else None
            return str(self.client.create_model_version(name, source=source, model_id=model_id).version)

    def log(self, evidence: Evidence) -> str:
        """Write a run that holds the evidence and return its id."""
        from mlflow.entities import LoggedModelInput, Metric, Param, RunTag

        run_id = str(self.client.create_run(self.experiment_id).info.run_id)
        now = int(time.time() * 1000)
        self.client.log_batch(
            run_id,
            metrics=[Metric(key, value, now, 0) for key, value in evidence.metrics.items()],
            params=[Param(key, value) for key, value in evidence.params.items()],
            tags=[RunTag(key, value) for key, value in evidence.tags.items()],
        )
        if evidence.model_ids:
            self.client.log_inputs(run_id, models=[LoggedModelInput(model_id) for model_id in evidence.model_ids])
        with TemporaryDirectory() as folder:
            for name, content in evidence.artifacts.items():
                (Path(folder) / name).write_bytes(content)
            self.client.log_artifacts(run_id, folder, "adk_eval")
        if evidence.manifest is not None:
            self.client.log_text(run_id, evidence.manifest.decode(), "adk_eval/manifest.json")
        if evidence.status != "RUNNING":
            self.client.set_terminated(run_id, evidence.status)
        if evidence.lifecycle_stage == "deleted":
            self.client.delete_run(run_id)
        return run_id

    def alias(self, name: str, alias: str = "champion") -> str | None:
        found = self.client.get_registered_model(name).aliases.get(alias)
        return None if found is None else str(found)

    def tags(self, name: str, version: str) -> dict[str, str]:
        return dict(self.client.get_model_version(name, version).tags)
