"""A comparison of two runs in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.analysis.comparison.compare import FLIPS, CaseChange, Comparison
from mlflow_adk_eval.analysis.comparison.delta import Delta
from mlflow_adk_eval.report.compare_words import (
    HEADINGS,
    cases_told,
    chance_told,
    headline,
    interval_told,
    name_of,
    pairing_told,
    runs_told,
    value_told,
    verdict_on,
    verdict_told,
)
from mlflow_adk_eval.report.html.text import Words, on_one_line

_MOST_CASES, _MOST_CAUSES = 20, 6
_STYLES = {"better": "green", "worse": "red"}
_FLIPS = {"worse": "red", "better": "green"}


def comparison_view(found: Comparison, words: Words, *, every: bool = False) -> RenderableType:
    """Return what changed: what the runs differ in, the numbers, and the flipped cases with their causes.

    Args:
        found: the comparison.
        words: what makes texts of others fit to be shown.
        every: whether to tell also the cases that kept their verdict, and all of each kind.
    """
    parts: list[RenderableType] = [Text(on_one_line(words(f"{found.before.name} → {found.after.name}")), style="bold")]
    parts += [Text(f"attention: {on_one_line(words(warning))}", style="yellow") for warning in _warnings(found)]
    parts += _differences(found, words)
    parts += [_table(found, words), Text(headline(found), style="bold")]
    for flip in FLIPS:
        cases = [case for case in found.cases if case.flip == flip]
        parts += _cases(HEADINGS[flip], cases, words, _FLIPS.get(flip, "yellow"), most=None if every else _MOST_CASES)
    parts += _cases(HEADINGS["none"], found.shifted, words, "", most=None) if every else _hint(found)
    parts += [Text(f"note: {on_one_line(words(note))}", style="dim") for note in pairing_told(found)]
    return Group(*parts)


def _warnings(found: Comparison) -> Iterator[str]:
    for which, side in (("first", found.before), ("second", found.after)):
        yield from (f"the {which} run: {warning}" for warning in side.warnings)


def _differences(found: Comparison, words: Words) -> Iterator[RenderableType]:
    """Yield what differs besides the agent."""
    others = [one for one in found.differences if not one.intended]
    if others:
        yield Text("Not only the agent differs:", style="yellow")
    for one in others:
        yield Text("  - " + on_one_line(words(f"{one.about}: {one.before or 'nothing'} → {one.after or 'nothing'}")))


def _table(found: Comparison, words: Words) -> Table:
    table = Table()
    for heading in ("", "before", "now", "difference", f"{100 * found.confidence:g}% interval", "p (Holm)", "", "cases"):
        table.add_column(heading, justify="left" if not heading else "right", overflow="fold")
    for delta in found.deltas:
        table.add_row(*_row(delta, found.confidence, words), style="" if delta.decides else "dim")
    return table


def _row(delta: Delta, confidence: float, words: Words) -> Iterator[str]:
    verdict = verdict_on(delta, confidence)
    yield escape(words(name_of(delta)))
    yield from (value_told(delta, delta.before), value_told(delta, delta.after), value_told(delta, delta.difference, signed=True))
    yield interval_told(delta) or "–"
    yield chance_told(delta)
    yield f"[{_STYLES[verdict]}]{verdict}[/]" if verdict in _STYLES else verdict
    yield cases_told(delta)


def _cases(title: str, cases: list[CaseChange] | tuple[CaseChange, ...], words: Words, style: str, *, most: int | None) -> Iterator[Text]:
    """Yield a group of cases, each with its causes; `most`: as many, `None`: all."""
    if cases:
        yield Text(f"{title} ({len(cases)})", style=f"bold {style}".strip())
    for case in cases[:most]:
        yield from _case(case, words, most=None if most is None else _MOST_CAUSES)
    if most is not None and len(cases) > most:
        yield Text(f"  and {len(cases) - most} more; --all tells them", style="dim")


def _case(case: CaseChange, words: Words, *, most: int | None) -> Iterator[Text]:
    verdicts = verdict_told(case.before) if case.before == case.after else f"{verdict_told(case.before)} → {verdict_told(case.after)}"
    runs = runs_told(case)
    yield Text.assemble("  ", (on_one_line(words(case.eval_id)), "bold"), f"  {verdicts}" + (f"  ({runs})" if runs else ""))
    causes = list(case.all_causes())
    for criterion, cause in causes[:most]:
        turn = "" if cause.turn is None else f"turn {cause.turn + 1}: "
        yield Text.assemble(
            "    - ", (f"{on_one_line(words(criterion))} " if criterion else "", "dim"), turn, on_one_line(words(cause.sentence))
        )
    if most is not None and len(causes) > most:
        yield Text(f"    - and {len(causes) - most} more", style="dim")


def _hint(found: Comparison) -> list[RenderableType]:
    count = len(found.shifted)
    said = f"{count} case{'' if count == 1 else 's'} kept the verdict with other scores; --all tells them"
    return [Text(said, style="dim")] if count else []
