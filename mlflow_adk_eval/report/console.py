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
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text, TextType

from mlflow_adk_eval.evalset.conversation import TurnPair
from mlflow_adk_eval.gating.promotion.record import format_version
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.report import sentences
from mlflow_adk_eval.report.findings import about, causes_of, sections, with_outage
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.results.outcomes import CaseResult, Outcome, Scored, Verdict, Vote, explanation_of
from mlflow_adk_eval.results.repeats import Repeats
from mlflow_adk_eval.results.report import Report
from mlflow_adk_eval.results.table import cell_at, item_results, votes_by_turn
from mlflow_adk_eval.text import counted, encodable, format_number, unlike

if TYPE_CHECKING:
    from mlflow_adk_eval.gating.promotion.aliases import AliasAudit  # with which all of the gate would be imported
    from mlflow_adk_eval.ledger import LedgerContents, StartedRun

_COLOURS = {"passed": "green", "failed": "red", "undecided": "yellow"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What moves a terminal's cursor, or turns the direction of a text; a line may end, and tabs stay."""
_MAX_CAUSES = 5
_MAX_CASES = 6
"""How many cases are explained under their causes: with all else, a report shall fit on a screen."""
_MAX_FLAKY = 10
_MAX_RUNS = 10
_WIDE, _ROOMY, _LONGEST_NAME, _LONGEST_WORD = 140, 100, 40, 30
"""From how many columns on a demand is on one line, and from how many its name is not broken; how long a line may be for that, and how much
of a name stays whole on a narrower terminal."""
_PAIRED_HEADINGS = ("baseline", "difference", "p")


def without_control(text: str) -> str:
    """Return a text whose control characters are shown as ``�``."""
    return _CONTROL.sub("�", text)


def console(*, file: TextIO | None = None) -> Console:
    """Return a console that colours only on a terminal, and elsewhere is wide enough for programs unless COLUMNS says how wide it is."""
    screen = _Console(file=file, highlight=False)
    fits = screen.is_terminal or "COLUMNS" in os.environ
    return screen if fits else _Console(file=file, highlight=False, width=max(screen.width, 160))


class _Console(Console):
    """A console on which texts of others show no secret, and move and delete nothing: their control characters are shown as ``�``."""

    _secrets = cached_property(lambda _: secrets_of())

    def on_broken_pipe(self) -> None:
        """Say so: rich would end the process with 1, which is the exit code of a missed threshold."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """Print, and let the terminal break a line that does not fit: rich would cut it off, and "11" cases would read "1"."""
        super().print(*objects, crop=crop, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of what is printed; those by which rich itself moves are told apart by their `control`."""
        if isinstance(renderable, Text) and (clean := redacted(renderable.plain, self._secrets)) != renderable.plain:
            renderable = Text(clean, style=renderable.style)
        if isinstance(renderable, Text) and _CONTROL.search(renderable.plain):
            # Before lines are broken: rich takes control characters for nothing wide, and would crop a line that their signs make longer.
            renderable = renderable.copy()
            renderable.plain = without_control(renderable.plain)
        if isinstance(renderable, Text) and (written := encodable(renderable.plain, self.encoding)) != renderable.plain:
            renderable = renderable.copy()
            renderable.plain = written
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=encodable(without_control(segment.text), self.encoding))


def slim_table(title: TextType | None = None) -> Table:
    """Return a table of short cells, with a line below its head only."""
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def report_view(report: Report, *, detailed: bool = False) -> RenderableType:
    """Return a report: how many cases passed, why others did not, and a table of criteria; `detailed`: and every cell."""
    outage = sentences.format_outages(report.judging, report.simulating)
    share = sentences.format_share(report.verdicts, report.num_runs, report.until_decided)
    parts: list[RenderableType] = [part for case in report.cases for part in _case_view(report, case)] if detailed else []
    parts.append(_headline(report.verdict, f"{share} in {report.eval_set.eval_set_id}"))
    parts += _causes_view(report, outage)
    parts.append(_criteria_view(report))
    parts += [repeats_view(report.repeats)] if report.num_runs > 1 and report.cases else []
    parts += [Text(line, style="dim") for line in sentences.circumstances(report).values()]
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def decision_view(decision: Decision) -> RenderableType:
    """Return a decision as a table of what was demanded, its verdict, reasons, waivers and notes."""
    parts = list[RenderableType]()
    parts += [_ChecksTable(decision.checks)] if decision.checks else []
    parts.append(_headline(decision.verdict, f"gate on run {decision.run_id}" if decision.run_id else "gate"))
    parts += [_indented_line(f"- {reason}", 2) for reason in decision.reasons]
    parts += [Text(f"waived: {_line(waiver)}", style="yellow") for waiver in decision.waived]
    parts += [Text(f"note: {_line(note)}", style="dim") for note in decision.notes]
    return Group(*parts)


