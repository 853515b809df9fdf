"""Reports, decisions and audits in a terminal.

Each ``*_view`` function returns something that rich can print; `console` makes what it is printed on. Texts of others enter as `Text`, or
through `escape` where rich would take them for markup, so that nothing they contain colours or moves anything. How a fact is worded comes
from `sentences`, as on the other pages. (A comparison of two runs has its own view, in `comparison`.)
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.gating.promotion.record import format_version
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.report.sentences import (
    SPREAD_HEADINGS,
    circumstances,
    format_flaky,
    format_number,
    format_outages,
    format_ranges,
    format_run_rates,
    format_share,
    format_threshold,
    pass_hat_lines,
    spread_lines,
)
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote, explanation_of
from mlflow_adk_eval.results.repeats import Repeats
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.results.votes import item_results, votes_by_turn

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.promotion.aliases import AliasAudit  # with which all of the gate would be imported
    from mlflow_adk_eval.ledger import LedgerContents, StartedRun

_COLOURS = {"passed": "green", "failed": "red", "undecided": "yellow"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, or turns the direction of a text; a line may end, and tabs stay."""
_MAX_REASONS = 10
_MAX_FLAKY = 10
_MAX_RUNS = 10
_PAIRED_HEADINGS = ("baseline", "difference", "p")


def console(*, stderr: bool = False) -> Console:
    """Return a console that colours only on a terminal and never folds what a program may read."""
    found = _Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else _Console(stderr=stderr, highlight=False, width=max(found.width, 160))


class _Console(Console):
    """A console on which texts of others show no secret, and move and delete nothing: their control characters are shown as ``�``."""

    _secrets = cached_property(lambda _: secrets_of())

    def on_broken_pipe(self) -> None:
        """Say so: rich would end the process with 1, which is the exit code of a missed threshold."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of what is printed; those by which rich itself moves are told apart by their `control`."""
        if isinstance(renderable, Text) and (clean := redacted(renderable.plain, self._secrets)) != renderable.plain:
            renderable = Text(clean, style=renderable.style)
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=_CONTROL.sub("�", segment.text))


def report_view(report: Report, *, detailed: bool = False) -> RenderableType:
    """Return a report as a table of criteria, the verdict and its reasons; `detailed`: and every cell."""
    outage = format_outages(report.judging, report.simulating)
    share = format_share(report.verdicts, report.num_runs)
    parts: list[RenderableType] = [part for case in report.cases for part in _case_view(report, case)] if detailed else []
    parts.append(_criteria_view(report))
    parts += [repeats_view(report.repeats)] if report.num_runs > 1 and report.cases else []
    parts.append(_headline(report.verdict, f"{share} of {report.eval_set.eval_set_id}"))
    parts += _bullets(report.reasons, _MAX_REASONS)
    parts += [Text(outage, style="bold red")] if outage else []
    parts += [Text(line, style="dim") for line in circumstances(report.cases, report.judging, report.simulating).values()]
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def decision_view(decision: Decision) -> RenderableType:
    """Return a decision as a table of what was demanded, its verdict, reasons, waivers and notes."""
    parts: list[RenderableType] = [checks_view(decision.checks)] if decision.checks else []
    parts.append(_headline(decision.verdict, f"gate on run {decision.run_id}" if decision.run_id else "gate"))
    parts += _bullets(decision.reasons, len(decision.reasons))
    parts += [Text(f"waived: {_line(waiver)}", style="yellow") for waiver in decision.waived]
    parts += [Text(f"note: {_line(note)}", style="dim") for note in decision.notes]
    return Group(*parts)


def _headline(verdict: Verdict, what: str) -> Text:
    return Text.assemble((verdict.upper(), f"bold {_COLOURS[verdict]}"), f"  {what}")


def _bullets(lines: Sequence[str], most: int, style: str = "") -> list[RenderableType]:
    more = [Text(f"  - and {len(lines) - most:,} more", style="dim")] if len(lines) > most else []
    return [*(Text(f"  - {_line(line)}", style=style) for line in lines[:most]), *more]


def _line(text: str) -> str:
    """Return a text of others as one line, so that none of it begins a line: CI systems read commands there."""
    return " ".join(text.split())


def _criteria_view(report: Report) -> Table:
    table = Table(title="Criteria", title_justify="left", title_style="bold")
    for heading in ("criterion", "threshold", "mean", "pass rate", "evaluated", "errored"):
        table.add_column(heading, justify="left" if heading == "criterion" else "right", overflow="fold")
    for summary in report.summaries().values():
        table.add_row(*_criterion_row(summary))
    return table


def _criterion_row(summary: CriterionSummary) -> Iterator[str]:
    lost = summary.errored + summary.skipped if summary.threshold is not None else 0
    yield escape(summary.criterion)
    yield format_threshold(summary.threshold, greater_is_better=summary.greater_is_better, missing="[dim]information[/dim]")
    yield format_number(summary.mean)
    yield "" if summary.pass_rate is None else f"{summary.pass_rate:.0%}"
    yield str(summary.evaluated)
    yield f"[red]{lost}[/red]" if lost else "0"


