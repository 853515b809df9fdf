"""The examples with agents of other frameworks: each is run, its traces are evaluated, and the recorded ones are still what it writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.agents.traces.conversations import conversation_from_traces
from mlflow_adk_eval.evalset.files import dump
from tests.agents.traces.framework_traces import FRAMEWORKS, recorded, traces_in

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "example_projects" / "frameworks"
PAGE = (PROJECT / "docs" / "how_to" / "frameworks.md").read_text("utf-8")
MODULES = {"langgraph": "langchain", "openai_agents": "agents", "pydantic_ai": "pydantic_ai", "strands": "strands"}
TIMES = ("invocation_id", "creation_timestamp", "duration", "model_duration", "tool_duration")


def known(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return turns without times, and without ids, which are new each time."""
    turns = [{name: value for name, value in dump(turn).items() if name not in TIMES} for turn in conversation_from_traces(traces).actual]
    for event in (event for turn in turns for event in turn["intermediate_data"]["invocation_events"]):
        for part in event.get("content", {}).get("parts", ()):
            for said in part.values():
                said.pop("id")
    return turns


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_agent_of_a_framework_is_evaluated_by_its_traces(framework: str, tmp_path: Path) -> None:
    if find_spec(MODULES[framework]) is None:
        pytest.skip(f"{framework} is not installed; `make frameworks` runs this where it is")
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    store = f"sqlite:///{tmp_path}/mlflow.db"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "OTEL_", "OPENAI_"))}
    environment = clean | {"MLFLOW_TRACKING_URI": store, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "evaluate.py", framework]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "passed {'tool_trajectory_avg_score': 1.0, 'response_match_score': 1.0}" in done.stdout
    assert known(traces_in(store, framework)) == known(recorded(framework))


def test_the_page_shows_the_examples_as_they_are() -> None:
    shown = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    sources = [file.read_text("utf-8") for file in EXAMPLE.glob("*.py")]
    assert len(shown) == len(FRAMEWORKS) + 1
    assert [block for block in shown if not any(lines_in(block, source) for source in sources)] == []


def lines_in(block: str, source: str) -> bool:
    """Whether a source has the lines of a block in their order; "# …" stands for any."""
    lines = iter(source.splitlines())
    return all(line in lines for line in block.splitlines() if line.strip() not in {"", "# …"})


def test_the_page_names_each_framework_and_what_is_installed_for_it() -> None:
    installed_for = re.findall(r"^\| .* \| `(\w+)` \| `pip install ([^`]+)` \|", PAGE, re.MULTILINE)
    named = sorted(name for name, _ in installed_for)
    assert named == sorted(FRAMEWORKS), "give each framework a row in the table of docs/how_to/frameworks.md, with what is installed for it"
    listed = (PROJECT / "pyproject.toml").read_text("utf-8").partition("frameworks = [")[2].partition("\n]\n")[0]
    assert [packages for _, packages in installed_for if f'"{packages.strip(chr(39))}>=' not in listed] == []
