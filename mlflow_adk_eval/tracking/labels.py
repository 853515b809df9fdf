"""Labels that people gave on the traces of a run, as MLflow's HUMAN assessments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow import MlflowClient
from mlflow.entities import Assessment, AssessmentSource, AssessmentSourceType, Feedback, TraceInfo
from mlflow.tracing.client import TracingClient

from mlflow_adk_eval.analysis.calibration.labels import (
    Label,
    LabelError,
    Unit,
    Units,
    read_label,
)
from mlflow_adk_eval.errors import Problem, UsageError, did_you_mean, shown
from mlflow_adk_eval.gating.mlflow_client import created_once
from mlflow_adk_eval.tracking.client import every_trace
from mlflow_adk_eval.tracking.storable import assessment_name, fitted

_LONGEST_NAME = 1000
_MOST_NAMED = 8

Meaning = tuple[str, str | None]
"""A criterion and, where a label is about one of its rubrics, that."""


@dataclass(frozen=True, slots=True)
class HumanLabels:
    """What people say in MLflow."""

    labels: tuple[Label, ...]
    notes: tuple[str, ...] = ()
    """What they say besides, under other names."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The turn that a trace is about."""

    run_id: str
    eval_id: str
    run_index: int
    invocation_index: int
    trace_id: str

    def unit(self, meaning: Meaning) -> Unit:
        """Return what a label in this place is about."""
        criterion, rubric_id = meaning
        return Unit(
            run_id=self.run_id,
            eval_id=self.eval_id,
            run_index=self.run_index,
            invocation_index=self.invocation_index,
            criterion=criterion,
            rubric_id=rubric_id,
        )


def meanings_of(units: Units, renamed: Mapping[str, str]) -> dict[str, Meaning]:
    """Return what each name of an assessment means: a criterion, ``<criterion>.<rubric>``, or a rubric alone where there is one of that id.

    Args:
        units: all that can be labelled.
        renamed: names by criterion, where people use others than the criterion's.

    Raises:
        UsageError: for a name of a criterion that is not there.
    """
    known = list(dict.fromkeys((unit.criterion, unit.rubric_id) for unit in units.judged))
    criteria = [criterion for criterion, rubric_id in known if rubric_id is None]
    for name in renamed:
        if name not in criteria:
            raise UsageError(
                f"the runs have no criterion {name!r}; they have {', '.join(criteria)}. {did_you_mean(name, criteria)}".strip()
            )
    ids = Counter(rubric_id for _, rubric_id in known if rubric_id is not None)
    found: dict[str, Meaning] = {}
    for criterion, rubric_id in known:
        if rubric_id is None:
            found[renamed.get(criterion) or assessment_name(criterion)] = criterion, None
    for criterion, rubric_id in known:
        if rubric_id is not None:
            found.setdefault(assessment_name(f"{criterion}.{rubric_id}"), (criterion, rubric_id))
            if ids[rubric_id] == 1:
                found.setdefault(assessment_name(rubric_id), (criterion, rubric_id))
    return found


def human_labels(client: MlflowClient, run_ids: Sequence[str], units: Units, renamed: Mapping[str, str]) -> HumanLabels:
    """Return what people say of the cells of runs.

    Raises:
        LabelError: if a label cannot be read, or is about a cell that does not exist.
    """
    meanings = meanings_of(units, renamed)
    labels: list[Label] = []
    problems: list[Problem] = []
    others: Counter[str] = Counter()
    places = list(_places(client, run_ids, units))
    for place, info in places:
        for assessment in _labels(info):
            found = _read(place, assessment, meanings.get(assessment.name), units)
            match found:
                case Label():
                    labels.append(found)
                case Problem():
                    problems.append(found)
                case None:
                    others[assessment.name] += 1
    if problems:
        raise LabelError("HUMAN assessments in MLflow", problems)
    notes = _notes(others, meanings) if places else ["There are no traces to label, so use a table."]
    return HumanLabels(tuple(labels), tuple(notes))


