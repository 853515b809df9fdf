"""The cases passed and each criterion's mean over the runs on an eval set, from what MLflow lists of the runs.

A run without a score leaves a gap in the line. A mean with something missing behind it is a hollow point, whatever it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from mlflow_adk_eval.report.sentences import format_mean
from mlflow_adk_eval.results.outcomes import reaches
from mlflow_adk_eval.runs.listed import Number, RunRow
from mlflow_adk_eval.viewer.listing import FACETS, lacking, moment
from mlflow_adk_eval.viewer.query import Query, filtered
from mlflow_adk_eval.viewer.store import JudgeChange, greater_is_better

MOST_POINTS = 60
"""As many runs are shown, the latest."""
WIDTH, HEIGHT = 720, 120
_MARGIN = 12
CASES = "cases passed"


@dataclass(frozen=True, slots=True)
class Point:
    """A run in a chart."""

    row: RunRow
    x: float
    y: float | None
    """``None``: it has no score."""
    low: float | None
    high: float | None
    threshold: float | None
    """Where its line stands; ``None`` without a threshold."""
    kind: str
    """``reached``, ``missed``, ``plain`` without a verdict, ``hollow`` if scores are missing, or ``gap`` without any."""
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A measure over the runs."""

    name: str
    points: tuple[Point, ...]
    paths: tuple[str, ...]
    """The points of each stretch without a gap, as SVG has them."""
    step: float
    """From one run to the next."""
    bottom: str
    top: str

    def crossed(self, change: JudgeChange) -> float | None:
        """Return where a change of a judge comes between two of the runs; ``None``: nowhere, or the measure is not the judge's."""
        before, after = ([one.x for one in self.points if change.later.get(one.row.run_id) is later] for later in (False, True))
        return (before[-1] + after[0]) / 2 if before and after and self.name in (CASES, *change.criteria) else None


def trend_page(rows: Sequence[RunRow], query: Query) -> dict[str, Any]:
    """Return the cases passed and the criteria that decide, each over the runs on one eval set: the one asked for, or that of the latest run."""
    if not query.get("eval_set"):
        latest = next((row.eval_set for row in rows if row.eval_set), "")
        query = Query(query.path, [*query.params, ("eval_set", latest)])
    runs, facets = filtered(rows, {name: FACETS[name] for name in ("eval_set", "agent")}, query)
    shown = sorted(runs, key=lambda row: row.started)[-MOST_POINTS:]
    names = [name for name, _ in Counter(name for row in shown for name in row.deciding).most_common()]
    lines = [
        _line(CASES, shown, list(map(_cases, shown))),
        *(_line(name, shown, [row.criteria.get(name) for row in shown]) for name in names),
    ]
    return {
        "facets": [replace(facet, reset="" if facet.name == "eval_set" else facet.reset) for facet in facets if facet.choices],
        "eval_set": query.get("eval_set"),
        "runs": shown[::-1],
        "criteria": names,
        "lines": [line for line in lines if line.paths],
        "size": (WIDTH, HEIGHT),
        "left_out": len(runs) - len(shown),
    }


def _cases(row: RunRow) -> Number | None:
    """Return the share of cases that passed as a number, which rests on all scores of the run."""
    unknown = any(lacking(row.criteria[name]) for name in row.deciding)
    return None if row.pass_rate is None else Number(None, row.pass_rate, row.pass_rate, None, None, 1 if unknown else 0, None)


def _line(name: str, rows: Sequence[RunRow], numbers: Sequence[Number | None]) -> Line:
    values = [value for one in numbers if one for value in (one.mean, one.threshold, one.low, one.high) if value is not None]
    low, high = min(0.0, *values, 0.0), max(1.0, *values, 1.0)
    step = (WIDTH - 2 * _MARGIN) / max(len(rows) - 1, 1)

    def height(value: float | None) -> float | None:
        return None if value is None else round(HEIGHT - (value - low) / (high - low) * HEIGHT, 1)

    def point(place: int, row: RunRow, one: Number | None) -> Point:
        mean, threshold = (one.mean, one.threshold) if one else (None, None)
        lacks = lacking(one) if one else ""
        if one is None or mean is None:
            kind, text = "gap", lacks or "no score"
        elif name == CASES:
            kind = "hollow" if lacks else {"passed": "reached", "failed": "missed"}.get(row.verdict, "hollow")
            text = f"{round(mean * row.cases):,} of {row.cases:,} cases passed" + (", scores are missing or unknown" if lacks else "")
        else:
            text = format_mean(mean, threshold) + (f" ({one.low:.3g} to {one.high:.3g})" if None not in (one.low, one.high) else "")
            reached = threshold is not None and reaches(mean, threshold, greater_is_better=greater_is_better(name))
            kind = "hollow" if lacks else "plain" if threshold is None else "reached" if reached else "missed"
            text += f", threshold {threshold:g}" if threshold is not None else ""
            text += f", {lacks}" if lacks else ""
        x = round(_MARGIN + place * step, 1)
        bounds = (height(one.low), height(one.high)) if one else (None, None)
        return Point(row, x, height(mean), *bounds, height(threshold), kind, f"{row.name}, {moment(row.started)}, {row.verdict}: {text}")

    points = tuple(point(place, row, one) for place, (row, one) in enumerate(zip(rows, numbers, strict=True)))
    stretches = (list(some) for known, some in groupby(points, lambda one: one.y is not None) if known)
    paths = tuple(" ".join(f"{one.x},{one.y}" for one in stretch) for stretch in stretches)
    return Line(name, points, paths, min(step, 2.0 * _MARGIN), f"{low:.4g}", f"{high:.4g}")
