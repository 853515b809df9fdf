"""Commands in forks of a process that has imported the libraries: each fork is as separate as a process, and starts at once.

Reads one command a line from standard input, as JSON: `words`, `folder`, `environment`, `output`, `seconds`. Writes the exit code of each.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import signal
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any


def main() -> None:
    """Import the modules that are named as arguments, then follow."""
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        process = os.fork()
        if not process:
            _become(command)
            return
        print(_end_of(process, command["seconds"]), flush=True)


def _end_of(process: int, seconds: float) -> int | str:
    """Return the exit code of a fork, or say that it is late and end it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            _stop(process)
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    _stop(process)
    os.waitpid(process, 0)
    return "late"


def _stop(group: int) -> None:
    """End what the command has started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _become(command: dict[str, Any]) -> None:
    """Run the command in this fork, whose end is then that of a process of its own."""
    os.setsid()
    output = os.open(command["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    program, *rest = command["words"]
    if program == "python":
        program, rest = str(Path(command["folder"]) / rest[0]), rest[1:]
    path = program if Path(program).exists() else str(shutil.which(program))
    sys.argv = [path, *rest]
    sys.path.insert(0, command["folder"])
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    main()
