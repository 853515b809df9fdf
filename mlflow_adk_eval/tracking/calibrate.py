"""How often judges are wrong, by what people say: labels on the traces of runs, as MLflow's HUMAN assessments, or in a table."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Assessment, AssessmentSource, AssessmentSourceType, Feedback, TraceInfo
from mlflow.tracing.client import TracingClient
from mlflow.tracing.constant import TraceMetadataKey

from mlflow_adk_eval.analysis.calibration.calibration import CalibratedRun, Calibration, LabelSource, disagreements_of
from mlflow_adk_eval.analysis.calibration.labels import (
    SAMPLE,
    CellSample,
    Label,
    LabelError,
    Unit,
    Units,
    opinions_of,
    read_label,
    read_labels,
    read_rows,
)
from mlflow_adk_eval.config.eval_config import judged_criteria
from mlflow_adk_eval.config.spec import RubricSettings
from mlflow_adk_eval.errors import Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.evalset.models import canonical_json
from mlflow_adk_eval.gating.calibration import JudgedRun, cells_of, criteria_of, end_of, judged_run, united
from mlflow_adk_eval.gating.drift import CALIBRATION
from mlflow_adk_eval.gating.named_runs import run_id_of
from mlflow_adk_eval.gating.registry import MlflowStore, store_at
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import table_of
from mlflow_adk_eval.runtime import user_at_host
from mlflow_adk_eval.store.reaching import created_once, unless_absent
from mlflow_adk_eval.tracking.client import every_trace
from mlflow_adk_eval.tracking.storable import assessment_name, fitted
from mlflow_adk_eval.tracking.traces import PRODUCTION

_LONGEST_NAME = 1000
_MOST_NAMED = 8
_PAGE = 100
_TRACE_ID = re.compile(r"[^'\\]+")
"""What can stand in a filter of MLflow's."""

Table = str | Path | Iterable[Mapping[str, Any]]


def calibrate(
    runs: str | Report | Sequence[str | Report],
    labels: Table | None = None,
    *,
    assessment: str | Mapping[str, str] | None = None,
    log: bool = False,
    tracking_uri: str | None = None,
) -> Calibration:
    """Return how often the judges of runs are wrong, measured by people's labels.

    Args:
        runs: the ids of the runs, or their logged reports. All must have the same judges.
        labels: a CSV file or rows with the columns ``eval_id``, ``run_index``, ``invocation_index`` (from 0; empty: the whole
            case), ``criterion``, ``rubric_id``, ``label``, ``labeller`` and, with several runs, ``run_id``; ``None``: the HUMAN
            assessments on the runs' traces.
        assessment: the names of those by criterion, or one name where the runs have a single judged criterion; ``None``: the
            criterion's name, and for rubrics ``<criterion>.<rubric_id>`` or ``<rubric_id>``.
        log: whether to log the calibration as an artifact of the runs.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if a run does not exist or is not complete, the runs had different judges, or nothing is labelled.
        LabelError: with every label that cannot be read or matches no verdict.
        TrackingError: if MLflow is unreachable, or a run's evidence cannot be trusted.
    """
    if not runs:
        raise UsageError("calibrate: name at least one run")
    with store_at(tracking_uri) as store:
        # 1. What judges decided in the runs.
        by_id = _judged(runs, store)
        run_ids, judged_runs, units = list(by_id), list(by_id.values()), united(by_id.values())
        # 2. What people say of it.
        if labels is not None:
            given, source, notes, sample = from_table(labels, units)
        else:
            source, sample, renamed = "mlflow", None, assessment or {}
            if isinstance(renamed, str):
                names = list(dict.fromkeys(name for run in judged_runs for name in judged_criteria(run.report.config)))
                if len(names) != 1:
                    listed_names = ", ".join(names) or "none"
                    raise UsageError(f"assessment {renamed!r}: name its criterion, because several are judged: {listed_names}")
                renamed = {names[0]: renamed}
            given, notes = _human_labels(store.client, judged_runs, units, renamed)
        opinions = opinions_of(given)
        if not opinions:
            known = dict.fromkeys(".".join(filter(None, unit.meaning)) for unit in units.judged)
            raise UsageError(" ".join((f"nothing is labelled: {source} has no label for {', '.join(known)}.", *notes)))
        # 3. How often the judges are wrong.
        order = list(dict.fromkeys(unit.meaning for unit in units.judged))
        judged = dict(sorted(units.judged.items(), key=lambda entry: order.index(entry[0].meaning)))
        lines = sorted(canonical_json({**asdict(label.unit), "passed": label.passed, "labeller": label.labeller}) for label in given)
        digest, labellers = hashlib.sha256(b"\n".join(lines)).hexdigest(), len({label.labeller for label in given})
        evidence = [run.evidence for run in judged_runs]
        calibration = Calibration(
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            made_by=user_at_host(),
            runs=tuple(CalibratedRun(run_id=one.run_id, evidence_sha256=one.sha256, ended_at=end_of(one)) for one in evidence),
            labels=LabelSource(source=source, sha256=digest, count=len(given), labellers=labellers),
            sampled=sample,
            labelled=cells_of(opinions, judged_runs),
            criteria=criteria_of(judged_runs, units, opinions, source, sample),
            notes=tuple(notes),
            disagreements=disagreements_of(judged, opinions),
        )
        for run_id in run_ids if log else ():
            store.client.log_text(run_id, calibration.dumps(), CALIBRATION)
    return calibration


