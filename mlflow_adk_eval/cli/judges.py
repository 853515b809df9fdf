"""Judges: how right they are (``mlflow-adk-eval calibrate`` and ``judge-bench``), what they have answered (``ledger``), and the metrics of the Rapid Eval API (``rapid-eval``)."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import options as shared
from mlflow_adk_eval.cli.output import end, print_json, write_file, write_table
from mlflow_adk_eval.errors import RunError, UsageError
from mlflow_adk_eval.redact import command
from mlflow_adk_eval.text import counted

if TYPE_CHECKING:
    from mlflow_adk_eval.ledger import CallCache


@click.command(epilog=shared.exit_codes("calibrated", "MLflow is unreachable, or a run cannot be trusted", "bad usage or bad labels"))
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--labels", type=shared.PATH, help="A CSV file with labels. Default: the HUMAN assessments on the runs' traces in MLflow.")
@click.option(
    "--assessment",
    "assessments",
    metavar="[CRITERION=]NAME",
    multiple=True,
    help="The name of the human assessment, if it differs from the criterion. Repeatable.",
)
@click.option(
    "--sample",
    type=shared.COUNT,
    metavar="N",
    help="Write a CSV file to -o with the N judged turns most worth labelling, without the verdicts.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="The random seed of --sample.")
@click.option(
    "-o", "--output", type=shared.PATH, help="The file to write: the calibration for a gate policy or, with --sample, the sheet to label."
)
@shared.force_option
@click.option("--log", is_flag=True, help="Also log the calibration as an artifact of the runs.")
@shared.confidence_option
@shared.mlflow_options
def calibrate(
    runs: tuple[str, ...], *, labels: Path | None, assessments: tuple[str, ...], output: Path | None, as_json: bool, **options: Any
) -> None:
    """Compare judges' verdicts with people's labels.

    Shows agreement, Cohen's kappa, sensitivity, specificity and the pass rate corrected for the judge's error, for each judged criterion and rubric of the runs. A gate policy can
    use the result.
    """
    from mlflow_adk_eval.report.calibration import calibration_json, calibration_view  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415

    shared.check_output(output, force=options["force"])
    log, confidence, tracking_uri = (options[name] for name in ("log", "confidence", "tracking_uri"))
    if options["sample"] is not None:
        if output is None or labels or assessments or log or as_json:
            raise UsageError("--sample needs -o FILE, and excludes --labels, --assessment, --log and --json")
        rows = adk_eval.label_sheet(runs, options["sample"], seed=options["seed"], tracking_uri=tracking_uri)
        write_table(output, rows)
        click.echo(f"{output}: {len(rows)} verdicts to label. Fill in the column label (pass or fail), then:")
        click.echo(f"next: {command('calibrate', *runs, labels=output, output='calibration.json', tracking_uri=tracking_uri)}")
        return
    calibration = adk_eval.calibrate(runs, labels, assessment=_names(assessments), log=log, tracking_uri=tracking_uri)
    if output is not None:
        write_file(output, calibration.dumps())
    if as_json:
        print_json(calibration_json(calibration, confidence))
        return
    console().print(calibration_view(calibration, confidence))
    run_ids = [run.run_id for run in calibration.runs]
    if output is None:
        words = ["calibrate", *run_ids, *(f"--assessment={each}" for each in assessments)]
        click.echo(f"next: {command(*words, labels=labels, output='calibration.json', tracking_uri=tracking_uri)}")
        return
    policies = [*Path().glob("gate.yaml"), *Path().glob("*/gate.yaml")]
    policy = policies[0] if len(policies) == 1 else Path("gate.yaml")
    where = os.path.relpath(output, policy.parent)  # a policy names its files from its own folder
    click.echo(f"{output}: the calibration\nIn {policy}, write: calibration: {json.dumps(where)}")
    click.echo(f"next: {command('gate', run_ids[-1], policy=policy, tracking_uri=tracking_uri)}")


def _names(assessments: tuple[str, ...]) -> str | dict[str, str] | None:
    """Return the names of assessments by criterion, or the only one."""
    pairs = [name.partition("=") for name in assessments]
    alone = [name for name, equals, _ in pairs if not equals]
    if alone and len(pairs) > 1:
        raise UsageError(f"--assessment {alone[0]}: to give several, write each as CRITERION=NAME")
    if any(equals and not (criterion and name) for criterion, equals, name in pairs):
        raise UsageError("--assessment: wanted NAME or CRITERION=NAME")
    return alone[0] if alone else ({criterion: name for criterion, _, name in pairs} or None)


@click.command("judge-bench", epilog=shared.exit_codes("measured", "a judge or MLflow is unreachable", "bad usage or bad items"))
@click.argument("judges", metavar="JUDGE...", nargs=-1, required=True)
@click.option("--items", type=shared.PATH, help="A JSON Lines file of labelled answers. Default: 72 that ship with the package.")
@click.option("--labels", type=shared.PATH, help="Instead of --items: a CSV file of labels, as for `calibrate`.")
@click.option("--run", "run", metavar="RUN_ID", help="The run that --labels belongs to. Its answers are judged again.")
@click.option("--votes", type=shared.COUNT, default=3, help="How often to ask each question.")
@click.option("--experiment", default="judge_bench", help="The MLflow experiment to log the results to.")
@click.option("--no-log", is_flag=True, help="Log nothing to MLflow.")
@shared.judge_host_option
@shared.judge_limit_options
@shared.confidence_option
@shared.mlflow_options
def judge_bench_command(
    judges: tuple[str, ...], *, items: Path | None, labels: Path | None, no_log: bool, as_json: bool, experiment: str, **options: Any
) -> None:
    """Compare the accuracy of judges on answers with known verdicts.

    JUDGE is a model, several models with commas for a panel, or module:name for a function. Add settings like this: gemini-2.5-flash?temperature=0&num_samples=5. Each JUDGE gets the whole budget.
    """
    from mlflow_adk_eval.report.calibration import bench_view  # noqa: PLC0415
    from mlflow_adk_eval.report.console import console  # noqa: PLC0415 - `--help` stays fast

    judging = shared.arguments({name: options.pop(name) for name in shared.JUDGE_OPTIONS if name != "judge"})
    bench = adk_eval.judge_bench(judges, items, labels=labels, experiment=None if no_log else experiment, **options, **judging).to_json()
    if as_json:
        print_json(bench)
    else:
        console().print(bench_view(bench))


_ledger_option = click.option(
    "--ledger",
    metavar="FILE|URL",
    help="The ledger. Default: MLFLOW_ADK_EVAL_LEDGER, else .adk_eval/ledger.sqlite in the working directory.",
)


@click.group("ledger")
def ledger_group() -> None:
    """Show or prune the ledger of paid model answers."""


@contextmanager
def _ledger(source: str | None) -> Generator[CallCache]:
    """Open a ledger that is there and can be read."""
    from mlflow_adk_eval.ledger import opened  # noqa: PLC0415 - `--help` stays fast

    with opened(source) as ledger:
        if ledger is None:
            raise UsageError("no ledger: wanted a file or a postgresql:// URL; MLFLOW_ADK_EVAL_LEDGER says 'off'")
        yield ledger


@ledger_group.command("show", epilog=shared.NO_VERDICT)
@_ledger_option
@shared.json_option
def ledger_show(*, ledger: str | None, as_json: bool) -> None:
    """Show the size of the ledger and each model's usage."""
    from mlflow_adk_eval.report.console import console, ledger_view  # noqa: PLC0415 - as above

    with _ledger(ledger) as opened:
        contents, runs = opened.contents(), opened.runs()
    if as_json:
        times = {"oldest": contents.oldest and contents.oldest.isoformat(), "newest": contents.newest and contents.newest.isoformat()}
        unfinished = [run.run_id for run in runs if run.status == "running"]
        print_json({**asdict(contents), **times, "unfinished_runs": unfinished})
    else:
        console().print(ledger_view(contents, runs))


