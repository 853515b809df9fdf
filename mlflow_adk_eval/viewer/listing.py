"""The list of runs: what it is filtered, grouped and sorted by, and what each column shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mlflow_adk_eval.results.outcomes import Verdict
from mlflow_adk_eval.runs.listed import MOST_RUNS, RunRow
from mlflow_adk_eval.viewer.query import Query, filtered, paged
from mlflow_adk_eval.viewer.store import greater_is_better

_RUNS_A_PAGE = 50
_MOST_COLUMNS = 5
_WORDS = {"avg", "score", "v1", "v2", "based", "input"}
VERDICTS: tuple[Verdict, ...] = ("failed", "undecided", "passed")
ORDER: Mapping[str, int] = {verdict: rank for rank, verdict in enumerate(VERDICTS)}


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
    full: str = ""
    """The criterion's whole name."""
    threshold: str = ""


_RUN_COLUMNS = (
    Column(key="started", title="Run", kind="run", value=lambda row: row.started),
    Column(key="verdict", title="Verdict", kind="verdict", value=lambda row: ORDER.get(row.verdict, -1)),
    Column(
        key="pass_rate",
        title="Cases passed",
        kind="number",
        value=lambda row: row.pass_rate,
        cell=lambda row: (f"{row.pass_rate:.0%}", f"of {row.cases:,}"),
    ),
    Column(
        key="calls",
        title="Judge calls",
        kind="number",
        value=lambda row: row.calls,
        cell=lambda row: (f"{row.calls:,}", f"{row.tokens:,} tokens" if row.tokens else ""),
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


def runs_page(rows: Sequence[RunRow], query: Query) -> dict[str, Any]:
    """Return the list of runs."""
    runs, facets = filtered(rows, FACETS, query)
    named = Counter(name for row in runs for name in row.deciding)
    criteria = [_criterion_column(name, runs) for name, _ in named.most_common(_MOST_COLUMNS)]
    columns = [*_RUN_COLUMNS[:_BEFORE_CRITERIA], *criteria, *_RUN_COLUMNS[_BEFORE_CRITERIA:]]
    order = query.get("sort") or "-started"
    for column in (*criteria, *_RUN_COLUMNS):
        if column.key == order.lstrip("-"):
            known = [row for row in runs if column.value(row) is not None]
            runs = [*sorted(known, key=column.value, reverse=order.startswith("-")), *(row for row in runs if column.value(row) is None)]
            break
    return {
        "rows": paged(runs, query, _RUNS_A_PAGE),
        "facets": [facet for facet in facets if facet.choices],
        "filtered": any(facet.chosen for facet in facets),
        "columns": columns,
        "order": order,
        "hidden": len(named) - len(criteria),
        "most": MOST_RUNS if len(rows) == MOST_RUNS else 0,
    }


def _criterion_column(name: str, rows: Sequence[RunRow]) -> Column:
    thresholds = [row.criteria[name].threshold or 0.0 for row in rows if name in row.criteria]
    least, most = min(thresholds), max(thresholds)
    threshold = f"{'≥' if greater_is_better(name) else '≤'} {least:g}" + (f" to {most:g}" if least != most else "")

    def mean(row: RunRow) -> float | None:
        return row.criteria[name].mean if name in row.criteria else None

    return Column(key=name, title=short(name), kind="criterion", value=mean, full=name, threshold=threshold)
