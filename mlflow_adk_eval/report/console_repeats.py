"""Repeated runs in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mlflow_adk_eval.report.repeats import flaky_told, pass_hat_lines, ranges_told, rates_told, spread_lines
from mlflow_adk_eval.results.repeats import CaseRepeats, Repeats

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
