"""Runs as an evaluation leaves them, as plain evidence and in a real MLflow store, whole or spoilt on purpose."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from mlflow_adk_eval.agents.recordings import Recording
from mlflow_adk_eval.config.eval_config import EvalConfig, dumps_config, judged_criteria, load_config
from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import EvalSet, Invocation, eval_set_digest
from mlflow_adk_eval.gating.rules.decide import decide
from mlflow_adk_eval.results.decision import Decision
from mlflow_adk_eval.results.outcomes import Vote
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import key_of
from mlflow_adk_eval.runner.evaluation import run
from mlflow_adk_eval.runs.examined import examine
from mlflow_adk_eval.runs.manifest import Evidence, key_of_criterion
from mlflow_adk_eval.runs.parts import SCHEMA, Cleaner, Part, PartWriter, dump_votes, parse_votes
from tests.kit import turn_json

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
    calls = [(tool, {"on": True})] if tool else []
    return Invocation.model_validate({"intermediate_data": {"tool_uses": []}} | turn_json(user, answer, *calls))


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


def evidence_of(report: Report, *, model_id: str = "m-1", run_id: str = "r-1", part_turns: int = 2) -> Evidence:
    """Return the evidence of a run that logged `report`, in parts that end after so many turns."""
    params = {
        "adk_eval.schema": str(SCHEMA),
        "adk_eval.model_id": model_id,
        "adk_eval.eval_set_digest": eval_set_digest(report.eval_set),
        "adk_eval.config_digest": report.config.digest(),
        "adk_eval.num_runs": str(report.num_runs),
        **{f"threshold.{key_of_criterion(name)}": text for name, text in report.config.thresholds().items()},
    }
    tags = {
        "adk_eval.status": "complete",
        "adk_eval.verdict": report.verdict,
        "adk_eval.eval_set_id": report.eval_set.eval_set_id,
    }
    metrics = {f"{key_of_criterion(name)}/mean": score for name, score in report.scores.items() if score is not None}
    evidence = Evidence(
        run_id=run_id,
        status="FINISHED",
        end_time=1,
        tags=tags,
        params=params,
        metrics=metrics,
        model_ids=(model_id,),
        artifacts={"config.json": dumps_config(report.config).encode(), "result.evalset_result.json": b"{}"},
    )
    return _in_parts(evidence, report, part_turns)


class Plain(Cleaner):
    """Has nothing to clean."""

    def document(self, model: BaseModel, /) -> str:
        return model.model_dump_json(exclude_unset=True)


def _in_parts(evidence: Evidence, report: Report, part_turns: int) -> Evidence:
    with TemporaryDirectory() as folder:
        writer = PartWriter(Path(folder), report.criteria, Plain(), judged=bool(judged_criteria(report.config)), part_turns=part_turns)
        for case in report.eval_set.eval_cases:
            writer.add(case, [found for found in report.cases if found.eval_id == case.eval_id])
        parts = writer.close()
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*.parquet")}
    head = {"eval_set_id": report.eval_set.eval_set_id}
    return sealed(replace(evidence, artifacts={**evidence.artifacts, **files}), [listed(part) for part in parts], head)


def listed(part: Part) -> dict[str, int]:
    """Return what a manifest says of a part."""
    names = ("first_case_no", "last_case_no", "cases", "case_runs", "turns", "votes")
    return {name: getattr(part, name) for name in names}


def decide_on(evidence: Evidence, *demands: Any, **more: Any) -> Decision:
    """Decide on a run by its evidence, as of today unless `now` says otherwise."""
    return decide(examine(evidence), *demands, **{"now": datetime.now(UTC), **more})


def sealed(evidence: Evidence, parts: list[dict[str, int]] | None = None, head: Mapping[str, Any] | None = None) -> Evidence:
    """Return the evidence with a manifest and its parameter made for the artifacts that it has, as the writer of the run would.

    Args:
        evidence: the evidence.
        parts: what the manifest is to say of the parts; ``None``: what it says now.
        head: what it is to say of the eval set, likewise.
    """
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in evidence.artifacts.items()}
    said = json.loads(evidence.manifest or b"{}")
    listing = said.get("parts") if parts is None else parts
    manifest = {"schema": SCHEMA, "artifacts": hashes, "eval_set": said.get("eval_set") if head is None else head, "parts": listing}
    return with_manifest(evidence, json.dumps(manifest).encode())


def parts_of(evidence: Evidence) -> list[dict[str, int]]:
    """Return what the manifest says of the parts."""
    return list(json.loads(evidence.manifest or b"{}").get("parts", []))


def file_of(folder: str, number: int) -> str:
    return f"{folder}/part-{number:05}.parquet"


def with_manifest(evidence: Evidence, manifest: bytes) -> Evidence:
    """Return the evidence with another manifest and the parameter for it."""
    digest = hashlib.sha256(manifest).hexdigest()
    return replace(evidence, manifest=manifest, params={**evidence.params, "adk_eval.manifest_sha256": digest})


def with_artifact(evidence: Evidence, name: str, content: bytes | None) -> Evidence:
    """Return the evidence with another artifact, or without it, and with a manifest for it."""
    kept = {found: value for found, value in evidence.artifacts.items() if found != name}
    return sealed(replace(evidence, artifacts=kept if content is None else {**kept, name: content}))


def with_table(evidence: Evidence, edit: Edit) -> Evidence:
    """Return the evidence with edited rows, and with a manifest for them: what a faulty writer would have left."""
    parts, home, rows = parts_of(evidence), {}, []
    for number in range(len(parts)):
        for row in rows_of(evidence, "cells", number):
            home[row["eval_id"]] = number
            rows.append({"key": key_of(row["eval_id"], row["invocation_index"], row["run_index"]), **row})
    edited = edit(rows)
    for row in (kept := rows if edited is None else list(edited)):
        row.pop("key", None)
    artifacts = dict(evidence.artifacts)
    for number, part in enumerate(parts):
        here = [row for row in kept if home.get(row["eval_id"], 0) == number]
        artifacts[file_of("cells", number)] = parquet_of(here, artifacts[file_of("cells", number)])
        part["turns"] = len(here)
    return sealed(replace(evidence, artifacts=artifacts), parts)


def rows_of(evidence: Evidence, folder: str, number: int) -> list[Row]:
    """Return the rows of a file of a part."""
    rows: list[Row] = pq.read_table(pa.BufferReader(evidence.artifacts[file_of(folder, number)])).to_pylist()
    return rows


def parquet_of(rows: Sequence[Row], like: bytes) -> bytes:
    """Return rows as a Parquet file with the columns and types of another; a column with a value of another type gets that."""
    schema = pq.read_schema(pa.BufferReader(like))
    columns = [name for name in schema.names if not rows or name in rows[0]]
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({name: _column([row[name] for row in rows], schema.field(name).type) for name in columns}), content)
    return bytes(content.getvalue())


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not any(isinstance(value, bool) for value in values) or pa.types.is_boolean(kind):
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array(values, kind)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def with_file(evidence: Evidence, name: str, edit: Edit) -> Evidence:
    """Return the evidence with one file of a part edited, as who writes to the run may, and a manifest that says nothing of it but its hash."""
    rows = pq.read_table(pa.BufferReader(evidence.artifacts[name])).to_pylist()
    edited = edit(rows)
    return with_artifact(evidence, name, parquet_of(rows if edited is None else list(edited), evidence.artifacts[name]))


def with_eval_set(evidence: Evidence, edit: Callable[[Any], object]) -> Evidence:
    """Return the evidence with an edited eval set, and with a manifest and a digest for it."""
    parts = parts_of(evidence)
    documents = [(number, json.loads(row["case"])) for number in range(len(parts)) for row in rows_of(evidence, "cases", number)]
    home = {case["eval_id"]: number for number, case in documents}
    value = {**json.loads(evidence.manifest or b"{}")["eval_set"], "eval_cases": [case for _, case in documents]}
    edit(value)
    artifacts, first = dict(evidence.artifacts), 0
    for number, part in enumerate(parts):
        here = [case for case in value["eval_cases"] if home.get(case["eval_id"], 0) == number]
        rows = [{"eval_id": case["eval_id"], "case": json.dumps(case)} for case in here]
        artifacts[file_of("cases", number)] = parquet_of(rows, artifacts[file_of("cases", number)])
        part |= {"first_case_no": first, "last_case_no": first + len(here) - 1, "cases": len(here)}
        first += len(here)
    in_order = {
        **value,
        "eval_cases": [case for number in range(len(parts)) for case in value["eval_cases"] if home.get(case["eval_id"], 0) == number],
    }
    digest = eval_set_digest(EvalSet.model_validate(in_order))
    return sealed(replace(changed(evidence, "params", {"adk_eval.eval_set_digest": digest}), artifacts=artifacts), parts)


def with_votes(evidence: Evidence, edit: Callable[[tuple[Vote, ...]], Iterable[Vote]]) -> Evidence:
    """Return the evidence with other votes, and with a manifest for them: what a faulty writer would have left."""
    parts = parts_of(evidence)
    home = {row["eval_id"]: number for number in range(len(parts)) for row in rows_of(evidence, "cases", number)}
    kept, artifacts = list(edit(votes_of(evidence))), dict(evidence.artifacts)
    for number, part in enumerate(parts):
        here = [vote for vote in kept if home.get(vote.eval_id, 0) == number]
        artifacts[file_of("votes", number)] = dump_votes(here)
        part["votes"] = len(here)
    return sealed(replace(evidence, artifacts=artifacts), parts)


def votes_of(evidence: Evidence) -> tuple[Vote, ...]:
    """Return all votes of a run."""
    names = [file_of("votes", number) for number in range(len(parts_of(evidence)))]
    return tuple(vote for name in names for vote in parse_votes(evidence.artifacts[name], name))


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
        from mlflow.tracking._tracking_service.utils import _use_tracking_uri  # noqa: PLC2701 - as the package does it

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
                (Path(folder) / name).parent.mkdir(exist_ok=True)
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
