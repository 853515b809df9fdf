"""Gemini as the model of the agent, through google-genai, which comes with mlflow-adk-eval."""

from __future__ import annotations

from typing import Any

from google import genai
from google.genai import types

from .chat import Call, Chat

INSTRUCTION = """You answer customers of a shop. Look an order up with find_order before you change it.
Cancel only what is processing. Pay back only what was delivered, and at most 30 days ago. Answer in one sentence."""


def gemini(chat: Chat, instruction: str = INSTRUCTION) -> Call | str:
    """Ask the model for the next step."""
    config = types.GenerateContentConfig(
        system_instruction=instruction,
        tools=list(chat.tools.values()),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    with genai.Client() as client:
        answer = client.models.generate_content(model="gemini-2.5-flash", contents=_contents(chat), config=config)
    calls = answer.function_calls or []
    return Call(calls[0].name or "", calls[0].args or {}) if calls else answer.text or ""


def _contents(chat: Chat) -> list[types.Content]:
    said = [content for customer, agent in chat.history for content in (_said("user", customer), _said("model", agent))]
    done = [content for call, result in chat.results for content in _done(call, result)]
    return [*said, _said("user", chat.text), *done]


def _said(role: str, text: str) -> types.Content:
    return types.Content(role=role, parts=[types.Part.from_text(text=text)])


def _done(call: Call, result: dict[str, Any]) -> tuple[types.Content, types.Content]:
    asked = types.Part.from_function_call(name=call.tool, args=call.args)
    answered = types.Part.from_function_response(name=call.tool, response=result)
    return types.Content(role="model", parts=[asked]), types.Content(role="user", parts=[answered])
