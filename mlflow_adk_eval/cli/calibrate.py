"""``mlflow-adk-eval calibrate``: how often judges are wrong, by what people say."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlflow_adk_eval.cli.options import json_option, refuse_overwriting, store_option
from mlflow_adk_eval.errors import UsageError


@click.command(epilog="Exit codes: 0 calibrated; 3 MLflow could not be reached, or a run cannot be believed; 64 bad usage or bad labels.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--labels", type=click.Path(path_type=Path), help="A CSV file of labels. Default: the HUMAN assessments on the runs' traces in MLflow."
)
@click.option(
    "--assessment",
    "assessments",
    metavar="[CRITERION=]NAME",
    multiple=True,
    help="The name of people's assessments where it is not the criterion's.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write, for the gate.")
@click.option("--force", is_flag=True, help="Overwrite it.")
@click.option("--log", is_flag=True, help="Keep the calibration as an artifact of the runs, too.")
@click.option(
    "--confidence",
    type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="That of the intervals shown.",
)
@store_option
@json_option
def calibrate(  # noqa: PLR0913 - as many options
    runs: tuple[str, ...],
    *,
    labels: Path | None,
    assessments: tuple[str, ...],
    output: Path | None,
    force: bool,
    log: bool,
    confidence: float,
    tracking_uri: str | None,
    as_json: bool,
) -> None:
    """Hold what the judges of RUNs decided against what people say of the same cells.

    For each criterion and rubric: how often they agree, Cohen's kappa, sensitivity, specificity, and the pass rate corrected
    for the judge's errors, on which a policy of the gate may rest.
    """
    from mlflow_adk_eval.report.calibration import calibration_json, calibration_view  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415
    from mlflow_adk_eval.tracking.calibrate import calibrate as hold  # noqa: PLC0415

    refuse_overwriting(output, force=force)
    found = hold(runs, labels, assessment=_names(assessments), log=log, tracking_uri=tracking_uri)
    if output is not None:
        _write(output, found.dumps())
    if as_json:
        click.echo(json.dumps(calibration_json(found, confidence), ensure_ascii=False, indent=2, allow_nan=False))
        return
    console().print(calibration_view(found, confidence))
    if output is not None:
        click.echo(f"{output}: the calibration, for a policy's `calibration`")


def _names(given: tuple[str, ...]) -> str | dict[str, str] | None:
    """Return the names of assessments by criterion, or the only one."""
    pairs = [name.partition("=") for name in given]
    alone = [name for name, equals, _ in pairs if not equals]
    if alone and len(given) > 1:
        raise UsageError(f"--assessment {alone[0]}: of several, each must be said as CRITERION=NAME")
    if any(equals and not (criterion and name) for criterion, equals, name in pairs):
        raise UsageError("--assessment: wanted NAME or CRITERION=NAME")
    return alone[0] if alone else ({criterion: name for criterion, _, name in pairs} or None)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