def repeats_view(repeats: Repeats) -> RenderableType:
    """Return pass^k, how far the criteria vary, and the flaky cases."""
    chances = Table(title=f"Repeated runs: {repeats.num_runs} of each case", title_justify="left", title_style="bold")
    for heading in ("", "all of k runs pass", "95% interval"):
        chances.add_column(heading, justify="right")
    for line in pass_hat_lines(repeats):
        chances.add_row(f"pass^{line.k}", f"{line.mean:.1%}", line.bounds)
    spreads = Table(caption="standard deviations, over the cases with a score in every run", caption_justify="left")
    for heading in SPREAD_HEADINGS:
        spreads.add_column(heading, justify="left" if heading == "criterion" else "right", overflow="fold")
    for criterion, *numbers in spread_lines(repeats):
        spreads.add_row(escape(criterion), *numbers)
    cases = ["; ".join(filter(None, (f"{case.eval_id}: {case.summary}", format_ranges(repeats, case)))) for case in repeats.flaky]
    rates = Text(f"Cases passed by run: {format_run_rates(repeats)}")
    return Group(chances, spreads, rates, Text(format_flaky(repeats), style="yellow" if cases else "green"), *_bullets(cases, _MAX_FLAKY))


def ledger_view(found: LedgerContents, runs: Sequence[StartedRun]) -> RenderableType:
    """Return what a ledger holds, and a table of the models whose answers it has."""
    size = f"{found.bytes / 1e6:,.1f} MB"
    lines = [
        f"Ledger {found.name}: {found.answers:,} answers, {found.conversations:,} conversations, {found.runs:,} runs, {size}",
        *([f"Kept from {found.oldest:%Y-%m-%d %H:%M} to {found.newest:%Y-%m-%d %H:%M} UTC"] if found.oldest and found.newest else []),
        *([f"{found.asking:,} questions are being asked now"] if found.asking else []),
    ]
    table = Table(title="Answers by model", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading in ("model", "answers", "input tokens", "output tokens"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for one in found.models:
        table.add_row(escape(one.model or "unknown"), *(f"{number:,}" for number in (one.answers, one.input_tokens, one.output_tokens)))
    spent = [f"Budget {one.name}: {one.calls:,} calls, {one.tokens:,} tokens" for one in found.budgets]
    unfinished = [run for run in runs if run.status == "running"]
    open_runs = [f"Not finished: run {run.run_id} of {run.agent_name}, begun {run.started_at:%Y-%m-%d %H:%M} UTC" for run in unfinished]
    told = [Text(line) for line in (*spent, *open_runs[:_MAX_RUNS])]
    more = [Text(f"and {len(open_runs) - _MAX_RUNS:,} more")] if len(open_runs) > _MAX_RUNS else []
    return Group(*map(Text, lines), *([table] if found.models else []), *told, *more)


def checks_view(checks: Sequence[Check]) -> Table:
    """Return a table with a row for each demand; the numbers of comparisons have columns of their own where there are any."""
    paired = _PAIRED_HEADINGS if any(check.baseline is not None for check in checks) else ()
    table = Table(title="Checks", title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("verdict", "demand", "value", *paired, "cases"):
        numbers = heading in ("p", "cases")
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold", no_wrap=numbers or heading == "verdict")
    for check in checks:
        cells = _check_cells(check)
        table.add_row(*(cells[heading] for heading in ("verdict", "demand", "value", *paired, "cases")))
    return table


def _check_cells(check: Check) -> dict[str, str]:
    interval = "" if check.low is None or check.high is None else f" ({check.low:.3g} to {check.high:.3g})"
    paired = check.baseline is not None
    return {
        "verdict": f"[{_COLOURS[check.verdict]}]{check.verdict}[/]",
        "demand": escape(" ".join(filter(None, (f"{check.slice}:" if check.slice else "", check.measure, check.demand)))),
        "value": format_number(check.value, "") + ("" if paired else interval),
        "baseline": format_number(check.baseline, ""),
        "difference": ("" if check.difference is None else f"{check.difference:+.4g}") + interval if paired else "",
        "p": format_number(check.p_value, "") if paired else "",
        "cases": str(check.cases),
    }


def audit_view(found: Sequence[AliasAudit]) -> RenderableType:
    """Return what was found about each alias, and a line that sums it up."""
    if not found:
        return Text("No alias was ever promoted by the gate.", style="yellow")
    bad = sum(not each.valid for each in found)
    total = f"{len(found)} alias{'es' if len(found) != 1 else ''} audited, " + (f"{bad} not valid" if bad else "all valid")
    return Group(*(line for each in found for line in _audit_lines(each)), Text(total, style="bold red" if bad else "bold green"))


def _audit_lines(each: AliasAudit) -> Iterator[Text]:
    mark = ("VALID  ", "bold green") if each.valid else ("INVALID", "bold red")
    yield Text.assemble(mark, f"  {each.alias} of {each.model}: {format_version(each.version)}")
    if each.set_by:
        yield Text(f"  - set by {_line(each.set_by)} at {each.set_at} ({each.kind})")
    yield from (Text(f"  - {_line(reason)}") for reason in each.reasons)
    yield from (Text(f"  - note: {_line(note)}", style="yellow") for note in each.notes)
    if each.restored is not None:
        yield Text(f"  - restored: it is at version {each.restored} now", style="bold")
    if each.restorable is not None:
        yield Text(f"  - not restored (dry run): --no-dry-run would move it to version {each.restorable}", style="bold")


def _case_view(report: Report, case: CaseResult) -> Iterator[RenderableType]:
    yield _headline(case.verdict, report.label(case))
    votes = {result.criterion: votes_by_turn(result.votes) for result in case.results}
    for index in range(case.turns):
        actual = case.actual[index] if index < len(case.actual) else None
        expected = case.expected[index] if case.expected and index < len(case.expected) else None
        asked = actual or expected
        yield Text(f"  #{index + 1} user      {asked.user_text if asked else ''}")
        yield Text(f"     answered  {actual.final_text if actual else '(nothing)'}")
        if expected and (actual is None or expected.final_text != actual.final_text):
            yield Text(f"     expected  {expected.final_text}", style="dim")
        for injection in (injection for injection in case.injections if injection.invocation_index == index):
            yield Text(f"     tool      {injection.tool}: {injection}", style="yellow")
        for result in case.results:
            cell = cell_at(result, index)
            if cell is not None and result.decides:
                yield _cell_view(result, cell)
                yield from _votes_view(cell, votes[result.criterion].get(index, ()))
    if case.ending:
        yield Text(f"     ended     {case.ending}", style="dim" if case.ending.reason == "goal" else "yellow")
    yield Text("")


def _cell_view(result: CriterionResult, cell: Outcome) -> Text:
    reached = result.reached(cell)
    mark, style = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}[reached]
    score = format_number(cell.score) if isinstance(cell, Scored) else "not evaluated"
    shown = (f"  {_indented(explanation_of(cell))}", "dim" if reached else "")
    return Text.assemble(("     ", ""), (mark, style), f" {result.criterion} {score}", shown)


def _votes_view(cell: Outcome, votes: Sequence[Vote]) -> Iterator[Text]:
    """Yield what the outcome does not say: on what the judges disagreed, and how they voted where there is no verdict."""
    for item in item_results(cell, votes) if votes else ():
        of = f"on {item.id} " if item.id else ""
        if not item.settled:
            yield Text(f"         votes {of}without a verdict: {item.counts or 'none'}", style="dim")
        if item.dissent:
            yield Text(f"         dissent {of}({item.counts}): " + _indented("\n  ".join(item.dissent)), style="dim")


def _indented(text: str) -> str:
    return text.replace("\n\n", "\n").replace("\n", "\n         ")


Progressing = Callable[[int, int | None], None]
"""What is told how many conversations are done, and of how many; ``None``: that is not known yet."""


class _RateColumn(ProgressColumn):
    """How many conversations a second were done lately."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.3g}/s")


@contextmanager
def progress_bar(label: str, *, shown: bool = True, line_every_s: float = 10.0) -> Generator[Progressing | None, None, None]:
    """Show on standard error how many conversations are done, how fast, and how long the rest will take; yield what is told of each.

    That is a bar on a terminal, and elsewhere, as in CI, a line now and then. Where nothing is to be shown, ``None`` is yielded.
    """
    screen = console(stderr=True)
    if not shown or logging.getLogger("mlflow_adk_eval").level:  # who listens to the package hears of each case anyway
        yield None
    elif not screen.is_terminal:
        yield _lines(label, screen, line_every_s)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(label: str, screen: Console, every_s: float) -> Progressing:
    begun = latest = time.monotonic()

    def told(done: int, total: int | None) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= every_s:
            latest = now
            screen.print(progress_line(label, done, total, now - begun), markup=False)

    return told


def progress_line(label: str, done: int, total: int | None, elapsed_s: float) -> str:
    """Return how far an evaluation is, at its average speed.

    >>> progress_line("scoring", 1200, 10_000, 60.0)
    'scoring: 1,200 of 10,000 conversations, 20 a second, 0:07:20 left'
    >>> progress_line("scoring", 3, None, 60.0)
    'scoring: 3 conversations, 0.05 a second'
    """
    rate = done / elapsed_s if elapsed_s else 0.0
    whole = "" if total is None else f" of {total:,}"
    left = f", {timedelta(seconds=round((total - done) / rate))} left" if total is not None and rate else ""
    noun = "conversation" if (done if total is None else total) == 1 else "conversations"
    return f"{label}: {done:,}{whole} {noun}, {rate:,.3g} a second{left}"