def _headline(verdict: Verdict, what: str) -> Text:
    return Text.assemble((what, "bold"), " · verdict: ", (verdict, f"bold {_COLOURS[verdict]}"))


def _causes_view(report: Report, outage: str) -> Iterator[RenderableType]:
    if not report.cases:
        yield Text("  the eval set has no cases, so there is nothing to evaluate")
    causes = causes_of(report)
    found, outage = with_outage(causes.found, outage)
    for cause, cases in sections(found[:_MAX_CAUSES], partial(about, report), _MAX_CASES):
        yield _indented_line(f"{'✗' if cause.verdict == 'failed' else '?'} {cause}", 2, _COLOURS[cause.verdict])
        yield from (_indented_line(f"- {line}", 4) for line in cases)
    more = [counted(len(causes.found) - _MAX_CAUSES, "more cause")] if len(causes.found) > _MAX_CAUSES else []
    more += [f"{counted(causes.unread, 'more case run')} that did not pass"] if causes.unread else []
    yield from (Text(f"  and {one}", style="dim") for one in more)
    yield from [Text(outage, style="bold red")] if outage else []


def _indented_line(text: str, indent: int, style: str = "") -> Padding:
    """Return a text of others as one line that stays indented where the terminal breaks it."""
    return Padding(Text(_line(text), style=style), (0, 0, 0, indent), expand=False)


def _line(text: str) -> str:
    """Return a text of others as one line, so that none of it begins a line: CI systems read commands there."""
    return " ".join(text.split())


def _criteria_view(report: Report) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("criterion", "mean", "threshold", "pass rate"):
        named = heading == "criterion"
        table.add_column(heading, justify="right" if heading == "pass rate" else "left", overflow="fold", no_wrap=named)
    for summary in report.summaries().values():
        mean = sentences.format_evidence(summary.mean, summary.threshold, summary.scored, summary.planned)
        table.add_row(
            escape(summary.criterion),
            f"[yellow]{mean}[/]" if summary.missing else mean,
            sentences.format_threshold(summary.threshold, greater_is_better=summary.greater_is_better, missing="[dim]information[/dim]"),
            "" if summary.pass_rate is None else f"{summary.pass_rate:.0%}",
        )
    return table


def repeats_view(repeats: Repeats) -> RenderableType:
    """Return pass^k, how far the criteria vary, and the flaky cases."""
    chances = Table(title=f"Repeated runs: {repeats.num_runs} of each case", title_justify="left", title_style="bold")
    for heading in ("", "all k runs pass", "95% interval"):
        chances.add_column(heading, justify="right")
    for line in sentences.pass_hat_lines(repeats):
        chances.add_row(f"pass^{line.k}", f"{line.mean:.1%}", line.bounds)
    spreads = slim_table()
    spreads.caption, spreads.caption_justify = "standard deviations over the cases with a score in every run", "left"
    for heading in sentences.SPREAD_HEADINGS:
        spreads.add_column(heading, justify="left" if heading == "criterion" else "right", no_wrap=heading == "criterion")
    for criterion, *numbers in sentences.spread_lines(repeats):
        spreads.add_row(escape(criterion), *numbers)
    cases = ["; ".join(filter(None, (f"{case.eval_id}: {case.summary}", sentences.format_ranges(repeats, case)))) for case in repeats.flaky]
    rates = Text(f"Cases passed by run: {sentences.format_run_rates(repeats)}")
    more = [Text(f"  - and {len(cases) - _MAX_FLAKY:,} more", style="dim")] if len(cases) > _MAX_FLAKY else []
    flaky = Text(sentences.format_flaky(repeats), style="yellow" if cases else "green")
    return Group(chances, spreads, rates, flaky, *(_indented_line(f"- {line}", 2) for line in cases[:_MAX_FLAKY]), *more)


