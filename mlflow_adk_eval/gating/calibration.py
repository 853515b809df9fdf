"""What the judges of runs decided, and what people's labels say of them, from evidence that can be believed.

The gate's `examine` reads a run. Each cell, and each rubric of a cell, becomes a `Unit` that people may have labelled, with what the judges
said of it: the verdict, the reason and how unanimous they were (`judged_run`). `calibrate` holds labels against these.

A calibration holds the labels. The gate counts them again on the verdicts that the runs hold today (`check_calibration`), so a calibration whose
numbers, judge or age were edited contradicts its evidence. What nothing here can tell is whether a label says what a person thought.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from mlflow_adk_eval.analysis.calibration.calibration import (
    Calibration,
    CriterionCalibration,
    Labelled,
    LabelledCell,
    labelled_of,
    outcomes_of,
    settings_sha256,
)
from mlflow_adk_eval.analysis.calibration.labels import PLACE, CellSample, JudgeDecision, Label, LabelError, Opinion, Unit, Units
from mlflow_adk_eval.config.eval_config import EvalConfig, judged_criteria
from mlflow_adk_eval.config.spec import JudgedSettings, RubricSettings
from mlflow_adk_eval.criteria.rubrics import TRAJECTORY, WORTH, rubrics_of_conversation, rubrics_of_turn, turns_of
from mlflow_adk_eval.errors import Problem, TrackingError, UsageError
from mlflow_adk_eval.evalset.models import EvalCase
from mlflow_adk_eval.gating.attestation import attestation_problems
from mlflow_adk_eval.gating.policy.model import AttestationPin
from mlflow_adk_eval.judge.voting import early_verdict
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Scored, Vote, grouped, mean, reason_of
from mlflow_adk_eval.runs.examined import ExaminedRun, ReadableRun, examine
from mlflow_adk_eval.runs.manifest import Evidence, key_of_criterion, prompt_keys, state_problems

_LONGEST_SAYING = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun(ReadableRun):
    """A run whose evidence can be believed, and what its judges decided."""

    units: Units


def judged_run(evidence: Evidence, run: ExaminedRun | None = None) -> JudgedRun:
    """Return what the judges of a run decided; `run`: its evidence, where that is examined already.

    Raises:
        UsageError: if the run holds no finished evaluation.
        TrackingError: if its evidence cannot be believed.
    """
    if state := state_problems(evidence):
        raise UsageError(f"run {evidence.run_id} cannot be calibrated: {state[0]}")
    run = run or examine(evidence)
    if run.problems or not isinstance(run, ReadableRun):
        raise TrackingError(f"run {evidence.run_id} cannot be trusted: {run.problems[0]}")

    def in_order(case: CaseResult) -> CaseResult:
        """Return a case with its votes in the order in which they were cast."""
        ordered = (replace(one, votes=tuple(sorted(one.votes, key=lambda vote: vote.vote_index))) for one in case.results)
        return replace(case, results=tuple(ordered))

    known = {each.name: getattr(run, each.name) for each in fields(run)}
    return JudgedRun(**known, units=_units(run, run.report.cases.changed(in_order)))


def _units(run: ReadableRun, cases: Iterable[CaseResult]) -> Units:
    expected = iter(run.eval_set.eval_cases)  # in the order of the results
    case: EvalCase | None = None
    judged, aliases = dict[Unit, JudgeDecision](), dict[Unit, Unit]()
    for played in cases:
        while case is None or case.eval_id != played.eval_id:
            case = next(expected)
        for result in played.results:
            if result.decides:
                units = _units_of(run.evidence.run_id, run.report.config, case, played.run_index, result)
                cells = grouped((unit.rubric_id, unit) for unit in units if unit.invocation_index is not None)
                # What whole cases with a single cell are called, each with that cell.
                single = {replace(turns[0], invocation_index=None): turns[0] for turns in cells.values() if len(turns) == 1}
                aliases |= single
                judged |= {unit: verdict for unit, verdict in units.items() if unit not in single}
    return Units(judged, aliases)


def _units_of(run_id: str, config: EvalConfig, case: EvalCase, run_index: int, result: CriterionResult) -> dict[Unit, JudgeDecision]:
    """Return what a criterion's result on a case run says of each turn and the case as a whole, and of each rubric of them."""
    settings, name = config.criteria_of(case.eval_id)[result.criterion], result.criterion
    units: dict[Unit, JudgeDecision] = {}

    def unit(index: int | None, rubric_id: str | None = None) -> Unit:
        return Unit(run_id=run_id, eval_id=case.eval_id, run_index=run_index, invocation_index=index, criterion=name, rubric_id=rubric_id)

    for index, outcome in (outcomes_of(result, "turn") | outcomes_of(result, "case")).items():
        score = outcome.score if isinstance(outcome, Scored) else None
        units[unit(index)] = JudgeDecision(
            passed=result.reached(outcome),
            said=_short(f"score {outcome.score:.4g}; {outcome.rationale}" if isinstance(outcome, Scored) else reason_of(outcome)),
            certainty=_unanimity(vote for vote in result.votes if vote.invocation_index == index),  # on a case with several, nobody votes
            threshold=result.threshold,
            greater_is_better=result.greater_is_better,
            bounds=config.bounds(name),
            score=score,
            judged=isinstance(settings, JudgedSettings),
        )
    if not isinstance(settings, RubricSettings):
        return units
    turns = turns_of(case.conversation)
    for index, outcome in outcomes_of(result, "turn").items():
        votes, scored, place = [vote for vote in result.votes if vote.invocation_index == index], isinstance(outcome, Scored), index or 0
        if name == TRAJECTORY:
            rubrics = rubrics_of_conversation(name, settings, case, turns)
        else:
            rubrics = rubrics_of_turn(name, settings, case, *(turns[place] if place < len(turns) else ()))
        for rubric_id in dict.fromkeys((*rubrics.texts, *(vote.rubric_id for vote in votes))):
            if rubric_id is None:
                continue
            if scored and not votes:  # of an answer that says nothing: it satisfies no rubric
                units[unit(index, rubric_id)] = JudgeDecision(passed=False, said="no judge was asked")
                continue
            cast = [vote for vote in votes if vote.rubric_id == rubric_id and vote.verdict in WORTH]
            # With a score, all rubrics have their verdicts, so that the votes not cast could not have changed them.
            of = len(cast) if scored and cast else settings.judge_model_options.num_samples
            worths = [WORTH[vote.verdict or ""] for vote in cast[:of]]
            won = early_verdict(worths, of=of, lowest=0.0, highest=1.0)
            said = _short(next((vote.explanation for vote, worth in zip(cast, worths, strict=False) if worth == won), ""))
            passed = None if won is None else bool(won)
            units[unit(index, rubric_id)] = JudgeDecision(passed=passed, said=said, certainty=_unanimity(cast[:of]))
    return units


