"""Why a run did not pass: each cause once, with how many cases it takes along, and of a case what was expected and what came.

A crash of the agent leaves every criterion of a case without a score, and each of them says so. `causes_of` puts such sentences together, so
that a reader sees one cause with its extent. `why_of` says of one case what a score of 0 does not: the first call, text or verdict that differs.
Both return texts of others on one line; whoever shows them escapes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mlflow_adk_eval.criteria.alignment import differences
from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.redact import cut
from mlflow_adk_eval.results.outcomes import AT_TURN, CaseResult, CriterionResult, Scored, Verdict, Vote, reason_of
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.text import counted

_MOST_CASES = 2_000
"""So many case runs that did not pass are read for causes: more are more than a page of causes needs, and take long to read."""
_MOST_PLACES = 500
_MOST_NAMED = 5
_LONGEST = 240
_CELL = re.compile(r"(?:^|; )invocation \d+ of \d+: ")
_WHERE = re.compile(rf"^(?:the agent did not finish: |{AT_TURN}|.*\d votes are available, too few for a verdict: )+")
_TIMES = re.compile(r" \(\d+ times\)(?:; |$)|; (?=\d+ answers of )")
"""How often a judge gave the same trouble, which differs from turn to turn, or the beginning of another trouble."""
_VARYING = re.compile(r"\d+|0x[0-9a-f]+|[0-9a-f]{8,}", re.IGNORECASE)
"""Numbers and ids, in which two messages of one cause differ."""
_BY_CALLS = frozenset({"tool_trajectory_avg_score", "tool_parameter_match"})
_BY_TEXT = frozenset({"response_match_score", "exact_match", "bleu", "rouge"})
"""Criteria whose reasons are numbers: the two texts say more."""


Finding = tuple[str, Verdict, str]
"""The criterion, if it is one; what it leads to; and why, without the case and the turn."""


@dataclass(slots=True)
class Cause:
    """Why some case runs did not pass."""

    text: str
    """On one line, without the case and the turn."""
    verdict: Verdict
    """*failed*: a threshold was missed; *undecided*: there is no score."""
    eval_ids: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """The criteria."""
    places: list[int] = field(default_factory=list)
    """Of the case runs, the first of very many."""
    example: str = ""
    """The first case, and why it missed the threshold."""

    @property
    def extent(self) -> str:
        """How far it reaches, such as ``3 cases, 5 criteria``."""
        criteria = len(self.names)
        return counted(len(self.eval_ids), "case") + (f", {criteria} {'criterion' if criteria == 1 else 'criteria'}" if criteria else "")

    def __str__(self) -> str:
        """Return the cause with its extent."""
        return f"{self.text} · {self.extent}"


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes of a run, those that take the most cases along first."""

    found: Sequence[Cause]
    unread: int
    """How many further case runs did not pass, whose causes were not read."""


def causes_of(report: Report) -> Causes:
    """Return why case runs of a report did not pass, each cause once."""
    unpassed = [place for place, verdict in enumerate(report.verdicts) if verdict != "passed"]
    cases = ((place, report.cases.at(place)) for place in unpassed[:_MOST_CASES])
    found = gathered((place, case.eval_id, findings_of(case)) for place, case in cases)
    for cause in found:
        case = report.cases.loaded(cause.places[0])
        missed = case.result(min(cause.names)) if cause.verdict == "failed" else None
        cause.example = f"{report.label(case)}: {_why_missed(case, missed)}" if missed else report.label(case)
    return Causes(found, max(len(unpassed) - _MOST_CASES, 0))


def gathered(cases: Iterable[tuple[int, str, Iterable[Finding]]]) -> list[Cause]:
    """Return the causes of case runs that did not pass, worst first; each case run as its place, its eval id and its findings."""
    causes: dict[tuple[str, str], Cause] = {}
    for place, eval_id, findings in cases:
        for criterion, verdict, text in findings:
            cause = causes.setdefault((verdict, _VARYING.sub("#", text)), Cause(text, verdict))
            cause.eval_ids.add(eval_id)
            cause.names |= {criterion} if criterion else set()
            if (not cause.places or cause.places[-1] != place) and len(cause.places) < _MOST_PLACES:
                cause.places.append(place)
    return sorted(causes.values(), key=_rank)


@dataclass(frozen=True, slots=True)
class Missing:
    """What could give the undecided case runs of a report their scores."""

    asking: bool = False
    """Whether an agent failed or a judge did not answer: the same evaluation, resumed, asks them again."""
    unreadable: bool = False
    """Whether a judge answered what cannot be read: the ledger keeps such an answer, which was paid for, until one asks for another."""


def missing_in(report: Report) -> Missing:
    """Return what could give the undecided case runs of a report, the first of very many, their scores."""
    places = [place for place, verdict in enumerate(report.verdicts) if verdict == "undecided"]
    asking = unreadable = False
    for place in places[:_MOST_CASES]:
        case = report.cases.at(place)
        asking = asking or bool(case.error)
        for result in case.results:
            if not result.decides or isinstance(result.overall, Scored):
                continue
            for vote in result.votes:
                if vote.error and is_answered(vote):
                    unreadable = True
                elif vote.error:
                    asking = True
    return Missing(asking, unreadable)


