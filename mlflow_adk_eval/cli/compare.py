"""The command ``mlflow-adk-eval compare``: what changed between two runs, and why."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlflow_adk_eval.cli.options import json_option, refuse_overwriting, store_option
from mlflow_adk_eval.errors import UsageError


@click.command("compare")
@click.argument("run_a")
@click.argument("run_b")
@click.option("-o", "--output", "output", type=click.Path(path_type=Path), help="A file for the same as an HTML page.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option("--log", "log", is_flag=True, help="Keep the page among the artifacts of RUN_B.")
@click.option("--all", "every", is_flag=True, help="Tell also the cases that kept their verdict.")
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="How often the intervals are to cover the true difference.",
)
@store_option
@json_option
def compare_command(  # noqa: PLR0913 - as many as there are options
    run_a: str,
    run_b: str,
    *,
    output: Path | None,
    force: bool,
    log: bool,
    every: bool,
    confidence: float,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Explain what changed from RUN_A to RUN_B.

    Which cases flipped and which call, argument, sentence or rubric did it; how far scores, cost and time lie apart, with intervals. It
    exits with 0 whatever the scores are: it explains, and the gate decides. 3: MLflow cannot be reached, or the evidence of a run
    cannot be believed; 64: there is no such run, or an option is wrong.
    """
    from mlflow_adk_eval.redact import secrets_of  # noqa: PLC0415
    from mlflow_adk_eval.report.comparison import comparison_view  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415
    from mlflow_adk_eval.report.html.compare import compare_html  # noqa: PLC0415
    from mlflow_adk_eval.report.html.page import words_for  # noqa: PLC0415
    from mlflow_adk_eval.tracking.compare import compare, log_comparison  # noqa: PLC0415 - `--help` stays fast

    refuse_overwriting(output, force=force)
    found, secrets = compare(run_a, run_b, confidence=confidence, tracking_uri=tracking_uri), secrets_of()
    page = compare_html(found, secrets=secrets, every=every) if output or log else ""
    extra = {"page": str(_saved(page, output))} if output else {}
    extra |= {"logged": log_comparison(found, page, tracking_uri=tracking_uri)} if log else {}
    if as_json:
        click.echo(
            json.dumps(found.to_json(every=every) | extra, ensure_ascii=False, indent=2, allow_nan=False)
            .encode("utf-8", "replace")
            .decode()
        )
        return
    console().print(comparison_view(found, words_for(secrets), every=every))
    for name, value in extra.items():
        click.echo(f"{name}: {value}")


def _saved(page: str, file: Path) -> Path:
    """Write a page; return where it is."""
    try:
        file.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    return file
