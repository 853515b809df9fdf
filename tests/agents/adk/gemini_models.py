"""The real Gemini client of ADK in front of a server in this process that answers by the same scripts as `scripted`."""

from __future__ import annotations

from asyncio.selector_events import _SelectorTransport  # noqa: PLC2701 - asyncio has no other name for it
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from tests.agents.scripted import Script
from tests.judge.providers.gemini_kit import with_key
from tests.judge.servers import Call, Reply, Server, serving

ONCE = types.GenerateContentConfig(http_options=types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=1)))
"""What keeps a test of errors from waiting for the provider to recover."""


class Scripts:
    """Scripts by the names of their models, behind a server."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.server: Server

    def model(self, script: Script) -> Gemini:
        """Return a model whose requests `script` answers."""
        name = f"gemini-2.5-script-{len(self.scripts)}"
        self.scripts[name] = script
        return Gemini(model=name)

    def reply(self, call: Call) -> Reply:
        answer = self.scripts[call.model](request_of(call.body))
        if isinstance(answer, Reply):
            return answer
        return reply_of(answer or ())


def request_of(body: dict[str, Any]) -> LlmRequest:
    """Return the body of a request as ADK's own object, as scripts read it."""
    config = types.GenerateContentConfig.model_validate({"tools": body.get("tools"), "system_instruction": body.get("systemInstruction")})
    return LlmRequest(contents=[types.Content.model_validate(content) for content in body["contents"]], config=config)


def reply_of(parts: Any) -> Reply:
    """Return an answer with the counts and the version of `Scripted`."""
    content = types.Content(role="model", parts=list(parts)).model_dump(mode="json", by_alias=True, exclude_none=True)
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 2}
    return Reply(
        body={
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": "scripted-1",
        }
    )


@contextmanager
def gemini_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripts]:
    """Serve scripts while the block runs, where ADK's Gemini models find them by the environment."""
    scripts, opened = Scripts(), WeakSet[_SelectorTransport]()
    open_transport = _SelectorTransport.__init__

    def noted(transport: _SelectorTransport, *given: Any) -> None:
        opened.add(transport)
        open_transport(transport, *given)

    monkeypatch.setattr(_SelectorTransport, "__init__", noted)
    with serving(scripts.reply) as scripts.server:
        with_key(monkeypatch, scripts.server.url)
        yield scripts
    # Nobody else closes the connections of ADK's clients: their loops are gone, and ADK keeps them.
    for transport in opened:
        if transport._sock is not None and transport._loop.is_closed():
            transport._sock.close()
            transport._sock = None  # what it warns by when it is collected
