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
    CriterionCalibration,
    LabelSource,
    settings_sha256,
)
from mlflow_adk_eval.analysis.calibration.labelled import disagreements_of, labelled_of
from mlflow_adk_eval.analysis.calibration.labels import (
    Judged,
    Label,
    LabelError,
    Opinion,
    Reader,
    Unit,
    Units,
    opinions_of,
    read_rows,
)
from mlflow_adk_eval.errors import Problem, UsageError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.gating.api import run_id_of
from mlflow_adk_eval.gating.evidence.integrity import key_of_criterion, prompt_keys
from mlflow_adk_eval.gating.mlflow_store import store_at
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.votes import judged_criteria
from mlflow_adk_eval.runtime import user_at_host
from mlflow_adk_eval.tracking.judged_cells import JudgedRun, judged_run
from mlflow_adk_eval.tracking.labels import human_labels

ARTIFACT = "adk_eval_calibration/calibration.json"
"""Where a run keeps a calibration, beside its evidence."""

Table = str | Path | Iterable[Mapping[str, Any]]
Meaning = tuple[str, str | None]
"""A criterion and, where labels are about one of its rubrics, that."""


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
        units = _united(found)
        if labels is None:
            human = human_labels(store.client, run_ids, units, _renamed(found, assessment))
            given, source, notes = human.labels, "mlflow", human.notes
        else:
            given, source, notes = (*_from_table(labels, units), ())
        calibration = _calibration(found, units, given, source, notes)
        for run_id in run_ids if log else ():
            store.client.log_text(run_id, calibration.dumps(), ARTIFACT)
    return calibration


def _united(runs: Iterable[JudgedRun]) -> Units:
    judged: dict[Unit, Judged] = {}
    aliases: dict[Unit, Unit] = {}
    for run in runs:
        judged |= run.units.judged
        aliases |= run.units.aliases
    return Units(judged, aliases)


def _renamed(runs: Sequence[JudgedRun], assessment: str | Mapping[str, str] | None) -> Mapping[str, str]:
    if assessment is None or not isinstance(assessment, str):
        return assessment or {}
    judged = list(dict.fromkeys(name for run in runs for name in judged_criteria(run.documents.config)))
    if len(judged) != 1:
        found = ", ".join(judged) or "none"
        raise UsageError(f"assessment {assessment!r}: it must be said of which criterion, as the judged ones are {found}")
    return {judged[0]: assessment}


def _from_table(table: Table, units: Units) -> tuple[tuple[Label, ...], str]:
    source, rows = read_rows(table)
    reader = Reader(units)
    for row in rows:
        reader.read(row)
    if reader.problems:
        raise LabelError(source, reader.problems)
    return tuple(reader.labels), Path(source).name


def _calibration(runs: Sequence[JudgedRun], units: Units, labels: Sequence[Label], source: str, notes: Sequence[str]) -> Calibration:
    opinions = opinions_of(labels)
    if not opinions:
        raise UsageError(" ".join((f"nothing is labelled: {source} has no label of {_known(units)}.", *notes)))
    meant = {found for unit in opinions for found in ((unit.criterion, None), (unit.criterion, unit.rubric_id))}
    whole = _labelled_as_whole(units, opinions, source)
    known = dict.fromkeys((unit.criterion, unit.rubric_id) for unit in units.judged)  # in the order of the config
    judged = {meaning: units.at(*meaning, whole_cases=meaning in whole) for meaning in known if meaning in meant}
    return Calibration(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=user_at_host(),
        runs=tuple(CalibratedRun(run_id=run.evidence.run_id, evidence_sha256=run.evidence.sha256) for run in runs),
        labels=_source(labels, source),
        criteria={name: _criterion(name, runs, judged, opinions, whole) for name, rubric_id in judged if rubric_id is None},
        notes=tuple(notes),
        disagreements=disagreements_of({unit: found for one in judged.values() for unit, found in one.items()}, opinions),
    )


def _known(units: Units) -> str:
    named = dict.fromkeys(unit.criterion if unit.rubric_id is None else f"{unit.criterion}.{unit.rubric_id}" for unit in units.judged)
    return ", ".join(named)


def _labelled_as_whole(units: Units, opinions: Mapping[Unit, Opinion], source: str) -> set[Meaning]:
    """Return the criteria whose labels are about whole cases.

    Raises:
        LabelError: if a criterion also has labels of single turns, since a judge need not be as good at both.
    """
    cells = set(units.aliases.values())
    whole = {(unit.criterion, unit.rubric_id) for unit in opinions if unit.invocation_index is None}
    turns = {(unit.criterion, unit.rubric_id) for unit in opinions if unit.invocation_index is not None and unit not in cells}
    if both := sorted(name for name, _ in whole & turns):
        found = "labels of whole cases, and of turns of cases with several"
        raise LabelError(source, [Problem(name, found, "labels of one kind, by invocation_index") for name in both])
    return whole


def _criterion(
    name: str,
    runs: Sequence[JudgedRun],
    judged: Mapping[Meaning, Mapping[Unit, Judged]],
    opinions: Mapping[Unit, Opinion],
    whole: set[Meaning],
) -> CriterionCalibration:
    identities = {canonical_json(found): found for run in runs if (found := _identity(run, name))}
    if len(identities) > 1:
        raise UsageError(
            f"the runs cannot be calibrated together, as {name} had {len(identities)} judges: {_differences(identities.values())}"
        )
    (params, settings), *_ = identities.values()
    counts = labelled_of(judged[name, None], opinions)
    return CriterionCalibration(
        **dict(counts),
        level="case" if (name, None) in whole else "turn",
        params=params,
        settings_sha256=settings,
        rubrics={rubric: labelled_of(units, opinions) for (criterion, rubric), units in judged.items() if criterion == name and rubric},
    )


def _identity(run: JudgedRun, name: str) -> tuple[dict[str, str | None], str] | None:
    """Return by what a criterion's judge is known in a run; ``None`` where the run does not have the criterion."""
    config, params = run.documents.config, run.evidence.params
    if name not in config.thresholds():
        return None
    key = key_of_criterion(name)
    keys = [f"threshold.{key}"]
    if name in judged_criteria(config):
        keys += [
            f"adk_eval.judge.{key}",
            f"adk_eval.num_samples.{key}",
            *prompt_keys(name),
        ]
    return {key: params.get(key) for key in keys}, settings_sha256(config, name)


def _differences(identities: Iterable[tuple[Mapping[str, str | None], str]]) -> str:
    (first, settings), *others = identities
    for params, other in others:
        for key, value in params.items():
            if first.get(key) != value:
                return f"{key} is {first.get(key)!r} in one and {value!r} in another"
        if settings != other:
            break
    return "its settings, such as rubrics or model options, are not the same"


def _source(labels: Sequence[Label], source: str) -> LabelSource:
    lines = sorted(canonical_json({**asdict(label.unit), "passed": label.passed, "labeller": label.labeller}) for label in labels)
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()
    return LabelSource(source=source, sha256=digest, count=len(labels), labellers=len({label.labeller for label in labels}))
