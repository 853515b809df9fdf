"""The command line ``mlflow-adk-eval``: its commands, and the one place where errors become messages and exit codes.

Every command lives in a module of its own beside this one, its shared options in `options`, what it prints in `output`. Command
modules import only click and the errors; what a command needs is imported when it runs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import click

from mlflow_adk_eval.cli.attestation import attestation_group
from mlflow_adk_eval.cli.calibrate import calibrate
from mlflow_adk_eval.cli.capture import capture
from mlflow_adk_eval.cli.compare import compare_command
from mlflow_adk_eval.cli.gate import gate_group, verify_command
from mlflow_adk_eval.cli.options import EXIT_CODES, PATH
from mlflow_adk_eval.cli.output import error_json, print_json
from mlflow_adk_eval.cli.plan import plan_command
from mlflow_adk_eval.cli.promote import promote_command, rollback_command
from mlflow_adk_eval.cli.rapid_eval import rapid_eval
from mlflow_adk_eval.cli.record import record
from mlflow_adk_eval.cli.report import report_command
from mlflow_adk_eval.cli.run import run, score, upload
from mlflow_adk_eval.cli.validate import migrate, validate
from mlflow_adk_eval.errors import AdkEvalError, RunError, UsageError


def _one_spelling(word: str) -> str:
    """Return the name of an option, or a choice, in the one form in which click compares it."""
    return word.replace("-", "_")


@click.group(
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "token_normalize_func": _one_spelling},
)
@click.version_option(package_name="mlflow-adk-eval")
def cli() -> None:
    """Evaluate ADK agents in MLflow, and gate their promotion on the evidence.

    Option names may be written with dashes or underscores.
    """


@cli.command()
@click.option("--folder", type=PATH, default=Path("demo"), show_default=True, help="The folder for the demo's MLflow store.")
def demo(*, folder: Path) -> None:
    """Promote a good agent and reject a regressed one.

    Evaluates two versions of an example agent into an MLflow store of its own. Needs no API key.
    """
    from mlflow_adk_eval.cli.demo import run_demo  # noqa: PLC0415 - `--help` stays fast

    run_demo(folder)


for command in (
    run, score, record, validate, migrate, upload, report_command, compare_command, calibrate, plan_command, gate_group, promote_command,
    verify_command, rollback_command, attestation_group, capture, rapid_eval,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run the command line; every foreseen failure is one message and an exit code, never a traceback.

    With ``--json`` the message is a JSON object on standard output besides, so that whoever reads that always finds one.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # agents' texts may hold what no terminal takes
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("aborted", err=True)
        _exit(RunError("aborted"))
    except click.ClickException as error:
        error.show()
        _exit(UsageError(error.format_message()))
    except AdkEvalError as error:
        # A gate that did not pass is a result, not an error.
        click.echo(f"error: {error}" if isinstance(error, UsageError | RunError) else str(error), err=True)
        _exit(error)


def _exit(error: AdkEvalError) -> NoReturn:
    if "--json" in sys.argv[1:]:
        print_json(error_json(error))
    sys.exit(error.exit_code)
