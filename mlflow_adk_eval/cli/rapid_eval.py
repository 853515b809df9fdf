"""``mlflow-adk-eval rapid-eval``: the metrics of the Rapid Eval API from a file (``evaluate``), and as a server (``serve``)."""

from __future__ import annotations

from typing import Any

import click

from mlflow_adk_eval.cli.options import COUNT, arguments, judge_limit_options, together
from mlflow_adk_eval.cli.output import end, print_json
from mlflow_adk_eval.errors import RunError, UsageError

_EXIT_CODES = "Exit codes: 0 answered, or stopped by a signal; 3 a judge or the service gave no answer; 4 its result could not be written; 64 bad usage or a bad request."

_evaluator_options = together(
    click.option(
        "--backend",
        type=click.Choice(["local", "vertex"]),
        default="local",
        show_default=True,
        help="Evaluate on this machine, or with Vertex AI.",
    ),
    click.option("--judge", metavar="MODEL|MODULE:NAME", help="A model or function that judges. Default: gemini-2.5-flash."),
    click.option("--num-samples", type=COUNT, default=5, show_default=True, help="Votes per instance."),
    click.option("--early-stop", is_flag=True, help="Stop voting once the verdict is certain. Saves calls; confidence covers votes cast."),
    judge_limit_options,
)
"""Who evaluates, and how."""


@click.group("rapid-eval")
def rapid_eval() -> None:
    """Compute the metrics of Google's Rapid Eval API."""


@rapid_eval.command(epilog=_EXIT_CODES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_evaluator_options
def evaluate(file: str, **options: Any) -> None:
    """Answer the request in FILE, or each of a list of requests. Use - for standard input."""
    from mlflow_adk_eval.criteria.rapid.messages import read_request  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.integrations.rapid_server.json_body import read_json  # noqa: PLC0415
    from mlflow_adk_eval.rapid_eval import evaluate_instances  # noqa: PLC0415

    with click.open_file(file, "rb") as opened:
        body = read_json(opened.read(), file)
    if not isinstance(body, list):
        read_request(body, file)
    answers = evaluate_instances(body, **_evaluator(options))
    print_json(answers)
    end(RunError.exit_code if isinstance(answers, list) and any("error" in one for one in answers) else 0)


@rapid_eval.command(epilog=_EXIT_CODES)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on. Other machines need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8085, show_default=True, help="The port; 0 picks a free one.")
@click.option(
    "--token",
    envvar="ADK_EVAL_RAPID_TOKEN",
    default="",
    help="The token clients must send. Prefer ADK_EVAL_RAPID_TOKEN: other users can see arguments.",
)
@click.option("--max-body", type=COUNT, default=1_000_000, show_default=True, help="The largest request in bytes.")
@click.option("--concurrency", type=COUNT, default=256, show_default=True, help="Requests to evaluate in parallel; others wait.")
@_evaluator_options
def serve(*, host: str, port: int, token: str, max_body: int, concurrency: int, **options: Any) -> None:
    """Serve the REST path of Google's API until stopped by a signal.

    POST /v1beta1/projects/PROJECT/locations/LOCATION:evaluateInstances, for any project and location; GET /health and /openapi.json.
    """
    from mlflow_adk_eval.criteria.rapid.evaluate import Voting  # noqa: PLC0415 - `--help` stays fast
    from mlflow_adk_eval.integrations.rapid_server import server  # noqa: PLC0415
    from mlflow_adk_eval.judge.setup import JudgeArgs, judge_setup  # noqa: PLC0415
    from mlflow_adk_eval.report.sentences import format_judge_usage  # noqa: PLC0415

    given = _evaluator(options)
    setup = judge_setup(**{name: given[name] for name in JudgeArgs.__annotations__ if name in given})
    usage = server.serve(
        server.Serving(host=host, port=port, token=token, max_body=max_body, concurrency=concurrency),
        setup,
        given["backend"],
        Voting(given["num_samples"], given["early_stop"]),
        ledger=given["ledger"],
        ready=_ready,
    )
    click.echo(format_judge_usage(usage), err=True) if usage and usage.calls else None


def _evaluator(options: dict[str, Any]) -> dict[str, Any]:
    """Turn the values of `_evaluator_options` into the arguments of `evaluate_instances`."""
    if options["backend"] == "vertex" and options["judge"]:
        raise UsageError(f"--judge {options['judge']}: --backend vertex judges by itself; leave out one of the two")
    return arguments(options, judge_error=UsageError)


def _ready(url: str, problem: str) -> None:
    click.echo(f"listening on {url}")
    click.echo(f"Judged metrics are unavailable: {problem}", err=True) if problem else None
