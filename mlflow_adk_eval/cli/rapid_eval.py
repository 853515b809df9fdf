"""The commands ``mlflow-adk-eval rapid-eval``: the metrics of the Rapid Eval API from a file, and as a server."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from mlflow_adk_eval.cli.options import Command, budget_options, budgeted
from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.runtime import model_or_object

_EXIT_CODES = "Exit codes: 0 answered, or stopped by a signal; 3 a judge or the service has no answer; 64 bad usage or a bad request."
_FAILED = 3


@click.group("rapid-eval")
def rapid_eval() -> None:
    """The metrics of Google's Rapid Eval API, computed and judged here or asked of Vertex AI."""


def _asking(command: Command) -> Command:
    """Add who evaluates, and how."""
    positive = click.FloatRange(min=0, min_open=True)
    for option in (
        budget_options,
        click.option(
            "--rejudge-failed", "--rejudge_failed", "rejudge_failed", is_flag=True, help="Ask again where a kept answer cannot be read."
        ),
        click.option("--judge_outage", type=positive, help="Seconds of nothing but failures after which a judge is given up. Default: 60."),
        click.option("--judge_timeout", type=positive, help="Seconds per request to a judge. Default: 120."),
        click.option("--judge_concurrency", type=click.IntRange(min=1), help="The most requests in flight to one judge. Default: 64."),
        click.option(
            "--early_stop", is_flag=True, help="Stop voting once the verdict is certain: fewer calls, and a confidence of the votes cast."
        ),
        click.option("--num_samples", type=click.IntRange(min=1), default=5, show_default=True, help="Votes on each instance."),
        click.option("--judge", metavar="MODEL|MODULE:NAME", help="Who judges: a model or a function. Default: gemini-2.5-flash."),
        click.option(
            "--backend", type=click.Choice(["local", "vertex"]), default="local", show_default=True, help="Who evaluates: we, or Vertex AI."
        ),
    ):
        command = option(command)
    return command


@rapid_eval.command(epilog=_EXIT_CODES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_asking
def evaluate(file: str, **options: Any) -> None:
    """Print the answer to the request in FILE, or to each of a list of requests; - is what comes in."""
    from mlflow_adk_eval.criteria.rapid.messages import read_request  # noqa: PLC0415
    from mlflow_adk_eval.integrations.rapid_server.json_body import read_json  # noqa: PLC0415
    from mlflow_adk_eval.rapid_eval import evaluate_instances  # noqa: PLC0415 - `--help` stays fast

    with click.open_file(file, "rb") as opened:
        body = read_json(opened.read(), file)
    if not isinstance(body, list):
        read_request(body, file)
    answers = evaluate_instances(body, **_asked(options))
    click.echo(json.dumps(answers, ensure_ascii=False, indent=2))
    sys.exit(_FAILED if isinstance(answers, list) and any("error" in one for one in answers) else 0)


@rapid_eval.command(epilog=_EXIT_CODES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen. Beyond this machine, that needs a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8085, show_default=True, help="0: any that is free.")
@click.option(
    "--token",
    envvar="ADK_EVAL_RAPID_TOKEN",
    default="",
    help="What clients must show. Better in ADK_EVAL_RAPID_TOKEN: others see arguments.",
)
@click.option("--max_body", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="The most bytes of a request.")
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=256, show_default=True, help="Requests evaluated at the same time; others wait."
)
@_asking
def serve(*, host: str, port: int, token: str, max_body: int, concurrency: int, **options: Any) -> None:
    """Serve the REST path of Google's API, until a signal says to stop.

    POST /v1beta1/projects/PROJECT/locations/LOCATION:evaluateInstances, for any project and location; GET /health and /openapi.json.
    """
    from mlflow_adk_eval.criteria.rapid.evaluate import Voting  # noqa: PLC0415
    from mlflow_adk_eval.integrations.rapid_server import server  # noqa: PLC0415
    from mlflow_adk_eval.judge.session import judge_setup  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.report.sentences import format_judge_usage  # noqa: PLC0415

    asked = _asked(options)
    setup = judge_setup(asked["judge"], asked["judge_options"], asked["budget"], rejudge_failed=asked["rejudge_failed"])
    usage = server.serve(
        server.Serving(host=host, port=port, token=token, max_body=max_body, concurrency=concurrency),
        setup,
        asked["backend"],
        Voting(asked["num_samples"], asked["early_stop"]),
        ledger=asked["ledger"],
        ready=_ready,
    )
    click.echo(format_judge_usage(usage), err=True) if usage and usage.calls else None


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    """Turn the options of `_asking` into the arguments of `evaluate_instances`."""
    from mlflow_adk_eval.judge import JudgeOptions  # noqa: PLC0415 - `--help` stays fast

    if options["backend"] == "vertex" and options["judge"]:
        raise UsageError(f"--judge {options['judge']}: with --backend vertex it is the service that judges")
    given = {
        "max_concurrency": options.pop("judge_concurrency"),
        "timeout_s": options.pop("judge_timeout"),
        "outage_s": options.pop("judge_outage"),
    }
    judge_options = JudgeOptions(**{name: value for name, value in given.items() if value is not None})
    return budgeted(options) | {"judge": model_or_object(options["judge"], "--judge"), "judge_options": judge_options}


def _ready(url: str, note: str) -> None:
    click.echo(f"listening on {url}")
    click.echo(f"Judged metrics cannot be had: {note}", err=True) if note else None
