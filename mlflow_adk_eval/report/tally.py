"""Case results without the conversations: small enough to be sent between processes, and all that a summary needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlflow_adk_eval.evalset.conversation import Ending, Injection
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict, mean
from mlflow_adk_eval.results.repeats import CaseRepeats, most_flaky_first


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreLine:
    """One criterion on one case run."""

    criterion: str
    threshold: float | None
    greater_is_better: bool
    score: float | None
    """``None``: not evaluated."""
    passed: bool | None
    """``None`` where it cannot be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLine:
    """One case run."""

    label: str
    verdict: Verdict
    reasons: tuple[str, ...]
    scores: tuple[ScoreLine, ...]
    case: str = ""
    """What all runs of the case are called; empty where it has one."""
    ending: Ending | None = None
    injections: tuple[Injection, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        injections = [injection.model_dump() for injection in self.injections]
        return asdict(self) | {"ending": self.ending.model_dump() if self.ending else None, "injections": injections}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CaseLine:
        """Return what `to_json` was made of."""
        scores = tuple(ScoreLine(**score) for score in value["scores"])
        ending = Ending(**value["ending"]) if value["ending"] else None
        injections = tuple(Injection(**injection) for injection in value["injections"])
        return cls(
            label=value["label"],
            verdict=value["verdict"],
            reasons=tuple(value["reasons"]),
            scores=scores,
            case=value["case"],
            ending=ending,
            injections=injections,
        )


def case_line(result: CaseResult, label: str, *, case: str = "") -> CaseLine:
    """Return what a summary needs of a case run; `case` is what all runs of the case are called, where it has several."""
    scores = tuple(
        ScoreLine(
            criterion=found.criterion,
            threshold=found.threshold,
            greater_is_better=found.greater_is_better,
            score=found.score,
            passed=found.passed,
        )
        for found in result.results
    )
    return CaseLine(
        label=label,
        verdict=result.verdict,
        reasons=result.reasons(),
        scores=scores,
        case=case,
        ending=result.ending,
        injections=result.injections,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionTotals:
    """One deciding criterion over the case runs that have it."""

    criterion: str
    thresholds: tuple[float, ...]
    """Several where files differ, smallest first."""
    greater_is_better: bool
    mean: float | None
    """Over the evaluated case runs."""
    passed: int
    evaluated: int
    planned: int

    @property
    def threshold(self) -> str:
        """The threshold as text.

        >>> CriterionTotals(criterion="c", thresholds=(0.5,), greater_is_better=True, mean=1.0, passed=1, evaluated=1, planned=1).threshold
        '≥ 0.5'
        """
        return f"{'≥' if self.greater_is_better else '≤'} {' | '.join(f'{value:g}' for value in self.thresholds)}"


def totals(cases: Iterable[CaseLine]) -> list[CriterionTotals]:
    """Return the totals of each criterion that decides, in the order in which they first come up."""
    found: dict[str, list[ScoreLine]] = {}
    for case in cases:
        for score in case.scores:
            if score.threshold is not None:
                found.setdefault(score.criterion, []).append(score)
    return [_totals(name, lines) for name, lines in found.items()]


def _totals(name: str, lines: Sequence[ScoreLine]) -> CriterionTotals:
    scores = [line.score for line in lines if line.score is not None]
    return CriterionTotals(
        criterion=name,
        thresholds=tuple(sorted({line.threshold for line in lines if line.threshold is not None})),
        greater_is_better=lines[0].greater_is_better,
        mean=mean(scores) if scores else None,
        passed=sum(line.passed is True for line in lines),
        evaluated=len(scores),
        planned=len(lines),
    )


def flaky_of(cases: Iterable[CaseLine]) -> tuple[CaseRepeats, ...]:
    """Return the cases whose runs came to different verdicts, the one that disagrees most first."""
    verdicts: dict[str, list[Verdict]] = {}
    for line in cases:
        if line.case:
            verdicts.setdefault(line.case, []).append(line.verdict)
    return most_flaky_first(CaseRepeats(eval_id=case, verdicts=tuple(found), scores={}) for case, found in verdicts.items())


def verdict_of(cases: Sequence[CaseLine], *, missing: int = 0) -> Verdict:
    """Return *failed* if a case missed a threshold, else *undecided* if evidence is missing, else *passed*.

    >>> verdict_of([]), verdict_of([CaseLine(label="a", verdict="passed", reasons=(), scores=())], missing=1)
    ('undecided', 'undecided')
    """
    verdicts = {case.verdict for case in cases}
    if "failed" in verdicts:
        return "failed"
    return "passed" if verdicts == {"passed"} and not missing else "undecided"
