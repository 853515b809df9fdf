"""The list of runs: what it is filtered, grouped and sorted by, and what each column shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal

from markupsafe import Markup

from mlflow_adk_eval.report.sentences import format_mean, format_missing, format_threshold
from mlflow_adk_eval.results.outcomes import WORST_FIRST
from mlflow_adk_eval.runs.listed import MOST_RUNS, Number, RunRow
from mlflow_adk_eval.viewer.query import Facet, Getter, Query, Tab, filtered, link, paged
from mlflow_adk_eval.viewer.registry import Holder, Registry
from mlflow_adk_eval.viewer.store import greater_is_better

_RUNS_A_PAGE = 50
_MOST_COLUMNS, _MOST_TAGS = 5, 5
_WORDS = {"avg", "score", "v1", "v2", "based", "input"}


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


def parted(text: str) -> Markup:
    """Return a text that a narrow column breaks where its words begin, before it breaks within one.

    >>> parted("home_automation#02<")
    Markup('home_<wbr>automation#<wbr>02&lt;')
    """
    return Markup("<wbr>").join(re.split(r"(?<=[_#@/+])(?=\w)", text))


def lacking(number: Number) -> str:
    """Return what is missing behind the mean of a criterion; empty where nothing is, and where nothing was to come."""
    if number.missing is None and (number.mean is None or number.threshold is None):
        return ""
    return format_missing(number.missing, number.planned)


def missed(number: Number) -> bool:
    """Whether a case run has a score that misses the threshold. A run that does not say how many have none may have missed it as well."""
    rate = 1.0 if number.pass_rate is None else number.pass_rate
    if not number.missing or number.planned is None:
        return rate < 1
    return round(rate * number.planned) < number.planned - number.missing


FACETS: Mapping[str, tuple[str, Getter]] = {
    "verdict": ("Verdict", lambda row: row.verdict),
    "eval_set": ("Eval set", lambda row: row.eval_set),
    "agent": ("Agent", lambda row: row.agent),
    "version": ("Version", lambda row: row.version),
    "commit": ("Commit", lambda row: row.commit),
}


def _facets_of(rows: Sequence[RunRow]) -> dict[str, tuple[str, Getter]]:
    """Return what runs are filtered and grouped by: what all have, and the tags that most have."""

    def tag(key: str) -> Getter:
        return lambda row: row.tags.get(key, "")

    keys = Counter(key for row in rows for key in row.tags)
    return {**FACETS, **{f"tag.{key}": (f"Tag {key}", tag(key)) for key, _ in keys.most_common(_MOST_TAGS)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the list of runs."""

    key: str
    title: str
    kind: Literal["run", "verdict", "number", "criterion", "text"] = "text"
    value: Callable[[RunRow], Any]
    """By what the list is sorted; ``None``: nothing is known of the run, which then comes last."""
    cell: Callable[[RunRow], tuple[str, str]] = lambda _: ("", "")
    """What a number or text is shown as, and what stands smaller below it."""
    whole: Callable[[RunRow], bool] = lambda _: True
    """Whether nothing is missing behind the value; a run of which something is comes after the others."""
    full: str = ""
    """The criterion's whole name."""
    threshold: str = ""


def _criterion_column(name: str, title: str, shown: Callable[[Number], str], *, key: str = "", threshold: str = "") -> Column:
    """Return the column of a criterion."""
    return Column(
        key=key or name,
        title=title,
        kind="criterion",
        full=name,
        threshold=threshold,
        value=lambda row: row.criteria[name].mean if name in row.criteria else None,
        cell=lambda row: (shown(row.criteria[name]), lacking(row.criteria[name])),
        whole=lambda row: not lacking(row.criteria[name]),
    )


def seconds(value: float) -> str:
    """Return a duration with its unit.

    >>> seconds(1.234), seconds(0.0456), seconds(1234.5)
    ('1.2 s', '46 ms', '1,234 s')
    """
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"  # noqa: PLR2004 - three digits do


_RUN_COLUMNS = (
    Column(key="started", title="Run", kind="run", value=lambda row: row.started),
    Column(
        key="verdict",
        title="Verdict",
        kind="verdict",
        value=lambda row: WORST_FIRST.index(row.verdict) if row.verdict in WORST_FIRST else -1,
    ),
    Column(
        key="pass_rate",
        title="Cases passed",
        kind="number",
        value=lambda row: row.pass_rate,
        cell=lambda row: (f"{row.pass_rate:.0%}", row.passed + (" in the sample" if row.production else "")),
    ),
    _criterion_column("token_usage_v1", "Tokens per turn", lambda number: f"{number.mean or 0:,.0f} tokens", key="tokens"),
    _criterion_column("invocation_duration_v1", "Latency per turn", lambda number: seconds(number.mean or 0.0), key="seconds"),
    Column(
        key="calls",
        title="Judge tokens",
        kind="number",
        value=lambda row: row.calls,
        cell=lambda row: (f"{row.tokens:,} tokens" if row.tokens else f"{row.calls:,} calls", f"{row.calls:,} calls" if row.tokens else ""),
    ),
    Column(
        key="version",
        title="Agent version",
        value=lambda row: (row.agent, row.version),
        cell=lambda row: (row.version, row.agent if row.agent != row.version else ""),
    ),
    Column(key="eval_set", title="Eval set", value=lambda row: row.eval_set, cell=lambda row: (row.eval_set, "")),
)
_BEFORE_CRITERIA = 3
"""So many columns come before those of the criteria."""


