"""What people's labels say of a run's judges, kept in a file, and whether it is about the judges of another run.

A `Calibration` has for each labelled criterion and rubric the counts of right and wrong verdicts, the sample that they came from, and a
fingerprint of the judge: its parameters and the hash of its settings. `calibration_problems` compares that fingerprint with another run,
so that the gate never corrects the pass rate of one judge by the errors of another.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import AwareDatetime, Field, SerializerFunctionWrapHandler, model_serializer

from mlflow_adk_eval.analysis.calibration import judge_error
from mlflow_adk_eval.analysis.calibration.judge_error import design_effect
from mlflow_adk_eval.analysis.calibration.labels import CellSample, JudgeDecision, Opinion, Unit
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.models import Strict, canonical_json
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, grouped

Level = Literal["turn", "case"]
"""What one label is about: a cell, or the score of a whole case that has several of them."""

_NO_MATTER = ("threshold", "early_stop")
_NO_MATTER_OF_MODEL = ("judge_model", "parallelism_limit")
"""What changes no score, or is compared on its own."""


class CalibrationError(InputError):
    """A calibration that cannot be used."""

    noun = "calibration"


class Sample(Strict):
    """What a judge said of cells, whether or not people labelled them."""

    passed: judge_error.Count
    judged: judge_error.Count
    unscored: judge_error.Count = 0
    """Planned cells without a score."""
    design_effect: judge_error.Effect = 1.0
    """How many of the cells say as much as one that is independent of all others."""

    @property
    def rate(self) -> float | None:
        """The judge's pass rate; ``None`` where nothing was judged."""
        return self.passed / self.judged if self.judged else None


class People(Strict):
    """How far those who label agree with each other, on the cells that several of them labelled."""

    cells: judge_error.Count
    disputed: judge_error.Count
    """Cells on which not all said the same. The majority is the label."""
    tied: judge_error.Count
    """Cells with as many labels of each kind, which are left out."""
    agreement: float
    """The share of all pairs of labels of a cell that agree."""
    alpha: float | None
    """Krippendorff's α; ``None`` where all labels are the same."""


class Labelled(judge_error.JudgeRates):
    """What people's labels say of the judge of a criterion or a rubric."""

    unscored: judge_error.Count = 0
    """Labelled cells that the judge could not score. They are in no other count."""
    split: judge_error.Count = 0
    """Labelled cells on which the judge's own votes differ."""
    sample: Sample
    """All cells of the calibrated runs."""
    people: People | None = None
    """``None`` where no cell has several labels."""
    selection: str = ""
    """Why the labelled cells tell little of the others, as when they were chosen by verdict; empty where nothing speaks for that."""

    @property
    def rates(self) -> judge_error.JudgeRates:
        """The judge's errors alone."""
        return judge_error.JudgeRates(**{name: getattr(self, name) for name in judge_error.JudgeRates.model_fields})

    def corrected(self, sample: Sample | None = None, confidence: float = 0.95) -> judge_error.Corrected | str:
        """Return the pass rate that people would give; a text says why it is not known.

        Args:
            sample: what the same judge said of other cells; ``None``: all cells of the calibrated runs.
            confidence: how often the interval is to cover the truth.
        """
        chosen = sample or self.sample
        return self.selection or judge_error.corrected_rate(
            chosen.passed, chosen.judged, self, confidence, design_effect=chosen.design_effect
        )


class CriterionCalibration(Labelled):
    """What people's labels say of the judge of a criterion, and which judge it is."""

    level: Level = "turn"
    params: dict[str, str | None]
    """The parameters of the calibrated runs by which their judge is known; ``None``: they do not have it."""
    settings_sha256: str
    """The hash of what the config says of the criterion; see `settings_sha256`."""
    rubrics: dict[str, Labelled] = Field(default_factory=dict)
    """By rubric, where people labelled those."""


class CalibratedRun(Strict):
    """A run whose cells people labelled."""

    run_id: str
    evidence_sha256: str
    ended_at: AwareDatetime
    """When the run had ended, by MLflow, when it was labelled."""


