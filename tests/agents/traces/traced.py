"""Real traces of ADK agents, made once for all tests that need them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.evalset.conversation import Conversation
from mlflow_adk_eval.evalset.models import Invocation

MODES = {
    "content": {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"},
    "bare": {},
    "legacy": {"ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN": "1"},
}
_SWITCHES = ("OTEL_", "ADK_", "MLFLOW_", "PYTEST_")
_WAIT_S = 300


@dataclass(frozen=True)
class Traced:
    """What agents did, and what MLflow has of it."""

    store: str
    own: dict[str, Conversation]
    traces: list[dict[str, Any]]

    def of(self, scenario: str) -> list[dict[str, Any]]:
        """Return the traces of a scenario, whose session MLflow may have mistaken."""
        return [trace for trace in self.traces if f"session-{scenario}" in _sessions(trace)]


def _sessions(trace: dict[str, Any]) -> set[str]:
    return {span["attributes"].get("gen_ai.conversation.id", "").strip('"') for span in trace["data"]["spans"]}


def traced(mode: str, factory: pytest.TempPathFactory) -> Traced:
    """Return the traces of one mode; of several processes, the first one makes them."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"traced-{mode}"
    out = folder / "out.json"
    try:
        folder.mkdir()
    except FileExistsError:
        deadline = time.monotonic() + _WAIT_S
        while not (folder / "done").exists():
            assert time.monotonic() < deadline, f"{folder} was not finished"
            time.sleep(0.2)
    else:
        try:
            _make(mode, folder, out)
        finally:
            (folder / "done").touch()
    found = json.loads(out.read_text())
    own = {
        name: Conversation(actual=tuple(Invocation.model_validate(turn) for turn in one["played"]), error=one["error"])
        for name, one in found["own"].items()
    }
    return Traced(f"sqlite:///{folder / 'mlflow.db'}", own, found["traces"])


def _make(mode: str, folder: Path, out: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_SWITCHES)}
    switches = {"MLFLOW_USE_DEFAULT_TRACER_PROVIDER": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"}
    environment = {**clean, **MODES[mode], **switches, "PYTHONPATH": str(Path(__file__).parents[3])}
    worker = Path(__file__).parent / "traced_worker.py"
    command = [sys.executable, str(worker), f"sqlite:///{folder / 'mlflow.db'}", str(out)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def copy_of(store: str, folder: Path) -> str:
    """Return a copy of a store that a test may write to."""
    path = folder / "mlflow.db"
    shutil.copy(store.removeprefix("sqlite:///"), path)
    return f"sqlite:///{path}"
