"""What all agents behind HTTP have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mlflow_adk_eval.agents.conversation import converse
from mlflow_adk_eval.agents.http.client import (
    HttpClient,
    Pool,
    authorization,
    checked_headers,
    checked_url,
    without_user,
)
from mlflow_adk_eval.agents.protocol import (
    NO_LIMITS,
    AgentSession,
    Conversation,
    Limits,
    Tools,
)
from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset import EvalCase


@dataclass(frozen=True, slots=True)
class HttpAgent(ABC):
    """An agent at an address. Its conversations share connections and nothing else."""

    url: str = field(repr=False)
    _: KW_ONLY
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Sent with each request, to the server of `url` only. No error shows their values."""
    name: str = ""
    """What reports and agent versions call it; empty: as its address."""
    timeout_s: float = 120.0
    """How long one request may take, in seconds."""
    attempts: int = 4
    """How often a request is tried whose failure is no fault of the agent's, such as 429, 503 or a broken connection."""
    limits: Limits = NO_LIMITS
    private: frozenset[str] = frozenset()
    pool: Pool = field(default_factory=Pool, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what could not be sent.

        Raises:
            UsageError: naming the field, without secrets.
        """
        split = checked_url(self.url)
        checked_headers(self.headers)
        for name in ("timeout_s", "attempts"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise UsageError(f"{name}={shown(value)}: wanted a number above 0")
        object.__setattr__(self, "name", self.name or f"{split.netloc.rpartition('@')[2]}{split.path}".rstrip("/"))

    @property
    def address(self) -> str:
        """Its address without a user name and a password."""
        return without_user(checked_url(self.url))

    def client(self) -> HttpClient:
        """Return what sends requests to the agent."""
        headers = authorization(checked_url(self.url)) | dict(self.headers)
        return HttpClient(pool=self.pool, headers=headers, timeout_s=self.timeout_s, attempts=int(self.attempts))

    async def version(self) -> str:
        """Return which version the agent says it is; empty where it does not say.

        Raises:
            AgentError: if it does not answer.
        """
        return ""

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Have the conversation of `case`. Whatever goes wrong ends it and is returned."""
        return await converse(self, case, run_index)

    @abstractmethod
    def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AbstractAsyncContextManager[AgentSession]:
        """Begin a conversation that shares nothing with any other."""


def require_real_tools(tools: Tools | None) -> None:
    """Refuse a tool environment: faults that are asked for and never happen would be no evidence.

    Raises:
        UsageError: if there is one.
    """
    if tools is not None:
        raise UsageError("environment_simulation_config: the tools of an agent behind HTTP are out of reach, so they cannot be simulated")
