"""``mlflow-adk-eval compare``: what changed between two runs, and why."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_adk_eval.cli.options import PATH, check_output, confidence_option, force_option, json_option, store_option
from mlflow_adk_eval.cli.output import print_json, write_file


@click.command("compare")
@click.argument("run_a")
@click.argument("run_b")
@click.option("-o", "--output", type=PATH, help="Also write the comparison as an HTML page.")
@force_option
@click.option("--log", is_flag=True, help="Also log the HTML page as an artifact of RUN_B.")
@click.option("--all", "every", is_flag=True, help="Also list the cases whose verdict did not change.")
@confidence_option
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

    Shows which cases flipped and which call, argument, sentence or rubric caused it, and how far scores, cost and time differ, with
    confidence intervals. It exits with 0 whatever the scores are; deciding is the gate's job. 3: MLflow is unreachable, or the
    evidence of a run cannot be trusted; 64: there is no such run, or an option is wrong.
    """
    from mlflow_adk_eval.redact import secrets_of  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.comparison import comparison_view  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415
    from mlflow_adk_eval.report.html.compare import compare_html  # noqa: PLC0415
    from mlflow_adk_eval.report.html.page import words_for  # noqa: PLC0415
    from mlflow_adk_eval.tracking.compare import compare, log_comparison  # noqa: PLC0415

    check_output(output, force=force)
    found, secrets = compare(run_a, run_b, confidence=confidence, tracking_uri=tracking_uri), secrets_of()
    page = compare_html(found, secrets=secrets, every=every) if output or log else ""
    extra: dict[str, str] = {}
    if output:
        write_file(output, page)
        extra["page"] = str(output)
    if log:
        extra["logged"] = log_comparison(found, page, tracking_uri=tracking_uri)
    if as_json:
        print_json(found.to_json(every=every) | extra)
        return
    console().print(comparison_view(found, words_for(secrets), every=every))
    for name, value in extra.items():
        click.echo(f"{name}: {value}")
