"""An agent whose tools are behind a real MCP server: it is not even started in a replay."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest

from tests.agents.scripted import Scripted, call, case_of, results, text, user_text
from tests.agents.test_replay_adk import evaluated, told

pytest.importorskip("mcp", reason="MCP's own package is not installed")

_SERVER = """
    import sys
    sys.path += {path}
    from pathlib import Path
    try:
        from mcp.server.fastmcp import FastMCP as Server
    except ImportError:
        from mcp.server import MCPServer as Server

    server = Server("weather")

    @server.tool()
    def weather(city: str) -> str:
        "Say what the weather is."
        with Path({log!r}).open("a") as log:
            log.write(city + chr(10))
        return "sunny in " + city

    with Path({log!r}).open("a") as log:
        log.write("started" + chr(10))
    server.run()
"""


@pytest.mark.needs("google-adk", "2")  # google-adk 1 closes connections in another task than it opened them in, so that no evaluation ends
@pytest.mark.filterwarnings("ignore:.EXPERIMENTAL")
def test_tools_of_a_server_are_replayed_without_the_server(tmp_path: Path) -> None:
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
    from mcp import StdioServerParameters

    script, log = tmp_path / "server.py", tmp_path / "log.txt"
    script.write_text(textwrap.dedent(_SERVER).format(path=sys.path, log=str(log)))

    def agent(**settings: Any) -> LlmAgent:
        def asks(request: LlmRequest) -> Any:
            found = results(request)
            return text(str(found[0])) if found else [call("weather", city=user_text(request))]

        connection = StdioConnectionParams(server_params=StdioServerParameters(command=sys.executable, args=[str(script)]), timeout=30)
        return LlmAgent(name="agent", model=Scripted(script=asks), tools=[McpToolset(connection_params=connection, **settings)])

    live = evaluated(agent(), case_of("Rome", "Oslo"), record=True)
    assert [case.error for case in live.cases] == [""]
    assert log.read_text().split() == ["started", "Rome", "Oslo"]
    replayed = evaluated(agent(), case_of("Rome", "Oslo"), replay=live)
    assert told(replayed) == told(live)
    other = evaluated(agent(tool_filter=["weather", "time"]), case_of("Rome"), replay=live)
    assert "the tools of McpToolset" in other.cases[0].error
    assert "were never recorded" in other.cases[0].error
    assert log.read_text().split() == ["started", "Rome", "Oslo"]
