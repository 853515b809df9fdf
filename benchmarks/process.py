"""Starting a measurement and reading its result."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore"}


def measured(script: str, *args: str, limit_s: int = 1800) -> dict[str, Any]:
    """Return what a script finds in a fresh process, or an ``error``. The script is given a file for its result, then `args`."""
    with tempfile.TemporaryDirectory(prefix="adk_eval_bench_") as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, str(Path(__file__).parent / script), str(result), *args]
        with log.open("wb") as output:
            ended = _run(command, output, limit_s)
        if result.is_file():
            found: dict[str, Any] = json.loads(result.read_bytes())
            return found
        said = log.read_text("utf-8", errors="replace").strip()
    print(said[-2000:], file=sys.stderr)
    return {"error": _reason(said) if ended else f"not done after {limit_s} s"}


def _reason(said: str) -> str:
    """Return the line of a traceback that names the error, short enough for a table."""
    named = re.findall(r"^\w[\w.]*(?:Error|Exception|Exit)\b.*", said, re.MULTILINE)
    return (named or said.splitlines() or ["no output"])[-1][:100].replace("|", "/")


def _run(command: list[str], output: Any, limit_s: int) -> bool:
    """Run a command with all it starts; return whether it ended in time."""
    process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **_QUIET}, start_new_session=True)
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True
