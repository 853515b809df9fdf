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
import shutil
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from mlflow_adk_eval.analysis.stats import mean_interval
from mlflow_adk_eval.config.eval_config import dumps_config
from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet, dumps, eval_set_digest
from mlflow_adk_eval.evalset.digest import canonical, canonical_json
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.gating.attestation.evaluation import AGENT_SOURCE
from mlflow_adk_eval.gating.evidence.examine import recomputed_metrics, rounded_metric
from mlflow_adk_eval.gating.evidence.integrity import Evidence, key_of_criterion
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.report.html.report import html_of
from mlflow_adk_eval.report.markdown import note_of
from mlflow_adk_eval.report.sentences import pass_hat_lines
from mlflow_adk_eval.results.collect import SMALL_TURNS, InParts
from mlflow_adk_eval.results.files import StoredFiles, files_in, linked
from mlflow_adk_eval.results.outcomes import CaseResult
from mlflow_adk_eval.results.parts import SCHEMA, Part
from mlflow_adk_eval.results.repeats import most_flaky_first, table_of_repeats
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.stored import loaded
from mlflow_adk_eval.results.table import Table, run_turns, table_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runner.keywords import TraceLimit
from mlflow_adk_eval.tracking.run_facts import FOLDER, dataset_of, judge_params, outage_tag, start_params
from mlflow_adk_eval.tracking.storable import (
    LONGEST_PARAM,
    LONGEST_TAG,
    Secrets,
    StoreCleaner,
    clean_table,
    fitted,
    model_json,
    storable,
    storable_text,
)
from mlflow_adk_eval.tracking.trace_records import TraceRecord, records_of


def metrics_of_judging(usage: JudgeUsage | None) -> Iterator[tuple[str, float]]:
    """Yield what judging took, where judges were asked."""
    if usage is None:
        return
    yield "judge/calls", float(usage.calls)
    yield "judge/tokens", float(usage.tokens)
    yield "judge/calls_saved", float(usage.calls_saved)
    yield "judge/reused", float(usage.reused)
    yield "judge/asked_elsewhere", float(usage.asked_elsewhere)
    yield "judge/shared", float(usage.shared)
    if usage.flip_rate is not None:
        yield "judge/flip_rate", usage.flip_rate
    for name, (agreeing, against, missing) in usage.members.items():
        key = key_of_criterion(name)
        yield f"judge/missing/{key}", float(missing)
        if agreeing + against:
            yield f"judge/agreement/{key}", agreeing / (agreeing + against)


def metrics_of_simulating(usage: JudgeUsage | None) -> Iterator[tuple[str, float]]:
    """Yield what the models took that played users, where there were any."""
    if usage is None:
        return
    yield "user_simulator/calls", float(usage.calls)
    yield "user_simulator/tokens", float(usage.tokens)
    yield "user_simulator/reused", float(usage.reused)
    yield "user_simulator/asked_elsewhere", float(usage.asked_elsewhere)


REPEATS = "repeats.json"
"""Only runs with more than one run of each case have it."""


def repeats_artifact(report: Report, secrets: Secrets) -> dict[str, bytes]:
    """Return the artifact with a row for each case, where cases were repeated; of very many, the most flaky ones first."""
    if report.num_runs == 1:
        return {}
    repeats = report.repeats
    if len(repeats.cases) > SMALL_TURNS:
        told = (*most_flaky_first(repeats.cases), *(case for case in repeats.cases if not case.flaky))
        repeats = replace(repeats, cases=told[:SMALL_TURNS])
    columns, rows = table_of_repeats(repeats)
    return {REPEATS: clean_table(Table(columns, tuple(rows)), secrets)[1].encode()}


def series_of_repeats(report: Report) -> Mapping[str, tuple[float, ...]]:
    """Return the metrics that have a value for each run, which MLflow draws over its steps."""
    rates = report.repeats.run_pass_rates if report.num_runs > 1 else ()
    return {"case_pass_rate_by_run": tuple(map(rounded_metric, rates))} if rates else {}


