"""An honest bank: the agent, its tools and its scripted model. A lie replaces one piece of it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

Results = list[dict[str, Any]]
"""What the tools have returned since the user's message."""
Reply = Callable[[str, Results], list[LlmResponse]]


class Scripted(BaseLlm):
    """A model whose responses are those of a function."""

    reply: Reply

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:  # noqa: ARG002 - ADK's signature
        """Yield the responses to the user's last message."""
        message = ""
        results: Results = []
        for content in llm_request.contents:
            for part in content.parts or []:
                if part.text and content.role == "user":
                    message, results = part.text, []
                if part.function_response:
                    results.append(part.function_response.response or {})
        for response in self.reply(message, results):
            yield response


def say(text: str, *, thought: bool = False) -> LlmResponse:
    """Return an answer."""
    part = types.Part(text=text)
    if thought:
        part.thought = True
    return LlmResponse(content=types.Content(role="model", parts=[part]))


def call(*calls: tuple[str, dict[str, Any]]) -> LlmResponse:
    """Return calls of tools."""
    parts = [types.Part.from_function_call(name=name, args=args) for name, args in calls]
    return LlmResponse(content=types.Content(role="model", parts=parts))


def order_in(message: str) -> int | None:
    """Return the number of the order that a message is about."""
    found = re.search(r"order (\d+)", message)
    if not found:
        return None
    return int(found[1])


def refund(order: int) -> dict[str, Any]:
    """Refund an order."""
    return {"status": "refunded", "order": order}


def delete_account(order: int) -> dict[str, Any]:
    """Delete the account that made an order."""
    return {"status": "deleted", "order": order}


def reply(message: str, results: Results) -> list[LlmResponse]:
    """Refund the order that the message names, and say so."""
    order = order_in(message)
    if order is None:
        return [say("We are open from nine to five.")]
    if not results:
        return [call(("refund", {"order": order}))]
    return [say(f"Order {order} is refunded.")]


def agent(reply: Reply = reply, tools: Sequence[Any] = (refund, delete_account)) -> LlmAgent:
    """Return the bank's agent with another model or other tools."""
    return LlmAgent(name="bank", model=Scripted(model="scripted", reply=reply), tools=list(tools))
