"""Judges side by side, in a terminal: a column for each judge, from the numbers that `judge_bench` gives as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_RATES = {"accuracy": "accuracy", "kappa": "κ", "sensitivity": "sensitivity", "specificity": "specificity"}


def bench_view(bench: Mapping[str, Any]) -> RenderableType:
    """Return the numbers of a bench as a table with a column for each judge."""
    scores: Sequence[Mapping[str, Any]] = bench["scores"]
    title = f"Judges on {bench['source']}: {scores[0]['items']} items, {bench['confidence']:.0%} intervals"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for one in scores:
        table.add_column(escape(one["judge"]), justify="right", overflow="fold")
    for name, word in _RATES.items():
        table.add_row(word, *(_share(one["rates"][name], percent=name != "kappa") for one in scores))
    for criterion in scores[0]["by_criterion"]:
        table.add_row(f"  {criterion}", *(_share(one["by_criterion"][criterion]["accuracy"]) for one in scores))
    for kind in dict.fromkeys(kind for one in scores for kind in one["by_kind"]):
        table.add_row(f"  {escape(kind)}", *(_right(one["by_kind"].get(kind)) for one in scores))
    table.add_row("votes against their verdict", *("–" if one["flip_rate"] is None else f"{one['flip_rate']:.1%}" for one in scores))
    for name, word in (("length", "verdict changes with length"), ("position", "verdict changes with order")):
        table.add_row(word, *(_bias(one[name]) for one in scores))
    table.add_row("items without a verdict", *(str(one["undecided"]) for one in scores))
    table.add_row("unreadable answers", *(f"{one['unreadable']} of {one['answers']}" for one in scores))
    table.add_row("tokens in, out", *(f"{one['input_tokens']:,}, {one['output_tokens']:,}" for one in scores))
    table.add_row("median answer", *("–" if one["latency_s"] is None else f"{one['latency_s']:.2f} s" for one in scores))
    run = [Text(f"run {bench['run_id']}", style="dim")] if bench["run_id"] else []
    return Group(table, *run)


def _share(found: Sequence[float] | None, *, percent: bool = True) -> str:
    if found is None:
        return "–"
    value, low, high = found
    return escape(f"{value:.0%} [{low:.0%}–{high:.0%}]" if percent else f"{value:.2f} [{low:.2f}–{high:.2f}]")


def _right(found: Sequence[int] | None) -> str:
    return "–" if found is None else f"{found[0]} of {found[1]}"


def _bias(found: Mapping[str, Any]) -> str:
    if not found["pairs"]:
        return "–"
    changed = found["towards_pass"] + found["towards_fail"]
    return f"{changed} of {found['pairs']} (to pass {found['towards_pass']}, to fail {found['towards_fail']})"
