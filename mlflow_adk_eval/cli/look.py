"""What to look at: ``mlflow-adk-eval view``, ``report``, ``compare`` and ``power``."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.output import print_json, tell, write_file
from mlflow_adk_eval.errors import TrackingError, UsageError
from mlflow_adk_eval.redact import command, secrets_of
from mlflow_adk_eval.text import counted

if TYPE_CHECKING:
    from rich.table import Table

    from mlflow_adk_eval.tracking.compare import PowerAnalysis


@click.command("view", epilog=shared.NO_VERDICT)
@shared.store_option
@click.option("--experiment", metavar="NAME", help="Show only runs of this experiment, by name or id. Default: all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8086, help="The port; 0 picks a free one.")
@click.option(
    "--mlflow-url", metavar="URL", help="The address of MLflow's web UI, for links. Default: the tracking server, if there is one."
)
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
@click.option("--label", is_flag=True, help="Also let you label judges' verdicts, for `calibrate`.")
def view_command(**options: Any) -> None:
    """Browse runs, cases and turns on this machine.

    Serves pages to this machine only, and writes nothing unless you label. Stop with Ctrl+C.
    """
    from mlflow_adk_eval.viewer.server import serve  # noqa: PLC0415 - `--help` stays fast

    serve(**options, ready=lambda url: click.echo(f"viewer: {url}"))


_NAME = "report.html"
_UNTRUSTED = "MLflow is unreachable, or the report was changed after the run"


@click.command("report", epilog=shared.exit_codes("saved", _UNTRUSTED, "no such run, no report in it, or bad usage", "the disk is full"))
@click.argument("run_id")
@click.option("-o", "--output", type=shared.PATH, default=_NAME, help="The file or folder to write to.")
@shared.force_option
@shared.mlflow_options
def report_command(run_id: str, *, output: Path, force: bool, tracking_uri: str | None, as_json: bool) -> None:
    """Save the HTML report of a run.

    Refuses a report that was changed after the evaluation.
    """
    path = output / _NAME if output.is_dir() else output
    shared.check_output(path, force=force)
    from mlflow_adk_eval.gating.named_runs import run_id_at  # noqa: PLC0415 - `--help` stays fast

    run_id = run_id_at(run_id, tracking_uri)
    write_file(path, _report_of(run_id, tracking_uri))
    tell(f"{path}: the report of run {run_id}\nopen: {path.absolute().as_uri()}", as_json=as_json, file=str(path), run_id=run_id)


def _report_of(run_id: str, tracking_uri: str | None) -> bytes:
    """Return the HTML report that a run holds.

    Raises:
        UsageError: if there is no such run, or it has no report, as one of an earlier version of this package.
        TrackingError: if MLflow cannot be reached, or the report is not the one that the run's parameter vouches for.
    """
    from mlflow_adk_eval.gating.registry import store_at  # noqa: PLC0415 - as above
    from mlflow_adk_eval.runs.manifest import FOLDER, MANIFEST, sha256  # noqa: PLC0415

    with store_at(tracking_uri) as store:
        content = store.artifact(run_id, f"{FOLDER}/{_NAME}")
        manifest = store.artifact(run_id, f"{FOLDER}/{MANIFEST}")
        vouched = store.client.get_run(run_id).data.params.get("adk_eval.manifest_sha256")
    hashes: dict[str, str] = {}
    with suppress(ValueError, LookupError, TypeError):
        artifacts = json.loads(manifest or b"")["artifacts"]
        hashes = artifacts if isinstance(artifacts, dict) else {}
    if content is None:
        if manifest is None:
            raise UsageError(f"run {run_id} has no report: it contains no finished evaluation")
        if _NAME in hashes:
            raise UsageError(f"run {run_id} has lost its report: the manifest lists {_NAME}, but the artifact is gone")
        why = "its version of mlflow-adk-eval did not write one. The run's table is adk_eval/invocations.json"
        raise UsageError(f"run {run_id} has no report: {why}")
    problem = ""
    if manifest is None or vouched is None:
        problem = f"{MANIFEST if manifest is None else 'the parameter adk_eval.manifest_sha256'} is missing"
    elif sha256(manifest) != vouched:
        problem = f"{MANIFEST} was changed after the run"
    elif _NAME not in hashes:
        problem = f"{_NAME} was added after the run: {MANIFEST} does not list it"
    elif hashes[_NAME] != sha256(content):
        problem = f"{_NAME} was changed after the run"
    if problem:
        raise TrackingError(f"run {run_id}: {problem}, so its report cannot be trusted")
    return content


@click.command("compare", epilog=shared.NO_VERDICT)
@click.argument("run_a")
@click.argument("run_b")
@click.option("-o", "--output", type=shared.PATH, help="Also write the comparison as an HTML page.")
@shared.force_option
@click.option("--log", is_flag=True, help="Also log the HTML page as an artifact of RUN_B.")
@click.option("--all", "every", is_flag=True, help="Also list the cases whose verdict did not change.")
@shared.confidence_option
@shared.mlflow_options
def compare_command(
    run_a: str, run_b: str, *, output: Path | None, force: bool, log: bool, every: bool, as_json: bool, **options: Any
) -> None:
    """Explain what changed from RUN_A to RUN_B.

    Shows the cases that flipped, the call, argument, sentence or rubric that caused it, and the differences in scores, cost and time with
    confidence intervals. Exits with 0 whatever the scores are: deciding is the gate's job. 3: MLflow is unreachable, or a run's evidence
    cannot be trusted. 64: no such run, or bad usage.
    """
    from mlflow_adk_eval.report.comparison import comparison_view  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415
    from mlflow_adk_eval.report.html.compare import compare_html  # noqa: PLC0415
    from mlflow_adk_eval.report.html.page import Texts  # noqa: PLC0415
    from mlflow_adk_eval.tracking.compare import log_comparison  # noqa: PLC0415

    shared.check_output(output, force=force)
    comparison, secrets = adk_eval.compare(run_a, run_b, **options), secrets_of()
    page = compare_html(comparison, secrets=secrets, every=every) if output or log else ""
    extra = {"page": str(output)} if output else {}
    if output:
        write_file(output, page)
    if log:
        extra["logged"] = log_comparison(comparison, page, tracking_uri=options["tracking_uri"])
    if as_json:
        print_json(comparison.to_json(every=every) | extra)
        return
    console().print(comparison_view(comparison, Texts(secrets).words, every=every))
    for name, value in extra.items():
        click.echo(f"{name}: {value}")
    if run_id := comparison.after.run_id:
        lost = any(case.flip == "worse" for case in comparison.cases)
        click.echo(f"next: {command('report' if lost else 'gate', run_id, tracking_uri=options['tracking_uri'])}")


@click.command("power", epilog=shared.NO_VERDICT)
@click.argument("run_id")
@click.option(
    "--detect",
    type=shared.POSITIVE,
    required=True,
    help="The drop to detect, such as 0.05. For tokens, calls and durations: the rise, relative to the mean.",
)
@click.option(
    "--criterion",
    "criteria",
    multiple=True,
    help="A criterion, or case_pass_rate. Repeatable. Default: every criterion with a threshold, and case_pass_rate.",
)
@click.option("--baseline", metavar="RUN_ID", help="An earlier run of the same cases, to estimate how much versions differ.")
@click.option("--power", type=shared.SHARE, default=0.8, help="The probability of detecting that drop.")
@shared.confidence_option
@click.option("--num-runs", type=shared.COUNT, help="Planned repeats of each case. Default: as in RUN_ID.")
@click.option(
    "--attempts", type=shared.COUNT, help="How many attempts share the error, as attempts.spend of the policy. Default: each has all of it."
)
@shared.mlflow_options
def power_command(run_id: str, *, as_json: bool, **options: Any) -> None:
    """Show how many cases you need to detect a drop, and to pass max_drop.

    Also shows the smallest drop that the cases of RUN_ID can detect. The drop is that of a later version on the same cases, as the gate tests it. Power is the probability of detecting it; confidence is
    the probability of no alarm if nothing changed.
    """
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415 - `--help` stays fast

    analysis = adk_eval.power(run_id, **options)
    if as_json:
        needs = [asdict(need) | {"enough": need.enough} for need in analysis.needs]
        print_json(asdict(analysis) | {"needs": needs, "enough": analysis.enough})
        return
    screen = console()
    screen.print(_power_table(analysis))
    for spread in dict.fromkeys(need.told for need in analysis.needs):
        measures = ", ".join(need.measure for need in analysis.needs if need.told == spread)
        screen.print(f"Spread of {measures}: {spread}.", style="dim", markup=False)
    lacking = [need for need in analysis.needs if not need.enough]
    most = max((need for need in lacking if need.needed is not None), key=lambda need: need.needed or 0, default=None)
    unknown = "The spread between versions is unknown: run each case several times, or name a baseline."
    too_few = f"Too few cases: {most.measure} needs {most.needed:,}." if most else unknown
    screen.print(too_few if lacking else "There are enough cases.", markup=False)
    if (passing := max(analysis.needs, key=lambda need: need.to_pass or 0)).to_pass and passing.to_pass > passing.cases:
        text = f"An equally good version passes max_drop {passing.drop:.3g} of {passing.measure} from about {passing.to_pass:,} cases on"
        text += f", or with --until-decided after about {passing.until_decided:,} on average." if passing.until_decided else "."
        screen.print(text, markup=False)


def _power_table(analysis: PowerAnalysis) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - as above
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}"

    confidence, power = (f"{100 * share:.4g} %" for share in (analysis.confidence, analysis.power))
    title = f"{counted(analysis.num_runs, 'run')} of each case, {confidence} confidence, {power} power"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0, show_edge=False)
    seen = ("measure", "cases", "mean", f"{confidence} interval", "spread")
    for heading in (*seen, "detectable drop", "drop to detect", "cases needed", "cases to pass"):
        named = heading == "measure"
        longest = max(map(len, heading.split()))
        table.add_column(heading, justify="left" if named else "right", overflow="fold", no_wrap=named, min_width=longest)
    for need in analysis.needs:
        interval = " to ".join(map(number, need.interval)) if need.interval else "–"
        numbers = (number(need.mean), interval, *map(number, (need.spread, need.detectable, need.drop)))
        counts = ("–" if cases is None else f"{cases:,}" for cases in (need.needed, need.to_pass))
        table.add_row(escape(need.measure), str(need.cases), *numbers, *counts, style="" if need.enough else "yellow")
    return table
