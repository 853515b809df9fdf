"""Everything that a run is to hold, as plain data: from a report to its `Bundle`.

A bundle has the artifacts with their manifest, parameters, metrics, tags and the records of traces, without secrets and without anything that
MLflow could refuse. As it is plain data, it can be kept in a folder while MLflow is away, and `evidence_of_report` shows the gate what a run
would hold without there being one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from mlflow_adk_eval.analysis.stats import mean_interval
from mlflow_adk_eval.config.eval_config import dumps_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import dumps, eval_set_digest
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.gating.attestation.evaluation import AGENT_SOURCE
from mlflow_adk_eval.gating.evidence.examine import recomputed_metrics
from mlflow_adk_eval.gating.evidence.integrity import SCHEMA, VOTES, Evidence, key_of_criterion
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.report.html.report import html_of
from mlflow_adk_eval.report.markdown import note_of
from mlflow_adk_eval.report.sentences import pass_hat_lines
from mlflow_adk_eval.results.repeats import table_of_repeats
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import Table, table_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.results.votes import dump_votes, judged_criteria
from mlflow_adk_eval.tracking.run_facts import FOLDER, dataset_of, judge_params, outage_tag, start_params
from mlflow_adk_eval.tracking.storable import LONGEST_PARAM, LONGEST_TAG, Secrets, clean_table, fitted, model_json, storable, storable_text
from mlflow_adk_eval.tracking.trace_records import TraceRecord, records_of


def votes_artifact(report: Report, secrets: Secrets) -> dict[str, bytes]:
    """Return the artifact with every vote, where a model was to decide something: without votes it is empty, not absent."""
    votes = [vote for case in report.cases for result in case.results for vote in result.votes]
    if not votes and not judged_criteria(report.config):
        return {}
    return {VOTES: dump_votes(votes, lambda text: storable_text(text, secrets))}


def metrics_of_judging(usage: JudgeUsage | None) -> Iterator[tuple[str, float]]:
    """Yield what judging took, where judges were asked."""
    if usage is None:
        return
    yield "judge/calls", float(usage.calls)
    yield "judge/tokens", float(usage.tokens)
    yield "judge/calls_saved", float(usage.calls_saved)
    yield "judge/reused", float(usage.reused)
    if usage.flip_rate is not None:
        yield "judge/flip_rate", usage.flip_rate


def metrics_of_simulating(usage: JudgeUsage | None) -> Iterator[tuple[str, float]]:
    """Yield what the models took that played users, where there were any."""
    if usage is None:
        return
    yield "user_simulator/calls", float(usage.calls)
    yield "user_simulator/tokens", float(usage.tokens)
    yield "user_simulator/reused", float(usage.reused)


REPEATS = "repeats.json"
"""Only runs with more than one run of each case have it."""


def repeats_artifact(report: Report, secrets: Secrets) -> dict[str, bytes]:
    """Return the artifact with a row for each case, where cases were repeated."""
    if report.num_runs == 1:
        return {}
    columns, rows = table_of_repeats(report.repeats)
    return {REPEATS: clean_table(Table(columns, tuple(rows)), secrets)[1].encode()}


def series_of_repeats(report: Report) -> Mapping[str, tuple[float, ...]]:
    """Return the metrics that have a value for each run, which MLflow draws over its steps."""
    rates = report.repeats.run_pass_rates if report.num_runs > 1 else ()
    return {"case_pass_rate_by_run": rates} if rates else {}


SELF_COMPARISON = "self_comparison"
"""The status of a run in which what the agent did was compared with itself."""
TABLE, MANIFEST = "invocations.json", "manifest.json"
NOTE, TABLES = "mlflow.note.content", "mlflow.loggedArtifacts"
"""Tags of a run that others may have written, too."""
_DATA = "bundle.json"
_ARTIFACTS = "artifacts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The MLflow run that was started for an evaluation."""

    run_id: str
    experiment_id: str
    model_id: str
    dataset_name: str
    dataset_digest: str
    """As MLflow knows it, which is shorter than ours."""
    agent_name: str
    started_ms: int
    agent_diff: str = ""
    """What the agent's working tree differs by from its commit."""
    agent_source: str = ""
    """The list of the files that the agent is made of; empty where they are not known."""
    tracking_uri: str | None = None
    """Where the run is; ``None`` if that cannot be written down, having a password in it."""
    joined: bool = False
    """Whether somebody else has opened the run, and may have said something of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What is still to be logged of an evaluation that has ended."""

    run: Run
    artifacts: Mapping[str, bytes]
    """By their names in the run's folder ``adk_eval``."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    """Without the run's status, which depends on what MLflow has taken."""
    traces: tuple[TraceRecord, ...]
    status: str = "complete"
    """What the run is once MLflow has taken everything."""
    series: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Metrics with a value for each run of the cases."""
    attestation: str = ""
    """The signed envelope about all of this; empty where there is no key."""

    def save(self, folder: Path) -> None:
        """Write everything into `folder`, which is a bundle only once all of it is there."""
        artifacts = folder / _ARTIFACTS
        artifacts.mkdir(parents=True, exist_ok=True)
        for name, content in self.artifacts.items():
            _write(artifacts / name, content)
        _write(folder / _DATA, _dumped(replace(self, artifacts={})))


_BUNDLE = TypeAdapter(Bundle)


def _dumped(bundle: Bundle) -> bytes:
    try:
        return _BUNDLE.dump_json(bundle)
    except ValueError:  # whatever got this far that JSON lacks, what was paid for must not be lost over it
        return json.dumps(storable(_BUNDLE.dump_python(bundle), {})).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file that is either whole or not there."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load(folder: Path) -> Bundle:
    """Return the bundle in `folder`.

    Raises:
        UsageError: if there is none, or it was changed since it was written.
    """
    try:
        value = from_json((folder / _DATA).read_bytes())
        value["artifacts"] = {path.name: path.read_bytes() for path in sorted((folder / _ARTIFACTS).iterdir())}
        bundle = _BUNDLE.validate_python(value)
    except FileNotFoundError as error:
        raise UsageError(f"{folder}: no bundle of an evaluation ({Path(error.filename or folder).name} is missing)") from None
    except (OSError, ValueError, TypeError, ValidationError) as error:
        raise UsageError(f"{folder}: the bundle cannot be read: {str(error).splitlines()[0]}") from None
    named = from_json(bundle.artifacts.get(MANIFEST, b"{}")).get("artifacts", {})
    found = {name: _sha256(content) for name, content in bundle.artifacts.items() if name != MANIFEST}
    if found != named:
        changed = ", ".join(sorted(name for name in {*found, *named} if found.get(name) != named.get(name)))
        raise UsageError(f"{folder}: the bundle was changed since it was written: {changed}")
    return bundle


def bundle_of(report: Report, run: Run, *, traces: int | bool, secrets: Secrets) -> Bundle:
    """Return all that is to be logged of `report`.

    Args:
        report: what was found.
        run: the run that was started for it.
        traces: above how many invocations only those that did not pass get a trace; ``True``: never; ``False``: none gets one.
        secrets: what must not be written down.
    """
    table, text = clean_table(table_of(report.cases, report.criteria), secrets)
    extent = _extent(len(table.rows), traces)
    records = () if extent == "none" else tuple(records_of(report, table, secrets, only_unpassed=extent == "failed"))
    result = model_json(result_of(report, app_name=run.agent_name, created=run.started_ms / 1000), secrets)
    artifacts = {
        "eval_set.json": dumps(report.eval_set, indent=None).encode(),
        "config.json": dumps_config(report.config).encode(),
        TABLE: text.encode(),
        **votes_artifact(report, secrets),
        **repeats_artifact(report, secrets),
        "result.evalset_result.json": result.encode(),
        "report.html": _page(report, run, secrets),
        **({"agent.diff": run.agent_diff.encode()} if run.agent_diff else {}),
        **({AGENT_SOURCE: run.agent_source.encode()} if run.agent_source else {}),
    }
    manifest = manifest_of(artifacts)
    return Bundle(
        run=run,
        artifacts={**artifacts, MANIFEST: manifest},
        params={
            "adk_eval.num_runs": str(report.num_runs),
            **judge_params(report, secrets),
            **({"adk_eval.baseline": storable_text(report.baseline, secrets)} if report.baseline else {}),
            "adk_eval.manifest_sha256": _sha256(manifest),
        },
        metrics=dict(metrics_of(report)),
        tags=_tags(report, extent, len(records), len(table.rows), secrets),
        traces=records,
        status=SELF_COMPARISON if compares_itself(report) else "complete",
        series=series_of_repeats(report),
    )


def compares_itself(report: Report) -> bool:
    """Whether what the agent did is what the eval set expects, to the last detail, in every case.

    An agent may well do all that is expected, but what it did has a duration besides, or its own events. So this is the eval set in the place
    of a recording, whether it came as a file, an object or a dict.
    """
    pairs = [(case.actual, case.expected) for case in report.cases]
    return bool(pairs) and all(
        expected and (actual == expected or canonical(tuple(actual)) == canonical(tuple(expected))) for actual, expected in pairs
    )


def _page(report: Report, run: Run, secrets: Secrets) -> bytes:
    """Return the report for people, with what only the run knows."""
    started = datetime.fromtimestamp(run.started_ms / 1000, tz=UTC)
    facts = {
        "Digest": run.dataset_digest,
        "Agent": run.agent_name,
        "Agent version": run.model_id,
        "MLflow run": run.run_id,
        "Started": f"{started:%Y-%m-%d %H:%M} UTC",
    }
    return html_of(report, title=f"{run.agent_name} on {report.eval_set.eval_set_id}", facts=facts, secrets=secrets).encode()


def manifest_of(artifacts: Mapping[str, bytes]) -> bytes:
    """Return the list of all artifacts with their hashes, as canonical JSON."""
    return canonical_json({"schema": 1, "artifacts": {name: _sha256(content) for name, content in artifacts.items()}})


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _extent(rows: int, traces: int | bool) -> str:
    if traces is False:
        return "none"
    return "all" if traces is True or rows <= traces else "failed"


def metrics_of(report: Report) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a run: those that the gate will compute again, their intervals, and what models took. Others are left out."""
    found = [*recomputed_metrics(report).items(), *_intervals(report)]
    yield from ((name, float(value)) for name, value in found if value is not None and math.isfinite(value))
    yield from metrics_of_judging(report.judging)
    yield from metrics_of_simulating(report.simulating)