@ledger_group.command("prune", epilog=shared.NO_VERDICT)
@click.option("--older-than", "older_than_days", type=shared.POSITIVE, metavar="DAYS", help="Only entries older than this many days.")
@click.option("--model", help="Only answers of this model.")
@click.option("--run", "run_id", metavar="RUN_ID", help="Only conversations of this run and of runs that resumed it.")
@click.option("--dry-run", is_flag=True, help="Only count; delete nothing.")
@_ledger_option
@shared.json_option
def ledger_prune(
    *, older_than_days: float | None, model: str | None, run_id: str | None, dry_run: bool, ledger: str | None, as_json: bool
) -> None:
    """Delete old answers and conversations. If you need them again, you pay again."""
    with _ledger(ledger) as opened:
        pruned = opened.prune(older_than_days, model=model, run_id=run_id, dry_run=dry_run)
    if as_json:
        print_json({**pruned._asdict(), "dry_run": dry_run})
        return
    answers, conversations, runs = map(counted, pruned, ("answer", "conversation", "run"))
    click.echo(f"{opened.name}: {answers}, {conversations} and {runs} {'would be deleted' if dry_run else 'deleted'}")


_RAPID = shared.exit_codes("answered, or stopped by a signal", "a judge or the service gave no answer", "bad usage or a bad request")

