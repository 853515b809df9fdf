"""``mlflow-adk-eval calibrate``: how often judges are wrong, measured against labels by people."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import click

from mlflow_adk_eval.cli.options import COUNT, PATH, check_output, confidence_option, force_option, json_option, store_option
from mlflow_adk_eval.cli.output import print_json, write_file
from mlflow_adk_eval.errors import UsageError


@click.command(
    epilog="Exit codes: 0 calibrated; 3 MLflow is unreachable, or a run cannot be trusted; 4 its result could not be written; 64 bad usage or bad labels."
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--labels", type=PATH, help="A CSV file of labels. Default: the HUMAN assessments on the runs' traces in MLflow.")
@click.option(
    "--assessment",
    "assessments",
    metavar="[CRITERION=]NAME",
    multiple=True,
    help="The name of the human assessment, if it differs from the criterion's. Repeatable.",
)
@click.option(
    "--sample", type=COUNT, metavar="N", help="Write a CSV file of the N cells most worth a label to -o instead, without their verdicts."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draw another sample.")
@click.option("-o", "--output", type=PATH, help="Write the calibration to a file that a gate policy can use, or the sheet of --sample.")
@force_option
@click.option("--log", is_flag=True, help="Also log the calibration as an artifact of the runs.")
@confidence_option
@store_option
@json_option
def calibrate(  # noqa: PLR0913 - as many options
    runs: tuple[str, ...],
    *,
    labels: Path | None,
    assessments: tuple[str, ...],
    sample: int | None,
    seed: int,
    output: Path | None,
    force: bool,
    log: bool,
    confidence: float,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Compare the judges' decisions with labels by people.

    For each criterion and rubric that the judges of RUNs decided: agreement, Cohen's kappa, sensitivity, specificity, and the pass rate corrected for the judge's
    errors, which a gate policy can rely on.
    """
    from mlflow_adk_eval.report.calibration import calibration_json, calibration_view  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415
    from mlflow_adk_eval.tracking.calibrate import calibrate as measure  # noqa: PLC0415

    check_output(output, force=force)
    if sample is not None:
        _write_sheet(runs, sample, seed, output, tracking_uri, others=bool(labels or assessments or log or as_json))
        return
    found = measure(runs, labels, assessment=_names(assessments), log=log, tracking_uri=tracking_uri)
    if output is not None:
        write_file(output, found.dumps())
    if as_json:
        print_json(calibration_json(found, confidence))
        return
    console().print(calibration_view(found, confidence))
    if output is not None:
        click.echo(f"{output}: the calibration, for a policy's `calibration`")


def _write_sheet(runs: tuple[str, ...], size: int, seed: int, output: Path | None, tracking_uri: str | None, *, others: bool) -> None:
    from mlflow_adk_eval.tracking.calibrate import label_sheet  # noqa: PLC0415 - `--help` stays fast

    if output is None or others:
        raise UsageError("--sample: wanted -o FILE for the sheet, and neither --labels, --assessment, --log nor --json")
    rows = label_sheet(runs, size, seed=seed, tracking_uri=tracking_uri)
    sheet = io.StringIO(newline="")
    table = csv.DictWriter(sheet, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    write_file(output, sheet.getvalue())
    click.echo(
        f"{output}: {len(rows)} cells to label. Fill in the column label (pass or fail), then: mlflow-adk-eval calibrate {' '.join(runs)} --labels {output}"
    )


def _names(given: tuple[str, ...]) -> str | dict[str, str] | None:
    """Return the names of assessments by criterion, or the only one."""
    pairs = [name.partition("=") for name in given]
    alone = [name for name, equals, _ in pairs if not equals]
    if alone and len(given) > 1:
        raise UsageError(f"--assessment {alone[0]}: with several, each must be CRITERION=NAME")
    if any(equals and not (criterion and name) for criterion, equals, name in pairs):
        raise UsageError("--assessment: wanted NAME or CRITERION=NAME")
    return alone[0] if alone else ({criterion: name for criterion, _, name in pairs} or None)
