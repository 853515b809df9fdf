"""The agent that all contenders speak with: it looks one thing up and then says so."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from judging import MODEL


def lookup_order(order_id: str, verbose: bool) -> dict[str, Any]:
    """Look an order up.

    Args:
        order_id: The id of the order.
        verbose: Whether to return all details.
    """
    return {"order_id": order_id, "status": "shipped", "verbose": verbose}


root_agent = LlmAgent(
    name="agent", model=MODEL, instruction="Answer questions about orders. Always look the order up first.", tools=[lookup_order]
)
