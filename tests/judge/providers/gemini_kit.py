"""What tests of Gemini share: an environment with nothing but what the test says, and ways to ask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import pytest

from mlflow_adk_eval.judge.protocol import Answer, Request
from mlflow_adk_eval.judge.providers.gemini import GeminiJudge

MODEL = "gemini-2.5-flash"
KEY = "AIza-never-to-be-seen-0123456789"
_PREFIXES = ("GOOGLE_", "GEMINI_", "GCE_", "CLOUDSDK_", "K_SERVICE", "CLOUD_RUN_", "GAE_", "NO_GCE_CHECK")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"rationale": {"type": "string"}, "verdict": {"type": "string", "enum": ["valid", "invalid"]}},
    "required": ["rationale", "verdict"],
    "additionalProperties": False,
}


def request(text: str = "the text", settings: Mapping[str, Any] | None = None) -> Request:
    return Request(instructions="the instructions", text=text, schema=SCHEMA, settings=settings or {})


def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all that is said of Google out of the environment, and say that this is no machine of Google's."""
    for name in os.environ:
        if name.startswith(_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")


def with_key(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let the environment name an API key and the server at `url`."""
    empty_environment(monkeypatch)
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)


def asked(*requests: Request, model: str = MODEL) -> list[Answer | Exception]:
    """Return what a new judge answers to each, all at the same time."""

    async def ask_all() -> list[Answer | Exception]:
        judge = GeminiJudge(model)
        try:
            answers = await asyncio.gather(*(judge.ask(one) for one in requests), return_exceptions=True)
            return [answer for answer in answers if isinstance(answer, Answer | Exception)]
        finally:
            await judge.aclose()

    return asyncio.run(ask_all())


def answered(one: Request | None = None) -> Answer:
    """Return the answer of a new judge."""
    (answer,) = asked(one or request())
    if isinstance(answer, Exception):
        raise answer
    return answer


def failed(one: Request | None = None) -> Exception:
    """Return the error of a new judge."""
    (error,) = asked(one or request())
    assert isinstance(error, Exception), error
    return error
