"""From runs and people's labels to a calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow_adk_eval.analysis.calibration.calibration import (
    CalibratedRun,
    Calibration,
    LabelSource,
)
from mlflow_adk_eval.analysis.calibration.labelled import disagreements_of
from mlflow_adk_eval.analysis.calibration.labels import (
    SAMPLE,
    Label,
    LabelError,
    LabelRow,
    Reader,
    Unit,
    Units,
    opinions_of,
    read_rows,
)
from mlflow_adk_eval.analysis.calibration.sampling import CellSample
from mlflow_adk_eval.config.criteria import RubricSettings
from mlflow_adk_eval.errors import Problem, UsageError, shown
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.gating.api import run_id_of
from mlflow_adk_eval.gating.evidence.calibrated import cells_of, criteria_of, end_of, united
from mlflow_adk_eval.gating.evidence.judged_cells import JudgedRun, judged_run
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runtime import user_at_host
from mlflow_adk_eval.tracking.labels import human_labels

ARTIFACT = "adk_eval_calibration/calibration.json"
"""Where a run keeps a calibration, beside its evidence."""

Table = str | Path | Iterable[Mapping[str, Any]]


def calibrate(
    runs: str | Report | Sequence[str | Report],
    labels: Table | None = None,
    *,
    assessment: str | Mapping[str, str] | None = None,
    log: bool = False,
    tracking_uri: str | None = None,
) -> Calibration:
    """Return how often the judges of runs are wrong, by what people say of the cells that they decided.

    Args:
        runs: the ids of the runs, or the reports that were logged as them. The same judges must have judged them all.
        labels: a CSV file or rows with the columns ``eval_id``, ``run_index``, ``invocation_index`` (from 0; empty: the whole
            case), ``criterion``, ``rubric_id``, ``label``, ``labeller`` and, with several runs, ``run_id``; ``None``: the HUMAN
            assessments on the runs' traces.
        assessment: the names of those by criterion, or one name where the runs have a single judged criterion; ``None``: the
            criterion's name, and for rubrics ``<criterion>.<rubric_id>`` or ``<rubric_id>``.
        log: whether to keep the calibration as an artifact of the runs.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if a run does not exist or is not complete, the runs had different judges, or nothing is labelled.
        LabelError: with every label that cannot be read or is about nothing.
        TrackingError: if MLflow cannot be reached, or a run's evidence cannot be believed.
    """
    listed = [runs] if isinstance(runs, str | Report) else list(runs)
    run_ids = list(dict.fromkeys(map(run_id_of, listed)))
    if not run_ids:
        raise UsageError("calibrate: no run is named")
    with store_at(tracking_uri) as store:
        found = [judged_run(store.evidence(run_id)) for run_id in run_ids]
        units = united(found)
        if labels is None:
            human = human_labels(store.client, run_ids, units, _renamed(found, assessment))
            given, source, notes, sample = human.labels, "mlflow", human.notes, None
        else:
            given, source, notes, sample = from_table(labels, units)
        calibration = _calibration(found, units, given, source, notes, sample)
        for run_id in run_ids if log else ():
            store.client.log_text(run_id, calibration.dumps(), ARTIFACT)
    return calibration


def _renamed(runs: Sequence[JudgedRun], assessment: str | Mapping[str, str] | None) -> Mapping[str, str]:
    if assessment is None or not isinstance(assessment, str):
        return assessment or {}
    judged = list(dict.fromkeys(name for run in runs for name in judged_criteria(run.documents.config)))
    if len(judged) != 1:
        found = ", ".join(judged) or "none"
        raise UsageError(f"assessment {assessment!r}: it must be said of which criterion, as the judged ones are {found}")
    return {judged[0]: assessment}


def from_table(table: Table, units: Units) -> tuple[tuple[Label, ...], str, tuple[str, ...], CellSample | None]:
    """Return the labels in a table, its name, what to note, and the sample that it is, if `label_sheet` drew it.

    Raises:
        LabelError: with every label that cannot be read or is about nothing.
    """
    source, rows = read_rows(table)
    sample = _sample_of(source, rows)
    filled = [row for row in rows if row.cells.get("label")] if sample else rows
    reader = Reader(units)
    for row in filled:
        reader.read(row)
    if reader.problems:
        raise LabelError(source, reader.problems)
    left = len(rows) - len(filled)
    notes = (f"{left} of the {len(rows)} cells of the sample are not labelled; those that are stand for them",) if left else ()
    return tuple(reader.labels), Path(source).name, notes, sample


def _sample_of(source: str, rows: Sequence[LabelRow]) -> CellSample | None:
    """Return the sample that the rows of a sheet are; ``None``: they are none.

    Raises:
        LabelError: if they are of several.
    """
    first = rows[0].cells.get(SAMPLE, "") if rows else ""
    others = [row for row in rows if row.cells.get(SAMPLE, "") != first]
    sample = CellSample.read(first) if first else None
    if others or (first and sample is None):
        row = others[0] if others else rows[0]
        found, wanted = row.cells.get(SAMPLE, "nothing"), "what `calibrate --sample` wrote, the same in each row"
        raise LabelError(source, [Problem(f"{row.place}, {SAMPLE}", shown(found), wanted)])
    return sample


def label_sheet(
    runs: str | Report | Sequence[str | Report], size: int, *, seed: int = 0, tracking_uri: str | None = None
) -> list[dict[str, str]]:
    """Return the cells of runs that are most worth a label, as rows of a table in which the column ``label`` is to be filled in.

    Half of them are cells on which the votes differ or whose score is near the threshold; the others are as many passed as failed ones. No
    column says what the judge said. `calibrate` takes the table back, and weighs the labels so that they are about all cells.

    Args:
        runs: the ids of the runs, or the reports that were logged as them.
        size: how many cells, over all judged criteria.
        seed: another one draws other cells.
        tracking_uri: where MLflow is; ``None``: as MLflow is configured.

    Raises:
        UsageError: if a run does not exist or is not complete, or the sample is too small.
        TrackingError: if MLflow cannot be reached, or a run's evidence cannot be believed.
    """
    if size < 1 or seed < 0:
        raise UsageError(f"a sample of {size} with the seed {seed}: wanted at least 1 cell, and a seed of at least 0")
    listed = [runs] if isinstance(runs, str | Report) else list(runs)
    with store_at(tracking_uri) as store:
        found = {run_id: judged_run(store.evidence(run_id)) for run_id in dict.fromkeys(map(run_id_of, listed))}
        sample = CellSample(size=size, seed=seed)
        return [_sheet_row(found[unit.run_id], unit, sample, alone=len(found) == 1) for unit in sample.drawn(united(found.values()))]


def _sheet_row(run: JudgedRun, unit: Unit, sample: CellSample, *, alone: bool) -> dict[str, str]:
    turns = run.rows[unit.eval_id, unit.run_index]
    about = turns if unit.invocation_index is None else turns[unit.invocation_index : unit.invocation_index + 1]
    settings = run.documents.config.criteria_of(unit.eval_id)[unit.criterion]
    rubrics = settings.rubrics if isinstance(settings, RubricSettings) else ()
    columns = {"question": "user", "response": "actual_response", "reference": "expected_response", "tool_calls": "actual_tool_calls"}
    return {
        "run_id": "" if alone else unit.run_id,
        "eval_id": unit.eval_id,
        "run_index": str(unit.run_index),
        "invocation_index": "" if unit.invocation_index is None else str(unit.invocation_index),
        "criterion": unit.criterion,
        "label": "",
        "labeller": "",
        SAMPLE: str(sample),
        **{name: _as_text("\n".join(str(row.get(column) or "") for row in about)) for name, column in columns.items()},
        "rubrics": _as_text("\n".join(rubric.rubric_content.text_property or "" for rubric in rubrics)),
    }


def _as_text(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _calibration(
    runs: Sequence[JudgedRun], units: Units, labels: Sequence[Label], source: str, notes: Sequence[str], sample: CellSample | None
) -> Calibration:
    opinions = opinions_of(labels)
    if not opinions:
        raise UsageError(" ".join((f"nothing is labelled: {source} has no label of {_known(units)}.", *notes)))
    order = list(dict.fromkeys((unit.criterion, unit.rubric_id) for unit in units.judged))
    judged = dict(sorted(units.judged.items(), key=lambda found: order.index((found[0].criterion, found[0].rubric_id))))
    return Calibration(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=user_at_host(),
        runs=tuple(
            CalibratedRun(run_id=run.evidence.run_id, evidence_sha256=run.evidence.sha256, ended_at=end_of(run.evidence)) for run in runs
        ),
        labels=_source(labels, source),
        sampled=sample,
        labelled=cells_of(opinions, runs),
        criteria=criteria_of(runs, units, opinions, source, sample),
        notes=tuple(notes),
        disagreements=disagreements_of(judged, opinions),
    )


def _known(units: Units) -> str:
    named = dict.fromkeys(unit.criterion if unit.rubric_id is None else f"{unit.criterion}.{unit.rubric_id}" for unit in units.judged)
    return ", ".join(named)


def _source(labels: Sequence[Label], source: str) -> LabelSource:
    lines = sorted(canonical_json({**asdict(label.unit), "passed": label.passed, "labeller": label.labeller}) for label in labels)
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return LabelSource(source=source, sha256=digest, count=len(labels), labellers=len({label.labeller for label in labels}))