class LabelledCell(Strict):
    """How many people passed and failed a cell, a rubric of it, or a whole case."""

    run_id: str | None = None
    """``None``: the only run."""
    eval_id: str
    run_index: judge_error.Count = 0
    invocation_index: judge_error.Count | None = None
    """``None``: the whole case."""
    criterion: str
    rubric_id: str | None = None
    passes: judge_error.Count
    fails: judge_error.Count

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not said, as there may be thousands of them."""
        return {key: value for key, value in handler(self).items() if value is not None and (key, value) != ("run_index", 0)}


class LabelSource(Strict):
    """Where labels came from."""

    source: str
    """``mlflow``, or the name of a file."""
    sha256: str
    count: judge_error.Count
    labellers: judge_error.Count


class Disagreement(Strict):
    """A cell on which judge and people disagree."""

    run_id: str
    eval_id: str
    run_index: judge_error.Count
    invocation_index: judge_error.Count | None
    """``None``: the whole case."""
    criterion: str
    rubric_id: str | None
    judge_passed: bool
    judge_said: str
    people_said: str
    certainty: float
    """How sure of it both sides are: the product of the shares of votes and of labels for what they say."""


class Calibration(Strict):
    """How well the judges of one or more runs agree with people's labels."""

    schema_version: Literal[1] = 1
    made_at: str
    """ISO 8601, UTC."""
    made_by: str
    runs: tuple[CalibratedRun, ...]
    labels: LabelSource
    sampled: CellSample | None = None
    """The sample that people labelled, where `calibrate` drew one."""
    labelled: tuple[LabelledCell, ...]
    """People's labels; the gate recounts from these and the runs' evidence."""
    criteria: dict[str, CriterionCalibration]
    notes: tuple[str, ...] = ()
    """Notes, such as that the labels are not a random sample."""
    disagreements: tuple[Disagreement, ...] = Field(default=(), exclude=True, repr=False)
    """Disagreements between judge and people, most certain first. Not saved in the file, because they quote conversations."""

    def rates(self, criterion: str) -> judge_error.JudgeRates | None:
        """Return the error rates of a criterion's judge; ``None`` if nobody labelled its verdicts."""
        calibrated = self.criteria.get(criterion)
        return calibrated.rates if calibrated and calibrated.labelled else None

    def dumps(self) -> str:
        """Return the calibration as JSON text for `load_calibration`."""
        return self.model_dump_json(indent=2) + "\n"


def load_calibration(source: str | Path | Mapping[str, Any] | Calibration) -> Calibration:
    """Return a calibration from the file that ``mlflow-adk-eval calibrate -o`` wrote, or from its content.

    Raises:
        InputError: with every problem of the calibration, each with its JSON path.
    """
    if isinstance(source, Calibration):
        return source
    if isinstance(source, Mapping):
        return parse(Calibration, dict(source), "calibration", error=CalibrationError)
    text = read_text(Path(source), error=CalibrationError, made_by=f"mlflow-adk-eval calibrate RUN_ID -o {source}")
    return parse(Calibration, text, str(source), error=CalibrationError)


def calibration_problems(
    calibration: Calibration, params: Mapping[str, str], criterion: str, config: EvalConfig | None = None, keys: Iterable[str] = ()
) -> list[str]:
    """Return why a calibration says nothing of the judge of a criterion in a run: because it was another judge, or asked something else.

    Args:
        calibration: the calibration.
        params: the parameters of the run.
        criterion: the criterion.
        config: the run's config; ``None``: settings other than judge, prompts, votes and threshold are not compared.
        keys: the parameters by which that run knows the judge, of which a calibration may lack some.
    """
    calibrated = calibration.criteria.get(criterion)
    if calibrated is None:
        known = ", ".join(calibration.criteria) or "none"
        return [f"the calibration has no labels for {criterion}; it has labels for {known}"]
    problems = [
        f"the calibration is of a different judge for {criterion}: {key} was {was}, but is {now} in this run"
        for key in dict.fromkeys((*calibrated.params, *keys))
        for was, now in [["absent" if value is None else repr(value) for value in (calibrated.params.get(key), params.get(key))]]
        if was != now
    ]
    problems += [f"the calibration of {criterion} cannot be used: {calibrated.selection}"] if calibrated.selection else []
    if config is not None and settings_sha256(config, criterion) != calibrated.settings_sha256:
        problems.append(f"the calibration is of a different judge for {criterion}: its settings differ, such as rubrics or model options")
    return problems


def settings_sha256(config: EvalConfig, criterion: str) -> str:
    """Return the hash of what a config says of a criterion, without its threshold, the judge's name and what changes no score."""
    settings_of_cases: list[dict[str, Any]] = []
    for one in config.by_criterion.get(criterion, ()):
        settings: dict[str, Any] = one.model_dump(mode="json", exclude=set(_NO_MATTER))
        if isinstance(options := settings.get("judge_model_options"), dict):
            settings["judge_model_options"] = {key: value for key, value in options.items() if key not in _NO_MATTER_OF_MODEL}
        settings_of_cases += [settings] if settings not in settings_of_cases else []
    return hashlib.sha256(b"\n".join(sorted(map(canonical_json, settings_of_cases)))).hexdigest()


def judged_sample(cases: Iterable[CaseResult], criterion: str, level: Level = "turn") -> Sample:
    """Return what the judge of a criterion said of all cells of these cases, or of the cases themselves."""
    results = ((case.eval_id, result) for case in cases for result in case.results if result.criterion == criterion)
    return _sample((eval_id, result.reached(one)) for eval_id, result in results for one in outcomes_of(result, level).values())


