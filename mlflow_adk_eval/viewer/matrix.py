"""Cases by criteria, of one run or of several side by side: scores only, so that no text is read for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from string import ascii_uppercase
from typing import Literal

from mlflow_adk_eval.report.sentences import format_mean, format_scored, format_threshold
from mlflow_adk_eval.results.outcomes import WORST_FIRST, PlannedCriterion, Verdict, mean, verdict_of
from mlflow_adk_eval.text import format_number
from mlflow_adk_eval.viewer.pages import case_link
from mlflow_adk_eval.viewer.query import Paged, Query, paged
from mlflow_adk_eval.viewer.store import OpenRun

ROWS_A_PAGE = 50
_ABSENT = 9
"""The rank of what cannot be ordered, which comes last in either direction."""
_RANKS = {"missed": 0, "missing": 1, "reached": 2, "plain": 2}
State = Literal["missed", "missing", "reached", "plain"]
"""Of a cell; *plain*: no threshold. A case whose every score reaches its threshold but that lacks one is *missing*."""


@dataclass(slots=True)
class _Scores:
    """What the runs of a case came to on a criterion."""

    planned: PlannedCriterion
    place: int
    """Of the case run to look at: the first that did not reach its threshold, else the first."""
    runs: int = 0
    passed: int = 0
    scores: list[float] = field(default_factory=list[float])

    @property
    def state(self) -> State:
        if self.planned.decides and self.passed < len(self.scores):
            return "missed"
        return "missing" if len(self.scores) < self.runs else "reached" if self.planned.decides else "plain"

    @property
    def mean(self) -> float | None:
        return mean(self.scores) if self.scores else None

    def gain(self, value: float | None, before: float | None) -> float | None:
        """Return by how much a score is better than another."""
        if value is None or before is None:
            return None
        return value - before if self.planned.greater_is_better else before - value


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a criterion came to on a case in a run; of several runs of the case, the mean."""

    state: State
    text: str
    """The score; a dash where there is none."""
    scored: str
    """How many of several runs of the case have a score; empty where all have."""
    change: str
    """By how much the score differs from that in the first run; ``lost`` where only the first run has one; empty: not at all."""
    better: bool
    """Whether the change is an improvement."""
    about: str
    """The same in words, for a tooltip."""
    href: str


@dataclass(frozen=True, slots=True)
class Row:
    """A case."""

    eval_id: str
    verdicts: tuple[Verdict | None, ...]
    """In each run; ``None``: it has no such case."""
    href: str
    cells: tuple[tuple[Cell | None, ...], ...]
    """By criterion, then by run; ``None``: the case does not have this criterion there."""


@dataclass(frozen=True, slots=True)
class Head:
    """A criterion."""

    criterion: str
    threshold: str
    sorts: tuple[tuple[str, str], ...]
    """Of each run: the address that sorts by its scores, and how the rows are sorted by them now, as ``aria-sort`` says it."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cases by criteria."""

    letters: str
    """Of the runs, a letter for each."""
    names: tuple[str, ...]
    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    page: Paged[str]
    by_change: str
    """The address that sorts the largest losses against the first run to the top; empty with a single run."""
    sorted_by_change: bool


def matrix_of(sides: Sequence[OpenRun], query: Query, eval_ids: Collection[str] | None = None) -> Matrix:
    """Return the cases of runs by criterion, sorted and paged as the query asks: ``sort`` is ``change`` or a run's number and a criterion.

    Args:
        sides: the runs; each later one is compared with the first.
        query: the page's address.
        eval_ids: the cases to show; ``None``: all.
    """
    scores, verdicts = zip(*map(_found_in, sides), strict=True)
    order = query.get("sort") or ("change" if len(sides) > 1 else "")
    ids = [eval_id for eval_id in dict.fromkeys(chain.from_iterable(scores)) if eval_ids is None or eval_id in eval_ids]
    summaries = [side.report.summaries() for side in sides]
    names = dict.fromkeys(name for of_side in summaries for name, one in of_side.items() if one.threshold is not None)
    place, _, criterion = order.removeprefix("-").partition(".")
    if order == "change":
        ids.sort(key=lambda eval_id: min((_loss(scores, eval_id, name) for name in names), default=(_ABSENT, 0.0)))
    elif criterion in names and place in map(str, range(len(sides))):
        ranks = {eval_id: _rank(scores[int(place)].get(eval_id, {}).get(criterion)) for eval_id in ids}
        ids.sort(key=ranks.__getitem__, reverse=order.startswith("-"))
        ids.sort(key=lambda eval_id: ranks[eval_id][0] == _ABSENT)
    else:
        ids.sort(key=lambda eval_id: min(WORST_FIRST.index(one[eval_id]) for one in verdicts if eval_id in one))
    heads: list[Head] = []
    for name in names:
        one = next(of_side[name] for of_side in summaries if name in of_side and of_side[name].threshold is not None)
        up = "ascending" if one.greater_is_better else "descending"
        down = "descending" if one.greater_is_better else "ascending"
        keys = [f"{number}.{name}" for number in range(len(sides))]
        sorts = tuple((query(sort=f"-{key}" if order == key else key), {key: up, f"-{key}": down}.get(order, "")) for key in keys)
        heads.append(Head(name, format_threshold(one.threshold, greater_is_better=one.greater_is_better), sorts))
    page = paged(ids, query, ROWS_A_PAGE)
    rows = tuple(_row(eval_id, sides, scores, verdicts, tuple(names)) for eval_id in page.items)
    letters, called = ascii_uppercase[: len(sides)], tuple(side.row.name for side in sides)
    by_change = query(sort="change") if len(sides) > 1 else ""
    return Matrix(letters, called, tuple(heads), rows, page, by_change, sorted_by_change=order == "change")


