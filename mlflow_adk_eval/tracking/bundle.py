"""Everything that a run is to hold, as plain data: from a report to its `Bundle`.

A bundle has the artifacts with their manifest, parameters, metrics, tags and the records of traces, without secrets and without anything that
MLflow could refuse. As it is plain data, it can be kept in a folder while MLflow is away, and `evidence_of_report` shows the gate what a run
would hold without there being one.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mlflow.entities import Dataset
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from mlflow_adk_eval.analysis.stats.intervals import mean_interval
from mlflow_adk_eval.config.eval_config import EvalConfig, dumps_config, judged_criteria
from mlflow_adk_eval.config.spec import CRITERIA, VertexSettings
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.adk_form import for_adk
from mlflow_adk_eval.evalset.conversation import REPLAYED
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.evalset.models import EvalSet, Json, canonical_json, eval_set_digest
from mlflow_adk_eval.evalset.parse import no_collection
from mlflow_adk_eval.evalset.world import WORLD_FILE, parse_world, world_digest
from mlflow_adk_eval.gating.attestation import AGENT_SOURCE, SOURCE_PARAM
from mlflow_adk_eval.judge.protocol import THIS_PROCESS
from mlflow_adk_eval.redact import secrets_of
from mlflow_adk_eval.report.adk_result import result_of
from mlflow_adk_eval.report.html.report import html_of
from mlflow_adk_eval.report.markdown import note_of
from mlflow_adk_eval.report.sentences import pass_hat_lines
from mlflow_adk_eval.results.outcomes import WORST_FIRST, CaseResult, grouped
from mlflow_adk_eval.results.repeats import most_flaky_first, table_of_repeats
from mlflow_adk_eval.results.report import COMPARED_WITH_ITSELF, Cases, Report, compares_itself
from mlflow_adk_eval.results.sequence import SEQUENCE
from mlflow_adk_eval.results.table import Table, table_of
from mlflow_adk_eval.results.usage import JudgeUsage
from mlflow_adk_eval.runner.keywords import TraceLimit
from mlflow_adk_eval.runs import manifest as manifests
from mlflow_adk_eval.runs.anchors import ANCHORS, ANCHORS_PARAM
from mlflow_adk_eval.runs.collect import SMALL_TURNS, InParts
from mlflow_adk_eval.runs.files import StoredFiles, files_in, linked, replaced
from mlflow_adk_eval.runs.parts import SCHEMA
from mlflow_adk_eval.runs.replays import HERE, REPLAY, UNKNOWN, WORLD, WORLD_RUN
from mlflow_adk_eval.runs.stored_run import loaded
from mlflow_adk_eval.tracking import storable as keepable
from mlflow_adk_eval.tracking.trace_records import TraceRecord, records_of

if TYPE_CHECKING:
    from mlflow_adk_eval.tracking.eval_set_datasets import DatasetOrigin

LONGEST_NAME = 500
_PACKAGES = ("mlflow-adk-eval", "mlflow", "google-adk")
_JUDGE_PACKAGES = ("google-genai", "google-cloud-aiplatform", "litellm")
"""What judges are reached through."""
REPEATS = "repeats.json"
"""Only runs with more than one run of each case have it."""
SELF_COMPARISON = "self_comparison"
"""The status of a run in which what the agent did was compared with itself."""
AGENT_CHANGED = "agent_changed"
"""The status of a run during which another version of the agent was put behind its address."""
MOST_TRACES = 2_000
"""How many traces a run has that does not say."""
TABLE, MANIFEST = "invocations.json", "manifest.json"
NOTE, TABLES, QUALITY_CRITERIA = "mlflow.note.content", "mlflow.loggedArtifacts", "mlflow.genaiEvaluate.qualityCriteria"
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

    @property
    def folder(self) -> Path:
        """The folder that holds the artifacts, and nothing else."""
        return cast("StoredFiles", self.artifacts).folder or Path()

    def save(self, folder: Path) -> None:
        """Write everything into `folder`, which is a bundle only once all of it is there."""
        for name, content in self.artifacts.items():
            _write(folder / _ARTIFACTS / name, content)
        _write(folder / _DATA, _dumped(replace(self, artifacts={})))

    def save_briefly(self, folder: Path) -> None:
        """Do what `save` does, but only against the end of this process, which takes no copies and does not wait for the disk."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder / _ARTIFACTS, copy_function=linked)
        replaced(folder / _DATA, lambda path: path.write_bytes(_dumped(replace(self, artifacts={}))))


