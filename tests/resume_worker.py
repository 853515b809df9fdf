"""Carries out evaluations, each in a process of its own that is killed at a given moment.

It imports everything once and forks, since what is under test begins after the imports, which take seconds. Each line of the
input is a job: ``{"folder": …, "environ": {…}, "kill_after_s": seconds or null, "run": arguments of the command or null, "agent": keyword arguments
of `evaluate` or null}``. Each line of the output is how it ended: the exit code, or minus the signal's number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import google.genai  # noqa: F401 - so that it is there after the fork
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
import pandas.io.parquet  # noqa: F401
import scipy.stats  # noqa: F401

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import cli
from mlflow_adk_eval.tracking import evaluate

CALLS = "agent_calls.txt"
"""Holds a line for each call of the agent."""


async def agent(text: str, session: adk_eval.Session) -> dict[str, Any]:
    """Answer, at a price."""
    import anyio

    with Path(CALLS).open("a") as file:
        file.write(f"{session.eval_id} {len(session.history)}\n")
    await anyio.sleep(0.01)
    session.state["turns"] = len(session.history) + 1
    answer = f"the answer to {text}" if "1" in text else f"nothing about {text}"
    return {"final_response": {"role": "model", "parts": [{"text": answer}]}, "duration": 0.5}


def carry_out(job: dict[str, Any]) -> None:
    os.chdir(job["folder"])
    os.environ.update(job["environ"])
    with Path("output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    if job["run"] is not None:
        cli.main(job["run"])
    else:
        evaluate("eval_set.json", agent=agent, **job["agent"])


def in_a_process_of_its_own(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            carry_out(job)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return ended(pid, job["kill_after_s"])


def ended(pid: int, kill_after_s: float | None) -> int:
    deadline = None if kill_after_s is None else time.monotonic() + kill_after_s
    while True:
        found, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = None
        time.sleep(0.0005)


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{in_a_process_of_its_own(json.loads(line))}\n")
        sys.stdout.flush()
