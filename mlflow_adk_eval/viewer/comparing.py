"""Several runs side by side: each later one compared with the first, as the command `compare` does it for two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile, zip_longest
from string import ascii_uppercase
from typing import Any

from mlflow_adk_eval.analysis.comparison.compare import CaseChange, Comparison
from mlflow_adk_eval.analysis.comparison.delta import CASE_RATE, Delta
from mlflow_adk_eval.analysis.comparison.runs import ComparedRun
from mlflow_adk_eval.analysis.comparison.turns import ComparedTurn, TurnChange
from mlflow_adk_eval.report import comparison as wording
from mlflow_adk_eval.report.html.compare import LOOKS, case_view, state_of
from mlflow_adk_eval.report.html.page import Texts, on_one_line
from mlflow_adk_eval.report.html.report import MOST_CALLS, CallView, call_view
from mlflow_adk_eval.report.sentences import format_mean, format_scored
from mlflow_adk_eval.results.outcomes import verdict_of
from mlflow_adk_eval.runs.listed import RunRow
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.viewer.matrix import matrix_of
from mlflow_adk_eval.viewer.pages import CASES_A_PAGE, TURNS_A_PAGE
from mlflow_adk_eval.viewer.query import Query, Tab, link, paged
from mlflow_adk_eval.viewer.store import OpenRun

MOST_COMPARED = 6
"""As many runs stand side by side."""
MOST_AT_ONCE = 50
"""Runs of so many cases, as the list has it, are read before anything is shown."""
KINDS: dict[str, str] = {**{str(flip): text for flip, text in wording.HEADINGS.items()}, "none": "Other scores", "same": "The same"}
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


@dataclass(frozen=True, slots=True)
class Head:
    """A run, as it is named in columns and rows."""

    letter: str
    name: str
    """What others are not called."""
    rest: str
    """What all names begin with, or where two are the same, the beginning of the run's id."""
    verdict: str
    href: str
    as_first: str
    """The address that compares the others with it."""

    @property
    def label(self) -> str:
        """The letter and the name."""
        return f"{self.letter} {self.name}"


