"""From an address to the agent behind it; what it needs besides comes from environment variables."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import PATH, OpenAIChatAgent
from mlflow_adk_eval.agents.http.session import HttpAgent
from mlflow_adk_eval.agents.protocol import NO_LIMITS, Limits
from mlflow_adk_eval.errors import UsageError

TOKEN = "ADK_EVAL_AGENT_TOKEN"  # noqa: S105 - the name of a variable
"""Sent as ``Authorization: Bearer …``."""
HEADERS = "ADK_EVAL_AGENT_HEADERS"
"""Further headers, as OpenTelemetry writes them: ``name=value,name=value``, percent-encoded."""
MODEL = "ADK_EVAL_AGENT_MODEL"
"""The model that chat completions are asked of."""


def agent_at(url: str, limits: Limits | None = None) -> HttpAgent:
    """Return the agent at an address: a chat model's, if it ends in ``/chat/completions``, otherwise one that speaks A2A.

    Raises:
        UsageError: if it is no address, or an environment variable does not say what it must.
    """
    chosen = limits or NO_LIMITS
    headers, private = headers_of_environment(), frozenset({HEADERS, TOKEN})
    if urlsplit(url.strip()).path.rstrip("/").endswith(PATH):
        return OpenAIChatAgent(url.strip(), model=os.environ.get(MODEL) or None, headers=headers, limits=chosen, private=private)
    return A2AAgent(url.strip(), headers=headers, limits=chosen, private=private)


def headers_of_environment() -> dict[str, str]:
    """Return the headers that environment variables ask for.

    Raises:
        UsageError: naming the variable and the entry, without its value.
    """
    token = os.environ.get(TOKEN, "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for number, entry in enumerate(filter(str.strip, os.environ.get(HEADERS, "").split(",")), start=1):
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{HEADERS}: entry {number} is not name=value")
        headers[name.strip()] = unquote(value.strip())
    return headers
