"""``mlflow-adk-eval ledger``: what the ledger holds, and forgetting some of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mlflow_adk_eval.cli.options import EXIT_CODES, POSITIVE, json_option
from mlflow_adk_eval.cli.output import print_json
from mlflow_adk_eval.errors import UsageError

if TYPE_CHECKING:
    from mlflow_adk_eval.ledger import CallCache

_ledger_option = click.option(
    "--ledger", metavar="FILE|URL", help="The ledger. Default: ADK_EVAL_LEDGER, else .adk_eval/ledger.sqlite in this folder."
)


@click.group("ledger", epilog=EXIT_CODES)
def ledger_group() -> None:
    """Show or prune the ledger of paid model answers."""


def _ledger(source: str | None) -> CallCache:
    from mlflow_adk_eval.ledger import CallCache, ledger_source  # noqa: PLC0415 - `--help` stays fast

    where = ledger_source(source)
    if where is None:
        raise UsageError("ledger: wanted a file or a postgresql:// URL; ADK_EVAL_LEDGER says 'off'")
    return CallCache(where)


@ledger_group.command("show", epilog=EXIT_CODES)
@_ledger_option
@json_option
def ledger_show(*, ledger: str | None, as_json: bool) -> None:
    """Show how much the ledger holds, and what each model took."""
    from mlflow_adk_eval.report.console import console, ledger_view  # noqa: PLC0415 - as above

    with _ledger(ledger) as opened:
        opened.check()
        found = opened.contents()
        runs = opened.runs()
    if as_json:
        times = {name: getattr(found, name) and getattr(found, name).isoformat() for name in ("oldest", "newest")}
        unfinished = [run.run_id for run in runs if run.status == "running"]
        print_json({**asdict(found), **times, "unfinished_runs": unfinished})
    else:
        console().print(ledger_view(found, runs))


@ledger_group.command("prune", epilog=EXIT_CODES)
@click.option("--older-than", "older_than_days", type=POSITIVE, metavar="DAYS", help="Only what was kept more than this many days ago.")
@click.option("--model", help="Only the answers of this model.")
@click.option("--run", "run_id", metavar="RUN_ID", help="Only the conversations of this run and of runs that continued it.")
@click.option("--dry-run/--no-dry-run", default=True, show_default=True, help="Whether to only count what would be deleted.")
@_ledger_option
@json_option
def ledger_prune(
    *, older_than_days: float | None, model: str | None, run_id: str | None, dry_run: bool, ledger: str | None, as_json: bool
) -> None:
    """Delete old answers and conversations, which then have to be paid for again."""
    with _ledger(ledger) as opened:
        opened.check()
        found = opened.prune(older_than_days, model=model, run_id=run_id, dry_run=dry_run)
        name = opened.name
    if as_json:
        print_json({**found._asdict(), "dry_run": dry_run})
        return
    counts = [_counted(found.answers, "answer"), _counted(found.conversations, "conversation"), _counted(found.runs, "run")]
    told = f"{counts[0]}, {counts[1]} and {counts[2]}"
    click.echo(f"{name}: {told} would be deleted; add --no-dry-run to delete them" if dry_run else f"{name}: {told} deleted")


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
