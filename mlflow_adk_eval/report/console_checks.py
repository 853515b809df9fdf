"""What a decision's demands came to, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from mlflow_adk_eval.results.report import Check

_COLOURS = {"passed": "green", "failed": "red", "undecided": "yellow"}
_COMPARISON = ("baseline", "difference", "p")
_WHOLE = ("verdict", "p", "cases")


def checks_view(checks: Sequence[Check]) -> Table:
    """Return a table with a row for each demand; the numbers of comparisons have columns of their own where there are any."""
    compared = any(check.baseline is not None for check in checks)
    table = Table(title="Demands", title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("verdict", "demand", "value", *(_COMPARISON if compared else ()), "cases"):
        table.add_column(heading, justify="right" if heading in ("p", "cases") else "left", overflow="fold", no_wrap=heading in _WHOLE)
    for check in checks:
        table.add_row(*_row(check, compared=compared))
    return table


def _row(check: Check, *, compared: bool) -> list[str]:
    ranged = "" if check.low is None or check.high is None else f" ({check.low:.3g} to {check.high:.3g})"
    paired = check.baseline is not None
    comparison = (
        [_number(check.baseline), f"{_number(check.difference, sign=True)}{ranged}", _number(check.p_value)] if paired else [""] * 3
    )
    demand = " ".join(filter(None, (f"{check.slice}:" if check.slice else "", check.measure, check.demand)))
    return [
        f"[{_COLOURS[check.verdict]}]{check.verdict}[/]",
        escape(demand),
        _number(check.value) + ("" if paired else ranged),
        *(comparison if compared else ()),
        str(check.cases),
    ]


def _number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:+.4g}" if sign else f"{value:.4g}"