def _sample(verdicts: Iterable[tuple[str, bool | None]]) -> Sample:
    """Return what verdicts come to, each given with its case."""
    cases = grouped(verdicts)
    decided = [[passed for passed in case if passed is not None] for case in cases.values()]
    judged = sum(map(len, decided))
    unscored = sum(map(len, cases.values())) - judged
    return Sample(passed=sum(map(sum, decided)), judged=judged, unscored=unscored, design_effect=design_effect(decided))


def outcomes_of(result: CriterionResult, level: Level) -> dict[int | None, Outcome]:
    """Return what one label can be about, by invocation; ``None``: the whole case."""
    if level == "case":
        return {None: result.overall}
    return {index: cell for index, cell in enumerate(result.per_invocation) if cell is not None}


_HARDLY_BY_CHANCE = 3.29
"""The deviation that random labelling reaches once in a thousand times."""


def labelled_of(
    units: Mapping[Unit, JudgeDecision],
    opinions: Mapping[Unit, Opinion],
    weights: Mapping[Unit, float] | None = None,
    unlabelled: Sequence[str] = (),
) -> Labelled:
    """Return what the labels of some of these units say of whoever judged them. Units of a case are taken together, whatever the run.

    Args:
        units: what was judged.
        opinions: what people say of some of them.
        weights: for how many units each of those counts, in a sample that was drawn by what the judge said; ``None``: any was as likely.
        unlabelled: the kinds of verdicts of which such a sample has no label.
    """
    given = {unit: (judged, opinions[unit]) for unit, judged in units.items() if unit in opinions}
    pairs = [
        (unit, judged.passed, opinion.passed)
        for unit, (judged, opinion) in given.items()
        if judged.passed is not None and opinion.passed is not None
    ]
    counted = None if weights is None else [weights.get(unit, 0.0) for unit, _, _ in pairs]
    rates = judge_error.rates_of([(unit.eval_id, judge, people) for unit, judge, people in pairs], counted)
    sample = _sample((unit.eval_id, judged.passed) for unit, judged in units.items())
    lacking = f"no sampled verdict {' or '.join(unlabelled)} is labelled: label the whole sample"
    return Labelled(
        **dict(rates),
        unscored=sum(judged.passed is None for judged, _ in given.values()),
        split=sum(units[unit].certainty < 1 for unit, _, _ in pairs),
        sample=sample,
        people=_people([opinion for _, opinion in given.values()]),
        selection=_selection(sample, rates) if weights is None else lacking if unlabelled else "",
    )


def _people(opinions: Sequence[Opinion]) -> People | None:
    several = [opinion.answers for opinion in opinions if len(opinion.labels) > 1]
    agreement = judge_error.pair_agreement(several)
    if agreement is None:
        return None
    disputed, tied = sum(len(set(answers)) > 1 for answers in several), sum(opinion.passed is None for opinion in opinions)
    alpha = judge_error.krippendorff_alpha(several)
    return People(cells=len(several), disputed=disputed, tied=tied, agreement=agreement, alpha=alpha)


def _selection(sample: Sample, rates: judge_error.JudgeRates) -> str:
    """Return a sentence where passed and failed cells were labelled so differently often that it is hardly by chance."""
    passed, failed = sample.passed, sample.judged - sample.passed
    of_passed, of_failed = rates.true_passes + rates.false_passes, rates.true_failures + rates.false_failures
    if not passed or not failed or rates.labelled == sample.judged:
        return ""
    share = rates.labelled / sample.judged
    deviation = math.sqrt(share * (1 - share) * (1 / passed + 1 / failed) * sample.design_effect)
    if not deviation or abs(of_passed / passed - of_failed / failed) <= _HARDLY_BY_CHANCE * deviation:
        return ""
    return (
        f"people labelled {of_passed} of {passed} passes but {of_failed} of {failed} failures, so the labels do not represent"
        " the judge's sensitivity and specificity: label a random sample of all verdicts"
    )


def disagreements_of(units: Mapping[Unit, JudgeDecision], opinions: Mapping[Unit, Opinion]) -> tuple[Disagreement, ...]:
    """Return where judge and people disagree; those first of which both sides are the most certain, since they tell the most."""
    disagreements = [
        Disagreement(
            **asdict(unit),
            judge_passed=judged.passed,
            judge_said=judged.said,
            people_said=opinion.summary,
            certainty=judged.certainty * opinion.unanimity,
        )
        for unit, judged in units.items()
        if (opinion := opinions.get(unit)) and judged.passed is not None and opinion.passed not in (None, judged.passed)
    ]
    return tuple(sorted(disagreements, key=lambda one: -one.certainty))