def _judged(runs: str | Report | Sequence[str | Report], store: MlflowStore) -> dict[str, JudgedRun]:
    run_ids = dict.fromkeys(run_id_of(run, store) for run in ([runs] if isinstance(runs, str | Report) else runs))
    return {run_id: judged_run(store.evidence(run_id)) for run_id in run_ids}


def from_table(table: Table, units: Units) -> tuple[tuple[Label, ...], str, tuple[str, ...], CellSample | None]:
    """Return the labels in a table, its name, what to note, and the sample that it is, if `label_sheet` drew it.

    Raises:
        LabelError: with every label that cannot be read or is about nothing, or if the rows are of several samples.
    """
    source, rows = read_rows(table)
    first = rows[0].cells.get(SAMPLE, "") if rows else ""
    others = [row for row in rows if row.cells.get(SAMPLE, "") != first]
    sample = CellSample.read(first) if first else None
    if others or (first and sample is None):
        row = others[0] if others else rows[0]
        what, wanted = row.cells.get(SAMPLE, "nothing"), "the value from `calibrate --sample`, the same in each row"
        raise LabelError(source, [Problem(f"{row.place}, {SAMPLE}", shown(what), wanted)])
    filled = [row for row in rows if row.cells.get("label")] if sample else rows
    found = list(read_labels(filled, units))
    if problems := [one for one in found if isinstance(one, Problem)]:
        raise LabelError(source, problems)
    left = len(rows) - len(filled)
    notes = (f"{left} of the {len(rows)} verdicts in the sample are not labelled; the labelled ones represent them",) if left else ()
    return tuple(one for one in found if isinstance(one, Label)), Path(source).name, notes, sample


def label_sheet(
    runs: str | Report | Sequence[str | Report], size: int, *, seed: int = 0, tracking_uri: str | None = None
) -> list[dict[str, str]]:
    """Return the verdicts most worth labelling, as table rows with an empty column ``label`` for you to fill in.

    Half of them have split votes or a score near the threshold; the rest are half passes, half failures. The rows hide the judge's
    verdicts. Pass the filled table to `calibrate`: it weights the labels to represent all verdicts.

    Args:
        runs: the ids of the runs, or their logged reports.
        size: the number of verdicts, over all judged criteria.
        seed: the random seed of the sample.
        tracking_uri: the MLflow server or store; ``None``: MLflow's own setting.

    Raises:
        UsageError: if a run does not exist or is not complete, or the sample is too small.
        TrackingError: if MLflow is unreachable, or a run's evidence cannot be trusted.
    """
    if size < 1 or seed < 0:
        raise UsageError(f"a sample of {size} with the seed {seed}: wanted at least 1 verdict and a seed of at least 0")
    with store_at(tracking_uri) as store:
        by_id, sample = _judged(runs, store), CellSample(size=size, seed=seed)
        return [_sheet_row(by_id[unit.run_id], unit, sample, alone=len(by_id) == 1) for unit in sample.drawn(united(by_id.values()))]


def _sheet_row(run: JudgedRun, unit: Unit, sample: CellSample, *, alone: bool) -> dict[str, str]:
    cases = run.report.cases
    turns = table_of([cases.loaded(cases.places[unit.eval_id, unit.run_index])], ()).records()
    about = turns if unit.invocation_index is None else turns[unit.invocation_index : unit.invocation_index + 1]
    settings = run.report.config.criteria_of(unit.eval_id)[unit.criterion]
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


