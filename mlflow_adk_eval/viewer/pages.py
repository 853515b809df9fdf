"""What each page shows, prepared for its template: nothing here knows of requests, and nothing writes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.report.html.page import Texts, environment, hits
from mlflow_adk_eval.report.html.report import HEIGHT, WIDTH, case_views, criterion_rows, share_of
from mlflow_adk_eval.results.outcomes import CaseResult, Verdict, explanation_of, verdict_of
from mlflow_adk_eval.results.table import cell_at, row_verdict
from mlflow_adk_eval.text import counted
from mlflow_adk_eval.viewer.first_look import FirstLook
from mlflow_adk_eval.viewer.listing import ORDER, VERDICTS, lacking, missed, moment, parted, short
from mlflow_adk_eval.viewer.query import BASE, BASELINE, Query, link, paged
from mlflow_adk_eval.viewer.store import OpenRun

CASES_A_PAGE, TURNS_A_PAGE = 20, 25
FIRST_CASES = 8
"""As many cases of a large run are shown before it is examined."""
_MOST_REASONS = 50


@cache
def templates() -> Environment:
    """Return the templates of the pages, which share the components of the HTML report."""
    base = environment()
    loaders = [PackageLoader("mlflow_adk_eval.viewer"), base.loader]
    found = base.overlay(loader=ChoiceLoader([loader for loader in loaders if loader]))
    functions: dict[str, Any] = {"link": link, "short": short, "moment": moment, "base": BASE.get, "baseline": BASELINE.get}
    functions |= {"parted": parted, "lacking": lacking, "missed": missed}
    found.filters.update(functions, hits=hits)
    found.globals.update(functions)  # pyright: ignore[reportCallIssue, reportArgumentType] - jinja2 types it by what it holds at first
    return found


@dataclass(frozen=True, slots=True)
class Tab:
    """A link to a part of a list, with how many there are."""

    title: str
    count: int
    href: str
    chosen: bool


def run_page(opened: OpenRun, query: Query, texts: Texts) -> dict[str, Any]:
    """Return a run: its verdict with the reasons first, its criteria, and the cases that the query asks for, failed ones first."""
    report = opened.report
    reasons, more = report.first_reasons(_MOST_REASONS)
    criteria = criterion_rows(report)
    places, tabs, missed = _places(opened, query)
    page = paged(places, query, CASES_A_PAGE)
    thresholds = _thresholds_asked(opened, query)
    return {
        "report": report,
        "share": share_of(report),
        "reasons": [texts.line(reason) for reason in reasons],
        "reasons_left_out": more,
        "facts": run_facts(opened),
        "deciding": [row for row in criteria if row[0].threshold is not None],
        "information": [row for row in criteria if row[0].threshold is None],
        "chart_size": (WIDTH, HEIGHT),
        "thresholds": report.config.thresholds(),
        "then": _what_if(opened, thresholds) if thresholds else None,
        "case_link": case_link,
        "tabs": tabs,
        "missed": missed,
        "page": page,
        "most_turns": TURNS_A_PAGE,
        "cases": list(case_views(report, [opened.case(place) for place in page.items], texts, slice(TURNS_A_PAGE))),
    }


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What a run would have come to with other thresholds, from the scores that it has."""

    verdict: Verdict
    passed: int
    """How many case runs would have passed, of all."""
    total: int
    better: tuple[int, ...]
    """The places of the case runs that would pass and did not."""
    worse: tuple[int, ...]
    """The places of those that passed and would not."""


