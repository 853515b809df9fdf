"""The check of google/adk-samples on an agent in their layout: that it passes, and that it would notice a difference."""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("google.adk")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
AGENT = '''
import not_installed
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext

calls = []

def fetch(page: int, tool_context: ToolContext) -> dict:
    """Fetch a page."""
    tool_context.state["fetched"] = tool_context.state.get("fetched", 0) + 1
    return {"page": not_installed.get(page)}

async def ask(question: str, tool_context: ToolContext) -> str:
    """Ask the clerk, an agent that is in no tree."""
    return await AgentTool(clerk).run_async(args={"request": question}, tool_context=tool_context)

def noted(tool, args, tool_context):
    calls.append(tool.name)
    if RESTLESS:
        args["page"] = len(calls)

def agent(name, *tools, **settings):
    return LlmAgent(name=name, model="gemini-2.0-flash", tools=list(tools), before_tool_callback=noted, **settings)

clerk = agent("clerk", fetch, output_key="said")
root_agent = agent("front", ask, AgentTool(agent("expert", output_key="known")), sub_agents=[agent("back", fetch)])
'''


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark; afterwards nothing of it is left."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    with warnings.catch_warnings():
        yield importlib.import_module("adk_samples")
    logging.disable(logging.NOTSET)
    for name in set(sys.modules) - before:
        if name.startswith(("adk_samples", "machine", "sample_")):
            del sys.modules[name]


@pytest.mark.parametrize("restless", [False, True])
def test_an_agent_of_the_samples_replays_as_it_ran(
    script: ModuleType, restless: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = f"sample_{restless}"
    folder = tmp_path / "python" / "agents" / "sample" / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(AGENT.replace("RESTLESS", str(restless)))
    pages = itertools.count(1)
    answers = {"not_installed.get()": lambda page: f"page {page}, version {next(pages)}"}
    sample = script.Sample(folder="sample", package=package, turns=2, missing=["not_installed"], answers=answers)
    assert script.main([str(tmp_path)], [sample]) == restless
    said = capsys.readouterr()
    assert "| sample | 2 | 4 | 7 | 2 | 13 | 3 |" in said.out
    assert ("replayed: error differs:  became turn 1: ask(" in said.err) == restless
