"""The agent that all contenders speak with: it looks one thing up and then says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from judging import MODEL
from speaking import LATENCY_MS
from truth import TOOL, lookup, reply


class InProcess(BaseLlm):
    """The model without its server and its client: it takes as long, and says the same."""

    latency_s: float

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:  # noqa: ARG002 - ADK's signature
        """Answer after a while."""
        await asyncio.sleep(self.latency_s)
        parts = [part for content in reversed(llm_request.contents) for part in reversed(content.parts or ())]
        question = next(part.text for part in parts if part.text)
        done = parts[0].function_response
        part = types.Part(text=reply(question)) if done else types.Part(function_call=types.FunctionCall(name=TOOL, args=lookup(question)))
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=200, candidates_token_count=40)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage, model_version=self.model)


def lookup_order(order_id: str, verbose: bool) -> dict[str, Any]:
    """Look an order up.

    Args:
        order_id: The id of the order.
        verbose: Whether to return all details.
    """
    return {"order_id": order_id, "status": "shipped", "verbose": verbose}


_latency_ms = float(os.environ[LATENCY_MS])
root_agent = LlmAgent(
    name="agent",
    model=InProcess(model=MODEL, latency_s=_latency_ms / 1000) if _latency_ms else MODEL,
    instruction="Answer questions about orders. Always look the order up first.",
    tools=[lookup_order],
)
