"""What an agent prints and logs while a command runs it: into a file of its own, and never between the command's own lines.

Libraries, subprocesses and C code write to the numbers 1 and 2 themselves, so it is these that lead to a temporary file, from the moment
before the agent is imported until the process ends: threads and exit handlers of an agent outlive its last answer. The command goes on with
copies of what they led to before. The temporary file has no name; what is kept of it has no secrets and no control characters.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from threading import Event, Thread, get_ident
from typing import Any, TextIO, cast

import click

from mlflow_adk_eval.cli.output import LOGGER, NAMED_RUNS, is_json, write_file
from mlflow_adk_eval.cli.screen import screen
from mlflow_adk_eval.errors import AdkEvalError
from mlflow_adk_eval.redact import redacted, secrets_of

FOLDER = Path(".adk_eval", "agent_output")
_VARIABLE = "MLFLOW_ADK_EVAL_AGENT_OUTPUT"
_MOST = 5_000_000
"""How many bytes are kept, from the first on: a cause comes before what follows from it."""
_FILES = 20

agent_output_option = click.option(
    "--agent-output",
    type=click.Choice(["file", "show"]),
    default="file",
    envvar=_VARIABLE,
    help="Where your agent's prints and logs go: to a file in .adk_eval/agent_output, or to standard error.",
)


@dataclass
class AgentOutput:
    """Where the command writes meanwhile, and afterwards where the agent's words are."""

    screens: tuple[TextIO, TextIO]
    """The command's standard output and error."""
    shown: bool
    """Whether the agent writes there as well, between which no bar belongs."""
    path: Path | None = None
    """The file; ``None`` where nothing was written, or it could not be kept."""

    @contextmanager
    def paused(self) -> Generator[None]:
        """Ask something on the screen meanwhile."""
        theirs, sys.stdout, sys.stderr = (sys.stdout, sys.stderr), *self.screens
        try:
            yield
        finally:
            sys.stdout, sys.stderr = theirs


class _Stream:
    """A stream that the command's own thread writes on the screen, and every other thread where agents write."""

    def __init__(self, ours: TextIO, theirs: TextIO) -> None:
        self._ours, self._theirs, self._thread = ours, theirs, get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours if get_ident() == self._thread else self._theirs, name)


@contextmanager
def agent_output(where: str | None = None, *, log_level: str | None = None) -> Generator[AgentOutput]:
    """Keep what the code within writes out of what the command writes.

    Args:
        where: ``file`` or ``show``; ``None``: as the environment says. Under a debugger, it is shown.
        log_level: below which no logger writes; ``None``: as the agent has it.
    """
    shown = (where or os.environ.get(_VARIABLE)) == "show" or sys.gettrace() is not None
    streams, hook, ended, home = (sys.stdout, sys.stderr), sys.breakpointhook, Event(), Path.cwd()
    with tempfile.TemporaryFile() as raw, ExitStack() as rest:
        fcntl.fcntl(raw, fcntl.F_SETFL, os.O_APPEND)
        if ours := _copies(*streams):
            _lead_to(ours[1].fileno() if shown else raw.fileno())
            sys.breakpointhook = lambda *given, **named: _debug(hook, ours[1].fileno(), *given, **named)
        else:  # a process of somebody else's, with streams of their own
            sys.stdout = sys.stderr = streams[1] if shown else StringIO()
        theirs, output = (sys.stdout, sys.stderr), AgentOutput(ours or streams, shown)
        rest.enter_context(_heard(output.screens[1]))
        watch = Thread(target=_keep_small, args=(raw.fileno(), ended), daemon=True)
        watch.start()
        if log_level:  # whatever level the agent sets
            logging.basicConfig(level=log_level.upper())
            logging.getLogger().setLevel(log_level.upper())
            if not is_json():  # whose own lines are of the level INFO
                logging.disable(logging.getLogger().level - 1)
        try:
            yield output
        finally:
            ended.set()
            watch.join()
            sys.breakpointhook = hook
            for stream in (sys.stdout, sys.stderr, *theirs):
                with suppress(OSError, ValueError, AttributeError):  # the agent may have closed or replaced it
                    stream.flush()
            if isinstance(theirs[0], StringIO):
                os.write(raw.fileno(), theirs[0].getvalue().encode("utf-8", "replace"))
            if ours:
                sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", tuple(map(_Stream, ours, theirs)))
                atexit.register(_leave, *theirs)  # before the agent's own exit handlers, which were registered earlier
            else:
                sys.stdout, sys.stderr = streams
            output.path = _kept(raw.fileno(), home)
            if sys.exception() and output.path:
                if is_json():
                    LOGGER.info("the agent's output is kept", extra={"file": str(output.path)})
                else:
                    click.echo(f"agent output: {output.path}", err=True)


def _leave(*streams: TextIO) -> None:
    sys.stdout.flush()
    sys.stdout, sys.stderr = streams


@contextmanager
def _heard(screen: TextIO) -> Generator[None]:
    """Let the package's own warnings stand on the screen, and only there; as JSON they do already."""
    handler, propagates = logging.StreamHandler(screen), LOGGER.propagate
    handler.setLevel(logging.WARNING)
    if not is_json():
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.propagate = propagates


def _copies(*streams: TextIO) -> tuple[TextIO, TextIO] | None:
    """Return copies of standard output and error, which the command goes on with; ``None`` where these are not the process's own."""
    try:
        if [stream.fileno() for stream in streams] != [1, 2]:
            return None
    except (OSError, AttributeError):
        return None
    copies: list[TextIO] = []
    for stream in streams:
        with suppress(OSError):  # of a full disk, of which the command's own words will tell
            stream.flush()
        copies.append(screen(os.dup(stream.fileno()), like=stream))
        for handler in (*logging.getLogger().handlers, *NAMED_RUNS.handlers):  # those that the command itself has added
            if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                handler.setStream(copies[-1])
    return copies[0], copies[1]


def _lead_to(target: int) -> None:
    for number in (1, 2):
        os.dup2(target, number)


def _debug(hook: Any, screen: int, *given: Any, **named: Any) -> Any:
    """Stop where an agent has a `breakpoint()`, on the screen."""
    _lead_to(screen)
    if hook is sys.__breakpointhook__ and "PYTHONBREAKPOINT" not in os.environ:
        import pdb  # noqa: PLC0415, T100 - for whoever has a `breakpoint()`

        return pdb.Pdb().set_trace(sys._getframe(2))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the frame of the agent
    return hook(*given, **named)


def _keep_small(number: int, ended: Event) -> None:
    while not ended.wait(0.5):
        if os.fstat(number).st_size > _MOST:
            os.ftruncate(number, _MOST)


def _kept(raw: int, home: Path) -> Path | None:
    """Write what came into a file below the working directory, and remove the oldest; return the file."""
    from mlflow_adk_eval.report.console import without_control  # noqa: PLC0415 - `--help` stays fast

    content = os.pread(raw, _MOST, 0)  # threads of the agent may still write, and move where reading goes on
    if not content.strip():
        return None
    text = content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    if len(content) == _MOST:
        text = text.rpartition("\n")[0] + f"\n… only the first {_MOST:,} bytes are kept\n"  # the last line may end within a secret
    path = FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        (home / FOLDER).mkdir(parents=True, exist_ok=True)
        write_file(home / path, without_control(redacted(text, secrets_of())))
        for old in sorted((home / FOLDER).glob("2*-*-*.txt"))[:-_FILES]:
            old.unlink(missing_ok=True)
    except (OSError, AdkEvalError):  # a folder that takes nothing must not cost the evaluation
        return None
    return path