def ledger_view(contents: LedgerContents, runs: Sequence[StartedRun]) -> RenderableType:
    """Return what a ledger holds, and a table of the models whose answers it has."""
    size = f"{contents.bytes / 1e6:,.1f} MB"
    counts = f"{contents.answers:,} answers, {contents.conversations:,} conversations, {contents.runs:,} runs"
    lines = [f"Ledger {contents.name}: {counts}, {size}"]
    if contents.oldest and contents.newest:
        lines.append(f"Stored from {contents.oldest:%Y-%m-%d %H:%M} to {contents.newest:%Y-%m-%d %H:%M} UTC")
    if contents.asking:
        lines.append(f"{contents.asking:,} questions in progress")
    table = Table(title="Answers by model", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading in ("model", "answers", "input tokens", "output tokens"):
        table.add_column(heading, justify="left" if heading == "model" else "right", no_wrap=heading == "model", overflow="fold")
    for one in contents.models:
        table.add_row(escape(one.model or "unknown"), *(f"{number:,}" for number in (one.answers, one.input_tokens, one.output_tokens)))
    spent = [f"Budget {one.name}: {one.calls:,} calls, {one.tokens:,} tokens" for one in contents.budgets]
    unfinished = [run for run in runs if run.status == "running"]
    open_runs = [f"Unfinished: run {run.run_id} of {run.agent_name}, started {run.started_at:%Y-%m-%d %H:%M} UTC" for run in unfinished]
    unfinished_lines = [Text(line) for line in (*spent, *open_runs[:_MAX_RUNS])]
    more = [Text(f"and {len(open_runs) - _MAX_RUNS:,} more")] if len(open_runs) > _MAX_RUNS else []
    return Group(*map(Text, lines), *([table] if contents.models else []), *unfinished_lines, *more)


@dataclass(frozen=True, slots=True)
class _ChecksTable:
    """A table with a row for each demand, as wide as what it is printed on; what is compared has columns of its own where there is any."""

    checks: Sequence[Check]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        checks, width = self.checks, options.max_width
        paired = _PAIRED_HEADINGS if any(check.baseline is not None for check in checks) else ()
        table = slim_table("Checks")
        rows = [_check_cells(check, " " if width >= _WIDE else "\n") for check in checks]
        # Names stay whole where other columns can wrap instead.
        lines = [line for cells in rows for line in cells["demand"].splitlines()]
        whole = width >= _ROOMY and all(len(line) <= _LONGEST_NAME for line in lines)
        longest = min(_LONGEST_WORD, max((len(word) for line in lines for word in line.split()), default=0))
        for heading in ("verdict", "demand", "value", *paired, "cases"):
            numbers = heading in ("p", "cases")
            table.add_column(
                heading,
                justify="right" if numbers else "left",
                overflow="fold",
                no_wrap=numbers or heading == "verdict" or (heading == "demand" and whole),
                min_width=longest if heading == "demand" else None,
            )
        for cells in rows:
            table.add_row(*(cells[heading] for heading in ("verdict", "demand", "value", *paired, "cases")))
        yield table


def _check_cells(check: Check, between: str) -> dict[str, str]:
    interval = "" if check.low is None or check.high is None else f" ({check.low:.3g} to {check.high:.3g})"
    paired = check.baseline is not None
    measure = f"{check.slice}: {check.measure}" if check.slice else check.measure
    between = between if len(measure) + len(check.demand) >= _LONGEST_NAME else " "
    return {
        "verdict": f"[{_COLOURS[check.verdict]}]{check.verdict}[/]",
        "demand": escape(f"{measure}{between}{check.demand}"),
        "value": sentences.format_checked(check) + ("" if paired else interval),
        "baseline": format_number(check.baseline, ""),
        "difference": ("" if check.difference is None else f"{check.difference:+.4g}") + interval if paired else "",
        "p": format_number(check.p_value, "") if paired else "",
        "cases": sentences.format_cases(check),
    }


def audit_view(audits: Sequence[AliasAudit]) -> RenderableType:
    """Return what was found about each alias, and a line that sums it up."""
    if not audits:
        return Text("No alias was ever promoted by the gate.", style="yellow")
    bad = sum(not each.valid for each in audits)
    total = f"{len(audits)} alias{'es' if len(audits) != 1 else ''} audited, " + (f"{bad} not valid" if bad else "all valid")
    return Group(*(line for each in audits for line in _audit_lines(each)), Text(total, style="bold red" if bad else "bold green"))


def _audit_lines(each: AliasAudit) -> Iterator[Text]:
    mark = ("VALID  ", "bold green") if each.valid else ("INVALID", "bold red")
    yield Text.assemble(mark, f"  {each.alias} of {each.model}: {format_version(each.version)}")
    if each.set_by:
        yield Text(f"  - set by {_line(each.set_by)} at {each.set_at} ({each.kind})")
    yield from (Text(f"  - {_line(reason)}") for reason in each.reasons)
    yield from (Text(f"  - note: {_line(note)}", style="yellow") for note in each.notes)
    if each.restored is not None:
        yield Text(f"  - restored to version {each.restored}", style="bold")
    if each.restorable is not None:
        yield Text(f"  - not restored (dry run): without --dry-run, it moves to version {each.restorable}", style="bold")


def _case_view(report: Report, case: CaseResult) -> Iterator[RenderableType]:
    yield _headline(case.verdict, report.label(case))
    votes = {result.criterion: votes_by_turn(result.votes) for result in case.results}
    for index in range(case.turns):
        turn = TurnPair(case, index)
        yield Text(f"  #{index + 1} user      {turn.user_text}")
        answer, due = unlike(turn.answer, turn.expected_answer) if turn.actual and turn.expected else ("", "")
        yield Text(f"     answered  {_answer(turn)}{answer}")
        if turn.expected and (turn.actual is None or turn.expected_answer != turn.answer):
            yield Text(f"     expected  {turn.expected_answer}{due}", style="dim")
        for error in turn.errors:
            yield Text(f"     model     {_indented(error)}", style="yellow")
        for injection in (injection for injection in case.injections if injection.invocation_index == index):
            yield Text(f"     tool      {injection.tool}: {injection}", style="yellow")
        for result in case.results:
            cell = cell_at(result, index)
            if cell is not None and result.decides:
                reached = result.reached(cell)
                mark, style = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}[reached]
                score = format_number(cell.score) if isinstance(cell, Scored) else "not evaluated"
                reason = (f"  {_indented(explanation_of(cell))}", "dim" if reached else "")
                yield Text.assemble("     ", (mark, style), f" {result.criterion} {score}", reason)
                yield from _votes_view(cell, votes[result.criterion].get(index, ()))
    if case.ending:
        yield Text(f"     ended     {case.ending}", style="dim" if case.ending.reason == "goal" else "yellow")
    yield Text("")