def _thresholds_asked(opened: OpenRun, query: Query) -> dict[str, float]:
    """Return the thresholds that an address names, by criterion.

    Raises:
        UsageError: if one is no number, or of no criterion that decides.
    """
    config = opened.report.config
    thresholds: dict[str, float] = {}
    for name, text in query.params:
        criterion = name.removeprefix("threshold.")
        if criterion == name:
            continue
        if criterion not in config.thresholds():
            raise UsageError(f"{name}: not a criterion with a threshold in this run; wanted {', '.join(config.thresholds())}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        low, high = config.bounds(criterion)
        if not low <= value <= high:
            raise UsageError(f"{name}: {text!r}; wanted a number from {low:g} to {high:g}")
        thresholds[criterion] = value
    return thresholds


def _what_if(opened: OpenRun, thresholds: Mapping[str, float]) -> WhatIf:
    """Return what the run would have come to: each case run's verdict as `CaseResult.verdict` has it."""
    now, then = opened.report.verdicts, list[Verdict]()
    for _, agent_failed, tallies in opened.report.cases.tallies():
        deciding = [
            tally._replace(planned=tally.planned._replace(threshold=thresholds.get(tally.planned.criterion, tally.planned.threshold)))
            for tally in tallies
            if tally.planned.decides
        ]
        if any(tally.score is not None and not tally.passed for tally in deciding):
            then.append("failed")
        else:
            then.append("undecided" if agent_failed or not deciding or any(tally.score is None for tally in deciding) else "passed")
    return WhatIf(
        verdict=verdict_of(then),
        passed=then.count("passed"),
        total=len(then),
        better=tuple(place for place, verdict in enumerate(then) if verdict == "passed" != now[place]),
        worse=tuple(place for place, verdict in enumerate(then) if verdict != "passed" == now[place]),
    )


def first_look_page(look: FirstLook, query: Query, texts: Texts) -> dict[str, Any]:
    """Return the first cases of a run that is still to be examined; none where others are asked for, as which these are is not known yet."""
    report = look.report
    cases = () if query.params else report.cases
    return {
        "found": look,
        "examined": query(verify="now"),
        "cases": list(case_views(report, cases, texts, slice(TURNS_A_PAGE))),
    }


def run_facts(opened: OpenRun) -> dict[str, str]:
    """Return what a reader should know of a run besides what came of it."""
    row, report = opened.row, opened.report
    usage = ", ".join(counted(count, noun) for count, noun in ((row.calls, "call"), (row.tokens, "token")) if count)
    facts = {
        "Eval set": report.eval_set.eval_set_id,
        "Agent version": row.version if row.version == row.agent else f"{row.agent} {row.version}".strip(),
        "Commit": row.commit,
        "Judges": ": ".join(filter(None, (row.judges, usage))),
        "Started": moment(row.started),
        "Runs of each case": str(report.num_runs) if report.num_runs > 1 else "",
    }
    return {name: value for name, value in facts.items() if value}


def _places(opened: OpenRun, query: Query) -> tuple[list[int], list[Tab], list[Tab]]:
    """Return the places of the case runs that the query asks for, and the tabs by verdict and by missed criterion."""
    verdicts, missed = opened.report.verdicts, opened.missed
    verdict, criterion, wanted = query.get("verdict"), query.get("criterion"), query.get("q").strip().casefold()
    every = range(len(verdicts))
    searched = [place for place in every if wanted in opened.texts[place]] if wanted else every
    by_verdict = Counter(verdicts[place] for place in searched if not criterion or criterion in missed[place])
    chosen = [place for place in searched if not verdict or verdicts[place] == verdict]
    by_criterion = Counter(name for place in chosen for name in missed[place])
    tabs = [Tab("All", by_verdict.total(), query(verdict=""), not verdict)]
    tabs += [
        Tab(name.capitalize(), by_verdict[name], query(verdict=name), name == verdict)
        for name in VERDICTS
        if by_verdict[name] or name == verdict
    ]
    names = [name for name in opened.report.criteria if by_criterion[name] or name == criterion]
    criteria = [Tab(name, by_criterion[name], query(criterion="" if name == criterion else name), name == criterion) for name in names]
    ranked = sorted((place for place in chosen if not criterion or criterion in missed[place]), key=lambda place: ORDER[verdicts[place]])
    return ranked, tabs, criteria


def case_page(opened: OpenRun, place: int, query: Query, texts: Texts) -> dict[str, Any]:
    """Return one case run with all of its turns, some at a time, and the neighbours that did not pass either.

    It begins with the turn that a reader looks for: the first that has the text of a search, else the first that did not pass.
    """
    case, verdicts = opened.case(place), opened.report.verdicts
    wanted = query.get("q").strip()
    begin = next((turn for turn in range(case.turns) if _is_looked_for(case, turn, wanted.casefold())), 0)
    asked = Query(query.path, [*query.params, ("page", str(begin // TURNS_A_PAGE + 1))])
    page = paged(range(case.turns), asked, TURNS_A_PAGE)
    (view,) = case_views(opened.report, [case], texts, slice(page.first - 1, page.last), whole=True)
    unpassed = [other for other in range(len(verdicts)) if verdicts[other] != "passed"]
    place_of_case = {"eval_id": case.eval_id, "run_index": case.run_index}
    return {
        "report": opened.report,
        "case": view,
        "save": link(f"/runs/{opened.row.run_id}/case.evalset.json", **place_of_case),
        "expected_too": case.expected is not None,
        "place": place_of_case,
        "wanted": wanted,
        "begin": begin + 1,
        "page": page,
        "before": next((case_link(opened, other) for other in reversed(unpassed) if other < place), ""),
        "after": next((case_link(opened, other) for other in unpassed if other > place), ""),
    }


def _is_looked_for(case: CaseResult, turn: int, wanted: str) -> bool:
    """Whether a turn has a text, folded for a search, anywhere in it; without such a text, whether the turn did not pass."""
    if not wanted:
        return row_verdict(case.results, turn) not in ("passed", None)
    cells = (explanation_of(cell_at(result, turn)) for result in case.results)
    return any(wanted in str(one).casefold() for one in (*case.actual[turn : turn + 1], *(case.expected or ())[turn : turn + 1], *cells))


def case_link(opened: OpenRun, place: int) -> str:
    """Return the address of a case run."""
    case = opened.report.cases[place]
    return link(f"/runs/{opened.row.run_id}/case", eval_id=case.eval_id, run_index=case.run_index)


def case_file(opened: OpenRun, place: int, query: Query) -> EvalSet:
    """Return a case run as an eval set of that case: as it was planned, or with what the agent did as what is expected from now on.

    Raises:
        UsageError: if nothing was said.
    """
    case = opened.case(place)
    planned = opened.report.eval_set.named({case.eval_id})[case.eval_id]
    if query.get("what") != "expected":
        turn = query.number("turn", 0)
        conversation = tuple(case.actual)[: turn or None]
        if not conversation:
            raise UsageError(f"case {case.eval_id!r}: the agent did not answer, so there is nothing to save")
        eval_id = f"{case.eval_id}_turn_{turn}" if turn else case.eval_id
        changes = {"eval_id": eval_id, "conversation": conversation, "conversation_scenario": None, "final_session_state": None}
        planned = planned.model_copy(update=changes)
    return EvalSet(eval_set_id=file_name(planned.eval_id), eval_cases=(planned,))


def file_name(text: str) -> str:
    """Return a text as a part of a file's name.

    >>> file_name("../a b\u202e.exe"), file_name("日本")
    ('a_b_.exe', 'case')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:80].strip("._") or "case"
