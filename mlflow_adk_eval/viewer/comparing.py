"""Several runs side by side: each later one compared with the first, as the command `compare` does it for two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from mlflow_adk_eval.analysis.comparison.compare import CaseChange, Comparison
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun
from mlflow_adk_eval.analysis.comparison.turns import ComparedTurn, TurnChange
from mlflow_adk_eval.report.comparison import (
    HEADINGS,
    format_counts,
    format_difference,
    format_interval,
    format_pairing,
    format_score,
    format_value,
    format_verdicts,
    headline,
    name_of,
    verdict_on,
)
from mlflow_adk_eval.report.html.compare import LOOKS, CaseView, case_view, state_of
from mlflow_adk_eval.report.html.page import Texts, on_one_line
from mlflow_adk_eval.report.html.report import MOST_CALLS, CallView, call_view
from mlflow_adk_eval.viewer.pages import CASES_A_PAGE, TURNS_A_PAGE, Tab
from mlflow_adk_eval.viewer.query import Query, paged

MOST_COMPARED = 6
"""As many runs stand side by side."""
KINDS: dict[str, str] = {**{str(flip): text for flip, text in HEADINGS.items()}, "none": "Other scores", "same": "The same"}
"""What became of a case, in the order in which cases are listed."""


@dataclass(frozen=True, slots=True)
class CaseRow:
    """A case in all runs."""

    eval_id: str
    kind: str
    """One of `KINDS`: the first that holds for a later run."""
    changes: tuple[CaseChange | None, ...]
    """Of each later run; ``None``: it cannot be compared there."""

    @property
    def criteria(self) -> set[str]:
        """The criteria whose score changed."""
        return {one.criterion for change in self.changes if change for one in change.criteria}


def compare_page(comparisons: Sequence[Comparison], query: Query, texts: Texts) -> dict[str, Any]:
    """Return runs side by side.

    Args:
        comparisons: of each later run with the first.
        query: what is asked for: ``kind``, ``criterion``, and the page.
        texts: what makes texts of others fit to be shown.
    """
    sides = [comparisons[0].before, *(one.after for one in comparisons)]
    changes = [{case.eval_id: case for case in one.cases} for one in comparisons]
    rows: list[CaseRow] = []
    for eval_id in dict.fromkeys(chain.from_iterable(changes)):
        of_case = tuple(one.get(eval_id) for one in changes)
        flips = {change.flip if change.changed else "same" for change in of_case if change}
        rows.append(CaseRow(eval_id, next(kind for kind in KINDS if kind in flips), of_case))
    chosen, kinds, criteria = _chosen(rows, query)
    page = paged(chosen, query, CASES_A_PAGE)
    alone = len(comparisons) == 1
    facts = {name: [side.facts.get(name, "") for side in sides] for name in ("Agent", "Agent version", "Judges")}
    facts["Eval set"] = [side.eval_set.eval_set_id for side in sides]
    return {
        "sides": sides,
        "headlines": [(texts.line(one.after.name), format_counts(one) or {"none": headline(one)}) for one in comparisons],
        "warnings": [texts.line(f"{side.name}: {warning}") for side in sides for warning in side.warnings[:5]],
        "differences": [(texts.line(one.after.name), [about for about in one.differences if not about.intended]) for one in comparisons],
        "notes": [texts.line(f"{one.after.name}: {note}") for one in comparisons for note in format_pairing(one)],
        "facts": [(name, values) for name, values in facts.items() if any(values)],
        "scores": list(_scores(comparisons)),
        "confidence": f"{100 * comparisons[0].confidence:g}",
        "kinds": kinds,
        "criteria": criteria,
        "page": page,
        "alone": alone,
        "cases": [_case(row, sides, texts, alone=alone) for row in page.items],
        "most_turns": TURNS_A_PAGE,
    }


def _scores(comparisons: Sequence[Comparison]) -> Iterator[dict[str, Any]]:
    """Yield each number of the first run with what became of it in the others; those that decide come first."""
    for name in dict.fromkeys(delta.name for one in comparisons for delta in one.deltas):
        deltas = [one.delta(name) for one in comparisons]
        known = next(delta for delta in deltas if delta)
        cells = [
            {
                "value": format_value(delta, delta.after),
                "difference": format_difference(delta),
                "interval": format_interval(delta),
                "verdict": (verdict := verdict_on(delta, one.confidence)),
                "look": LOOKS.get(verdict, ""),
            }
            if delta
            else None
            for one, delta in zip(comparisons, deltas, strict=True)
        ]
        yield {"name": name_of(known), "decides": known.decides, "before": format_value(known, known.before), "cells": cells}


def _chosen(rows: Sequence[CaseRow], query: Query) -> tuple[list[CaseRow], list[Tab], list[Tab]]:
    """Return the cases that the query asks for, those that differ most first, and the tabs by kind and by criterion."""
    kind, criterion = query.get("kind"), query.get("criterion")

    def fits(row: CaseRow) -> bool:
        return row.kind != "same" if not kind else kind in ("all", row.kind)

    counts = Counter(row.kind for row in rows if not criterion or criterion in row.criteria)
    tabs = [Tab("Differences", counts.total() - counts["same"], query(kind=""), not kind)]
    tabs += [Tab(title, counts[name], query(kind=name), kind == name) for name, title in KINDS.items() if counts[name] or kind == name]
    tabs += [Tab("All", counts.total(), query(kind="all"), kind == "all")]
    named = Counter(name for row in rows if fits(row) for name in row.criteria)
    ranked = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    criteria = [Tab(name, count, query(criterion="" if name == criterion else name), name == criterion) for name, count in ranked]
    order = list(KINDS)
    chosen = [row for row in rows if fits(row) and (not criterion or criterion in row.criteria)]
    return sorted(chosen, key=lambda row: order.index(row.kind)), tabs, criteria


@dataclass(frozen=True, slots=True)
class Said:
    """What one run did on a turn."""

    answer: str
    missing: str
    calls: tuple[CallView, ...]
    scores: dict[str, tuple[str, bool | None]]
    """By criterion: the score, and whether it reaches the threshold."""


@dataclass(frozen=True, slots=True)
class SharedTurn:
    """A turn in all runs."""

    number: int
    user: str
    wanted: str
    """The expected answer."""
    sides: tuple[Said | None, ...]
    """In the order of the runs; ``None``: the run has no such turn."""
    criteria: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedCase:
    """What is shown of a case in all runs."""

    row: CaseRow
    states: tuple[tuple[str, str], ...]
    """By run: the verdict, or ``flaky``, and the same in words."""
    runs: tuple[int, ...]
    """The index of the run of the case that is shown of each side."""
    views: tuple[CaseView | None, ...]
    """Of each later run beside the first."""
    turns: tuple[SharedTurn, ...]
    """Of three runs or more."""
    left_out: int
    """How many turns are not shown."""


def _case(row: CaseRow, sides: Sequence[ComparedRun], texts: Texts, *, alone: bool) -> SharedCase:
    known = [change for change in row.changes if change]
    most = max(len(change.turns) for change in known)
    cut = [replace(change, turns=change.turns[:TURNS_A_PAGE]) if change else None for change in row.changes]
    verdicts = [side.verdicts(row.eval_id) if row.eval_id in side.cases else () for side in sides]
    return SharedCase(
        row=row,
        states=tuple((state_of(one), format_verdicts(one)) if one else ("", "no such case") for one in verdicts),
        runs=(known[0].runs[0], *(change.runs[1] if change else 0 for change in row.changes)),
        views=tuple(case_view(change, texts) if change else None for change in cut),
        turns=() if alone else tuple(_turns(cut, texts)),
        left_out=max(most - TURNS_A_PAGE, 0),
    )


def _turns(changes: Sequence[CaseChange | None], texts: Texts) -> Iterator[SharedTurn]:
    for turns in zip_longest(*(change.turns if change else () for change in changes)):
        known = [turn for turn in turns if turn]
        first = known[0]
        sides = (
            _said(first, first.before, texts, now=False),
            *(_said(turn, turn.after, texts, now=True) if turn else None for turn in turns),
        )
        spoken = next((side for turn in known for side in (turn.after, turn.before) if side), None)
        yield SharedTurn(
            number=first.index + 1,
            user=texts.words(spoken.user) if spoken else "",
            wanted=texts.words(first.expected_response),
            sides=sides,
            criteria=tuple(dict.fromkeys(cell.criterion for turn in known for cell in turn.cells if cell.decides)),
        )


def _said(turn: TurnChange, side: ComparedTurn | None, texts: Texts, *, now: bool) -> Said | None:
    if side is None:
        return None
    missing = f"the agent did not finish: {on_one_line(texts.words(side.error))}" if side.error else ""
    scores = {
        cell.criterion: (format_score(cell.after), cell.reached_after) if now else (format_score(cell.before), cell.reached_before)
        for cell in turn.cells
        if cell.decides
    }
    calls = tuple(call_view(call, texts) for call in side.calls[:MOST_CALLS])
    return Said(texts.words(side.response or ""), missing or ("" if side.response else "no answer"), calls, scores)