SELF_COMPARISON = "self_comparison"
"""The status of a run in which what the agent did was compared with itself."""
AGENT_CHANGED = "agent_changed"
"""The status of a run during which another version of the agent was put behind its address."""
MOST_TRACES = 2_000
"""How many traces a run has that does not say."""
TABLE, MANIFEST = "invocations.json", "manifest.json"
NOTE, TABLES = "mlflow.note.content", "mlflow.loggedArtifacts"
"""Tags of a run that others may have written, too."""
EVAL_SET, RESULT, REPORT = "eval_set.json", "result.evalset_result.json", "report.html"
"""What people and ADK read. Only small runs hold the first two, which anybody can make from the parts."""
LARGEST_TABLE = 32 << 20
"""How many bytes the table may take. MLflow shows files of up to 50 MiB."""
_DATA = "bundle.json"
_ARTIFACTS = "artifacts"
_CASES_AT_ONCE = 200


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
    name: str = ""
    """What it is called until its verdict stands before that; empty where somebody else named it."""


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

    @contextmanager
    def folder(self) -> Generator[Path]:
        """Provide a folder that holds the artifacts, and nothing else."""
        if isinstance(self.artifacts, StoredFiles) and self.artifacts.folder:
            yield self.artifacts.folder
            return
        with TemporaryDirectory() as folder:
            for name, content in self.artifacts.items():
                _write(Path(folder) / name, content)
            yield Path(folder)

    def save(self, folder: Path) -> None:
        """Write everything into `folder`, which is a bundle only once all of it is there."""
        for name, content in self.artifacts.items():
            _write(folder / _ARTIFACTS / name, content)
        _write(folder / _DATA, _dumped(replace(self, artifacts={})))

    def save_briefly(self, folder: Path) -> None:
        """Do what `save` does, but only against the end of this process, which takes no copies and does not wait for the disk."""
        shutil.rmtree(folder, ignore_errors=True)
        with self.folder() as artifacts:
            shutil.copytree(artifacts, folder / _ARTIFACTS, copy_function=linked)
        partial = folder / f"{_DATA}.partial"
        partial.write_bytes(_dumped(replace(self, artifacts={})))
        partial.replace(folder / _DATA)


_BUNDLE = TypeAdapter(Bundle)


def _dumped(bundle: Bundle) -> bytes:
    try:
        return _BUNDLE.dump_json(bundle)
    except ValueError:  # whatever got this far that JSON lacks, what was paid for must not be lost over it
        return json.dumps(storable(_BUNDLE.dump_python(bundle), {})).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file that is either whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
        artifacts = files_in(folder / _ARTIFACTS)
        bundle = replace(_BUNDLE.validate_python(value), artifacts=artifacts)
    except FileNotFoundError as error:
        raise UsageError(f"{folder}: no bundle of an evaluation ({Path(error.filename or folder).name} is missing)") from None
    except (OSError, ValueError, TypeError, ValidationError) as error:
        raise UsageError(f"{folder}: the bundle cannot be read: {str(error).splitlines()[0]}") from None
    named = from_json(artifacts.get(MANIFEST, b"{}")).get("artifacts", {})
    found = {name: _sha256(content) for name, content in artifacts.items() if name != MANIFEST}
    if found != named:
        changed = ", ".join(sorted(name for name in {*found, *named} if found.get(name) != named.get(name)))
        raise UsageError(f"{folder}: the bundle was changed since it was written: {changed}")
    return bundle


