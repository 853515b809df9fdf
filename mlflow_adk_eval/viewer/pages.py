"""What each page shows, prepared for its template: nothing here knows of requests, and nothing writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.report.html.chart import HEIGHT, WIDTH
from mlflow_adk_eval.report.html.page import Texts, environment
from mlflow_adk_eval.report.html.report import case_views, criterion_rows, share_of
from mlflow_adk_eval.report.sentences import counted
from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.viewer.first_look import FirstLook
from mlflow_adk_eval.viewer.query import BASE, Query, filtered, link, paged
from mlflow_adk_eval.viewer.store import MOST_RUNS, OpenRun, RunRow, greater_is_better
from mlflow_adk_eval.viewer.what_if import asked, what_if

RUNS_A_PAGE, CASES_A_PAGE, TURNS_A_PAGE = 50, 20, 25
FIRST_CASES = 8
"""As many cases of a large run are shown before it is examined."""
_MOST_COLUMNS = 5
_MOST_REASONS = 50
_WORDS = {"avg", "score", "v1", "v2", "based", "input"}
_VERDICTS: tuple[Verdict, ...] = ("failed", "undecided", "passed")
_ORDER: Mapping[str, int] = {verdict: rank for rank, verdict in enumerate(_VERDICTS)}


@cache
def templates() -> Environment:
    """Return the templates of the pages, which share the components of the HTML report."""
    base = environment()
    loaders = [PackageLoader("mlflow_adk_eval.viewer"), base.loader]
    found = base.overlay(loader=ChoiceLoader([loader for loader in loaders if loader]))
    functions: dict[str, Any] = {"link": link, "short": short, "moment": moment, "base": BASE.get}
    found.filters.update(functions)
    found.globals.update(functions)  # pyright: ignore[reportCallIssue, reportArgumentType] - jinja2 types it by what it holds at first
    return found


def short(criterion: str) -> str:
    """Return a criterion's name as the head of a narrow column.

    >>> short("tool_trajectory_avg_score"), short("rubric_based_final_response_quality_v1"), short("score")
    ('tool trajectory', 'rubric final response quality', 'score')
    """
    words = [word for word in criterion.split("_") if word]
    return " ".join(word for word in words if word not in _WORDS) or criterion


def moment(at: datetime) -> str:
    """Return a time of this machine's clock."""
    return f"{at.astimezone():%Y-%m-%d %H:%M}"


