"""The page of a run: its verdict and causes, a mark for each case, its criteria, and the cases that a reader asks for, as a list or as a matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.report.html.page import Texts
from mlflow_adk_eval.report.html.report import HEIGHT, WIDTH, Bar, case_views, criterion_rows, share_of
from mlflow_adk_eval.report.sentences import circumstances
from mlflow_adk_eval.results.outcomes import WORST_FIRST, Tally, Verdict, verdict_of
from mlflow_adk_eval.text import counted, format_number
from mlflow_adk_eval.viewer.first_look import FirstLook
from mlflow_adk_eval.viewer.listing import moment
from mlflow_adk_eval.viewer.matrix import matrix_of
from mlflow_adk_eval.viewer.pages import CASES_A_PAGE, TURNS_A_PAGE, case_link
from mlflow_adk_eval.viewer.query import Query, Tab, paged
from mlflow_adk_eval.viewer.store import OpenRun

FIRST_CASES = 8
"""As many cases of a large run are shown before it is examined."""
_MOST_SQUARES = 400
_MOST_CAUSES = 50
_MOST_ROWS = 5
"""So many criteria stand in the table before those that every case reached are folded."""
_WHOLE = 1_000
"""From here on quantities are whole numbers."""
_UNFILTERED: Mapping[str, Any] = dict.fromkeys(("verdict", "criterion", "low", "high", "score", "cause", "q"), "")
_PER_TURN = {
    "invocation_duration_v1": "s",
    "token_usage_v1": "tokens",
    "inference_call_count_v1": "model calls",
    "tool_call_count_v1": "tool calls",
}


def run_page(opened: OpenRun, query: Query, texts: Texts, against: OpenRun | None = None) -> dict[str, Any]:
    """Return what is shown of a run.

    Args:
        opened: the run.
        query: what is asked for: which cases, as what, and with which thresholds.
        texts: what makes texts of others fit to be shown.
        against: the run with which the matrix compares it.
    """
    report, causes = opened.report, opened.causes
    known = criterion_rows(report)
    rows = [row for row in known if row[0].threshold is not None]
    clean = [row for row in rows if row[0].pass_rate == 1] if len(rows) > _MOST_ROWS else []
    places, tabs, narrowed = _places(opened, query)
    thresholds = _thresholds_asked(opened, query)
    tallies = chain.from_iterable(of_case for _, _, of_case in report.cases.tallies())
    decided = Counter(tally.planned.criterion for tally in tallies if tally.planned.decides)
    unreached = Counter(chain.from_iterable(opened.missed))
    context: dict[str, Any] = {
        "report": report,
        "share": share_of(report),
        "causes": causes.found[:_MOST_CAUSES],
        "causes_left_out": max(len(causes.found) - _MOST_CAUSES, 0),
        "unread": causes.unread,
        "reasons": () if causes.found else report.first_reasons(_MOST_CAUSES)[0],
        "squares": _squares(opened, texts) if len(report.cases) <= _MOST_SQUARES else (),
        "segments": _segments(report.verdicts, query),
        "facts": run_facts(opened),
        "criteria": [row for row in rows if row not in clean],
        "clean": clean,
        "decided": decided,
        "unreached": unreached,
        "information": [row for row in known if row[0].threshold is None],
        "chart_size": (WIDTH, HEIGHT),
        "then": _what_if(opened, thresholds) if thresholds else None,
        "case_link": case_link,
        "only": partial(_only, query),
        "scores_link": lambda criterion: partial(_scores_link, query, criterion),
        "query": query,
        "tabs": tabs,
        "narrowed": narrowed,
    }
    if query.get("view") == "matrix":
        keys = list(report.cases.keys())
        eval_ids = None if len(places) == len(keys) else {keys[place][0] for place in places}
        context["matrix"] = matrix_of([against, opened] if against else [opened], query, eval_ids)
        return context
    page = paged(places, query, CASES_A_PAGE)
    cases = list(case_views(report, [opened.case(place) for place in page.items], texts, slice(TURNS_A_PAGE)))
    return {**context, "matrix": None, "page": page, "most_turns": TURNS_A_PAGE, "cases": cases}


def run_facts(opened: OpenRun) -> dict[str, str]:
    """Return what a reader should know of a run besides what came of it."""
    row, report = opened.row, opened.report
    usage = ", ".join(counted(count, noun) for count, noun in ((row.calls, "call"), (row.tokens, "token")) if count)
    summaries = report.summaries()
    measured = [(one, unit) for name, unit in _PER_TURN.items() if (one := summaries.get(name)) is not None and one.mean is not None]
    turns = {(one.evaluated, one.evaluated + one.errored + one.skipped) for one, _ in measured}
    complete = len(turns) == 1
    extents = [f" ({done:,} of {every:,} turns)" if done < every else "" for done, every in turns]
    means: list[str] = []
    for one, unit in measured:
        number = format_number(one.mean) if (one.mean or 0.0) < _WHOLE else f"{one.mean:,.0f}"
        means.append(f"{number} {unit}" + ("" if complete else f" ({one.evaluated:,} turns)"))
    told = circumstances(report)
    facts: dict[str, str] = {
        "Eval set": report.eval_set.eval_set_id,
        "Agent version": row.version if row.version == row.agent else f"{row.agent} {row.version}".strip(),
        "Commit": row.commit,
        "Started": moment(row.started),
        "Mean per turn": " · ".join(means) + (extents[0] if complete else ""),
        "Judges": ": ".join(filter(None, (row.judges, usage))),
        **{name: told[name] for name in ("Calls not expected", "Recordings") if name in told},
        "Runs of each case": str(report.num_runs) if report.num_runs > 1 else "",
    }
    return {name: value for name, value in facts.items() if value}


def _squares(opened: OpenRun, texts: Texts) -> list[tuple[Verdict, str, str]]:
    """Return each case run as a mark: its verdict, its name, verdict and cause in words, and its address."""
    causes = {place: f": {cause.text}" for cause in reversed(opened.causes.found) for place in cause.places}
    return [
        (case.verdict, texts.line(f"{opened.report.label(case)} {case.verdict}{causes.get(place, '')}"), case_link(opened, place))
        for place, case in enumerate(opened.report.cases)
    ]


def _segments(verdicts: Sequence[Verdict], query: Query) -> list[tuple[Verdict, str, str, float, float]]:
    """Return the verdicts of too many case runs for a mark each: verdict, words, address, and where its part of a bar starts and how wide it is."""
    found: list[tuple[Verdict, str, str, float, float]] = []
    start = 0.0
    for verdict in WORST_FIRST:
        if count := verdicts.count(verdict):
            width = max(1.0, 100 * count / len(verdicts))
            found.append((verdict, f"{counted(count, 'case run')} {verdict}", _only(query, verdict=verdict), start, width))
            start += width
    return found


def _scores_link(query: Query, criterion: str, bar: Bar | None = None) -> str:
    """Return the address of the case runs whose scores a bar counts; without a bar, of those that have none."""
    if bar is None or bar.kind == "missing":
        return _only(query, criterion=criterion, score="missing")
    return _only(query, criterion=criterion, low=bar.low, high=bar.high)


def _only(query: Query, **asked: Any) -> str:
    """Return the address of the case runs that are asked for, whichever were asked for before."""
    return query(**{**_UNFILTERED, **asked}) + "#cases"


def _places(opened: OpenRun, query: Query) -> tuple[list[int], list[Tab], list[tuple[str, str]]]:
    """Return the places of the case runs that the query asks for, failed ones first, tabs by verdict, and what else narrows them, each with the way back.

    Raises:
        UsageError: if it asks for scores between bounds that are no numbers.
    """
    verdicts, missed, found = opened.report.verdicts, opened.missed, opened.causes.found
    verdict, criterion, wanted = query.get("verdict"), query.get("criterion"), query.get("q").strip().casefold()
    narrowed: list[tuple[str, str]] = []
    searched: Sequence[int] = range(len(verdicts))
    if 0 < (number := query.number("cause", 0)) <= len(found):
        cause = found[number - 1]
        searched = cause.places
        narrowed.append((cause.text, query(cause="")))
    if criterion and any(query.get(name) for name in ("low", "high", "score")):
        keep, told = _range(query)
        fitting = {
            place
            for place, (_, _, tallies) in enumerate(opened.report.cases.tallies())
            if any(tally.planned.criterion == criterion and keep(tally) for tally in tallies)
        }
        searched = [place for place in searched if place in fitting]
        narrowed.append((f"{criterion} {told}", query(criterion="", low="", high="", score="")))
        criterion = ""
    elif criterion:
        narrowed.append((f"{criterion} not reached", query(criterion="")))
    searched = [place for place in searched if wanted in opened.texts[place]] if wanted else searched
    by_verdict = Counter(verdicts[place] for place in searched if not criterion or criterion in missed[place])
    chosen = [place for place in searched if not verdict or verdicts[place] == verdict]
    tabs = [Tab("All", by_verdict.total(), query(verdict=""), not verdict)]
    tabs += [
        Tab(name.capitalize(), by_verdict[name], query(verdict=name), name == verdict)
        for name in WORST_FIRST
        if by_verdict[name] or name == verdict
    ]
    ranked = sorted(
        (place for place in chosen if not criterion or criterion in missed[place]), key=lambda place: WORST_FIRST.index(verdicts[place])
    )
    return ranked, tabs, narrowed


def _range(query: Query) -> tuple[Callable[[Tally], bool], str]:
    """Return which scores an address asks for, and the same in words."""
    if query.get("score") == "missing":
        return lambda tally: tally.score is None and (tally.planned.decides or tally.errored > 0), "without a score"
    low, high = _number(query.get("low") or "-inf"), _number(query.get("high") or "inf")
    if math.isnan(low) or math.isnan(high):
        raise UsageError(f"low={query.get('low')} and high={query.get('high')}; wanted two numbers")
    told = f"is {low:g}" if low == high else f"from {low:g} to {high:g}"
    return lambda tally: tally.score is not None and low <= tally.score <= high, told


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
        value = _number(text)
        low, high = config.bounds(criterion)
        if not low <= value <= high:
            raise UsageError(f"{name}: {text!r}; wanted a number from {low:g} to {high:g}")
        thresholds[criterion] = value
    return thresholds


def _number(text: str) -> float:
    """Return a text as a number; as none where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _what_if(opened: OpenRun, thresholds: Mapping[str, float]) -> dict[str, Any]:
    """Return what the run would have come to, each case run's verdict as `CaseResult.verdict` has it, and the places of those that change."""
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
    return {
        "verdict": verdict_of(then),
        "passed": then.count("passed"),
        "better": [place for place, verdict in enumerate(then) if verdict == "passed" != now[place]],
        "worse": [place for place, verdict in enumerate(then) if verdict != "passed" == now[place]],
    }


def first_look_page(look: FirstLook, query: Query, texts: Texts) -> dict[str, Any]:
    """Return the first cases of a run that is still to be examined; none where others are asked for, as which these are is not known yet."""
    report = look.report
    cases = () if query.params else report.cases
    return {"found": look, "examined": query(verify="now"), "cases": list(case_views(report, cases, texts, slice(TURNS_A_PAGE)))}