def _short(text: str) -> str:
    """Return a text as one line, and not a long one."""
    return cut(" ".join(text.encode("utf-8", "replace").decode().split()).removesuffix(";"), _LONGEST_SAYING)


def _unanimity(votes: Iterable[Vote]) -> float:
    """Return the share of the votes for what most of them say, on average over what was voted on; 1 where nobody had to be asked."""
    items = grouped((vote.rubric_id, vote.verdict) for vote in votes if vote.verdict is not None)
    return mean(max(Counter(said).values()) / len(said) for said in items.values()) if items else 1.0


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
            problems.append(f"the evidence of run {named.run_id} has changed since")
        problems += (f"run {named.run_id}: {problem}" for problem in attestation_problems(pin, run.evidence))
        ended.append(min(named.ended_at, end_of(run.evidence)))
        runs.append(run)
    if not problems:
        problems += _count_problems(calibration, runs)
    told = (f"the calibration of {calibration.made_at} cannot be trusted: {problem}" for problem in problems)
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
            yield f"its {' and '.join(parts)} of {name} do not follow from its labels and the evidence of its runs"


def united(runs: Iterable[JudgedRun]) -> Units:
    """Return all that the judges of several runs decided."""
    judged, aliases = dict[Unit, JudgeDecision](), dict[Unit, Unit]()
    for run in runs:
        judged |= run.units.judged
        aliases |= run.units.aliases
    return Units(judged, aliases)


def cells_of(opinions: Mapping[Unit, Opinion], runs: Sequence[JudgedRun]) -> tuple[LabelledCell, ...]:
    """Return what a calibration keeps of people's labels: how many of each kind a cell has, and not by whom."""
    only: dict[str, Any] = {"run_id": None} if len(runs) == 1 else {}
    return tuple(
        LabelledCell(**asdict(unit) | only, passes=opinion.passes, fails=len(opinion.labels) - opinion.passes)
        for unit, opinion in opinions.items()
    )


def opinions_in(calibration: Calibration) -> dict[Unit, Opinion]:
    """Return the labels that a calibration keeps, as people's opinions."""
    opinions: dict[Unit, Opinion] = {}
    for cell in calibration.labelled:
        place: dict[str, Any] = {name: getattr(cell, name) for name in PLACE} | {"run_id": cell.run_id or calibration.runs[0].run_id}
        unit = Unit(**place)
        answers = [True] * cell.passes + [False] * cell.fails
        if unit in opinions or not answers:
            found, wanted = "a score that is repeated or has no label", "each score once, with a label"
            raise LabelError("its labels", [Problem(unit.eval_id, found, wanted)])
        opinions[unit] = Opinion(tuple(Label(unit=unit, passed=passed, labeller=str(who)) for who, passed in enumerate(answers)))
    return opinions


