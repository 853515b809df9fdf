"""Agents that ADK's own ``adk conformance`` records and tests, by its own server in this process."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import httpx
import pytest
from google.adk.cli.conformance import cli_record, cli_test
from google.adk.cli.conformance.adk_web_server_client import AdkWebServerClient
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from tests.agents.scripted import call, llm, results, text, user_text

REAL: list[str] = []
"""The calls that reached a tool."""
MODES: Any = getattr(cli_test, "StreamingMode", None)
"""ADK's ways of streaming; ``None``: it records no streams."""
_PLUGINS = ("recordings_plugin.RecordingsPlugin", "replay_plugin.ReplayPlugin")


def find_hotels(city: str, stars: int, tool_context: ToolContext) -> dict[str, Any]:
    """Find hotels in a city."""
    REAL.append("find_hotels")
    tool_context.state["searched"] = [*tool_context.state.get("searched", []), city]
    return {"hotels": ["Krone"], "note": f"{stars} stars"}


def book(hotel: str, tool_context: ToolContext) -> str:
    """Book a hotel."""
    REAL.append("book")
    tool_context.state["booked"] = hotel
    return f"12e{len(hotel):02}"


def ask_manager(amount: float) -> dict[str, Any]:
    """Ask the manager, who answers later."""
    REAL.append("ask_manager")
    return {"status": "pending", "amount": amount}


def _front(request: LlmRequest) -> list[types.Part]:
    said, answers = user_text(request), results(request)
    if answers and "hotels" in answers[0]:
        return text(f"There is {answers[0]['hotels'][0]}; it costs {answers[1]['result']}.")
    if said.startswith("book"):
        return [call("transfer_to_agent", agent_name="booking")]
    return [call("find_hotels", city="Bern", stars=3), call("prices", request="Krone")]


def _booking(request: LlmRequest) -> list[types.Part]:
    answers = results(request)
    return text(f"Booked as {answers[0]['result']}.") if answers and "result" in answers[0] else [call("book", hotel="Krone")]


def _refunds(request: LlmRequest) -> list[types.Part]:
    answers = results(request)
    if not answers:
        return [call("ask_manager", amount=12.0)]
    return text("I have asked." if answers[0]["status"] == "pending" else f"It is {answers[0]['status']}.")


prices = llm(lambda _: text("90 francs"), name="prices", description="Knows prices.")
booking = llm(_booking, name="booking", description="Books.", tools=[book])
travel = llm(_front, name="travel", instruction="Help {user_name}.", tools=[find_hotels, AgentTool(prices)], sub_agents=[booking])
refunds = llm(_refunds, name="refunds", tools=[LongRunningFunctionTool(ask_manager)])

TRAVEL = """\
description: Finds a hotel and books it.
agent: travel
initial_state:
  user_name: Ada
user_messages:
  - text: a hotel in Bern
    state_delta: {currency: CHF}
  - text: book it
"""
REFUNDS = """\
description: The manager answers later.
agent: refunds
user_messages:
  - text: refund me
  - content:
      parts:
        - function_response:
            name: ask_manager
            response: {status: approved}
"""


class Adk:
    """ADK's server with agents, and what its commands ``conformance record`` and ``conformance test`` do with it."""

    def __init__(self, folder: Path) -> None:
        for name in ("travel", "refunds"):
            (folder / name).mkdir()
            (folder / name / "__init__.py").touch()
            (folder / name / "agent.py").write_text(f"from tests.agents.conformance_kit import {name} as root_agent\n")
        known = inspect.signature(get_fast_api_app).parameters
        memory = {name: "memory://" for name in ("session_service_uri", "artifact_service_uri") if "use_local_storage" in known}
        plugins = [f"google.adk.cli.plugins.{plugin}" for plugin in _PLUGINS]
        self.app = get_fast_api_app(agents_dir=str(folder), web=False, extra_plugins=plugins, **memory)

    def client(self) -> AdkWebServerClient:
        client = AdkWebServerClient()
        client._client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url="http://adk")
        return client

    @contextmanager
    def _here(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cli_record, "AdkWebServerClient", self.client)
            yield

    def record(self, folder: Path, **options: Any) -> None:
        """Do what ``adk conformance record`` does."""
        options = options or ({"streaming_mode": MODES.NONE} if MODES else {})
        with self._here():
            anyio.run(lambda: cli_record.run_conformance_record([folder], **options))

    def test(self, folder: Path) -> dict[str, str]:
        """Do what ``adk conformance test`` does, and return why each test failed; empty: it passed."""

        async def run() -> Any:
            async with self.client() as client:
                return await cli_test.ConformanceTestRunner([folder], client).run_all_tests()

        summary = anyio.run(run)
        return {f"{result.category}/{result.name}": "" if result.success else result.error_message or "?" for result in summary.results}


def write_tests(folder: Path, **specs: str) -> Path:
    """Write a ``spec.yaml`` for each test."""
    for name, spec in specs.items():
        (folder / "core" / name).mkdir(parents=True)
        (folder / "core" / name / "spec.yaml").write_text(dedent(spec))
    return folder
