"""What people's labels say of judges, counted from the evidence of the runs that were labelled: when that is measured, and again by the gate.

A calibration holds the labels. The gate counts them again on the verdicts that the runs hold today, so a calibration whose numbers,
judge or age were edited contradicts its evidence. What nothing here can tell is whether a label says what a person thought.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mlflow_adk_eval.analysis.calibration.calibration import Calibration, CriterionCalibration, Labelled, LabelledCell, settings_sha256
from mlflow_adk_eval.analysis.calibration.labelled import labelled_of
from mlflow_adk_eval.analysis.calibration.labels import JudgeDecision, Label, LabelError, Opinion, Unit, Units
from mlflow_adk_eval.analysis.calibration.sampling import CellSample
from mlflow_adk_eval.errors import Problem, TrackingError, UsageError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.gating.attestation.check import attestation_problems
from mlflow_adk_eval.gating.evidence.examine import ExaminedRun
from mlflow_adk_eval.gating.evidence.integrity import Evidence, key_of_criterion, prompt_keys
from mlflow_adk_eval.gating.evidence.judged_cells import JudgedRun, judged_run
from mlflow_adk_eval.gating.policy.model import AttestationPin
from mlflow_adk_eval.results.votes import judged_criteria

Meaning = tuple[str, str | None]
"""A criterion and, where labels are about one of its rubrics, that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCalibration:
    """A calibration, and whether the runs that it was measured on bear it out."""

    calibration: Calibration
    problems: tuple[str, ...] = ()
    """Why it cannot be believed, as sentences."""
    since: datetime | None = None
    """When the oldest of its runs ended; ``None``: the runs were not looked up."""


def check_calibration(
    calibration: Calibration,
    evidence_of: Callable[[str], Evidence],
    attestation: AttestationPin | None = None,
    known: ExaminedRun | None = None,
) -> CheckedCalibration:
    """Return whether a calibration is what its labels and the evidence of its runs come to.

    Args:
        calibration: the calibration.
        evidence_of: reads the evidence of a run; raises `UsageError` where there is no such run.
        attestation: who must have signed the runs; ``None``: nobody.
        known: a run that is examined already.
    """
    runs, problems, ended = list[JudgedRun](), list[str](), list[datetime]()
    pin = attestation and attestation.model_copy(update={"source": "optional"})
    for named in calibration.runs:
        examined = known if known and known.evidence.run_id == named.run_id else None
        try:
            run = judged_run(examined.evidence if examined else evidence_of(named.run_id), examined)
        except (UsageError, TrackingError) as error:
            problems.append(str(error))
            continue
        if run.evidence.sha256 != named.evidence_sha256:
            problems.append(f"the evidence of run {named.run_id} was changed since")
        problems += (f"run {named.run_id}: {problem}" for problem in attestation_problems(pin, run.evidence))
        ended.append(min(named.ended_at, end_of(run.evidence)))
        runs.append(run)
    if not problems:
        problems += _count_problems(calibration, runs)
    told = (f"the calibration of {calibration.made_at} cannot be believed: {problem}" for problem in problems)
    return CheckedCalibration(calibration=calibration, problems=tuple(told), since=min(ended, default=None))


def end_of(evidence: Evidence) -> datetime:
    """Return when a finished run ended."""
    return datetime.fromtimestamp((evidence.end_time or 0) / 1000, tz=UTC)


def _count_problems(calibration: Calibration, runs: Sequence[JudgedRun]) -> Iterator[str]:
    try:
        found = criteria_of(runs, united(runs), opinions_in(calibration), "its labels", calibration.sampled)
    except (UsageError, LabelError) as error:
        yield str(error)
        return
    for name in dict.fromkeys((*calibration.criteria, *found)):
        said, counted = calibration.criteria.get(name), found.get(name)
        if said != counted:
            parts = [field for field in CriterionCalibration.model_fields if getattr(said, field, None) != getattr(counted, field, None)]
            yield f"its {' and '.join(parts)} of {name} are not what its labels and the evidence of its runs come to"


def united(runs: Iterable[JudgedRun]) -> Units:
    """Return all that the judges of several runs decided."""
    judged: dict[Unit, JudgeDecision] = {}
    aliases: dict[Unit, Unit] = {}
    for run in runs:
        judged |= run.units.judged
        aliases |= run.units.aliases
    return Units(judged, aliases)


def cells_of(opinions: Mapping[Unit, Opinion], runs: Sequence[JudgedRun]) -> tuple[LabelledCell, ...]:
    """Return what a calibration keeps of people's labels: how many of each kind a cell has, and not by whom."""
    only = runs[0].evidence.run_id if len(runs) == 1 else None
    return tuple(
        LabelledCell(
            run_id=None if only else unit.run_id,
            eval_id=unit.eval_id,
            run_index=unit.run_index,
            invocation_index=unit.invocation_index,
            criterion=unit.criterion,
            rubric_id=unit.rubric_id,
            passes=opinion.passes,
            fails=len(opinion.labels) - opinion.passes,
        )
        for unit, opinion in opinions.items()
    )


