"""The command line ``mlflow-adk-eval``: its commands, and the one place where errors become messages and exit codes.

Every command lives in a module of its own beside this one, its shared options in `options`, what it prints in `output`. Command
modules import only click and the errors; what a command needs is imported when it runs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
import tempfile
import time
import traceback
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import click
from cloup import Group, Section

from mlflow_adk_eval.cli.attestation import attestation_group
from mlflow_adk_eval.cli.calibrate import calibrate
from mlflow_adk_eval.cli.capture import capture
from mlflow_adk_eval.cli.compare import compare_command
from mlflow_adk_eval.cli.eval_set import eval_set_group
from mlflow_adk_eval.cli.export import export_command
from mlflow_adk_eval.cli.gate import gate_group
from mlflow_adk_eval.cli.generate import generate
from mlflow_adk_eval.cli.init import init
from mlflow_adk_eval.cli.judge_bench import judge_bench_command
from mlflow_adk_eval.cli.ledger import ledger_group
from mlflow_adk_eval.cli.logs import LOGGER, ended, is_json, log_as_json
from mlflow_adk_eval.cli.options import EXIT_CODES, PATH
from mlflow_adk_eval.cli.output import error_json, print_json
from mlflow_adk_eval.cli.plan import plan_command
from mlflow_adk_eval.cli.promote import promote_command, rollback_command
from mlflow_adk_eval.cli.rapid_eval import rapid_eval
from mlflow_adk_eval.cli.record import record
from mlflow_adk_eval.cli.report import report_command
from mlflow_adk_eval.cli.run import run, score, upload
from mlflow_adk_eval.cli.validate import migrate, validate
from mlflow_adk_eval.cli.view import view_command
from mlflow_adk_eval.errors import AdkEvalError, RunError, UsageError

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS)
_COLLECT_AFTER = 50_000, 20, 10
"""New objects after which the collector of cycles looks at the youngest; so many such collections before it looks at older ones."""


def _one_spelling(word: str) -> str:
    """Return the name of an option, or a choice, in the one form in which click compares it."""
    return word.replace("-", "_")


@click.group(
    cls=Group,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "token_normalize_func": _one_spelling},
)
@click.version_option(package_name="mlflow-adk-eval")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="MLFLOW_ADK_EVAL_LOG_FORMAT",
    help="json: tell on standard error what the command does, a JSON object on each line. Also MLFLOW_ADK_EVAL_LOG_FORMAT.",
)
def cli(*, log_format: str) -> None:
    """Evaluate ADK agents in MLflow, and gate their promotion on the evidence.

    Option names may be written with dashes or underscores.
    """
    if log_format == "json":
        log_as_json()


@click.command()
@click.option("--folder", type=PATH, default=Path("demo"), show_default=True, help="The folder for the demo's MLflow store.")
def demo(*, folder: Path) -> None:
    """Promote a good agent and reject a regressed one.

    Evaluates two versions of an example agent into an MLflow store of its own. Needs no API key.
    """
    from mlflow_adk_eval.cli.demo import run_demo  # noqa: PLC0415 - `--help` stays fast

    run_demo(folder)


for section in (
    Section("Start", [init, demo]),
    Section("Evaluate", [run, score, record, upload]),
    Section("Look", [view_command, report_command, compare_command, plan_command]),
    Section("Decide", [gate_group, promote_command, rollback_command, attestation_group]),
    Section("Judges", [calibrate, judge_bench_command, ledger_group, rapid_eval]),
    Section("Files", [validate, generate, capture, migrate, export_command, eval_set_group]),
):
    cli.add_section(section)


def main() -> None:
    """Run the command line; every foreseen failure is one message and an exit code, never a traceback.

    With ``--json`` the message is a JSON object on standard output besides, so that whoever reads that always finds one.
    """
    _spare_collections()
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # MLflow tells on stderr about its own tables and files otherwise
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # agents' texts may hold what no terminal takes
    started, code = time.perf_counter(), 0
    with ended():
        try:
            _done()
        except SystemExit as stop:
            code = int(stop.code or 0)
            raise
        finally:
            LOGGER.info("the command ended", extra={"exit_code": code, "seconds": round(time.perf_counter() - started, 3)})


def _done() -> None:
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("aborted", err=True)
        _exit(RunError("aborted"))
    except click.ClickException as error:
        error.show()
        _exit(UsageError(error.format_message()))
    except AdkEvalError as error:
        _tell(error)
        _exit(error)
    except OSError as error:
        if error.errno not in _FULL:
            _mistake(error)
        full = RunError(f"this machine takes no more: {error}. Make room, or let TMPDIR name another folder than {tempfile.gettempdir()}")
        _tell(full)
        _exit(full)
    except Exception as error:  # noqa: BLE001 - Python would exit with 1, which says that a threshold was missed
        _mistake(error)


def _tell(error: AdkEvalError) -> None:
    """Say what went wrong; a gate that did not pass is a result, not an error."""
    if is_json():
        LOGGER.error(str(error), extra=error_json(error))
    else:
        click.echo(f"error: {error}" if isinstance(error, UsageError | RunError) else str(error), err=True)


def _mistake(error: Exception) -> NoReturn:
    traceback.print_exc()
    click.echo("error: this is a mistake in mlflow-adk-eval, or in code of yours that it runs", err=True)
    _exit(RunError(f"{type(error).__name__}: {error}"))


def _spare_collections() -> None:
    """Collect cycles less often, and not again when the process ends: a third of a short command's time, in which MLflow's modules survive."""
    gc.set_threshold(*_COLLECT_AFTER)
    atexit.register(gc.freeze)  # runs after what is registered later, such as MLflow's


def _exit(error: AdkEvalError) -> NoReturn:
    if "--json" in sys.argv[1:]:
        print_json(error_json(error))
    sys.exit(error.exit_code)
