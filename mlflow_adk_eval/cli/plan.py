"""``mlflow-adk-eval plan``: how many cases an eval set needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlflow_adk_eval.cli.options import COUNT, POSITIVE, SHARE, confidence_option, json_option, store_option
from mlflow_adk_eval.cli.output import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from mlflow_adk_eval.tracking.plan import Need, Plan


@click.command("plan")
@click.argument("run_id")
@click.option(
    "--detect",
    type=POSITIVE,
    required=True,
    help="The drop to detect, such as 0.05. For tokens, calls and durations: the rise, as a share of their mean.",
)
@click.option(
    "--criterion", "criteria", multiple=True, help="A criterion, or case_pass_rate. Repeatable. Default: everything that decides."
)
@click.option("--baseline", metavar="RUN_ID", help="An earlier run of the same cases, which shows how much versions differ.")
@click.option("--power", type=SHARE, default=0.8, show_default=True, help="The probability of detecting such a drop.")
@confidence_option
@click.option("--num_runs", type=COUNT, help="Planned repeats of each case. Default: as in RUN_ID.")
@store_option
@json_option
def plan_command(run_id: str, *, as_json: bool, **options: Any) -> None:
    """Show how many cases it takes to detect a drop.

    Also shows how small a drop the cases of RUN_ID can detect today. The drop is that of a later version on the same cases, as the gate tests it. Power is the probability of detecting it; confidence is
    the probability of no alarm when nothing has changed.
    """
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.tracking.plan import plan  # noqa: PLC0415

    found = plan(run_id, **options)
    if as_json:
        print_json(_json(found))
        return
    screen = console()
    screen.print(_table(found))
    for told in dict.fromkeys(need.told for need in found.needs):
        measures = ", ".join(need.measure for need in found.needs if need.told == told)
        screen.print(f"Spread of {measures}: {told}.", style="dim", markup=False)
    screen.print(_conclusion(found), markup=False)


def _json(found: Plan) -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415 - as above

    needs = [asdict(need) | {"enough": need.enough} for need in found.needs]
    return asdict(found) | {"needs": needs, "enough": found.enough}


def _table(found: Plan) -> Table:
    from rich.markup import escape  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415

    runs = "1 run" if found.num_runs == 1 else f"{found.num_runs} runs"
    title = f"{runs} of each case, {_percent(found.confidence)} confidence, {_percent(found.power)} power"
    table = Table(title=title, title_justify="left", title_style="bold")
    interval = f"{_percent(found.confidence)} interval"
    for heading in ("measure", "cases", "mean", interval, "spread", "smallest drop seen", "drop to see", "cases needed"):
        table.add_column(heading, justify="left" if heading == "measure" else "right", overflow="fold")
    for need in found.needs:
        table.add_row(escape(need.measure), *_cells(need), style="" if need.enough else "yellow")
    return table


def _cells(need: Need) -> list[str]:
    low, high = need.interval or (None, None)
    return [
        str(need.cases),
        _number(need.mean),
        "–" if low is None else f"{_number(low)} to {_number(high)}",
        _number(need.spread),
        _number(need.detectable),
        _number(need.drop),
        "–" if need.needed is None else f"{need.needed:,}",
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def _conclusion(found: Plan) -> str:
    lacking = [need for need in found.needs if not need.enough]
    if not lacking:
        return "There are enough cases."
    known = [need for need in lacking if need.needed is not None]
    if not known:
        return "Nothing is known of how far versions differ: run each case several times, or name a baseline."
    most = max(known, key=lambda need: need.needed or 0)
    return f"Too few cases: {most.measure} takes {most.needed:,}."