def _meanings_of(units: Units, renamed: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Return what each name of an assessment means: a criterion, ``<criterion>.<rubric>``, or a rubric alone where there is one of that id.

    Args:
        units: all that can be labelled.
        renamed: names by criterion, where people use others than the criterion's.

    Raises:
        UsageError: for a name of a criterion that is not there.
    """
    known = list(dict.fromkeys(unit.meaning for unit in units.judged))
    criteria = [criterion for criterion, rubric_id in known if rubric_id is None]
    for name in renamed:
        if name not in criteria:
            hint = did_you_mean(name, criteria)
            raise UsageError(f"the runs have no criterion {name!r}; they have {', '.join(criteria)}. {hint}".strip())
    ids = Counter(rubric_id for _, rubric_id in known if rubric_id is not None)
    meanings: dict[str, tuple[str, str | None]] = {renamed.get(name) or assessment_name(name): (name, None) for name in criteria}
    for criterion, rubric_id in known:
        if rubric_id is not None:
            meanings.setdefault(assessment_name(f"{criterion}.{rubric_id}"), (criterion, rubric_id))
            if ids[rubric_id] == 1:
                meanings.setdefault(assessment_name(rubric_id), (criterion, rubric_id))
    return meanings


def labels_on(
    traces: Iterable[tuple[Unit, TraceInfo]], units: Units, renamed: Mapping[str, str]
) -> tuple[list[Label], list[Problem], Counter[str]]:
    """Return what people say of turns on their traces, what of it cannot be read, and how often they say something under other names.

    Args:
        traces: the turns, as units that no criterion is said of yet, each with its trace.
        units: all that can be labelled.
        renamed: names by criterion, where people use others than the criterion's.
    """
    meanings = _meanings_of(units, renamed)
    labels, problems, others = list[Label](), list[Problem](), Counter[str]()
    for turn, info in traces:
        for assessment in _labels(info):
            match label := _read(turn, info, assessment, meanings.get(assessment.name), units):
                case Label():
                    labels.append(label)
                case Problem():
                    problems.append(label)
                case None:
                    others[assessment.name] += 1
    return labels, problems, others


def _human_labels(
    client: MlflowClient, runs: Sequence[JudgedRun], units: Units, renamed: Mapping[str, str]
) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    """Return what people say of the cells of runs, and a note on what they say besides, under other names.

    Raises:
        LabelError: if a label cannot be read, or is about a cell that does not exist.
    """
    traces = list(turns_in_mlflow(client, runs))
    labels, problems, others = labels_on(traces, units, renamed)
    if problems:
        raise LabelError("HUMAN assessments in MLflow", problems)
    if not traces:
        return tuple(labels), ("There are no traces to label, so use a table.",)
    if not others:
        return tuple(labels), ()
    named = ", ".join(f"{shown(name)} ({count})" for name, count in list(others.items())[:_MOST_NAMED])
    hint = next(filter(None, (did_you_mean(name, _meanings_of(units, renamed)) for name in others)), "")
    return tuple(labels), (f"ignored people's assessments with other names: {named}. {hint}".strip(),)


class Labelling:
    """The labels of one person on what judges decided in a run: what has one, what can have one, and new ones."""

    def __init__(self, client: MlflowClient, run: JudgedRun, labeller: str) -> None:
        """Read what the person has labelled; labels of others, and labels that cannot be read, are left as they are."""
        self._client, self._labeller = client, labeller
        self._traces: dict[tuple[str, int, int | None], str] = {}
        self.labels: dict[Unit, bool] = {}
        """The person's latest label of each unit."""
        units = run.units
        meanings, mine = _meanings_of(units, {}), list[Label]()
        for turn, info in turns_in_mlflow(client, [run]):
            self._traces[turn.eval_id, turn.run_index, turn.invocation_index] = info.trace_id
            read = (_read(turn, info, one, meanings.get(one.name), units) for one in _labels(info) if one.source.source_id == labeller)
            mine += [label for label in read if isinstance(label, Label)]
        self.labels |= {label.unit: label.passed for label in sorted(mine, key=lambda label: label.at)}
        self.units = [unit for unit, judged in units.judged.items() if judged.judged and unit.rubric_id is None and self._trace(unit)]
        """The cells of criteria that a judge decides, on turns that have a trace."""

    def _trace(self, unit: Unit) -> str:
        return self._traces.get((unit.eval_id, unit.run_index, -1 if unit.invocation_index is None else unit.invocation_index), "")

    def _mine(self, client: TracingClient, unit: Unit) -> list[Feedback]:
        """Return the person's labels of a unit, the latest last."""
        name, found = assessment_name(unit.criterion), _labels(client.get_trace_info(self._trace(unit)))
        mine = (one for one in found if (one.name, one.source.source_id) == (name, self._labeller))
        return sorted(mine, key=lambda one: one.last_update_time_ms or 0)

    def add(self, unit: Unit, *, passed: bool, reason: str = "") -> None:
        """Keep a label as a HUMAN assessment on the trace of its turn, where `human_labels` reads it; once, also where an answer of MLflow is lost."""
        client, trace_id = TracingClient(self._client.tracking_uri), self._trace(unit)
        source = AssessmentSource(source_type=AssessmentSourceType.HUMAN, source_id=self._labeller)
        label = Feedback(name=assessment_name(unit.criterion), value=passed, rationale=reason or None, source=source)

        def same() -> list[Assessment]:
            """Return the person's latest label here, where it says the same: an earlier request may have arrived."""
            latest = self._mine(client, unit)[-1:]
            return [one for one in latest if (one.value, one.rationale or None) == (passed, label.rationale)]

        if not same():
            created_once(lambda: client.log_assessment(trace_id, label), same, lambda _: None)
        self.labels[unit] = passed

    def undo(self, unit: Unit) -> None:
        """Delete the person's latest label of a unit, so that the one before counts again, if there is one."""
        client = TracingClient(self._client.tracking_uri)
        mine = self._mine(client, unit)
        with unless_absent():
            for last in mine[-1:]:
                client.delete_assessment(self._trace(unit), last.assessment_id or "")
        self.labels.pop(unit, None)
        if len(mine) > 1 and isinstance(mine[-2].value, bool):
            self.labels[unit] = mine[-2].value


def _labels(info: TraceInfo) -> Iterator[Feedback]:
    """Yield what people said of a trace, and nobody has replaced since."""
    for one in info.assessments:
        if isinstance(one, Feedback) and one.source.source_type == AssessmentSourceType.HUMAN and one.valid is not False and not one.error:
            yield one


def turns_in_mlflow(client: MlflowClient, runs: Iterable[JudgedRun]) -> Iterator[tuple[Unit, TraceInfo]]:
    """Yield the turns of runs, as units that no criterion is said of yet, with their traces; a run may have others, as of its agent.

    A run that scored traces has none of its own. Of several turns in one trace, the trace is that of the last.
    """
    for run in runs:
        run_id = run.evidence.run_id
        experiment_id = client.get_run(run_id).info.experiment_id
        named = {fitted(unit.eval_id, _LONGEST_NAME): unit.eval_id for unit in run.units.judged}
        for info in (trace.info for trace in every_trace(client, experiment_id, run_id=run_id)):
            eval_id = named.get(info.tags.get("adk.eval_case_id", ""))
            indexes = [info.tags.get(name, "") for name in ("adk.run_index", "adk.invocation_index")]
            if eval_id is not None and all(map(str.isdecimal, indexes)):
                run_index, invocation_index = map(int, indexes)
                yield Unit(run_id=run_id, eval_id=eval_id, run_index=run_index, invocation_index=invocation_index, criterion=""), info
        scored = dict[str, Unit]()
        for case in run.report.cases if PRODUCTION in run.evidence.params else ():
            for index, turn in enumerate(case.expected or ()):
                unit = Unit(run_id=run_id, eval_id=case.eval_id, run_index=case.run_index, invocation_index=index, criterion="")
                scored[turn.invocation_id.partition("#")[0]] = unit
        ids = list(filter(_TRACE_ID.fullmatch, scored))
        for start in range(0, len(ids), _PAGE):
            wanted = ", ".join(f"'{trace_id}'" for trace_id in ids[start : start + _PAGE])
            for trace in every_trace(client, experiment_id, filter_string=f"attributes.request_id IN ({wanted})", page_size=_PAGE):
                yield scored[trace.info.trace_id], trace.info


def _read(
    turn: Unit, info: TraceInfo, assessment: Feedback, meaning: tuple[str, str | None] | None, units: Units
) -> Label | Problem | None:
    """Return a label of a turn, or what is wrong with it; ``None`` where it is about something else."""
    if meaning is None:
        return None
    where = f"trace {info.trace_id} ({turn.eval_id!r}, turn {(turn.invocation_index or 0) + 1}), assessment {assessment.name!r}"
    # What somebody says of a session, MLflow keeps on its first trace.
    index = None if TraceMetadataKey.TRACE_SESSION in (assessment.metadata or {}) else turn.invocation_index
    here = replace(turn, invocation_index=index, criterion=meaning[0], rubric_id=meaning[1])
    # What is judged once for the whole case may be labelled on any of its turns.
    unit = units.find(here) or units.find(replace(here, invocation_index=None))
    if unit is None or unit.invocation_index is None:
        return Problem(where, "a label", "no label, because no judge had to decide it in this turn")
    passed = read_label(assessment.value, units.judged[unit])
    if isinstance(passed, str):
        return Problem(where, shown(assessment.value), passed)
    said, at = " ".join((assessment.rationale or "").split()), assessment.last_update_time_ms or 0
    return Label(unit=unit, passed=passed, labeller=assessment.source.source_id or "", said=said, at=at)
