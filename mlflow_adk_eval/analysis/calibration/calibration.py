"""What people's labels say of a run's judges, kept in a file, and whether it is about the judges of another run.

A `Calibration` has for each labelled criterion and rubric the counts of right and wrong verdicts, the sample that they came from, and a
fingerprint of the judge: its parameters and the hash of its settings. `calibration_problems` compares that fingerprint with another run,
so that the gate never corrects the pass rate of one judge by the errors of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer

from mlflow_adk_eval.analysis.calibration.judge_error import Corrected, JudgeRates, corrected_rate, design_effect
from mlflow_adk_eval.analysis.calibration.sampling import CellSample
from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.errors import InputError
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.parse import parse, read_text
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome

Count = Annotated[int, Field(ge=0, strict=True)]
Effect = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Level = Literal["turn", "case"]
"""What one label is about: a cell, or the score of a whole case that has several of them."""

_NO_MATTER = ("threshold", "early_stop")
_NO_MATTER_OF_MODEL = ("judge_model", "parallelism_limit")
"""What changes no score, or is compared on its own."""


class CalibrationError(InputError):
    """A calibration that cannot be used."""

    noun = "calibration"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Sample(_Model):
    """What a judge said of cells, whether or not people labelled them."""

    passed: Count
    judged: Count
    unscored: Count = 0
    """Planned cells without a score."""
    design_effect: Effect = 1.0
    """How many of the cells say as much as one that is independent of all others."""

    @property
    def rate(self) -> float | None:
        """The judge's pass rate; ``None`` where nothing was judged."""
        return self.passed / self.judged if self.judged else None


class People(_Model):
    """How far those who label agree with each other, on the cells that several of them labelled."""

    cells: Count
    disputed: Count
    """Cells on which not all said the same. The majority is the label."""
    tied: Count
    """Cells with as many labels of each kind, which are left out."""
    agreement: float
    """The share of all pairs of labels of a cell that agree."""
    alpha: float | None
    """Krippendorff's α; ``None`` where all labels are the same."""


class Labelled(_Model):
    """What people's labels say of the judge of a criterion or a rubric."""

    true_passes: Count
    false_passes: Count
    true_failures: Count
    false_failures: Count
    pass_effect: Effect = 1.0
    failure_effect: Effect = 1.0
    overall_effect: Effect = 1.0
    weighted: tuple[float, float, float, float] | None = None
    """Of a stratified sample: true passes, false passes, true failures and false failures as they would be in all cells."""
    unscored: Count = 0
    """Labelled cells that the judge could not score. They are in no other count."""
    split: Count = 0
    """Labelled cells on which the judge's own votes differ."""
    sample: Sample
    """All cells of the calibrated runs."""
    people: People | None = None
    """``None`` where no cell has several labels."""
    selection: str = ""
    """Why the labelled cells tell little of the others, as when they were chosen by verdict; empty where nothing speaks for that."""

    @property
    def rates(self) -> JudgeRates:
        """The judge's errors."""
        return JudgeRates(**{name: getattr(self, name) for name in JudgeRates.__dataclass_fields__})

    def corrected(self, sample: Sample | None = None, confidence: float = 0.95) -> Corrected | str:
        """Return the pass rate that people would give; a text says why it is not known.

        Args:
            sample: what the same judge said of other cells; ``None``: all cells of the calibrated runs.
            confidence: how often the interval is to cover the truth.
        """
        chosen = sample or self.sample
        return self.selection or corrected_rate(chosen.passed, chosen.judged, self.rates, confidence, design_effect=chosen.design_effect)


class CriterionCalibration(Labelled):
    """What people's labels say of the judge of a criterion, and which judge it is."""

    level: Level = "turn"
    params: dict[str, str | None]
    """The parameters of the calibrated runs by which their judge is known; ``None``: they do not have it."""
    settings_sha256: str
    """The hash of what the config says of the criterion; see `settings_sha256`."""
    rubrics: dict[str, Labelled] = Field(default_factory=dict)
    """By rubric, where people labelled those."""


class CalibratedRun(_Model):
    """A run whose cells people labelled."""

    run_id: str
    evidence_sha256: str
    ended_at: AwareDatetime
    """When the run had ended, by MLflow, when it was labelled."""