def _answer(turn: TurnPair) -> str:
    if turn.actual is None:
        return "(nothing)"
    return turn.answer or "(the agent did not answer)"


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
def progress_bar(
    label: str, *, shown: bool = True, line_every_s: float = 10.0, screen: TextIO | None = None
) -> Generator[Progressing | None, None, None]:
    """Show on standard error how many conversations are done, how fast, and how long the rest will take; yield what is told of each.

    That is a bar on a terminal, and elsewhere, as in CI, a line now and then. Where nothing is to be shown, ``None`` is yielded. `screen` is
    standard error where an agent's own leads elsewhere.
    """
    lines = console(file=screen or sys.stderr)
    if not shown or logging.getLogger("mlflow_adk_eval").level:  # who listens to the package hears of each case anyway
        yield None
    elif not lines.is_terminal:
        yield _lines(label, lines, line_every_s)
    else:
        bars, times = (BarColumn(), MofNCompleteColumn(), _RateColumn()), (TimeElapsedColumn(), TimeRemainingColumn())
        columns = (TextColumn("{task.description}"), *bars, *times)
        with Progress(*columns, console=lines, transient=True, redirect_stdout=screen is None, redirect_stderr=screen is None) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(label: str, screen: Console, every_s: float) -> Progressing:
    begun = latest = time.monotonic()

    def tell(done: int, total: int | None) -> None:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= every_s:
            latest = now
            screen.print(progress_line(label, done, total, now - begun), markup=False)

    return tell


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
