"""Carries out evaluations, each in a process of its own that is killed on demand.

It imports everything once and forks, since what is under test begins after the imports, which take seconds. Each line of the
input is a job: ``{"folder": …, "environ": {…}, "run": arguments of `mlflow-adk-eval run` or null, "agent": keyword arguments of `evaluate` or null,
"in_flight": the most requests to the judge at the same time}``. Once it is ready it says so; then each line of the output is how a job
ended: the exit code, or minus the number of the signal. A file ``kill`` in the folder of the job kills its process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import google.genai  # noqa: F401 - so that it is there after the fork
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
import pandas.io.parquet  # noqa: F401
import scipy.stats  # noqa: F401

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.cli import main as cli
from mlflow_adk_eval.tracking.evaluate import evaluate

SET_CHILD_SUBREAPER = 36
"""Of Linux's `prctl`."""
CALLS = "agent_calls.txt"
"""Holds a line for each call of the agent."""


def agent(text: str, session: adk_eval.Session) -> dict[str, Any]:
    """Answer, at a price."""
    with Path(CALLS).open("a") as file:
        file.write(f"{session.eval_id} {len(session.history)}\n")
    time.sleep(0.01)
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
        sys.argv = ["mlflow-adk-eval", "run", *job["run"]]
        cli.main()
    else:
        options = adk_eval.JudgeOptions(max_concurrency=job["in_flight"])
        report = evaluate("eval_set.json", agent=agent, judge_options=options, **job["agent"])
        sys.exit(0 if report.passed else 1)


def adopt_orphans() -> None:
    """Become the parent of what killed processes leave behind: only Linux can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)


def wait_for_orphans() -> None:
    """Wait until these have ended, too: the process of a command is killed a moment after the one that waits for it."""
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def in_a_process_of_its_own(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            carry_out(job)
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    demand = Path(job["folder"], "kill")
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            wait_for_orphans()
            return os.waitstatus_to_exitcode(status)
        if demand.exists():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.0005)


if __name__ == "__main__":
    adopt_orphans()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(f"{in_a_process_of_its_own(json.loads(line))}\n")
        sys.stdout.flush()
