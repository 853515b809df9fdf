"""The command line ``mlflow-adk-eval``: its commands, and the one place where errors become messages and exit codes.

The commands of a section of the help live in a module or two beside this one, their shared options in `options`, what they print in `output`. Command
modules import only click and the errors; what a command needs is imported when it runs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from cloup import Group, Section

from mlflow_adk_eval.cli import decide, explain, files, init, judges, look, parent, record, run, runs, traces
from mlflow_adk_eval.cli.options import EXIT_CODES, NO_VERDICT, PATH
from mlflow_adk_eval.cli.output import LOGGER, Ended, ended, error_json, is_json, log_as_json, note_named_runs, print_json
from mlflow_adk_eval.cli.screen import screen
from mlflow_adk_eval.errors import FULL, AdkEvalError, OutputError, RunError, UsageError
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.text import MARKS_IN_ASCII

_UNDECIDED = 2
"""The greatest exit code that is a verdict."""
_HELP = {"-h", "--help", "--version"}
"""After which alone click ends a command itself."""
_SERVERS = frozenset({"view", "mcp"})


@contextmanager
def _writing() -> Generator[None]:
    try:
        yield
    except OSError as error:
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        module = str(last.f_globals.get("__name__"))
        if module != screen.__module__ and module.partition(".")[0] not in {"click", "rich"}:
            raise
        raise OutputError(f"standard output cannot be written: {error.strerror}") from None


class _Commands(Group):
    """Commands whose output cannot be written end in a way of ours."""

    make_context = _writing()(Group.make_context)
    invoke = _writing()(Group.invoke)


@click.group(
    cls=_Commands,
    epilog=EXIT_CODES,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        "show_default": True,
        "token_normalize_func": lambda word: word.replace("_", "-"),  # the one form in which click compares options and choices
    },
)
@click.version_option(package_name="mlflow-adk-eval")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="MLFLOW_ADK_EVAL_LOG_FORMAT",
    help="json: log to standard error, one JSON object per line. Also MLFLOW_ADK_EVAL_LOG_FORMAT.",
)
def cli(*, log_format: str) -> None:
    """Evaluate ADK agents in MLflow, and gate their promotion on the evidence.

    Option names may be written with dashes or underscores.
    """
    log_as_json() if log_format == "json" else note_named_runs()


@click.command(epilog=NO_VERDICT)
@click.option("--folder", type=PATH, default=Path("demo"), help="The folder for the demo's MLflow store.")
@click.option("--copy", "target", metavar="FOLDER", type=PATH, help="Copy the example's files into a new or empty FOLDER, and run nothing.")
def demo(*, folder: Path, target: Path | None) -> None:
    """Promote a good agent and reject a regressed one.

    Evaluates two versions of an example agent into a separate MLflow store. Needs no API key.
    """
    from mlflow_adk_eval.cli.demo import copy_example, run_demo  # noqa: PLC0415 - `--help` stays fast

    if target is None:
        run_demo(folder)
    else:
        copy_example(target)


decisions = [decide.gate_command, decide.promote_command, decide.verify_command, decide.audit_command, decide.rollback_command]
for section in (
    Section("Start", [init.init, demo, explain.mcp_command]),
    Section("Evaluate", [explain.plan_command, run.run, run.score, record.record, run.upload, run.register_command]),
    Section("Production", [traces.traces_group]),
    Section(
        "Look",
        [runs.runs_command, explain.explain_command, look.view_command, look.report_command, look.compare_command, look.power_command],
    ),
    Section("Decide", [*decisions, decide.attestation_group, decide.keygen_command]),
    Section("Judges", [judges.calibrate, judges.judge_bench_command, judges.ledger_group, judges.rapid_eval]),
    Section("Files", [files.validate, files.generate, files.capture, files.migrate, files.export_command, files.eval_set_group]),
):
    cli.add_section(section)


def main() -> NoReturn:
    """Run the command line as the program `mlflow-adk-eval`, which owns its process, and end that.

    A command that runs code of others, or decides, does so in a process of its own: see `parent`.
    """
    _open_streams()
    sys.stdout, sys.stderr = screen(1, sys.stdout), screen(2, sys.stderr)
    process = parent.split() if _runs_code() else None
    if isinstance(process, parent.Child):
        os._exit(_code_of(process))  # all that this process has to end is itself
    code = run_here()
    if process is not None:
        process.tell(code)
    sys.exit(code)


def _runs_code() -> bool:
    """Whether a command is called that may run code of others, and is no server, whose exit code nobody reads."""
    if _HELP.intersection(sys.argv[1:]):
        return False
    words = (word.replace("_", "-") for word in sys.argv[1:])
    name = next((word for word in words if word in cli.commands), None)
    return name is not None and name not in _SERVERS


def _code_of(child: parent.Child) -> int:
    """Wait for a command's process, and return the exit code of the command."""
    told, ended_with = child.wait()
    if told is not None and (told or ended_with == 0):  # a verdict that did not pass stays one, whatever happens after it
        return told
    if "json" in _log_formats():
        log_as_json()
    when = "before the command came to its end, so there is no verdict" if told is None else "after the command had come to its end"
    if ended_with >= 0:
        error = f"the process ended with code {ended_with} {when}: the agent, a tool, a metric or a library called os._exit"
    else:
        error = f"the process was ended by signal {-ended_with} ({signal.strsignal(-ended_with)}) {when}"
    return _ended_by(RunError(error))


