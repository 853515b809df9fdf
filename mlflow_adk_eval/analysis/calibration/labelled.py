"""From what judges decided and what people say of it to counts: what a calibration holds of a criterion or rubric.

`labelled_of` counts true and false verdicts, and measures how much the cells of a case resemble each other. It refuses to generalize from
cells that were chosen by their verdict (`Labelled.selection`): their sensitivity is not that of all cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from mlflow_adk_eval.analysis.calibration.calibration import Disagreement, Labelled, People, Sample
from mlflow_adk_eval.analysis.calibration.judge_error import design_effect, krippendorff_alpha, pair_agreement
from mlflow_adk_eval.analysis.calibration.labels import JudgeDecision, Opinion, Unit

_HARDLY_BY_CHANCE = 3.29
"""The deviation that random labelling reaches once in a thousand times."""


@dataclass(frozen=True, slots=True)
class LabelledUnit:
    """What judge and people say of one unit."""

    unit: Unit
    judge: bool
    people: bool

    @property
    def agree(self) -> bool:
        """Whether they say the same."""
        return self.judge == self.people


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
        LabelledUnit(unit, judged.passed, opinion.passed)
        for unit, (judged, opinion) in given.items()
        if judged.passed is not None and opinion.passed is not None
    ]
    passes, failures = [pair for pair in pairs if pair.people], [pair for pair in pairs if not pair.people]
    sample = _sample(units)
    return Labelled(
        true_passes=sum(pair.judge for pair in passes),
        false_failures=sum(not pair.judge for pair in passes),
        true_failures=sum(not pair.judge for pair in failures),
        false_passes=sum(pair.judge for pair in failures),
        pass_effect=_effect(passes, weights),
        failure_effect=_effect(failures, weights),
        overall_effect=_effect(pairs, weights),
        weighted=_weighted(pairs, weights) if weights else None,
        unscored=sum(judged.passed is None for judged, _ in given.values()),
        split=sum(judged.certainty < 1 for judged, opinion in given.values() if None not in (judged.passed, opinion.passed)),
        sample=sample,
        people=_people([opinion for _, opinion in given.values()]),
        selection=_selection(sample, pairs) if weights is None else _lacking(unlabelled),
    )


def _by_case(found: Iterable[tuple[Unit, bool]]) -> list[list[bool]]:
    cases: dict[str, list[bool]] = {}
    for unit, value in found:
        cases.setdefault(unit.eval_id, []).append(value)
    return list(cases.values())


def _effect(pairs: Sequence[LabelledUnit], weights: Mapping[Unit, float] | None) -> float:
    """Return how many pairs say as much as one of a random sample, since those of a case are alike and count for different numbers (Kish)."""
    if not pairs:
        return 1.0
    counted = [(weights or {}).get(pair.unit, 1.0) for pair in pairs]
    unequal = len(counted) * math.fsum(one * one for one in counted) / math.fsum(counted) ** 2
    return max(1.0, unequal) * design_effect(_by_case((pair.unit, pair.agree) for pair in pairs))


def _weighted(pairs: Sequence[LabelledUnit], weights: Mapping[Unit, float]) -> tuple[float, float, float, float]:
    kinds = ((True, True), (True, False), (False, False), (False, True))
    both, first, neither, second = (math.fsum(weights[pair.unit] for pair in pairs if (pair.judge, pair.people) == kind) for kind in kinds)
    return both, first, neither, second


def _lacking(unlabelled: Sequence[str]) -> str:
    return (
        f"of the sampled cells on which its verdict was {' or '.join(unlabelled)}, none is labelled: label all of the sample"
        if unlabelled
        else ""
    )


def _sample(units: Mapping[Unit, JudgeDecision]) -> Sample:
    decided = [(unit, judged.passed) for unit, judged in units.items() if judged.passed is not None]
    return Sample(
        passed=sum(passed for _, passed in decided),
        judged=len(decided),
        unscored=len(units) - len(decided),
        design_effect=design_effect(_by_case(decided)) if decided else 1.0,
    )


def _people(opinions: Sequence[Opinion]) -> People | None:
    several = [opinion.answers for opinion in opinions if len(opinion.labels) > 1]
    agreement = pair_agreement(several)
    if agreement is None:
        return None
    return People(
        cells=len(several),
        disputed=sum(len(set(answers)) > 1 for answers in several),
        tied=sum(opinion.passed is None for opinion in opinions),
        agreement=agreement,
        alpha=krippendorff_alpha(several),
    )


def _selection(sample: Sample, pairs: Sequence[LabelledUnit]) -> str:
    """Return a sentence where passed and failed cells were labelled so differently often that it is hardly by chance."""
    passed, failed = sample.passed, sample.judged - sample.passed
    of_passed, of_failed = sum(pair.judge for pair in pairs), sum(not pair.judge for pair in pairs)
    if not passed or not failed or len(pairs) == sample.judged:
        return ""
    share = len(pairs) / sample.judged
    deviation = math.sqrt(share * (1 - share) * (1 / passed + 1 / failed) * sample.design_effect)
    if not deviation or abs(of_passed / passed - of_failed / failed) <= _HARDLY_BY_CHANCE * deviation:
        return ""
    return (
        f"people labelled {of_passed} of the {passed} cells that the judge passed, but {of_failed} of the {failed} that it failed, so its"
        " sensitivity and specificity on all cells are not those on the labelled ones: label cells drawn at random, whatever the verdict"
    )


def disagreements_of(units: Mapping[Unit, JudgeDecision], opinions: Mapping[Unit, Opinion]) -> tuple[Disagreement, ...]:
    """Return where judge and people disagree; those first of which both sides are the most certain, since they tell the most."""
    found = [
        _disagreement(unit, judged, judged.passed, opinion)
        for unit, judged in units.items()
        if (opinion := opinions.get(unit)) and judged.passed is not None and opinion.passed not in (None, judged.passed)
    ]
    return tuple(sorted(found, key=lambda one: -one.certainty))


def _disagreement(unit: Unit, judged: JudgeDecision, passed: bool, opinion: Opinion) -> Disagreement:
    return Disagreement(
        **asdict(unit),
        judge_passed=passed,
        judge_said=judged.said,
        people_said=opinion.summary,
        certainty=judged.certainty * opinion.unanimity,
    )