_BUNDLE = TypeAdapter(Bundle)
Holder = Callable[[str], str]
"""Returns the run that holds a world, by its digest; empty: none does."""


def _dumped(bundle: Bundle) -> bytes:
    try:
        return _BUNDLE.dump_json(bundle)
    except ValueError:  # whatever got this far that JSON lacks, what was paid for must not be lost over it
        return json.dumps(keepable.storable(_BUNDLE.dump_python(bundle), {})).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file that is either whole or not there."""

    def write(unfinished: Path) -> None:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    path.parent.mkdir(parents=True, exist_ok=True)
    replaced(path, write)


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
        raise UsageError(f"{folder}: not a pending evaluation ({Path(error.filename or folder).name} is missing)") from None
    except (OSError, ValueError, TypeError, ValidationError) as error:
        raise UsageError(f"{folder}: the pending evaluation cannot be read: {str(error).splitlines()[0]}") from None
    named = from_json(artifacts.get(MANIFEST, b"{}")).get("artifacts", {})
    hashes = {name: manifests.sha256(content) for name, content in artifacts.items() if name != MANIFEST}
    if hashes != named:
        changed = ", ".join(sorted(name for name in {*hashes, *named} if hashes.get(name) != named.get(name)))
        raise UsageError(f"{folder}: the pending evaluation was changed after it was written: {changed}")
    return bundle


def bundle_of(
    report: Report, run: Run, *, traces: TraceLimit, secrets: keepable.Secrets, parts: InParts | None = None, holder: Holder | None = None
) -> Bundle:
    """Return all that is to be logged of `report`.

    Args:
        report: what was found.
        run: the run that was started for it.
        traces: how many turns get a trace; of more, only those that did not pass, and not more than so many. ``True``: all; ``False``: none.
        secrets: what must not be written down.
        parts: what collected the results, and has written their parts; ``None``: the parts are written now.
        holder: finds the run that holds the world with a digest already; ``None``: none does.
    """
    # 1. The parts, which are all of the evidence; many more turns than people read are in them alone.
    if parts is None:
        parts = InParts(
            report.criteria, keepable.StoreCleaner(secrets), judged=bool(judged_criteria(report.config)), small_turns=sys.maxsize
        )
        runs = grouped((result.eval_id, result) for result in report.cases)
        for case in report.eval_set.eval_cases:
            parts.add(case, runs.get(case.eval_id, ()))
        parts.results(report.eval_set)
    if itself := compares_itself(report):
        report = replace(report, notes=(*report.notes, COMPARED_WITH_ITSELF))
    everything = traces is True or (traces != "failed" and parts.turns <= traces)
    extent = "none" if not traces else ("all" if everything else "failed")
    # 2. The table for people, with as many rows as MLflow shows, and the records of traces; the sample is no longer in memory then.
    shown = sample_of(report)
    whole = table_of(shown, report.criteria)
    table, text = keepable.clean_table(whole, secrets)
    while len(text) > LARGEST_TABLE and len(whole.rows) > 1:
        fewer = max(1, int(len(whole.rows) * min(0.9, LARGEST_TABLE / len(text))))
        whole = Table(whole.columns, whole.rows[:fewer])
        table, text = keepable.clean_table(whole, secrets)
    records = () if extent == "none" else tuple(_records(report, shown, table, secrets, extent, traces))
    rows = len(table.rows)
    (parts.folder / TABLE).write_bytes(text.encode())
    del shown, whole, table, text
    # 3. The documents.
    started = datetime.fromtimestamp(run.started_ms / 1000, tz=UTC)
    facts = {
        "Digest": run.dataset_digest,
        "Agent": run.agent_name,
        "Agent version": run.model_id,
        "MLflow run": run.run_id,
        "Started": f"{started:%Y-%m-%d %H:%M} UTC",
    }
    title = f"{run.agent_name} on {report.eval_set.eval_set_id}"
    cleaner, world, met = keepable.StoreCleaner(secrets), report.world, dict[str, str]()
    if world:  # whose digest is that of what is written down
        world = parse_world(cleaner.document(world).encode(), WORLD_FILE)
        digest = world_digest(world.recorded) if world.recorded else world.digest
        held = world.run_id or (holder(digest) if holder else "")
        kept = {"digest": digest, "run_id": held, "recorded": None if held else world.recorded}
        world = world.model_copy(update={"adk_eval_world": 1, **kept})
        report, met = replace(report, world=world), {WORLD: digest, REPLAY: world.mode, WORLD_RUN: held or HERE}
    elif any(one.kind in REPLAYED for course in report.cases.courses() for one in course.injections):
        met = {REPLAY: UNKNOWN}  # of which nobody knows any more what answered
    documents = {
        "config.json": dumps_config(report.config).encode(),
        REPORT: html_of(report, title=title, facts=facts, secrets=secrets).encode(),
        **({REPEATS: _table_of_repeats(report, secrets).encode()} if report.num_runs > 1 else {}),
        **({"agent.diff": run.agent_diff.encode()} if run.agent_diff else {}),
        **({AGENT_SOURCE: run.agent_source.encode()} if run.agent_source else {}),
    }
    if world:
        documents[WORLD_FILE] = cleaner.document(world).encode()
    if report.until_decided:
        documents[SEQUENCE] = report.until_decided.dumps(cleaner.document)
    if parts.turns <= SMALL_TURNS:
        adk_result = result_of(report, app_name=run.agent_name, created=run.started_ms / 1000)
        documents[EVAL_SET] = dumps(for_adk(report.whole, EVAL_SET), indent=None).encode()
        documents[RESULT] = cleaner.document(adk_result).encode()
    for name, content in documents.items():
        (parts.folder / name).write_bytes(content)
    # 4. The manifest: all artifacts with their hashes, what the eval set is called and what each part holds.
    eval_set = report.eval_set
    head = {name: getattr(eval_set, name) for name in EvalSet.model_fields.keys() & eval_set.model_fields_set - {"eval_cases"}}
    counted = ("first_case_no", "last_case_no", "cases", "case_runs", "turns", "votes")
    manifest = canonical_json({
        "schema": SCHEMA,
        "artifacts": {name: manifests.sha256(content) for name, content in parts.files.items() if name != MANIFEST},
        "eval_set": {name: value for name, value in head.items() if value is not None},
        "parts": [{name: getattr(part, name) for name in counted} for part in parts.parts],
    })  # fmt: skip
    (parts.folder / MANIFEST).write_bytes(manifest)
    # 5. What the run itself says.
    sample = f"The table and the report show a sample of {rows:,} of {parts.turns:,} turns: first those that did not pass."
    notes = (
        note_of(report, run.experiment_id, run.run_id),
        _ON_TRACES[extent].format(turns=parts.turns, count=len(records)),
        sample if rows < parts.turns else "",
    )
    tables = (TABLE,) if report.num_runs == 1 else (TABLE, REPEATS)
    rates = report.repeats.run_pass_rates if report.num_runs > 1 else ()
    # Why a judge was given up, and a model that played users, where that was so.
    models = {"adk_eval.judge_outage": report.judging, "adk_eval.user_simulator_outage": report.simulating}
    outages = {name: usage.outage for name, usage in models.items() if usage and usage.outage}
    return Bundle(
        run=run,
        artifacts=parts.files,
        params={
            "adk_eval.num_runs": str(report.num_runs),
            "adk_eval.turns": str(parts.turns),
            **({manifests.PICKED: picked_share(report.eval_set)} if report.eval_set.picked_from else {}),
            **({manifests.UNTIL_DECIDED: str(report.until_decided)} if report.until_decided else {}),
            "adk_eval.traces": extent,
            "adk_eval.trace_count": str(len(records)),
            **{name: keepable.storable_text(outage, secrets) for name, outage in outages.items()},
            **judge_params(report.cases, report.judging, report.simulating, secrets),
            **({ANCHORS_PARAM: manifests.sha256(parts.files[ANCHORS])} if ANCHORS in parts.files else {}),
            **met,
            **({"adk_eval.from_ledger": str(report.from_ledger)} if report.from_ledger else {}),
            **({"adk_eval.baseline": keepable.storable_text(report.baseline, secrets)} if report.baseline else {}),
            "adk_eval.manifest_sha256": manifests.sha256(manifest),
        },
        metrics=dict(metrics_of(report)),
        tags={
            "adk_eval.verdict": report.verdict,
            NOTE: keepable.fitted(keepable.storable_text("\n\n".join(filter(None, notes)), secrets), keepable.LONGEST_TAG),
            **quality_criteria(report.config),
            TABLES: json.dumps([{"path": f"{manifests.FOLDER}/{name}", "type": "table"} for name in tables]),
        },
        traces=records,
        status=SELF_COMPARISON if itself else "complete",
        series={"case_pass_rate_by_run": tuple(map(manifests.rounded_metric, rates))} if rates else {},
    )


def picked_share(eval_set: EvalSet) -> str:
    """Return how many cases were picked of how many: ``1 of 4``."""
    return f"{len(eval_set.eval_cases)} of {eval_set.picked_from}"


def quality_criteria(config: EvalConfig) -> dict[str, str]:
    """Return the tag in which MLflow keeps what a run must reach, as its ``genai.evaluate(quality_criteria=...)`` does; none where it is too long.

    Every case must reach the threshold, so the pass rate must be 1; so must the mean, where all cases have one threshold.
    """
    rules: list[Json] = []
    for name, listed in config.by_criterion.items():
        key, thresholds = manifests.key_of_criterion(name), {one.threshold for one in listed}
        comparator = "GTE" if config.greater_is_better(name) else "LTE"
        rules += [{"metricKey": f"{key}/mean", "comparator": comparator, "threshold": one} for one in thresholds if len(thresholds) == 1]
        rules.append({"metricKey": f"{key}/pass_rate", "comparator": "GTE", "threshold": 1.0})
    tag = json.dumps({"schemaVersion": 1, "revision": config.digest(), "rules": rules}, separators=(",", ":"))
    return {QUALITY_CRITERIA: tag} if rules and len(tag) <= keepable.LONGEST_TAG else {}


def sample_of(report: Report) -> Sequence[CaseResult]:
    """Return the results that people are shown, in their order: all of a small run; else those that failed, then undecided ones, then others."""
    left, chosen = SMALL_TURNS, set[int]()
    turns = report.cases.run_turns
    if sum(turns) <= left:
        return report.cases
    for verdict in WORST_FIRST:
        for place, own in enumerate(report.verdicts):
            if own == verdict and turns[place] <= left:
                chosen.add(place)
                left -= turns[place]
            if left <= 0:
                break
    return [loaded(report.cases[place]) for place in sorted(chosen)]


def _records(
    report: Report, shown: Sequence[CaseResult], table: Table, secrets: keepable.Secrets, extent: str, traces: TraceLimit
) -> Iterator[TraceRecord]:
    most = sys.maxsize if traces is True else MOST_TRACES if traces == "failed" else traces
    if len(shown) == len(report.cases):
        yield from islice(records_of(report.eval_set.eval_set_id, shown, table, secrets, only_unpassed=extent == "failed"), most)
        return
    wanted = (case for case, verdict in zip(report.cases, report.verdicts, strict=True) if extent == "all" or verdict != "passed")
    left = iter(wanted)
    while some := [loaded(case) for case in islice(left, _CASES_AT_ONCE)]:
        part, _ = keepable.clean_table(table_of(some, report.criteria), secrets)
        for record in records_of(report.eval_set.eval_set_id, some, part, secrets, only_unpassed=extent == "failed"):
            yield record
            most -= 1
            if not most:
                return


def _table_of_repeats(report: Report, secrets: keepable.Secrets) -> str:
    """Return the table with a row for each case, as text; of very many, the most flaky ones first."""
    repeats = report.repeats
    if len(repeats.cases) > SMALL_TURNS:
        cases = (*most_flaky_first(repeats.cases), *(case for case in repeats.cases if not case.flaky))
        repeats = replace(repeats, cases=cases[:SMALL_TURNS])
    columns, rows = table_of_repeats(repeats)
    return keepable.clean_table(Table(columns, tuple(rows)), secrets)[1]


def metrics_of(report: Report) -> Iterator[tuple[str, float]]:
    """Yield the metrics of a run, rounded: those that the gate will compute again, their intervals, and what models took. Others are left out."""
    measures: dict[str, float | None] = {**manifests.recomputed_metrics(report)}
    for name, summary in report.summaries().items():
        interval = mean_interval(summary.case_scores, proportion=not CRITERIA.is_quantity(name)) or (None, None)
        measures |= {f"{manifests.key_of_criterion(name)}/ci_{side}": value for side, value in zip(("low", "high"), interval, strict=True)}
    for line in pass_hat_lines(report.repeats) if report.num_runs > 1 else ():
        measures |= {f"pass_hat_{line.k}_ci_{side}": value for side, value in zip(("low", "high"), line.interval or (), strict=False)}
    judging, simulating = report.judging, report.simulating
    for prefix, usage in (("judge", judging), ("user_simulator", simulating)):
        if usage:
            took = {"calls": usage.calls, "tokens": usage.tokens, "reused": usage.reused, "asked_elsewhere": usage.asked_elsewhere}
            measures |= {f"{prefix}/{name}": value for name, value in took.items()}
    if judging:
        measures |= {"judge/calls_saved": judging.calls_saved, "judge/shared": judging.shared, "judge/flip_rate": judging.flip_rate}
        for name, (agreeing, against, missing) in judging.members.items():
            measures[f"judge/missing/{manifests.key_of_criterion(name)}"] = missing
            if agreeing + against:
                measures[f"judge/agreement/{manifests.key_of_criterion(name)}"] = agreeing / (agreeing + against)
    for name, value in measures.items():
        if value is not None and math.isfinite(value):
            yield name, manifests.rounded_metric(float(value))


_ON_TRACES = {
    "none": "No traces were written, as asked.",
    "failed": "Traces cover {count:,} of {turns:,} turns; all of these did not pass.",
    "all": "",
}


@no_collection()
def evidence_of_report(report: Report) -> manifests.Evidence:
    """Return what a run of the report would hold, just ended. Its run id is empty."""
    now_ms = time.time_ns() // 1_000_000
    agent, model_id = (report.origin.agent, report.origin.agent_version) if report.origin else ("", "")
    digest = eval_set_digest(report.whole)
    kept = dataset_of(report.whole, digest=digest)
    named = {"model_id": model_id, "dataset_name": kept.name, "dataset_digest": kept.digest, "agent_name": agent or "agent"}
    run = Run(run_id="", experiment_id="", joined=False, started_ms=now_ms, **named)
    bundle = bundle_of(report, run, traces=False, secrets=secrets_of())
    params = start_params(report.config, digest, model_id) | dict(bundle.params)
    tags = {"adk_eval.status": bundle.status, "adk_eval.eval_set_id": report.eval_set.eval_set_id}
    return manifests.Evidence(
        run_id="",
        status="FINISHED",
        end_time=now_ms,
        tags={**bundle.tags, **tags},
        params={name: keepable.fitted(value, keepable.LONGEST_PARAM) for name, value in params.items() if value},
        metrics=bundle.metrics,
        model_ids=(model_id,) if model_id else (),
        artifacts={name: content for name, content in bundle.artifacts.items() if name != MANIFEST},
        manifest=bundle.artifacts[MANIFEST],
    )


def start_params(config: EvalConfig, digest: str, model_id: str, source_sha256: str = "", models: Collection[str] = ()) -> dict[str, str]:
    """Return the parameters of a run that are known before the agent is called.

    Args:
        config: the criteria.
        digest: the digest of the eval set.
        model_id: the LoggedModel that is evaluated.
        source_sha256: the hash of the agent's source; empty where that is not known.
        models: the models that the agent names.
    """
    params: dict[str, str] = {f"threshold.{manifests.key_of_criterion(name)}": threshold for name, threshold in config.thresholds().items()}
    params |= {
        "adk_eval.schema": str(SCHEMA),
        "adk_eval.eval_set_digest": digest,
        "adk_eval.config_digest": config.digest(),
        "adk_eval.model_id": model_id,
        **({SOURCE_PARAM: source_sha256} if source_sha256 else {}),
        **({manifests.AGENT_MODELS: _joined(models)} if models else {}),
        "adk_eval.version.python": platform.python_version(),
    }
    for name, listed in config.by_criterion.items():
        for match_type in listed[0].model_dump(include={"match_type"}).values():
            params[f"adk_eval.match_type.{manifests.key_of_criterion(name)}"] = str(match_type)
    # How often judges are asked; several numbers, smallest first, where cases differ. Vertex is asked once.
    for name, settings in judged_criteria(config).items():
        ours = (one for one in settings if not isinstance(one, VertexSettings) or one.backend == "judge")
        if counts := sorted({one.judge_model_options.num_samples for one in ours}):
            params[f"adk_eval.num_samples.{manifests.key_of_criterion(name)}"] = _joined(counts)
    for package in (*_PACKAGES, *(_JUDGE_PACKAGES if judged_criteria(config) else ())):
        with suppress(PackageNotFoundError):
            params[f"adk_eval.version.{package.replace('-', '_') if package == 'mlflow-adk-eval' else package}"] = version(package)
    return params


def dataset_of(
    eval_set: EvalSet, run_id: str = "", *, digest: str = "", origin: DatasetOrigin | None = None, dataset_id: str = ""
) -> Dataset:
    """Return what MLflow is to know an eval set as.

    Args:
        eval_set: the cases, which the digest is about.
        run_id: the run among whose artifacts it is.
        digest: its digest, where that is known already.
        origin: where it came from instead.
        dataset_id: the dataset that shows its cases, to which MLflow's pages link then.
    """
    digest = digest or eval_set_digest(eval_set)
    source = {"eval_set_id": eval_set.eval_set_id, "uri": f"runs:/{run_id}/{manifests.FOLDER}/eval_set.json"}
    source |= {"dataset_id": dataset_id} if dataset_id else {}
    return Dataset(
        name=keepable.fitted(origin.name if origin else eval_set.eval_set_id, LONGEST_NAME),
        digest=digest.removeprefix("sha256:")[: keepable.LONGEST_DIGEST],
        source_type=origin.source_type if origin else "adk_evalset",
        source=origin.source if origin else json.dumps(source),
        profile=json.dumps({"num_cases": len(eval_set.eval_cases), "digest": digest}),
    )


def judge_params(cases: Cases, judging: JudgeUsage | None, simulating: JudgeUsage | None, secrets: keepable.Secrets) -> dict[str, str]:
    """Return who judged, in all and by criterion, who played users, and the hash of each prompt. The config names only who was to do it."""
    params: dict[str, str] = {}
    if judging is not None:
        params["adk_eval.judge_model"] = _joined(judging.models)
        # Which versions answered for each criterion, and at which hosts; of what is the caller's own in Python, only what it is called.
        votes = (vote for case in cases for result in case.results for vote in result.votes if vote.verdict is not None)
        sources = dict.fromkeys((vote.criterion, vote.model, vote.host) for vote in votes)
        answered = grouped(
            (name, model if host == THIS_PROCESS else f"{model} at {host or 'an unknown host'}") for name, model, host in sources
        )
        params |= {f"adk_eval.judge.{manifests.key_of_criterion(name)}": _joined(sorted(set(models))) for name, models in answered.items()}
    if simulating is not None:
        params["adk_eval.user_simulator.model"] = _joined(simulating.models)
    # A prompt's version stands beside its hash: a parameter's key has no room for it, as MLflow refuses its characters there.
    for usage in filter(None, (judging, simulating)):
        prompts = grouped(
            (prompt.partition("@")[0], f"{prompt.partition('@')[2]} {digest}".strip()) for prompt, digest in usage.prompts.items()
        )
        params |= {f"adk_eval.prompt.{manifests.key_of_criterion(name)}": _joined(sorted(texts)) for name, texts in prompts.items()}
    return {name: keepable.storable_text(text, secrets) for name, text in params.items() if text}


def _joined(values: Iterable[object]) -> str:
    return " | ".join(map(str, values))