FACETS: Mapping[str, tuple[str, Callable[[RunRow], str]]] = {
    "verdict": ("Verdict", lambda row: row.verdict),
    "eval_set": ("Eval set", lambda row: row.eval_set),
    "agent": ("Agent", lambda row: row.agent),
    "version": ("Version", lambda row: row.version),
    "commit": ("Commit", lambda row: row.commit),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list of runs."""

    key: str
    title: str
    number: bool
    sorted: str
    """As ``aria-sort`` has it; empty where the list has another order."""
    href: str
    full: str = ""
    """The criterion's whole name."""
    threshold: str = ""


def runs_page(rows: Sequence[RunRow], query: Query) -> dict[str, Any]:
    """Return the list of runs."""
    found, facets = filtered(rows, FACETS, query)
    named = Counter(name for row in found for name in row.deciding)
    criteria = [name for name, _ in named.most_common(_MOST_COLUMNS)]
    keys = {**_KEYS, **{name: _mean(name) for name in criteria}}
    order = query.get("sort") or "-started"
    key = keys.get(order.lstrip("-"))
    if key is not None:
        known = [row for row in found if key(row) is not None]
        found = [*sorted(known, key=key, reverse=order.startswith("-")), *(row for row in found if key(row) is None)]
    heads = {name: (title, name in _NUMBERS, "", "") for name, title in _TITLES.items()}
    columns = {
        name: Column(name, title, number, _aria(order, name), _sorting(query, order, name)) for name, (title, number, *_) in heads.items()
    }
    return {
        "rows": paged(found, query, RUNS_A_PAGE),
        "facets": [facet for facet in facets if facet.choices],
        "filtered": any(facet.chosen for facet in facets),
        "columns": columns,
        "criteria": [_criterion_column(name, found, query, order) for name in criteria],
        "hidden": len(named) - len(criteria),
        "most": MOST_RUNS if len(rows) == MOST_RUNS else 0,
    }


_TITLES = {
    "started": "Run",
    "verdict": "Verdict",
    "pass_rate": "Cases passed",
    "calls": "Judge calls",
    "version": "Agent version",
    "eval_set": "Eval set",
}
_NUMBERS = {"pass_rate", "calls"}
_KEYS: Mapping[str, Callable[[RunRow], Any]] = {
    "started": lambda row: row.started,
    "verdict": lambda row: _ORDER.get(row.verdict, -1),
    "pass_rate": lambda row: row.pass_rate,
    "calls": lambda row: row.calls,
    "version": lambda row: (row.agent, row.version),
    "eval_set": lambda row: row.eval_set,
}


def _mean(name: str) -> Callable[[RunRow], Any]:
    return lambda row: row.criteria[name].mean if name in row.criteria else None


def _aria(order: str, key: str) -> str:
    return {key: "ascending", f"-{key}": "descending"}.get(order, "")


def _sorting(query: Query, order: str, key: str) -> str:
    return query(sort=key if order == f"-{key}" else f"-{key}")


def _criterion_column(name: str, rows: Sequence[RunRow], query: Query, order: str) -> Column:
    thresholds = {row.criteria[name].threshold for row in rows if name in row.criteria}
    least, most = min(thresholds, key=_number), max(thresholds, key=_number)
    sign = "≥" if greater_is_better(name) else "≤"
    threshold = f"{sign} {_number(least):g}" if least == most else f"{sign} {_number(least):g} to {_number(most):g}"
    return Column(name, short(name), True, _aria(order, name), _sorting(query, order, name), name, threshold)  # noqa: FBT003


def _number(value: float | None) -> float:
    return 0.0 if value is None else value


@dataclass(frozen=True, slots=True)
class Tab:
    """A link to a part of a list, with how many there are."""

    title: str
    count: int
    href: str
    chosen: bool


def run_page(found: OpenRun, query: Query, texts: Texts) -> dict[str, Any]:
    """Return a run: its verdict with the reasons first, its criteria, and the cases that the query asks for, failed ones first."""
    report = found.report
    reasons, more = report.first_reasons(_MOST_REASONS)
    criteria = criterion_rows(report)
    places, tabs, missed = _places(found, query)
    page = paged(places, query, CASES_A_PAGE)
    thresholds = asked(found, query)
    return {
        "report": report,
        "share": share_of(report),
        "reasons": [texts.line(reason) for reason in reasons],
        "reasons_left_out": more,
        "facts": run_facts(found),
        "deciding": [row for row in criteria if row[0].threshold is not None],
        "information": [row for row in criteria if row[0].threshold is None],
        "chart_size": (WIDTH, HEIGHT),
        "thresholds": report.config.thresholds(),
        "then": what_if(found, thresholds) if thresholds else None,
        "case_link": case_link,
        "tabs": tabs,
        "missed": missed,
        "page": page,
        "most_turns": TURNS_A_PAGE,
        "cases": list(case_views(report, [found.case(place) for place in page.items], texts, slice(TURNS_A_PAGE))),
    }


def first_look_page(found: FirstLook, query: Query, texts: Texts) -> dict[str, Any]:
    """Return the first cases of a run that is still to be examined; none where others are asked for, as which these are is not known yet."""
    report = found.report
    cases = () if query.params else report.cases
    return {
        "found": found,
        "examined": query(verify="now"),
        "cases": list(case_views(report, cases, texts, slice(TURNS_A_PAGE))),
    }


def run_facts(found: OpenRun) -> dict[str, str]:
    """Return what a reader should know of a run besides what came of it."""
    row, report = found.row, found.report
    asked = ", ".join(counted(count, noun) for count, noun in ((row.calls, "call"), (row.tokens, "token")) if count)
    facts = {
        "Eval set": report.eval_set.eval_set_id,
        "Agent version": row.version if row.version == row.agent else f"{row.agent} {row.version}".strip(),
        "Commit": row.commit,
        "Judges": ": ".join(filter(None, (row.judges, asked))),
        "Started": moment(row.started),
        "Runs of each case": str(report.num_runs) if report.num_runs > 1 else "",
    }
    return {name: value for name, value in facts.items() if value}


def _places(found: OpenRun, query: Query) -> tuple[list[int], list[Tab], list[Tab]]:
    """Return the places of the case runs that the query asks for, and the tabs by verdict and by missed criterion."""
    verdicts, missed = found.report.verdicts, found.missed
    verdict, criterion, wanted = query.get("verdict"), query.get("criterion"), query.get("q").strip().casefold()
    every = range(len(verdicts))
    searched = [place for place in every if wanted in found.texts[place]] if wanted else every
    by_verdict = Counter(verdicts[place] for place in searched if not criterion or criterion in missed[place])
    chosen = [place for place in searched if not verdict or verdicts[place] == verdict]
    by_criterion = Counter(name for place in chosen for name in missed[place])
    tabs = [Tab("All", by_verdict.total(), query(verdict=""), not verdict)]
    tabs += [
        Tab(name.capitalize(), by_verdict[name], query(verdict=name), name == verdict)
        for name in _VERDICTS
        if by_verdict[name] or name == verdict
    ]
    names = [name for name in found.report.criteria if by_criterion[name] or name == criterion]
    criteria = [Tab(name, by_criterion[name], query(criterion="" if name == criterion else name), name == criterion) for name in names]
    ranked = sorted((place for place in chosen if not criterion or criterion in missed[place]), key=lambda place: _ORDER[verdicts[place]])
    return ranked, tabs, criteria


def case_page(found: OpenRun, place: int, query: Query, texts: Texts) -> dict[str, Any]:
    """Return one case run with all of its turns, some at a time, and the neighbours that did not pass either."""
    case, verdicts = found.case(place), found.report.verdicts
    page = paged(range(case.turns), query, TURNS_A_PAGE)
    (view,) = case_views(found.report, [case], texts, slice(page.first - 1, page.last))
    unpassed = [other for other in range(len(verdicts)) if verdicts[other] != "passed"]
    place_of_case = {"eval_id": case.eval_id, "run_index": case.run_index}
    return {
        "report": found.report,
        "case": view,
        "save": link(f"/runs/{found.row.run_id}/case.evalset.json", **place_of_case),
        "expected_too": case.expected is not None,
        "page": page,
        "before": next((case_link(found, other) for other in reversed(unpassed) if other < place), ""),
        "after": next((case_link(found, other) for other in unpassed if other > place), ""),
    }


def case_link(found: OpenRun, place: int) -> str:
    """Return the address of a case run."""
    case = found.report.cases[place]
    return link(f"/runs/{found.row.run_id}/case", eval_id=case.eval_id, run_index=case.run_index)


def case_file(found: OpenRun, place: int, query: Query) -> EvalSet:
    """Return a case run as an eval set of that case: as it was planned, or with what the agent did as what is expected from now on.

    Raises:
        UsageError: if nothing was said.
    """
    case = found.case(place)
    planned = found.report.eval_set.named({case.eval_id})[case.eval_id]
    if query.get("what") != "expected":
        turn = query.number("turn", 0)
        said = tuple(case.actual)[: turn or None]
        if not said:
            raise UsageError(f"case {case.eval_id!r}: the agent said nothing, so there is nothing to save")
        changes = {"conversation": said, "conversation_scenario": None, "final_session_state": None}
        eval_id = f"{case.eval_id}_turn_{turn}" if turn else case.eval_id
        planned = planned.model_copy(update={"eval_id": eval_id, **changes})
    return EvalSet(eval_set_id=file_name(planned.eval_id), eval_cases=(planned,))


def file_name(text: str) -> str:
    """Return a text as a part of a file's name.

    >>> file_name("../a b\u202e.exe"), file_name("日本")
    ('a_b_.exe', 'case')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:80].strip("._") or "case"