def names_apart(names: Sequence[str], run_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Return of each name the part that differs, and what tells the rest.

    >>> names_apart(["home v1", "home v2 · 23:38"], ["a", "b"]), names_apart(["home", "home"], ["a", "b"])
    ([('v1', 'home'), ('v2 · 23:38', 'home')], [('home', 'a'), ('home', 'b')])
    """
    if len(set(names)) < len(names):
        return [(name, run_id[:8]) for name, run_id in zip(names, run_ids, strict=True)]
    words = [name.split() for name in names]
    same = sum(1 for _ in takewhile(lambda alike: len(set(alike)) == 1, zip(*words, strict=False)))
    same = max(0, min(same, *(len(one) - 1 for one in words)))
    return [(" ".join(one[same:]), " ".join(one[:same]).rstrip(" ·,")) for one in words]


def _heads(runs: Sequence[tuple[str, str, str]], query: Query, texts: Texts) -> list[Head]:
    """Return the heads of runs, of each of which the id, the name and the verdict are given."""
    run_ids = [run_id for run_id, _, _ in runs]
    rest = [pair for pair in query.params if pair[0] not in ("run", "page")]
    orders = [[one, *(other for other in run_ids if other != one)] for one in run_ids]
    names = names_apart([texts.line(name) for _, name, _ in runs], run_ids)
    return [
        Head(letter, name, common, verdict, link(f"/runs/{run_id}"), link(query.path, *(("run", one) for one in order), *rest))
        for letter, (name, common), (run_id, _, verdict), order in zip(ascii_uppercase, names, runs, orders, strict=False)
    ]


def reading_page(runs: Sequence[tuple[str, RunRow | None]], step: int, query: Query, texts: Texts) -> dict[str, Any]:
    """Return the page that says how far the reading of large runs is.

    Args:
        runs: the ids, each with what the list says of the run.
        step: the number of the run that is read next, or one more than there are.
        query: the page's address.
        texts: what makes texts of others fit to be shown.
    """
    heads = _heads([(run_id, row.name if row else run_id, row.verdict if row else "") for run_id, row in runs], query, texts)
    cases = max((row.cases for _, row in runs if row), default=0)
    doing = f"Comparing {counted(cases, 'case')}"
    if step <= len(heads):
        row = runs[step - 1][1]
        doing = f"Reading run {step} of {len(heads)}: {counted(row.cases, 'case') if row else heads[step - 1].name}"
    return {"heads": heads, "doing": doing, "next": query(read=step, page=query.get("page"))}


def compare_page(opened: Sequence[OpenRun], comparisons: Sequence[Comparison], query: Query, texts: Texts) -> dict[str, Any]:
    """Return runs side by side.

    Args:
        opened: the runs.
        comparisons: of each later run with the first.
        query: what is asked for: ``kind``, ``criterion``, ``view``, and the page.
        texts: what makes texts of others fit to be shown.
    """
    sides = [comparisons[0].before, *(one.after for one in comparisons)]
    heads = _heads([(one.row.run_id, one.row.name, one.report.verdict) for one in opened], query, texts)
    changes = [{case.eval_id: case for case in one.cases} for one in comparisons]
    rows: list[CaseRow] = []
    for eval_id in dict.fromkeys(chain.from_iterable(changes)):
        of_case = tuple(one.get(eval_id) for one in changes)
        flips = {change.flip if change.changed else "same" for change in of_case if change}
        rows.append(CaseRow(eval_id, next(kind for kind in KINDS if kind in flips), of_case))
    chosen, kinds, criteria = _chosen(rows, query)
    matrix = matrix_of(opened, query, {row.eval_id for row in chosen}) if query.get("view") == "matrix" else None
    page = paged(chosen, query, CASES_A_PAGE)
    alone = len(comparisons) == 1
    facts = {name: [side.facts.get(name, "") for side in sides] for name in ("Agent", "Agent version", "Judges", "Recorded world")}
    facts["Eval set"] = [side.eval_set.eval_set_id for side in sides]
    later = list(zip(heads[1:], comparisons, strict=True))
    return {
        "sides": sides,
        "heads": heads,
        "flips": [wording.format_counts(one) or {"none": wording.headline(one)} for one in comparisons],
        "warnings": [f"{head.letter}: {texts.line(text)}" for head, side in zip(heads, sides, strict=True) for text in side.warnings[:5]],
        "differences": [(head, [about for about in one.differences if not about.intended]) for head, one in later],
        "notes": [f"{head.letter}: {texts.line(note)}" for head, one in later for note in wording.format_pairing(one)],
        "facts": [(name, values) for name, values in facts.items() if len(set(values)) > 1],
        "shared": [(name, values[0]) for name, values in facts.items() if len(set(values)) == 1 and values[0]],
        "scores": list(_scores(opened, comparisons)),
        "wording": wording,
        "looks": LOOKS,
        "confidence": comparisons[0].confidence,
        "kinds": kinds,
        "criteria": criteria,
        "matrix": matrix,
        "page": page,
        "alone": alone,
        "cases": [] if matrix else [_case(row, sides, texts, alone=alone) for row in page.items],
    }


def _scores(
    opened: Sequence[OpenRun], comparisons: Sequence[Comparison]
) -> Iterator[tuple[str, list[tuple[str, str, Delta | None] | None]]]:
    """Yield each number that decides with what it is in each run, what is missing behind it, and how it differs from the first run.

    The share of cases that passed comes first.
    """
    summaries = [one.report.summaries() for one in opened]
    for known in {delta.name: delta for one in comparisons for delta in one.deltas if delta.decides}.values():
        cells: list[tuple[str, str, Delta | None] | None] = []
        for number, (run, summary) in enumerate(zip(opened, summaries, strict=True)):
            verdicts, of_name = run.report.verdicts, summary.get(known.name)
            if known.name == CASE_RATE:
                undecided = verdicts.count("undecided")
                passed, total = verdicts.count("passed"), len(verdicts)
                value = f"{passed:,} of {total:,} ({passed / max(total, 1):.1%})"
                lacks = f"{undecided:,} undecided" if undecided else ""
            elif of_name is None:
                cells.append(None)
                continue
            else:
                value, lacks = format_mean(of_name.mean, of_name.threshold), format_scored(of_name.scored, of_name.planned)
            cells.append((value, lacks, comparisons[number - 1].delta(known.name) if number else None))
        yield wording.name_of(known), cells


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


def _case(row: CaseRow, sides: Sequence[ComparedRun], texts: Texts, *, alone: bool) -> dict[str, Any]:
    """Return what is shown of a case in all runs.

    That is, by run, its verdict (or ``flaky``) with the same in words, and the index of the run of the case that is shown; of each later run,
    its view beside the first and its first cause, after its letter, where one that several share stands once; of three runs or more, the turns.
    Keys jump to a case that is *failed* or *undecided* in a later run, which is its ``latest``.
    """
    known = [change for change in row.changes if change]
    most = max(len(change.turns) for change in known)
    cut = [replace(change, turns=change.turns[:TURNS_A_PAGE]) if change else None for change in row.changes]
    verdicts = [side.verdicts(row.eval_id) if row.eval_id in side.cases else () for side in sides]
    views = [case_view(change, texts) if change else None for change in cut]
    because: dict[str, str] = {}
    for letter, view in zip(ascii_uppercase[1:], views, strict=False):
        if of_case := view and next(chain(view.causes, *(causes for _, _, causes in view.changes)), None):
            text = on_one_line(": ".join(filter(None, of_case)))
            because[text] = f"{because[text]}, {letter}" if text in because else letter
    return {
        "row": row,
        "states": [(state_of(one), wording.format_verdicts(one)) if one else ("", "no such case") for one in verdicts],
        "runs": [known[0].runs[0], *(change.runs[1] if change else 0 for change in row.changes)],
        "views": views,
        "turns": () if alone else tuple(_turns(cut, texts)),
        "left_out": max(most - TURNS_A_PAGE, 0),
        "latest": verdict_of(chain.from_iterable(verdicts[1:])),
        "because": [(letters, text) for text, letters in because.items()],
    }


def _turns(changes: Sequence[CaseChange | None], texts: Texts) -> Iterator[SharedTurn]:
    for turns in zip_longest(*(change.turns if change else () for change in changes)):
        known = [turn for turn in turns if turn]
        first = known[0]
        later = (_said(turn, turn.after, texts, now=True) if turn else None for turn in turns)
        sides = (_said(first, first.before, texts, now=False), *later)
        spoken = next((side for turn in known for side in (turn.after, turn.before) if side), None)
        user, wanted = texts.words(spoken.user) if spoken else "", texts.words(first.expected_response)
        criteria = dict.fromkeys(cell.criterion for turn in known for cell in turn.cells if cell.decides)
        yield SharedTurn(first.index + 1, user, wanted, sides, tuple(criteria))


def _said(turn: TurnChange, side: ComparedTurn | None, texts: Texts, *, now: bool) -> Said | None:
    if side is None:
        return None
    missing = f"the agent did not finish: {on_one_line(texts.words(side.error))}" if side.error else ""
    scores = {
        cell.criterion: (wording.format_score(cell.after if now else cell.before), cell.reached_after if now else cell.reached_before)
        for cell in turn.cells
        if cell.decides
    }
    calls = tuple(call_view(call, texts) for call in side.calls[:MOST_CALLS])
    return Said(texts.words(side.response or ""), missing or ("" if side.response else "no answer"), calls, scores)