class Labelling:
    """The labels of one person on what judges decided in a run: what has one, what can have one, and new ones."""

    def __init__(self, client: MlflowClient, run_id: str, units: Units, labeller: str) -> None:
        """Read what the person has labelled; labels of others, and labels that cannot be read, are left as they are."""
        self._client, self._labeller = client, labeller
        self._traces: dict[tuple[str, int, int], str] = {}
        self.labels: dict[Unit, bool] = {}
        """The person's latest label of each unit."""
        meanings, mine = meanings_of(units, {}), list[Label]()
        for place, info in _places(client, [run_id], units):
            self._traces[place.eval_id, place.run_index, place.invocation_index] = info.trace_id
            read = (_read(place, one, meanings.get(one.name), units) for one in _labels(info) if one.source.source_id == labeller)
            mine += [label for label in read if isinstance(label, Label)]
        self.labels |= {label.unit: label.passed for label in sorted(mine, key=lambda label: label.at)}
        self.units = [unit for unit, judged in units.judged.items() if judged.judged and unit.rubric_id is None and self._trace(unit)]
        """The cells of criteria that a judge decides, on turns that have a trace."""

    def _trace(self, unit: Unit) -> str:
        return self._traces.get((unit.eval_id, unit.run_index, -1 if unit.invocation_index is None else unit.invocation_index), "")

    def add(self, unit: Unit, *, passed: bool, reason: str = "") -> None:
        """Keep a label as a HUMAN assessment on the trace of its turn, where `human_labels` reads it; once, also where an answer of MLflow is lost."""
        client, trace_id = TracingClient(self._client.tracking_uri), self._trace(unit)
        label = Feedback(
            name=assessment_name(unit.criterion),
            value=passed,
            rationale=reason or None,
            source=AssessmentSource(source_type=AssessmentSourceType.HUMAN, source_id=self._labeller),
        )

        def same() -> list[Assessment]:
            """Return the person's latest label here, where it says the same: an earlier request may have arrived."""
            mine = [
                one for one in _labels(client.get_trace_info(trace_id)) if (one.name, one.source.source_id) == (label.name, self._labeller)
            ]
            latest = max(mine, key=lambda one: one.last_update_time_ms or 0, default=None)
            return [latest] if latest and (latest.value, latest.rationale or None) == (passed, label.rationale) else []

        if not same():
            created_once(lambda: client.log_assessment(trace_id, label), same, lambda _: None)
        self.labels[unit] = passed


def _labels(info: TraceInfo) -> Iterator[Feedback]:
    """Yield what people said of a trace, and nobody has replaced since."""
    for one in info.assessments:
        if isinstance(one, Feedback) and one.source.source_type == AssessmentSourceType.HUMAN and one.valid is not False and not one.error:
            yield one


def _places(client: MlflowClient, run_ids: Sequence[str], units: Units) -> Iterator[tuple[_Place, TraceInfo]]:
    """Yield the traces of the runs' turns; a run may have others, as of its agent."""
    named = {fitted(unit.eval_id, _LONGEST_NAME): unit.eval_id for unit in units.judged}
    for run_id in run_ids:
        experiment_id = client.get_run(run_id).info.experiment_id
        for info in (trace.info for trace in every_trace(client, experiment_id, run_id=run_id)):
            eval_id = named.get(info.tags.get("adk.eval_case_id", ""))
            indexes = [info.tags.get(name, "") for name in ("adk.run_index", "adk.invocation_index")]
            if eval_id is not None and all(map(str.isdecimal, indexes)):
                yield _Place(run_id, eval_id, int(indexes[0]), int(indexes[1]), info.trace_id), info


def _read(place: _Place, assessment: Feedback, meaning: Meaning | None, units: Units) -> Label | Problem | None:
    """Return a label, or what is wrong with it; ``None`` where it is about something else."""
    if meaning is None:
        return None
    where = f"trace {place.trace_id} ({place.eval_id!r}, turn {place.invocation_index + 1}), assessment {assessment.name!r}"
    here = place.unit(meaning)
    # What is judged once for the whole case may be labelled on any of its turns.
    unit = units.find(here) or units.find(replace(here, invocation_index=None))
    if unit is None or unit.invocation_index is None:
        return Problem(where, "a label", "none, since nothing was to be judged by it in this turn")
    passed = read_label(assessment.value, units.judged[unit])
    if isinstance(passed, str):
        return Problem(where, shown(assessment.value), passed)
    return Label(
        unit=unit,
        passed=passed,
        labeller=assessment.source.source_id or "",
        said=" ".join((assessment.rationale or "").split()),
        at=assessment.last_update_time_ms or 0,
    )


def _notes(others: Mapping[str, int], meanings: Mapping[str, Meaning]) -> Iterator[str]:
    if others:
        named = ", ".join(f"{shown(name)} ({count})" for name, count in list(others.items())[:_MOST_NAMED])
        hint = next(filter(None, (did_you_mean(name, meanings) for name in others)), "")
        yield f"people's assessments of other names were left out: {named}. {hint}".strip()