def _log_formats() -> list[str]:
    """Return the format of the log as the command line says it, which only the command's process has read."""
    words = [word.replace("_", "-") for word in sys.argv[1:]]
    given = [word.partition("=")[2] or next_word for word, next_word in pairwise([*words, ""]) if word.startswith("--log-format")]
    return given or [os.environ.get("MLFLOW_ADK_EVAL_LOG_FORMAT", "")]


def run_here() -> int:
    """Run the command line in this process and return its exit code; every foreseen failure is one message, never a traceback.

    Only a command's own end is one: code that it runs may call `sys.exit`, and the exit code is still ours. With ``--json`` the message is
    a JSON object on standard output besides, so that whoever reads that always finds one.
    """
    # Collect cycles less often, and not again when the process ends: a third of a short command's time, in which MLflow's modules survive.
    gc.set_threshold(50_000, 20, 10)
    atexit.register(gc.freeze)  # runs after what is registered later, such as MLflow's
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # MLflow tells on stderr about its own tables and files otherwise
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=MARKS_IN_ASCII)  # agents' texts may hold what no terminal takes
    started = time.perf_counter()
    with ended(), _stopped_as_by_ctrl_c():
        code = _done()
        try:
            sys.stdout.flush()  # what others have printed; Python's own flush would end with 120
        except OSError as error:
            with suppress(OSError, ValueError):  # Python would try again when it ends, and exit with 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = code if code > _UNDECIDED else _ended_by(OutputError(f"standard output cannot be written: {error.strerror}"))
        LOGGER.info("the command ended", extra={"exit_code": code, "seconds": round(time.perf_counter() - started, 3)})
    return code


def _done() -> int:
    """Run the command and return its exit code."""
    try:
        returned = cli(standalone_mode=False)
    except Ended as stop:
        return int(stop.code or 0)
    except BaseException as error:  # noqa: BLE001 - Python would exit with 1, which says that a threshold was missed
        return _ended_by(_failure(error), shown=isinstance(error, click.ClickException))
    if returned is not None and not _HELP.intersection(sys.argv[1:]):  # click's own Exit, raised by code of others
        return _ended_by(_stopped(f"raised click's Exit({returned!r})"))
    return 0


def _failure(error: BaseException) -> AdkEvalError:
    """Return what a command ended with as an error of ours."""
    match error:
        case AdkEvalError():
            return error
        case click.ClickException():
            with suppress(OSError):
                error.show()
            return UsageError(error.format_message())
        case click.exceptions.Abort() | KeyboardInterrupt():
            return RunError("interrupted")
        case SystemExit():
            return _stopped(f"called sys.exit({error.code!r})")
        case _ if not isinstance(error, Exception):
            return _stopped(f"raised {type(error).__name__}")
        case OSError() if error.errno in (*FULL, errno.EROFS):
            return RunError(f"cannot write: {error}. Free disk space, or set TMPDIR to another folder (now {tempfile.gettempdir()})")
        case _:
            with suppress(OSError):
                traceback.print_exception(error)
                click.echo("error: this is a bug in mlflow-adk-eval, or in your code that it runs", err=True)
            return RunError(f"{type(error).__name__}: {error}")


def _stopped(what: str) -> RunError:
    return RunError(f"code that this command runs {what} and so stopped the command")


def _ended_by(error: AdkEvalError, *, shown: bool = False) -> int:
    """Say what went wrong, unless click has `shown` it, and as JSON where that was asked for; return the exit code."""
    with suppress(OSError):
        if is_json():
            LOGGER.error(str(error), extra=error_json(error))
        elif not shown:
            click.echo(f"error: {redacted(str(error), secrets_of())}", err=True)  # the action puts it on the pull request
    with suppress(OSError):
        if "--json" in sys.argv[1:] and not isinstance(error, OutputError):
            print_json(error_json(error))
    return error.exit_code


def _open_streams() -> None:
    """Put something in the place of closed streams: what is opened next would get their numbers, and text for people would go into a database."""
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # so that writing to a closed standard output fails
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


@contextmanager
def _stopped_as_by_ctrl_c() -> Generator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, whose way leaves no run open and keeps what was paid for."""
    pid = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != pid:  # a fork that an agent has made, such as a worker of `multiprocessing`, ends as if we were not there
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in the background of a script
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    main_thread = threading.current_thread() is threading.main_thread()
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