def opinions_in(calibration: Calibration) -> dict[Unit, Opinion]:
    """Return the labels that a calibration keeps, as people's opinions."""
    found: dict[Unit, Opinion] = {}
    for cell in calibration.labelled:
        unit = Unit(
            run_id=cell.run_id or calibration.runs[0].run_id,
            eval_id=cell.eval_id,
            run_index=cell.run_index,
            invocation_index=cell.invocation_index,
            criterion=cell.criterion,
            rubric_id=cell.rubric_id,
        )
        answers = [True] * cell.passes + [False] * cell.fails
        if unit in found or not answers:
            raise LabelError("its labels", [Problem(str(unit.eval_id), "a cell twice, or without a label", "each cell once")])
        found[unit] = Opinion(tuple(Label(unit=unit, passed=passed, labeller=str(who)) for who, passed in enumerate(answers)))
    return found


def criteria_of(
    runs: Sequence[JudgedRun], units: Units, opinions: Mapping[Unit, Opinion], source: str, sample: CellSample | None = None
) -> dict[str, CriterionCalibration]:
    """Return what people's opinions say of the judge of each criterion that they are about.

    Raises:
        UsageError: if a criterion had different judges.
        LabelError: if a label is about nothing or about no cell of the sample, or a criterion has labels of turns and of whole cases.
    """
    if stray := [unit for unit in opinions if unit not in units.judged]:
        raise LabelError(
            source, [Problem(f"{unit.eval_id}, {unit.criterion}", "a label", "none, as no judge decided it") for unit in stray]
        )
    chosen = sample.drawn(units) if sample else opinions
    if others := [unit for unit in opinions if unit not in chosen]:
        wanted = f"one of the {len(chosen)} cells of the sample {sample}"
        raise LabelError(source, [Problem(f"{unit.eval_id}, {unit.criterion}", "a label", wanted) for unit in others])
    meant = {found for unit in opinions for found in ((unit.criterion, None), (unit.criterion, unit.rubric_id))}
    whole = _labelled_as_whole(units, opinions, source)
    known = dict.fromkeys((unit.criterion, unit.rubric_id) for unit in units.judged)  # in the order of the config
    judged = {meaning: units.at(*meaning, whole_cases=meaning in whole) for meaning in known if meaning in meant}
    return {name: _criterion(name, runs, judged, opinions, whole, sample) for name, rubric_id in judged if rubric_id is None}


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
    judged: Mapping[Meaning, Mapping[Unit, JudgeDecision]],
    opinions: Mapping[Unit, Opinion],
    whole: set[Meaning],
    sample: CellSample | None,
) -> CriterionCalibration:
    identities = {canonical_json(found): found for run in runs if (found := _identity(run, name))}
    if len(identities) > 1:
        raise UsageError(
            f"the runs cannot be calibrated together, as {name} had {len(identities)} judges: {_differences(identities.values())}"
        )
    (params, settings), *_ = identities.values()
    counts = _counts(name, united(runs), judged[name, None], opinions, sample)
    return CriterionCalibration(
        **dict(counts),
        level="case" if (name, None) in whole else "turn",
        params=params,
        settings_sha256=settings,
        rubrics={rubric: labelled_of(units, opinions) for (criterion, rubric), units in judged.items() if criterion == name and rubric},
    )


def _counts(
    name: str, units: Units, judged: Mapping[Unit, JudgeDecision], opinions: Mapping[Unit, Opinion], sample: CellSample | None
) -> Labelled:
    if sample is None:
        return labelled_of(judged, opinions)
    labelled = [unit for unit, opinion in opinions.items() if opinion.passed is not None]
    return labelled_of(judged, opinions, sample.weights(units, labelled), sample.unlabelled(units, labelled, name))


def _identity(run: JudgedRun, name: str) -> tuple[dict[str, str | None], str] | None:
    """Return by what a criterion's judge is known in a run; ``None`` where the run does not have the criterion."""
    config, params = run.documents.config, run.evidence.params
    if name not in config.thresholds():
        return None
    keys = judge_keys(params, name) if name in judged_criteria(config) else [f"threshold.{key_of_criterion(name)}"]
    return {key: params.get(key) for key in keys}, settings_sha256(config, name)


def judge_keys(params: Mapping[str, str], criterion: str) -> list[str]:
    """Return the parameters of a run by which the judge of a criterion is known.

    These are threshold, models, votes, prompts, and whatever else a run says of this criterion, such as the revision of the model.

    >>> judge_keys({"threshold.safety_v1": "1.0", "adk_eval.judge.safety_v1": "m", "adk_eval.revision.safety_v1": "7"}, "safety_v1")[-1]
    'adk_eval.revision.safety_v1'
    """
    key = key_of_criterion(criterion)
    own = re.compile(rf"adk_eval\.\w+\.{re.escape(key)}")
    known = [f"threshold.{key}", f"adk_eval.judge.{key}", f"adk_eval.num_samples.{key}", *prompt_keys(criterion)]
    return list(dict.fromkeys((*known, *sorted(filter(own.fullmatch, params)))))


def _differences(identities: Iterable[tuple[Mapping[str, str | None], str]]) -> str:
    (first, settings), *others = identities
    for params, other in others:
        for key, value in params.items():
            if first.get(key) != value:
                return f"{key} is {first.get(key)!r} in one and {value!r} in another"
        if settings != other:
            break
    return "its settings, such as rubrics or model options, are not the same"