class LabelledCell(_Model):
    """How many people passed and failed a cell, a rubric of it, or a whole case."""

    run_id: str | None = None
    """``None``: the only run."""
    eval_id: str
    run_index: Count = 0
    invocation_index: Count | None = None
    """``None``: the whole case."""
    criterion: str
    rubric_id: str | None = None
    passes: Count
    fails: Count

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is not said, as there may be thousands of them."""
        return {key: value for key, value in handler(self).items() if value is not None and (key, value) != ("run_index", 0)}


class LabelSource(_Model):
    """Where labels came from."""

    source: str
    """``mlflow``, or the name of a file."""
    sha256: str
    count: Count
    labellers: Count


class Disagreement(_Model):
    """A cell on which judge and people disagree."""

    run_id: str
    eval_id: str
    run_index: Count
    invocation_index: Count | None
    """``None``: the whole case."""
    criterion: str
    rubric_id: str | None
    judge_passed: bool
    judge_said: str
    people_said: str
    certainty: float
    """How sure of it both sides are: the product of the shares of votes and of labels for what they say."""


class Calibration(_Model):
    """What people's labels say of the judges of one or more runs."""

    schema_version: Literal[1] = 1
    made_at: str
    """ISO 8601, UTC."""
    made_by: str
    runs: tuple[CalibratedRun, ...]
    labels: LabelSource
    sampled: CellSample | None = None
    """The sample that people labelled, where `calibrate` drew one."""
    labelled: tuple[LabelledCell, ...]
    """People's labels, from which and the evidence of the runs the gate counts again."""
    criteria: dict[str, CriterionCalibration]
    notes: tuple[str, ...] = ()
    """What the reader should know, such as that labels were not drawn at random."""
    disagreements: tuple[Disagreement, ...] = Field(default=(), exclude=True, repr=False)
    """Where judge and people disagree, the most certain first. Not kept in the file, since it quotes conversations."""

    def rates(self, criterion: str) -> JudgeRates | None:
        """Return the errors of a criterion's judge; ``None`` where people labelled none of its cells."""
        found = self.criteria.get(criterion)
        return found.rates if found and found.rates.labelled else None

    def dumps(self) -> str:
        """Return the calibration as JSON text, from which `load_calibration` makes it again."""
        return self.model_dump_json(indent=2) + "\n"


_CALIBRATION = TypeAdapter(Calibration)


def load_calibration(source: str | Path | Mapping[str, Any] | Calibration) -> Calibration:
    """Return a calibration from the file that ``mlflow-adk-eval calibrate -o`` wrote, or from its content.

    Raises:
        InputError: with every problem of the calibration, each with its JSON path.
    """
    if isinstance(source, Calibration):
        return source
    if isinstance(source, Mapping):
        return parse(_CALIBRATION, dict(source), "calibration", error=CalibrationError)
    text = read_text(Path(source), error=CalibrationError, made_by=f"mlflow-adk-eval calibrate RUN_ID -o {source}")
    return parse(_CALIBRATION, text, str(source), error=CalibrationError)


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
    found = calibration.criteria.get(criterion)
    if found is None:
        known = ", ".join(calibration.criteria) or "none"
        return [f"the calibration has no labels of {criterion}; it has those of {known}"]
    problems = [
        f"the calibration is of another judge of {criterion}: {key} was {_quoted(wanted)}, and in this run it is {_quoted(params.get(key))}"
        for key, wanted in ((key, found.params.get(key)) for key in dict.fromkeys((*found.params, *keys)))
        if params.get(key) != wanted
    ]
    problems += [f"the calibration of {criterion} cannot be used: {found.selection}"] if found.selection else []
    if config is not None and settings_sha256(config, criterion) != found.settings_sha256:
        problems.append(
            f"the calibration is of another judge of {criterion}: its settings, such as rubrics or model options, were not the same"
        )
    return problems


def _quoted(value: str | None) -> str:
    return "absent" if value is None else repr(value)


def settings_sha256(config: EvalConfig, criterion: str) -> str:
    """Return the hash of what a config says of a criterion, without its threshold, the judge's name and what changes no score."""
    found: list[dict[str, Any]] = []
    for criteria in (config.criteria, *config.case_criteria.values()):
        if criterion in criteria:
            settings: dict[str, Any] = criteria[criterion].model_dump(mode="json", exclude=set(_NO_MATTER))
            options = settings.get("judge_model_options")
            if isinstance(options, dict):
                settings["judge_model_options"] = {key: value for key, value in options.items() if key not in _NO_MATTER_OF_MODEL}
            found += [settings] if settings not in found else []
    return hashlib.sha256(b"\n".join(sorted(map(canonical_json, found)))).hexdigest()


def judged_sample(cases: Iterable[CaseResult], criterion: str, level: Level = "turn") -> Sample:
    """Return what the judge of a criterion said of all cells of these cases, or of the cases themselves."""
    verdicts: dict[str, list[bool]] = {}
    unscored = 0
    for case in cases:
        for result in case.results:
            reached = [result.reached(one) for one in outcomes_of(result, level).values()] if result.criterion == criterion else []
            verdicts.setdefault(case.eval_id, []).extend(one for one in reached if one is not None)
            unscored += reached.count(None)
    return Sample(
        passed=sum(map(sum, verdicts.values())),
        judged=sum(map(len, verdicts.values())),
        unscored=unscored,
        design_effect=design_effect(verdicts.values()),
    )


def outcomes_of(result: CriterionResult, level: Level) -> dict[int | None, Outcome]:
    """Return what one label can be about, by invocation; ``None``: the whole case."""
    if level == "case":
        return {None: result.overall}
    return {index: cell for index, cell in enumerate(result.per_invocation) if cell is not None}


def corrected_of(calibration: Calibration, cases: Iterable[CaseResult], criterion: str, confidence: float = 0.95) -> Corrected | str:
    """Return the corrected pass rate of a criterion over the cells of any run's cases; a text says why there is none."""
    found = calibration.criteria.get(criterion)
    if found is None:
        return f"the calibration has no labels of {criterion}"
    return found.corrected(judged_sample(cases, criterion, found.level), confidence)