_evaluator_options = shared.together(
    click.option("--backend", type=click.Choice(["local", "vertex"]), default="local", help="Evaluate on this machine or with Vertex AI."),
    click.option("--judge", metavar="MODEL|MODULE:NAME", help="A model or function that judges. Default: gemini-2.5-flash."),
    click.option("--num-samples", type=shared.COUNT, default=5, help="Votes per instance."),
    click.option(
        "--early-stop",
        is_flag=True,
        help="Stop voting once the verdict is certain. Saves calls; the confidence then covers only the votes cast.",
    ),
    shared.judge_limit_options,
)
"""Who evaluates, and how."""


@click.group("rapid-eval")
def rapid_eval() -> None:
    """Compute the metrics of Google's Rapid Eval API."""


@rapid_eval.command(epilog=_RAPID)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_evaluator_options
def evaluate(file: str, **options: Any) -> None:
    """Answer the request, or the list of requests, in FILE. Use - for standard input."""
    from mlflow_adk_eval.criteria.rapid.messages import read_request  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.integrations.rapid_server.app import read_json  # noqa: PLC0415

    with click.open_file(file, "rb") as opened:
        body = read_json(opened.read(), file)
    if not isinstance(body, list):
        read_request(body, file)
    answers = adk_eval.rapid_eval.evaluate_instances(body, **_evaluator(options))
    print_json(answers)
    end(RunError.exit_code if isinstance(answers, list) and any("error" in one for one in answers) else 0)


@rapid_eval.command(epilog=_RAPID)
@click.option("--host", default="127.0.0.1", help="The address to listen on. Other machines need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8085, help="The port; 0 picks a free one.")
@click.option(
    "--token",
    envvar="MLFLOW_ADK_EVAL_RAPID_TOKEN",
    default="",
    help="The token clients must send. Prefer MLFLOW_ADK_EVAL_RAPID_TOKEN: other users of the machine can see arguments.",
)
@click.option("--max-body", type=shared.COUNT, default=1_000_000, help="The largest request in bytes.")
@click.option("--concurrency", type=shared.COUNT, default=256, help="Requests to evaluate in parallel; others wait.")
@_evaluator_options
def serve(*, host: str, port: int, token: str, max_body: int, concurrency: int, **options: Any) -> None:
    """Serve Google's API over REST until stopped by a signal.

    POST /v1beta1/projects/PROJECT/locations/LOCATION:evaluateInstances, for any project and location; GET /health and /openapi.json.
    """
    from mlflow_adk_eval.criteria.rapid.evaluate import voting_settings  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.integrations.rapid_server import server  # noqa: PLC0415
    from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup  # noqa: PLC0415
    from mlflow_adk_eval.report.sentences import format_judge_usage  # noqa: PLC0415

    def ready(url: str, problem: str) -> None:
        click.echo(f"listening on {url}")
        click.echo(f"Judged metrics are unavailable: {problem}", err=True) if problem else None

    evaluator = _evaluator(options)
    usage = server.serve(
        server.Serving(host=host, port=port, token=token, max_body=max_body, concurrency=concurrency),
        judge_setup(**{name: evaluator[name] for name in JudgeArgs.__annotations__ if name in evaluator}),
        evaluator["backend"],
        voting_settings(evaluator["num_samples"], early_stop=evaluator["early_stop"]),
        ledger=evaluator["ledger"],
        ready=ready,
    )
    click.echo(format_judge_usage(usage), err=True) if usage and usage.calls else None


def _evaluator(options: dict[str, Any]) -> dict[str, Any]:
    """Turn the values of `_evaluator_options` into the arguments of `evaluate_instances`."""
    if options["backend"] == "vertex" and options["judge"]:
        raise UsageError(f"--judge {options['judge']}: --backend vertex has its own judge; drop one of the two options")
    return shared.arguments(options, judge_error=UsageError)