def runs_page(rows: Sequence[RunRow], query: Query, registry: Registry | None, baseline: RunRow | None) -> dict[str, Any]:
    """Return the list of runs, and of each run on the page what the registry says and what it can be compared with.

    Args:
        rows: all runs.
        query: the text and the facets that they are filtered by, the order, what they are grouped by, and the page.
        registry: what the model registry says; ``None``: it does not answer.
        baseline: the run that the reader compares others with, if any.
    """
    known = registry or Registry()
    words = query.get("q").casefold().split()
    found = [row for row in rows if all(word in _text(row, known) for word in words)] if words else rows
    by = _facets_of(rows)
    runs, facets = filtered(found, by, query)
    named = Counter(name for row in runs for name in row.deciding)
    criteria = [_deciding_column(name, runs) for name, _ in named.most_common(_MOST_COLUMNS)]
    columns = [*_RUN_COLUMNS[:_BEFORE_CRITERIA], *criteria, *_RUN_COLUMNS[_BEFORE_CRITERIA:]]
    if query.get("eval_set"):  # the last column would say the same everywhere
        columns.pop()
    order = query.get("sort") or "-started"
    for column in columns:
        if column.key == order.lstrip("-"):
            ranked = sorted((row for row in runs if column.value(row) is not None), key=column.value, reverse=order.startswith("-"))
            ranked.sort(key=lambda row: not column.whole(row))
            runs = [*ranked, *(row for row in runs if column.value(row) is None)]
            break
    title, group = by.get(query.get("group"), ("", lambda _: ""))
    sizes = Counter(map(group, runs))
    places = {name: place for place, name in enumerate(sizes)}
    page = paged(sorted(runs, key=lambda row: places[group(row)]), query, _RUNS_A_PAGE)
    holding = [row for row in rows if known.held_by(row)]
    return {
        "rows": page,
        "groups": [(f"{title}: {name or '–'}" if title else "", sizes[name], list(some)) for name, some in groupby(page.items, group)],
        "facets": [*(facet for facet in facets if facet.choices), _grouping(by, runs, query)],
        "reset": query(q="", **dict.fromkeys(by, "")),
        "filtered": bool(words) or any(facet.chosen for facet in facets),
        "columns": [column for column in columns if column.threshold or any(column.value(row) is not None for row in runs)],
        "order": order,
        "hidden": len(named) - len(criteria),
        "most": MOST_RUNS if len(rows) == MOST_RUNS else 0,
        "held": known.held_by,
        "noted": known.noted,
        "unanswered": registry is None,
        "comparisons": lambda row: list(comparisons(row, known.champion_of(row, holding), baseline)),
    }


def _text(row: RunRow, registry: Registry) -> str:
    """Return all that a run is found by, folded."""
    tags = (f"{name}={value}" for name, value in row.tags.items())
    texts = (row.name, row.run_id, row.verdict, row.agent, row.version, row.model_id, row.commit, row.eval_set, *tags)
    return "\n".join((*texts, *map(str, registry.held_by(row)))).casefold()


def _grouping(by: Mapping[str, tuple[str, Getter]], runs: Sequence[RunRow], query: Query) -> Facet:
    chosen = query.get("group")
    choices = (
        Tab(title, len(set(map(get, runs))), query(group="" if name == chosen else name), name == chosen)
        for name, (title, get) in by.items()
    )
    return Facet("group", "Group by", by[chosen][0] if chosen in by else "", tuple(choices), query(group=""))


def comparisons(row: RunRow, champion: tuple[Holder, RunRow] | None, baseline: RunRow | None) -> Iterator[tuple[str, str, str]]:
    """Yield what a run can be compared with at a click: a short name, a whole one, and the address."""
    against = [(holder.alias, f"the {holder}", one) for holder, one in ([champion] if champion else [])]
    against += [("baseline", f"the baseline, {baseline.name}", baseline)] if baseline and baseline.run_id != row.run_id else []
    for short_name, whole_name, other in against:
        yield short_name, whole_name, link("/compare", ("run", other.run_id), ("run", row.run_id))


def _deciding_column(name: str, rows: Sequence[RunRow]) -> Column:
    thresholds = [row.criteria[name].threshold or 0.0 for row in rows if name in row.criteria]
    least, most = min(thresholds), max(thresholds)
    threshold = format_threshold(least, greater_is_better=greater_is_better(name)) + (f" to {most:g}" if least != most else "")
    return _criterion_column(name, short(name), lambda number: format_mean(number.mean, number.threshold), threshold=threshold)