def _intervals(report: Report) -> Iterator[tuple[str, float | None]]:
    for name, summary in report.summaries().items():
        low, high = mean_interval(summary.case_scores, proportion=not CRITERIA.is_quantity(name)) or (None, None)
        yield from ((f"{key_of_criterion(name)}/ci_{side}", value) for side, value in (("low", low), ("high", high)))
    for line in pass_hat_lines(report.repeats) if report.num_runs > 1 else ():
        low, high = line.interval or (None, None)
        yield from ((f"pass_hat_{line.k}_ci_{side}", value) for side, value in (("low", low), ("high", high)))


_ON_TRACES = {
    "none": "No traces were written, as asked.",
    "failed": "Of {rows} turns only the {count} that did not pass have a trace.",
    "all": "",
}


def _tags(report: Report, extent: str, count: int, rows: int, secrets: Secrets) -> dict[str, str]:
    note = "\n\n".join(part for part in (note_of(report), _ON_TRACES[extent].format(rows=rows, count=count)) if part)
    return {
        "adk_eval.verdict": report.verdict,
        "adk_eval.traces": extent,
        "adk_eval.trace_count": str(count),
        **outage_tag(report, secrets),
        NOTE: fitted(storable_text(note, secrets), LONGEST_TAG),
        TABLES: json.dumps([{"path": f"{FOLDER}/{name}", "type": "table"} for name in _tables(report)]),
    }