def labels_among(calibration: Calibration, run: ReadableRun, cases: Iterable[CaseResult], criterion: str) -> Labelled | str:
    """Return what people say of some cases of a run, by the labels of this very run; a text says why nothing is known.

    Args:
        calibration: a calibration that has labels for the criterion.
        run: the run.
        cases: those of its cases that count, in their order.
        criterion: the criterion.
    """
    run_id = run.evidence.run_id
    if run_id not in (one.run_id for one in calibration.runs):
        named = ", ".join(one.run_id for one in calibration.runs)
        return (
            f"the labels are of answers of run {named}, and how often people agree with a verdict differs from agent to agent:"
            f" label a sample of this run (mlflow-adk-eval calibrate {run_id} --sample 50)"
        )
    units, whole = _units(run, cases), calibration.criteria[criterion].level == "case"
    judged = units.at(criterion, None, whole_cases=whole)
    opinions = {unit: opinion for unit, opinion in opinions_in(calibration).items() if unit in judged and opinion.passed is not None}
    found = _counted(criterion, judged, opinions, units, calibration.sampled)
    return found.selection if found.selection and calibration.sampled else found


def _counted(
    name: str, judged: Mapping[Unit, JudgeDecision], opinions: Mapping[Unit, Opinion], units: Units, sample: CellSample | None
) -> Labelled:
    """Return what opinions say of the judge of a criterion, in the light of the sample that people labelled."""
    if sample is None:
        return labelled_of(judged, opinions)
    labelled = [unit for unit, opinion in opinions.items() if opinion.passed is not None]
    return labelled_of(judged, opinions, sample.weights(units, labelled), sample.unlabelled(units, labelled, name))


def criteria_of(
    runs: Sequence[JudgedRun], units: Units, opinions: Mapping[Unit, Opinion], source: str, sample: CellSample | None = None
) -> dict[str, CriterionCalibration]:
    """Return what people's opinions say of the judge of each criterion that they are about.

    Raises:
        UsageError: if a criterion had different judges.
        LabelError: if a label is about nothing or about no cell of the sample, or a criterion has labels of turns and of whole cases.
    """
    if stray := [unit for unit in opinions if unit not in units.judged]:
        wanted = "no label, because no judge decided this"
        raise LabelError(source, [Problem(f"{unit.eval_id}, {unit.criterion}", "a label", wanted) for unit in stray])
    chosen = sample.drawn(units) if sample else opinions
    if others := [unit for unit in opinions if unit not in chosen]:
        wanted = f"a label for one of the {len(chosen)} scores in the sample {sample}"
        raise LabelError(source, [Problem(f"{unit.eval_id}, {unit.criterion}", "a label", wanted) for unit in others])
    # Labels of single turns and of whole cases do not go together, since a judge need not be as good at both.
    cells = set(units.aliases.values())
    whole = {unit.meaning for unit in opinions if unit.invocation_index is None}
    turns = {unit.meaning for unit in opinions if unit.invocation_index is not None and unit not in cells}
    if both := sorted(name for name, _ in whole & turns):
        found, wanted = "labels for whole cases and for single turns", "one kind of label: invocation_index always empty, or always set"
        raise LabelError(source, [Problem(name, found, wanted) for name in both])
    meant = {found for unit in opinions for found in ((unit.criterion, None), unit.meaning)}
    known = dict.fromkeys(unit.meaning for unit in units.judged)  # in the order of the config
    judged = {meaning: units.at(*meaning, whole_cases=meaning in whole) for meaning in known if meaning in meant}
    criteria: dict[str, CriterionCalibration] = {}
    for name in (name for name, rubric_id in judged if rubric_id is None):
        params, settings = _judge_of(runs, name)
        criteria[name] = CriterionCalibration(
            **dict(_counted(name, judged[name, None], opinions, units, sample)),
            level="case" if (name, None) in whole else "turn",
            params=params,
            settings_sha256=settings,
            rubrics={rubric: labelled_of(those, opinions) for (criterion, rubric), those in judged.items() if criterion == name and rubric},
        )
    return criteria


def _judge_of(runs: Iterable[JudgedRun], name: str) -> tuple[dict[str, str | None], str]:
    """Return by what a criterion's judge is known in the runs that have it: parameters, and the hash of its settings.

    Raises:
        UsageError: if it was not the same in all of them.
    """
    found: list[tuple[dict[str, str | None], str]] = []
    for run in runs:
        config, params = run.report.config, run.evidence.params
        if name in config.thresholds():
            keys = judge_keys(params, name) if name in judged_criteria(config) else [f"threshold.{key_of_criterion(name)}"]
            one = {key: params.get(key) for key in keys}, settings_sha256(config, name)
            found += [one] if one not in found else []
    if len(found) > 1:
        first, other = found[0][0], found[1][0]
        unlike = next((key for key in first | other if first.get(key) != other.get(key)), "")
        values = f"{unlike} is {first.get(unlike)!r} in one and {other.get(unlike)!r} in another"
        why = values if unlike else "its settings differ, such as rubrics or model options"
        raise UsageError(f"the runs cannot be calibrated together: {name} had {len(found)} judges: {why}")
    return found[0]


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
