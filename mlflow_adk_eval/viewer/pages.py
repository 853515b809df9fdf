"""What each page shows, prepared for its template: nothing here knows of requests, and nothing writes."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.report.html.page import Texts, environment, hits
from mlflow_adk_eval.report.html.report import case_views
from mlflow_adk_eval.results.outcomes import CaseResult, explanation_of
from mlflow_adk_eval.results.table import cell_at, row_verdict
from mlflow_adk_eval.viewer.listing import lacking, missed, moment, parted, short
from mlflow_adk_eval.viewer.production import rates_of, time_of
from mlflow_adk_eval.viewer.query import BASE, BASELINE, Query, link, paged
from mlflow_adk_eval.viewer.store import OpenRun

CASES_A_PAGE, TURNS_A_PAGE = 20, 25


@cache
def templates() -> Environment:
    """Return the templates of the pages, which share the components of the HTML report."""
    base = environment()
    loaders = [PackageLoader("mlflow_adk_eval.viewer"), base.loader]
    found = base.overlay(loader=ChoiceLoader([loader for loader in loaders if loader]))
    functions: dict[str, Any] = {"link": link, "short": short, "moment": moment, "base": BASE.get, "baseline": BASELINE.get}
    functions |= {"parted": parted, "lacking": lacking, "missed": missed, "quoted": shlex.quote, "time_of": time_of, "rates_of": rates_of}
    filters: dict[str, Any] = {**functions, "hits": hits}
    found.filters.update(filters)
    found.globals.update(functions)  # pyright: ignore[reportCallIssue, reportArgumentType] - jinja2 types it by what it holds at first
    return found


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
        conversation = tuple(said.for_adk() for said in case.actual[: turn or None])
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
