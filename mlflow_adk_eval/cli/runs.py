"""``mlflow-adk-eval runs``: what was evaluated, so that a run can be named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mlflow_adk_eval.cli.next_step import after_failure
from mlflow_adk_eval.cli.options import COUNT, NO_VERDICT, mlflow_options
from mlflow_adk_eval.cli.output import print_json
from mlflow_adk_eval.redact import command
from mlflow_adk_eval.text import beginning, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from mlflow_adk_eval.runs.listed import RunRow

_SHORTEST = 8
_LONGEST = 40
"""As many characters of a name are shown."""


@click.command("runs", epilog=NO_VERDICT)
@click.option("--experiment", metavar="NAME", help="List only runs of this experiment, by name or id. Default: all.")
@click.option("--limit", type=COUNT, default=20, metavar="N", help="List at most this many runs, the latest.")
@mlflow_options
def runs_command(*, experiment: str | None, limit: int, tracking_uri: str | None, as_json: bool) -> None:
    """List the latest runs, to name one in another command.

    Wherever a command takes a run, you can write its id, the beginning of its id, `latest`, `champion` or MODEL@ALIAS. MLflow's tags and metrics
    fill the list: `gate` recomputes what it decides on.
    """
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - `--help` stays fast

    from mlflow_adk_eval.gating.registry import store_at  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415
    from mlflow_adk_eval.runs.listed import listed_runs, runs_before  # noqa: PLC0415

    with store_at(tracking_uri) as store:
        rows = list(listed_runs(store.client, experiment, limit))
    if as_json:
        print_json([{**to_jsonable_python(row), "not_scored": _missing(row)} for row in rows])
        return
    if not rows:
        click.echo("no evaluation is logged here\nnext: mlflow-adk-eval init")
        return
    console().print(_table(rows))
    run_id, passed = rows[0].run_id, rows[0].verdict == "passed"
    before = next((one.run_id for one in runs_before(rows[0], rows, passed=True)), "")
    click.echo(f"next: {command('gate', run_id, tracking_uri=tracking_uri) if passed else after_failure(run_id, tracking_uri, before)}")


def _table(rows: Sequence[RunRow]) -> Table:
    """Return the list; a column that would say the same of all runs stands in the title."""
    from rich.text import Text  # noqa: PLC0415 - as above

    from mlflow_adk_eval.report.console import slim_table  # noqa: PLC0415

    ids = [row.run_id for row in rows]
    size = next(size for size in range(_SHORTEST, 33) if len({run_id[:size] for run_id in ids}) == len(set(ids)) or size == 32)  # noqa: PLR2004
    columns = {
        "run": [row.run_id[:size] for row in rows],
        "name": [row.name for row in rows],
        "verdict": [row.verdict for row in rows],
        "cases passed": [row.passed for row in rows],
        "missing": ["unknown" if count is None else f"{count:,} not scored" if count else "" for count in map(_missing, rows)],
        "eval set": [row.eval_set for row in rows],
        "started (UTC)": [f"{row.started:%m-%d %H:%M}" for row in rows],
    }
    title = f"{counted(len(rows), 'run')}, latest first"
    if len(set(columns["eval set"])) == 1:
        title += f", of {columns.pop('eval set')[0]}"
    if not any(columns["missing"]):
        del columns["missing"]
    table = slim_table(Text(title))
    cells = {heading: [beginning(text, _LONGEST) for text in texts] for heading, texts in columns.items()}
    for heading, texts in cells.items():  # an identifier stays whole: rather a line is too long than a name in two
        table.add_column(heading, no_wrap=True, min_width=max(map(len, (heading, *texts))))
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _missing(row: RunRow) -> int | None:
    """Return the scores that a run should have and has not; ``None`` where it does not say."""
    missing = [row.criteria[name].missing for name in row.deciding]
    return None if None in missing else sum(one or 0 for one in missing)
