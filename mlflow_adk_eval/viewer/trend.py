"""Each criterion's mean over the runs on an eval set, with thresholds and intervals, from what MLflow lists of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_adk_eval.results.outcomes import reaches
from mlflow_adk_eval.runs.listed import Number, RunRow
from mlflow_adk_eval.viewer.listing import FACETS, moment
from mlflow_adk_eval.viewer.query import Query, filtered
from mlflow_adk_eval.viewer.store import greater_is_better

MOST_POINTS = 60
"""As many runs are shown, the latest."""
WIDTH, HEIGHT = 720, 120
_MARGIN = 12


@dataclass(frozen=True, slots=True)
class Point:
    """A run in a chart."""

    row: RunRow
    number: Number
    x: float
    y: float
    low: float | None
    high: float | None
    threshold: float | None
    """Where its line stands; ``None`` without a threshold."""
    kind: str
    """``reached``, ``missed`` or, without a threshold, ``plain``."""
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A criterion over the runs."""

    criterion: str
    points: tuple[Point, ...]
    path: str
    """The points of the line, as SVG has them."""
    step: float
    """From one run to the next."""
    bottom: str
    top: str


def trend_page(rows: Sequence[RunRow], query: Query) -> dict[str, Any]:
    """Return the criteria that decide, each over the runs on one eval set: the one asked for, or that of the latest run."""
    if not query.get("eval_set"):
        latest = next((row.eval_set for row in rows if row.eval_set), "")
        query = Query(query.path, [*query.params, ("eval_set", latest)])
    runs, facets = filtered(rows, {name: FACETS[name] for name in ("eval_set", "agent")}, query)
    shown = sorted(runs, key=lambda row: row.started)[-MOST_POINTS:]
    names = [name for name, _ in Counter(name for row in shown for name in row.deciding).most_common()]
    return {
        "facets": [replace(facet, reset="" if facet.name == "eval_set" else facet.reset) for facet in facets if facet.choices],
        "eval_set": query.get("eval_set"),
        "runs": shown[::-1],
        "criteria": names,
        "lines": [line for name in names if (line := _line(name, shown))],
        "size": (WIDTH, HEIGHT),
        "left_out": len(runs) - len(shown),
    }


def _line(name: str, rows: Sequence[RunRow]) -> Line | None:
    known = [
        (place, row, row.criteria[name]) for place, row in enumerate(rows) if name in row.criteria and row.criteria[name].mean is not None
    ]
    if not known:
        return None
    values = [value for *_, one in known for value in (one.mean, one.threshold, one.low, one.high) if value is not None]
    low, high = min(0.0, *values), max(1.0, *values)

    def height(value: float | None) -> float | None:
        return None if value is None else round(HEIGHT - (value - low) / (high - low) * HEIGHT, 1)

    step = (WIDTH - 2 * _MARGIN) / max(len(rows) - 1, 1)
    points: list[Point] = []
    for place, row, one in known:
        text = f"{row.version or row.name}, {moment(row.started)}: {one.mean:.3g}"
        text += f" ({one.low:.3g} to {one.high:.3g})" if one.low is not None and one.high is not None else ""
        kind = "plain"
        if one.threshold is not None and one.mean is not None:
            text += f", threshold {one.threshold:g}"
            kind = "reached" if reaches(one.mean, one.threshold, greater_is_better=greater_is_better(name)) else "missed"
        x, y = round(_MARGIN + place * step, 1), height(one.mean) or 0.0
        points.append(Point(row, one, x, y, height(one.low), height(one.high), height(one.threshold), kind, text))
    path = " ".join(f"{point.x},{point.y}" for point in points)
    return Line(name, tuple(points), path, min(step, 2.0 * _MARGIN), f"{low:.4g}", f"{high:.4g}")
