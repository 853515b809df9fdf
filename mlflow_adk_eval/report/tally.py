"""Case results without the conversations: small enough to be sent between processes, and all that a summary needs.

Tests of a session may run in several processes. Each sends a `CaseLine` for every case run that it finished, as JSON; the session puts
the lines together, and `totals`, `flaky_of` and the pages of `markdown` are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from mlflow_adk_eval.evalset.conversation import Ending, Injection
from mlflow_adk_eval.report.findings import Cause, Finding, findings_of, gathered, why_of
from mlflow_adk_eval.report.sentences import format_evidence
from mlflow_adk_eval.results.outcomes import CaseResult, Tally, Verdict, grouped, mean
from mlflow_adk_eval.results.repeats import CaseRepeats, most_flaky_first
from mlflow_adk_eval.results.report import CasesInMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLine:
    """One case run."""

    label: str
    verdict: Verdict
    why: str
    """Why it did not pass; empty where it passed."""
    findings: tuple[Finding, ...]
    """What stands between it and a pass."""
    tallies: tuple[Tally, ...]
    """What each criterion came to."""
    case: str = ""
    """What all runs of the case are called; empty where it has one."""
    ending: Ending | None = None
    injections: tuple[Injection, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        value: dict[str, Any] = _LINE.dump_python(self, mode="json")
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CaseLine:
        """Return what `to_json` was made of."""
        return _LINE.validate_python(value)


_LINE = TypeAdapter(CaseLine)


def case_line(result: CaseResult, label: str, *, case: str = "") -> CaseLine:
    """Return what a summary needs of a case run; `case` is what all runs of the case are called, where it has several."""
    ((_, _, tallies),) = CasesInMemory([result]).tallies()
    return CaseLine(
        label=label,
        verdict=result.verdict,
        why=why_of(result),
        findings=tuple(findings_of(result)),
        tallies=tuple(tallies),
        case=case,
        ending=result.conversation.ending,
        injections=result.injections,
    )


@dataclass(frozen=True, slots=True)
class CriterionTotals:
    """One deciding criterion over the case runs that have it."""

    criterion: str
    tallies: Sequence[Tally]

    @property
    def scores(self) -> list[float]:
        """Those of the evaluated case runs."""
        return [tally.score for tally in self.tallies if tally.score is not None]

    @property
    def passed(self) -> int:
        """How many case runs reach their threshold."""
        return sum(tally.passed for tally in self.tallies)

    @property
    def threshold(self) -> str:
        """The threshold as text; several where files differ, smallest first.

        >>> from mlflow_adk_eval.results.outcomes import PlannedCriterion
        >>> CriterionTotals("c", [Tally(PlannedCriterion("c", 0.5, greater_is_better=True), 1.0, 1, 0, 0)]).threshold
        '≥ 0.5'
        """
        thresholds = sorted({tally.planned.threshold or 0.0 for tally in self.tallies})
        return f"{'≥' if self.tallies[0].planned.greater_is_better else '≤'} {' | '.join(f'{value:g}' for value in thresholds)}"

    @property
    def evidence(self) -> str:
        """The mean, with what it rests on where something is missing."""
        average = mean(self.scores) if self.scores else None
        thresholds = sorted(tally.planned.threshold or 0.0 for tally in self.tallies)
        nearest = min(thresholds, key=lambda threshold: abs(threshold - (average or 0.0)))
        return format_evidence(average, nearest, len(self.scores), len(self.tallies))


def totals(cases: Iterable[CaseLine]) -> list[CriterionTotals]:
    """Return the totals of each criterion that decides, in the order in which they first come up."""
    by_criterion = grouped((tally.planned.criterion, tally) for case in cases for tally in case.tallies if tally.planned.decides)
    return [CriterionTotals(name, tallies) for name, tallies in by_criterion.items()]


def causes_of_lines(lines: Sequence[CaseLine]) -> list[Cause]:
    """Return why case runs did not pass, each cause once, worst first."""
    return gathered((place, line.case or line.label, line.findings) for place, line in enumerate(lines) if line.verdict != "passed")


def flaky_of(cases: Iterable[CaseLine]) -> tuple[CaseRepeats, ...]:
    """Return the cases whose runs came to different verdicts, the one that disagrees most first."""
    verdicts = grouped((line.case, line.verdict) for line in cases if line.case)
    return most_flaky_first(CaseRepeats(eval_id=case, verdicts=tuple(of_case), scores={}) for case, of_case in verdicts.items())