def bundle_of(report: Report, run: Run, *, traces: TraceLimit, secrets: Secrets, parts: InParts | None = None) -> Bundle:
    """Return all that is to be logged of `report`.

    Args:
        report: what was found.
        run: the run that was started for it.
        traces: how many turns get a trace; of more, only those that did not pass, and not more than so many. ``True``: all; ``False``: none.
        secrets: what must not be written down.
        parts: what collected the results, and has written their parts; ``None``: the parts are written now.
    """
    parts = parts or _in_parts(report, secrets)
    extent = _extent(parts.turns, traces)
    text, rows, records = _table_and_records(report, secrets, extent, traces)
    (parts.folder / TABLE).write_bytes(text.encode())
    del text
    documents = {
        "config.json": dumps_config(report.config).encode(),
        **repeats_artifact(report, secrets),
        REPORT: _page(report, run, secrets),
        **({"agent.diff": run.agent_diff.encode()} if run.agent_diff else {}),
        **({AGENT_SOURCE: run.agent_source.encode()} if run.agent_source else {}),
    }
    if parts.turns <= SMALL_TURNS:
        result = result_of(report, app_name=run.agent_name, created=run.started_ms / 1000)
        documents |= {EVAL_SET: dumps(report.eval_set, indent=None).encode(), RESULT: model_json(result, secrets).encode()}
    for name, content in documents.items():
        (parts.folder / name).write_bytes(content)
    manifest = manifest_of(parts.files, report.eval_set, parts.parts)
    (parts.folder / MANIFEST).write_bytes(manifest)
    return Bundle(
        run=run,
        artifacts=parts.files,
        params={
            "adk_eval.num_runs": str(report.num_runs),
            **judge_params(report, secrets),
            **({"adk_eval.from_ledger": str(report.from_ledger)} if report.from_ledger else {}),
            **({"adk_eval.baseline": storable_text(report.baseline, secrets)} if report.baseline else {}),
            "adk_eval.manifest_sha256": _sha256(manifest),
        },
        metrics=dict(metrics_of(report)),
        tags=_tags(report, run, extent, len(records), parts.turns, rows, secrets),
        traces=records,
        status=SELF_COMPARISON if compares_itself(report) else "complete",
        series=series_of_repeats(report),
    )


def _table_and_records(report: Report, secrets: Secrets, extent: str, traces: TraceLimit) -> tuple[str, int, tuple[TraceRecord, ...]]:
    """Return the table for people as text, how many rows it has, and the records of traces; the sample is then no longer in memory."""
    shown = sample_of(report)
    table, text = _fitting_table(table_of(shown, report.criteria), secrets)
    return text, len(table.rows), () if extent == "none" else tuple(_records(report, shown, table, secrets, extent, traces))


def _in_parts(report: Report, secrets: Secrets) -> InParts:
    """Write the parts of a report that is in memory."""
    parts = InParts(report.criteria, StoreCleaner(secrets), judged=bool(judged_criteria(report.config)), small_turns=sys.maxsize)
    runs: dict[str, list[CaseResult]] = {}
    for result in report.cases:
        runs.setdefault(result.eval_id, []).append(result)
    for case in report.eval_set.eval_cases:
        parts.add(case, runs.get(case.eval_id, ()))
    parts.results(report.eval_set)
    return parts


def sample_of(report: Report) -> Sequence[CaseResult]:
    """Return the results that people are shown, in their order: all of a small run; else those that failed, then undecided ones, then others."""
    left, chosen = SMALL_TURNS, set[int]()
    turns = run_turns(report.cases)
    if sum(turns) <= left:
        return report.cases
    for verdict in ("failed", "undecided", "passed"):
        for place, found in enumerate(report.verdicts):
            if found == verdict and turns[place] <= left:
                chosen.add(place)
                left -= turns[place]
            if left <= 0:
                break
    return [loaded(report.cases[place]) for place in sorted(chosen)]


def _fitting_table(table: Table, secrets: Secrets) -> tuple[Table, str]:
    """Return a table fit to be stored, and its text; of one that MLflow would not show, as many rows as it shows."""
    cleaned, text = clean_table(table, secrets)
    while len(text) > LARGEST_TABLE and len(table.rows) > 1:
        fewer = max(1, int(len(table.rows) * min(0.9, LARGEST_TABLE / len(text))))
        table = Table(table.columns, table.rows[:fewer])
        cleaned, text = clean_table(table, secrets)
    return cleaned, text


