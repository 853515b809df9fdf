"""``mlflow-adk-eval judge-bench``: judges side by side on answers of which it is known what they deserve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mlflow_adk_eval.cli.options import (
    COUNT,
    JUDGE_OPTIONS,
    PATH,
    arguments,
    confidence_option,
    json_option,
    judge_host_option,
    judge_limit_options,
    store_option,
)
from mlflow_adk_eval.cli.output import print_json


@click.command(
    "judge-bench",
    epilog="Exit codes: 0 measured; 3 a judge or MLflow is unreachable; 4 its result could not be written; 64 bad usage or bad items.",
)
@click.argument("judges", metavar="JUDGE...", nargs=-1, required=True)
@click.option("--items", type=PATH, help="A JSON Lines file of answers with labels. Default: 72 that ship with the package.")
@click.option("--labels", type=PATH, help="Instead of --items: a CSV file of labels as `calibrate` takes it.")
@click.option("--run", "run", metavar="RUN_ID", help="The run that --labels is about. Its answers are judged again.")
@click.option("--votes", type=COUNT, default=3, show_default=True, help="How often each question is asked.")
@click.option("--experiment", default="judge_bench", show_default=True, help="The MLflow experiment that keeps the results.")
@click.option("--no-log", is_flag=True, help="Keep nothing in MLflow.")
@judge_host_option
@judge_limit_options
@confidence_option
@store_option
@json_option
def judge_bench_command(
    judges: tuple[str, ...], *, items: Path | None, labels: Path | None, no_log: bool, as_json: bool, experiment: str, **options: Any
) -> None:
    """Measure how right judges are, side by side.

    JUDGE is a model, several with commas between them for a panel, or module:name for a function; with settings if need be: gemini-2.5-flash?temperature=0&num_samples=5. A budget holds for each JUDGE.
    """
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.judge_bench import bench_view  # noqa: PLC0415
    from mlflow_adk_eval.tracking.judge_bench import judge_bench  # noqa: PLC0415

    judging = arguments({name: options.pop(name) for name in JUDGE_OPTIONS if name != "judge"})
    found = judge_bench(
        judges,
        items,
        labels=labels,
        experiment=None if no_log else experiment,
        **options,
        **judging,
    )
    if as_json:
        print_json(found.to_json())
        return
    console().print(bench_view(found.to_json()))
