"""A model that follows a script, so that the example runs without a key, without a network and always the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

_OTHERS = "For context:"
"""How ADK begins what it tells an agent of the others."""

Parts = list[types.Part]


@dataclass(frozen=True)
class Turn:
    """What an agent knows when it is asked."""

    text: str
    """What the user said last."""
    earlier: Sequence[str]
    """What the user said before, the latest first."""
    said: str
    """What this agent said last; empty if it did not speak yet."""
    results: Sequence[tuple[str, dict[str, Any]]]
    """What its tools answered since, by the name of the tool."""


class ScriptedModel(BaseLlm):
    """Does what a script says."""

    model: str = "scripted"
    script: Callable[[Turn], Parts]

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next call or answer."""
        content = types.Content(role="model", parts=self.script(read_turn(llm_request)))
        yield LlmResponse(content=content, usage_metadata=_usage(llm_request.contents, content), model_version="scripted-1")


def say(text: str) -> Parts:
    """Return an answer."""
    return [types.Part(text=text)]


def call(tool: str, /, **args: Any) -> Parts:
    """Return a call of a tool."""
    return [types.Part(function_call=types.FunctionCall(name=tool, args=args))]


def transfer(agent: str) -> Parts:
    """Return the call that has another agent answer."""
    return call("transfer_to_agent", agent_name=agent)


def read_turn(request: LlmRequest) -> Turn:
    """Return the current turn of a conversation."""
    contents = request.contents
    heard = [(index, text) for index, content in enumerate(contents) if content.role == "user" and (text := _text(content))]
    asked, text = heard[-1]
    said = [_text(content) for content in contents if content.role == "model"]
    answers = [part.function_response for content in contents[asked:] for part in content.parts or () if part.function_response]
    return Turn(
        text=text,
        earlier=[text for _, text in reversed(heard[:-1])],
        said=next(filter(None, reversed(said)), ""),
        results=[(answer.name or "", answer.response or {}) for answer in answers],
    )


def _text(content: types.Content) -> str:
    """Return what a message says itself; nothing if it only quotes what other agents did."""
    text = " ".join(part.text for part in content.parts or () if part.text)
    return "" if text.startswith(_OTHERS) else text


def _usage(contents: Sequence[types.Content], answer: types.Content) -> types.GenerateContentResponseUsageMetadata:
    """Return the size of a request and its answer, where a word counts as a token."""
    asked = sum(len((part.text or "").split()) for content in contents for part in content.parts or ())
    answered = sum(len((part.text or "call").split()) for part in answer.parts or ())
    return types.GenerateContentResponseUsageMetadata(
        prompt_token_count=asked, candidates_token_count=answered, total_token_count=asked + answered
    )