def _records(
    report: Report, shown: Sequence[CaseResult], table: Table, secrets: Secrets, extent: str, traces: TraceLimit
) -> Iterator[TraceRecord]:
    most = sys.maxsize if traces is True else MOST_TRACES if traces == "failed" else traces
    if len(shown) == len(report.cases):
        yield from islice(records_of(report.eval_set.eval_set_id, shown, table, secrets, only_unpassed=extent == "failed"), most)
        return
    wanted = (case for case, verdict in zip(report.cases, report.verdicts, strict=True) if extent == "all" or verdict != "passed")
    left = iter(wanted)
    while some := [loaded(case) for case in islice(left, _CASES_AT_ONCE)]:
        part, _ = clean_table(table_of(some, report.criteria), secrets)
        for record in records_of(report.eval_set.eval_set_id, some, part, secrets, only_unpassed=extent == "failed"):
            yield record
            most -= 1
            if not most:
                return


def compares_itself(report: Report) -> bool:
    """Whether what the agent did is what the eval set expects, to the last detail, in every case.

    An agent may well do all that is expected, but what it did has a duration besides, or its own events. So this is the eval set in the place
    of a recording, whether it came as a file, an object or a dict.
    """
    pairs = ((tuple(case.actual), tuple(case.expected or ())) for case in report.cases)
    return bool(report.cases) and all(
        expected and (actual == expected or canonical(actual) == canonical(expected)) for actual, expected in pairs
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


def manifest_of(artifacts: Mapping[str, bytes], eval_set: EvalSet, parts: Iterable[Part]) -> bytes:
    """Return the list of all artifacts with their hashes, what the eval set is called and what each part holds, as canonical JSON."""
    head = {name: getattr(eval_set, name) for name in EvalSet.model_fields.keys() & eval_set.model_fields_set - {"eval_cases"}}
    counted = ("first_case_no", "last_case_no", "cases", "case_runs", "turns", "votes")
    return canonical_json({
        "schema": SCHEMA,
        "artifacts": {name: _sha256(content) for name, content in artifacts.items() if name != MANIFEST},
        "eval_set": {name: value for name, value in head.items() if value is not None},
        "parts": [{name: getattr(part, name) for name in counted} for part in parts],
    })  # fmt: skip


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _extent(rows: int, traces: TraceLimit) -> str:
    if not traces:
        return "none"
    return "all" if traces is True or (traces != "failed" and rows <= traces) else "failed"


def metrics_of(report: Report) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a run, rounded: those that the gate will compute again, their intervals, and what models took. Others are left out."""
    found = [*recomputed_metrics(report).items(), *_intervals(report)]
    known = [(name, float(value)) for name, value in found if value is not None and math.isfinite(value)]
    taken = (*metrics_of_judging(report.judging), *metrics_of_simulating(report.simulating))
    yield from ((name, rounded_metric(value)) for name, value in (*known, *taken))


def _intervals(report: Report) -> Iterator[tuple[str, float | None]]:
    for name, summary in report.summaries().items():
        low, high = mean_interval(summary.case_scores, proportion=not CRITERIA.is_quantity(name)) or (None, None)
        yield from ((f"{key_of_criterion(name)}/ci_{side}", value) for side, value in (("low", low), ("high", high)))
    for line in pass_hat_lines(report.repeats) if report.num_runs > 1 else ():
        low, high = line.interval or (None, None)
        yield from ((f"pass_hat_{line.k}_ci_{side}", value) for side, value in (("low", low), ("high", high)))


_ON_TRACES = {
    "none": "No traces were written, as asked.",
    "failed": "Traces cover {count:,} of {turns:,} turns, none of which passed.",
    "all": "",
}


def _tags(report: Report, run: Run, extent: str, count: int, turns: int, rows: int, secrets: Secrets) -> dict[str, str]:
    sample = "" if rows == turns else f"The table and the report show a sample: {rows:,} of {turns:,} turns, those that did not pass first."
    note = "\n\n".join(
        filter(None, (note_of(report, run.experiment_id, run.run_id), _ON_TRACES[extent].format(turns=turns, count=count), sample))
    )
    return {
        "adk_eval.verdict": report.verdict,
        "adk_eval.traces": extent,
        "adk_eval.trace_count": str(count),
        "adk_eval.turns": str(turns),
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
    tags = {"adk_eval.schema": str(SCHEMA), "adk_eval.status": bundle.status, "adk_eval.eval_set_id": report.eval_set.eval_set_id}
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
