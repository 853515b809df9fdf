"""The command line in processes that are forked from one that has imported it: they begin a second and a half sooner, and end as any process does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAIN = """
import json, os, runpy, signal, sys
import mlflow.store.tracking.sqlalchemy_store, mlflow.store.model_registry.sqlalchemy_store, mlflow.store.artifact.local_artifact_repo
import mlflow_adk_eval.cli.main, mlflow_adk_eval.gating, mlflow_adk_eval.tracking, mlflow_adk_eval.viewer.server
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stdout.write(f"{code}\\n")
    sys.stdout.flush()
else:
    sys.exit()
signal.alarm(120)
os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
with open(asked["stderr"], "wb") as stderr:
    os.dup2(stderr.fileno(), 2)
if asked["stdout"]:
    os.dup2(os.open(asked["stdout"], os.O_WRONLY), 1)
else:
    reader, left = os.pipe()
    os.close(reader)
    os.dup2(left, 1)
os.chdir(asked["folder"])
sys.argv = ["mlflow-adk-eval", *asked["arguments"]]
runpy.run_module("mlflow_adk_eval", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Forking:
    """A process that forks others."""

    process: subprocess.Popen[str]

    def ended(self, arguments: list[str], folder: Path, stdout: str) -> subprocess.CompletedProcess[str]:
        """Return how a command ended whose standard output is a file, or, if that is empty, a pipe that nobody reads."""
        stderr = folder / "stderr"
        asked: dict[str, Any] = {"arguments": arguments, "folder": str(folder), "stdout": stdout, "stderr": str(stderr)}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, "", stderr.read_text())


@contextmanager
def forking(**environment: str) -> Iterator[Forking]:
    """Start the process from which the others come."""
    command = [sys.executable, "-c", _MAIN]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, **environment}, **pipes) as process:
        yield Forking(process)
        assert process.stdin is not None
        process.stdin.close()