def _tables(report: Report) -> tuple[str, ...]:
    return (TABLE,) if report.num_runs == 1 else (TABLE, REPEATS)


@no_collection()
def evidence_of_report(report: Report) -> Evidence:
    """Return what a run of the report would hold, just ended. Its run id is empty."""
    now_ms = time.time_ns() // 1_000_000
    agent, model_id = (report.origin.agent, report.origin.agent_version) if report.origin else ("", "")
    digest = eval_set_digest(report.eval_set)
    dataset = dataset_of(report.eval_set, digest=digest)
    run = Run(
        run_id="",
        experiment_id="",
        model_id=model_id,
        dataset_name=dataset.name,
        dataset_digest=dataset.digest,
        agent_name=agent or "agent",
        started_ms=now_ms,
    )
    bundle = bundle_of(report, run, traces=False, secrets=secrets_of())
    params = start_params(report.config, digest, model_id) | dict(bundle.params)
    tags = {"adk_eval.schema": SCHEMA, "adk_eval.status": bundle.status, "adk_eval.eval_set_id": report.eval_set.eval_set_id}
    return Evidence(
        run_id="",
        status="FINISHED",
        end_time=now_ms,
        tags={**bundle.tags, **tags},
        params={name: fitted(value, LONGEST_PARAM) for name, value in params.items() if value},
        metrics=bundle.metrics,
        model_ids=(model_id,) if model_id else (),
        artifacts={name: content for name, content in bundle.artifacts.items() if name != MANIFEST},
        manifest=bundle.artifacts[MANIFEST],
    )