def is_answered(vote: Vote) -> bool:
    """Whether a judge answered at all, be it with a text that cannot be read or with none."""
    return bool(vote.raw or vote.asked_at)


def _rank(cause: Cause) -> tuple[int, bool, int]:
    return -len(cause.eval_ids), cause.verdict != "failed", -len(cause.names)


def with_outage(causes: Sequence[Cause], outage: str) -> tuple[Sequence[Cause], str]:
    """Return causes with those that an outage explains as one, which says it in full, and the outage if it explains none."""
    explained = [cause for cause in causes if outage and cause.text.removesuffix("…") in outage]
    if not explained:
        return causes, outage
    ids, names = ({each for cause in explained for each in getattr(cause, kind)} for kind in ("eval_ids", "names"))
    places = sorted({place for cause in explained for place in cause.places})[:_MOST_PLACES]
    whole = replace(explained[0], text=outage, eval_ids=ids, names=names, places=places)
    return sorted([whole, *(cause for cause in causes if cause not in explained)], key=_rank), ""


def about(report: Report, place: int) -> tuple[str, str]:
    """Return what a case run of a report is called, and why it did not pass."""
    case = report.cases.loaded(place)
    return report.label(case), why_of(case)


def sections(causes: Sequence[Cause], about_place: Callable[[int], tuple[str, str]], most: int) -> Iterator[tuple[Cause, list[str]]]:
    """Yield causes with lines on their cases: why those failed that no cause before has named; of those without a score, the names.

    Args:
        causes: the causes, worst first.
        about_place: returns of a case run what it is called, and why it did not pass.
        most: as many case runs are explained at most.
    """
    named, left = set[int](), most
    for cause in causes:
        new = [place for place in cause.places if place not in named]
        named.update(new)
        if cause.verdict == "failed":
            said = f"{next(iter(cause.names), '')}: "  # the criterion, which the cause names already
            lines = [f"{label}: {why.replace(said, '', 1)}" for label, why in map(about_place, new[:left])]
            left -= len(lines)
            more = len(new) - len(lines)
            yield cause, [*lines, *([f"and {counted(more, 'more case')}"] if more else [])]
        else:
            names = [about_place(place)[0] for place in new[:_MOST_NAMED]]
            others = f" and {len(new) - len(names):,} more" if len(new) > len(names) else ""
            yield cause, [", ".join(names) + others] if names else []


def findings_of(case: CaseResult) -> Iterator[Finding]:
    """Yield what stands between a case run and a pass."""
    if case.error:
        yield "", "undecided", _line(_nowhere(case, case.error))
    if not any(planned.decides for planned in case.planned):
        yield "", "undecided", "no criterion decides the case"
    for result in case.results:
        if not result.decides or result.passed:
            continue
        if isinstance(result.overall, Scored):
            relation = "below" if result.greater_is_better else "above"
            yield result.criterion, "failed", f"{result.criterion} {relation} its threshold {result.threshold:g}"
        else:
            reasons = filter(None, _CELL.split(reason_of(result.overall)))
            troubles = (trouble for reason in reasons for trouble in _TIMES.split(_nowhere(case, reason)))
            for reason in dict.fromkeys(map(_line, filter(None, troubles))):
                yield result.criterion, "undecided", reason


def _nowhere(case: CaseResult, text: str) -> str:
    return _WHERE.sub("", text).replace(f"case {case.eval_id!r}", "the case")


def why_of(case: CaseResult) -> str:
    """Return why a case run did not pass, in one line; empty where it passed.

    The agent's own error comes first, then the first turn of the first criterion that missed its threshold, then the first that has no score.
    """
    if case.verdict == "passed":
        return ""
    if case.error:
        return _line(case.error)
    deciding = [result for result in case.results if result.decides and not result.passed]
    missed = next((result for result in deciding if isinstance(result.overall, Scored)), None)
    if missed:
        return _why_missed(case, missed)
    return _line(f"{deciding[0].criterion} has no score: {reason_of(deciding[0].overall)}") if deciding else "no criterion decides the case"


def _why_missed(case: CaseResult, result: CriterionResult) -> str:
    for index in range(case.rows):
        cell = cell_at(result, index)
        if not isinstance(cell, Scored) or result.reached(cell):
            continue
        turn = TurnPair(case, index)
        where = f"turn {index + 1}: " if case.turns > 1 else ""
        if result.criterion in _BY_TEXT and turn.expected_answer:
            apart = next(differences(turn.answer, turn.expected_answer), None)
            if apart:
                return _line(f"{where}expected {apart.expected}, got {apart.actual}")
        lines = [" ".join(line.strip().removeprefix("- ").split()) for line in cell.rationale.splitlines() if line.strip()]
        if result.criterion in _BY_CALLS and len(lines) > 1:  # the first line counts, the others name calls
            lines = [" ".join(lines[1:3]).replace("`", "")]
        told = next((line for line in lines if line.startswith("✗")), lines[0] if lines else f"the score is {cell.score:.4g}")
        return _line(f"{where}{result.criterion}: {told.removeprefix('✗ ')}")
    score = result.score or 0.0
    return f"{result.criterion} is {score:.4g}; the threshold is {result.threshold:g}"


def _line(text: str) -> str:
    return cut(" ".join(text.split()), _LONGEST)
