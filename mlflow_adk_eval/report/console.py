"""Reports and decisions in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.gating.promotion.aliases import AliasAudit
from mlflow_adk_eval.gating.promotion.record import format_version
from mlflow_adk_eval.report.repeats import flaky_told, pass_hat_lines, ranges_told, rates_told, spread_lines
from mlflow_adk_eval.report.sentences import outages_of, told
from mlflow_adk_eval.results.decision import Check, Decision
from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Outcome, Scored, Verdict, Vote, reason_of
from mlflow_adk_eval.results.repeats import CaseRepeats, Repeats
from mlflow_adk_eval.results.report import CriterionSummary, Report
from mlflow_adk_eval.results.table import cell_at
from mlflow_adk_eval.results.votes import item_results, votes_by_turn

_MAX_FLAKY = 10


def repeats_view(repeats: Repeats) -> RenderableType:
    """Return pass^k, how far the criteria vary, and the flaky cases."""
    flaky = repeats.flaky
    parts: list[RenderableType] = [_pass_hats(repeats), _spreads(repeats), Text(f"Cases passed by run: {rates_told(repeats)}")]
    parts.append(Text(flaky_told(repeats), style="yellow" if flaky else "green"))
    parts += [_flaky(repeats, case) for case in flaky[:_MAX_FLAKY]]
    if len(flaky) > _MAX_FLAKY:
        parts.append(Text(f"  - and {len(flaky) - _MAX_FLAKY} more", style="dim"))
    return Group(*parts)


def _pass_hats(repeats: Repeats) -> Table:
    table = Table(title=f"Repeated runs: {repeats.num_runs} of each case", title_justify="left", title_style="bold")
    for heading in ("", "all of k runs pass", "95% interval"):
        table.add_column(heading, justify="right")
    for line in pass_hat_lines(repeats):
        table.add_row(f"pass^{line.k}", f"{line.mean:.1%}", line.told)
    return table


def _spreads(repeats: Repeats) -> Table:
    table = Table(caption="standard deviations, over the cases with a score in every run", caption_justify="left")
    for heading in ("criterion", "lowest run", "highest run", "between runs", "within a case", "between cases", "cases"):
        table.add_column(heading, justify="left" if heading == "criterion" else "right", overflow="fold")
    for line in spread_lines(repeats):
        table.add_row(escape(line.criterion), line.lowest, line.highest, line.run_std, line.within, line.between, line.cases)
    return table


def _flaky(repeats: Repeats, case: CaseRepeats) -> Text:
    ranges = ranges_told(repeats, case)
    return Text(f"  - {case.eval_id}: {case.told}" + (f"; {ranges}" if ranges else ""))


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
        [_check_number(check.baseline), f"{_check_number(check.difference, sign=True)}{ranged}", _check_number(check.p_value)]
        if paired
        else [""] * 3
    )
    demand = " ".join(filter(None, (f"{check.slice}:" if check.slice else "", check.measure, check.demand)))
    return [
        f"[{_COLOURS[check.verdict]}]{check.verdict}[/]",
        escape(demand),
        _check_number(check.value) + ("" if paired else ranged),
        *(comparison if compared else ()),
        str(check.cases),
    ]


def _check_number(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return ""
    return f"{value:+.4g}" if sign else f"{value:.4g}"


def audit_view(found: Sequence[AliasAudit]) -> RenderableType:
    """Return what was found about each alias, and a line that sums it up."""
    if not found:
        return Text("No alias was ever promoted by the gate.", style="yellow")
    bad = sum(not each.valid for each in found)
    sums = f"{len(found)} alias{'es' if len(found) != 1 else ''} audited, " + (f"{bad} not valid" if bad else "all valid")
    return Group(*(line for each in found for line in _lines(each)), Text(sums, style="bold red" if bad else "bold green"))


def _lines(each: AliasAudit) -> Iterator[Text]:
    mark = ("VALID  ", "bold green") if each.valid else ("INVALID", "bold red")
    yield Text.assemble(mark, f"  {each.alias} of {each.model}: {format_version(each.version)}")
    if each.set_by:
        yield Text(f"  - set by {each.set_by} at {each.set_at} ({each.kind})")
    yield from (Text(f"  - {reason}") for reason in each.reasons)
    yield from (Text(f"  - note: {note}", style="yellow") for note in each.notes)
    if each.restored is not None:
        yield Text(f"  - restored: it is at version {each.restored} now", style="bold")


_COLOURS = {"passed": "green", "failed": "red", "undecided": "yellow"}
_MAX_REASONS = 10


def console(*, stderr: bool = False) -> Console:
    """Return a console that colours only on a terminal and never folds what a program may read."""
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=max(found.width, 160))


def report_view(report: Report, *, detailed: bool = False) -> RenderableType:
    """Return a report as a table of criteria, the verdict and its reasons; `detailed`: and every cell."""
    parts: list[RenderableType] = [_cases_view(report)] if detailed else []
    parts.append(_criteria_view(report))
    parts += [repeats_view(report.repeats)] if report.num_runs > 1 and report.cases else []
    parts.append(_headline(report.verdict, f"{_share(report)} of {report.eval_set.eval_set_id}"))
    parts += _bullets(report.reasons)
    parts += _circumstances(report)
    parts += [Text(f"note: {note}", style="dim") for note in report.notes]
    return Group(*parts)


def _circumstances(report: Report) -> list[RenderableType]:
    outage = outages_of(report.judging, report.simulating)
    said = [Text(outage, style="bold red")] if outage else []
    return [*said, *(Text(line, style="dim") for line in told(report))]


def decision_view(decision: Decision) -> RenderableType:
    """Return a decision as a table of what was demanded, its verdict, reasons, waivers and notes."""
    parts: list[RenderableType] = [checks_view(decision.checks)] if decision.checks else []
    parts.append(_headline(decision.verdict, f"gate on run {decision.run_id}" if decision.run_id else "gate"))
    parts += _bullets(decision.reasons, limit=len(decision.reasons))
    parts += [Text(f"waived: {waiver}", style="yellow") for waiver in decision.waived]
    parts += [Text(f"note: {note}", style="dim") for note in decision.notes]
    return Group(*parts)


def _headline(verdict: Verdict, what: str) -> Text:
    return Text.assemble((verdict.upper(), f"bold {_COLOURS[verdict]}"), f"  {what}")


def _bullets(reasons: Sequence[str], *, limit: int = _MAX_REASONS) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"  - {reason}") for reason in reasons[:limit]]
    if len(reasons) > limit:
        lines.append(Text(f"  - and {len(reasons) - limit} more", style="dim"))
    return lines


def _share(report: Report) -> str:
    passed = sum(case.verdict == "passed" for case in report.cases)
    noun = "case" if report.num_runs == 1 else "case run"
    return f"{passed} of {len(report.cases)} {noun}{'s' if len(report.cases) != 1 else ''} passed"


def _criteria_view(report: Report) -> Table:
    table = Table(title="Criteria", title_justify="left", title_style="bold")
    for heading in ("criterion", "threshold", "mean", "pass rate", "evaluated", "errored"):
        table.add_column(heading, justify="left" if heading == "criterion" else "right", overflow="fold")
    for summary in report.summaries().values():
        table.add_row(
            escape(summary.criterion),
            _threshold(summary),
            _number(summary.mean),
            _percent(summary.pass_rate),
            str(summary.evaluated),
            _bad(summary.errored + summary.skipped if summary.threshold is not None else 0),
        )
    return table


def _threshold(summary: CriterionSummary) -> str:
    if summary.threshold is None:
        return "[dim]information[/dim]"
    return f"{'≥' if summary.greater_is_better else '≤'} {summary.threshold:g}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _bad(count: int) -> str:
    return f"[red]{count}[/red]" if count else "0"


def _cases_view(report: Report) -> RenderableType:
    return Group(*(part for case in report.cases for part in _case_view(report, case)))


def _case_view(report: Report, case: CaseResult) -> Iterator[RenderableType]:
    yield _headline(case.verdict, report.label(case))
    votes = {result.criterion: votes_by_turn(result.votes) for result in case.results}
    for index in range(case.turns):
        actual = case.actual[index] if index < len(case.actual) else None
        expected = case.expected[index] if case.expected and index < len(case.expected) else None
        spoken = actual or expected
        yield Text(f"  #{index + 1} user      {spoken.user_text if spoken else ''}")
        yield Text(f"     answered  {actual.final_text if actual else '(nothing)'}")
        if expected and (actual is None or expected.final_text != actual.final_text):
            yield Text(f"     expected  {expected.final_text}", style="dim")
        for injection in case.injections:
            if injection.invocation_index == index:
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
    said = f"{cell.score:.4g}" if isinstance(cell, Scored) else "not evaluated"
    reason = _indented(cell.rationale if isinstance(cell, Scored) else reason_of(cell))
    return Text.assemble(("     ", ""), (mark, style), f" {result.criterion} {said}", (f"  {reason}", "" if reached is not True else "dim"))


def _votes_view(cell: Outcome, votes: Sequence[Vote]) -> Iterator[Text]:
    """Yield what the outcome does not say: on what the judges disagreed, and how they voted where there is no verdict."""
    for finding in item_results(cell, votes) if votes else ():
        of = f"on {finding.id} " if finding.id else ""
        if not finding.settled:
            yield Text(f"         votes {of}without a verdict: {finding.counts or 'none'}", style="dim")
        if finding.dissent:
            said = "\n  ".join(finding.dissent)
            yield Text(f"         dissent {of}({finding.counts}): {_indented(said)}", style="dim")


def _indented(text: str) -> str:
    return text.replace("\n\n", "\n").replace("\n", "\n         ")


@contextmanager
def progress_bar(label: str, *, shown: bool = True) -> Generator[Callable[[int, int], None] | None, None, None]:
    """Show a progress bar on the terminal's standard error; yield what moves it, or ``None`` where there is no terminal."""
    screen = console(stderr=True)
    if not shown or not screen.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