_OfCases = Mapping[str, Mapping[str, _Scores]]
"""By case and criterion."""


def _found_in(side: OpenRun) -> tuple[_OfCases, dict[str, Verdict]]:
    """Return what criteria came to in a run, and the verdict of each case."""
    found: dict[str, dict[str, _Scores]] = {}
    verdicts: dict[str, list[Verdict]] = {}
    report = side.report
    for place, ((eval_id, _, tallies), verdict) in enumerate(zip(report.cases.tallies(), report.verdicts, strict=True)):
        of_case = found.setdefault(eval_id, {})
        verdicts.setdefault(eval_id, []).append(verdict)
        for tally in tallies:
            one = of_case.setdefault(tally.planned.criterion, _Scores(tally.planned, place))
            if not tally.passed and one.passed == one.runs:
                one.place = place
            one.runs += 1
            one.passed += tally.passed
            if tally.score is not None:
                one.scores.append(tally.score)
    return found, {eval_id: verdict_of(of_case) for eval_id, of_case in verdicts.items()}


def _rank(one: _Scores | None) -> tuple[int, float]:
    """Return how early a cell comes, worst first: those that missed by their scores, then those without a score, then the rest."""
    return (_RANKS[one.state], one.gain(one.mean, 0.0) or 0.0) if one else (_ABSENT, 0.0)


def _loss(scores: Sequence[_OfCases], eval_id: str, criterion: str) -> tuple[int, float]:
    """Return how early a case comes for the worst that became of a criterion: now missed, lost, worse, better, the same."""
    first, *later = (of_side.get(eval_id, {}).get(criterion) for of_side in scores)
    losses = [(_ABSENT, 0.0)]
    for one in later:
        if first is None or one is None:
            continue
        gain = one.gain(one.mean, first.mean) or 0.0
        missed, lost = (first.state == "reached" and one.state == state for state in ("missed", "missing"))
        lost = lost or (one.mean is None and first.mean is not None)
        losses.append((0 if missed else 1 if lost else 2 if gain < 0 else 3 if gain else 4, gain))
    return min(losses)


def _row(
    eval_id: str, sides: Sequence[OpenRun], scores: Sequence[_OfCases], verdicts: Sequence[Mapping[str, Verdict]], names: Sequence[str]
) -> Row:
    cells: list[tuple[Cell | None, ...]] = []
    for name in names:
        of_name = [of_side.get(eval_id, {}).get(name) for of_side in scores]
        cells.append(tuple(map(_cell, sides, of_name, (None, *repeat(of_name[0], len(sides) - 1)))))
    latest = max(number for number, one in enumerate(verdicts) if eval_id in one)
    worst = min(scores[latest][eval_id].values(), key=_rank)
    return Row(eval_id, tuple(one.get(eval_id) for one in verdicts), case_link(sides[latest], worst.place), tuple(cells))


def _cell(side: OpenRun, one: _Scores | None, before: _Scores | None) -> Cell | None:
    if one is None:
        return None
    score, earlier = one.mean, before.mean if before else None
    gain = one.gain(score, earlier)
    change = f"{gain if one.planned.greater_is_better else -gain:+.2g}".replace("-", "−") if gain else ""
    change = "lost" if score is None and earlier is not None else change
    threshold = format_threshold(one.planned.threshold, greater_is_better=one.planned.greater_is_better)
    scored = format_scored(len(one.scores), one.runs) if one.scores else ""
    text = format_mean(score, one.planned.threshold)
    said = {"missed": f"misses {threshold}", "reached": f"reaches {threshold}", "plain": "information"}
    about = "not evaluated" if score is None else ", ".join(filter(None, (text, scored, said.get(one.state, "not evaluated"))))
    about += f"; A: {format_number(earlier, 'not evaluated')}" if before else ""
    href = case_link(side, one.place)
    return Cell(state=one.state, text=text, scored=scored, change=change, better=bool(gain and gain > 0), about=about, href=href)
