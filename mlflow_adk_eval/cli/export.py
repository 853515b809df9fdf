"""``mlflow-adk-eval export``: what a run holds as a file that ADK or other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from mlflow_adk_eval.cli.options import PATH, check_output, force_option, json_option, store_option
from mlflow_adk_eval.cli.output import tell

_WHAT = ("eval_set", "result", "rows")


@click.command("export")
@click.argument("run_id")
@click.argument("what", type=click.Choice(_WHAT))
@click.option("-o", "--output", type=PATH, required=True, help="The file to write. Its ending says in which form: .json, .jsonl, .parquet.")
@force_option
@store_option
@json_option
def export_command(run_id: str, what: str, *, output: Path, force: bool, tracking_uri: str | None, as_json: bool) -> None:
    """Save what a run holds for ADK or as rows.

    WHAT is eval_set, the cases; result, ADK's result file; or rows, the cases with what the agent did. A run of more than 2,000 turns keeps neither of ADK's files; this makes them from its parts. Refuses a run that was changed after the
    evaluation.
    """
    from mlflow_adk_eval.tracking.export import What, export  # noqa: PLC0415 - `--help` stays fast

    check_output(output, force=force)
    (chosen,) = (one for one in get_args(What) if one == what)
    count = export(run_id, chosen, output, tracking_uri=tracking_uri)
    told = f"{output}: the {what.replace('_', ' ')} of run {run_id}, {count:,} {'case' if count == 1 else 'cases'}"
    tell(told, as_json=as_json, file=str(output), cases=count)
