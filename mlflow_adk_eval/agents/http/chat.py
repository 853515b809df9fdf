"""Agents that are spoken with as chat models are, by OpenAI's ``chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from mlflow_adk_eval.agents.http.completion import Completion, completion_of
from mlflow_adk_eval.agents.http.request import Line, Request
from mlflow_adk_eval.agents.http.session import HttpAgent, require_real_tools
from mlflow_adk_eval.agents.messages import chat_messages
from mlflow_adk_eval.agents.protocol import Tools, Turn
from mlflow_adk_eval.agents.turn_log import TurnLog
from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.evalset.models import Json

PATH = "/chat/completions"
_MEDIA = ("inline_data", "file_data", "function_call", "function_response")


@dataclass(frozen=True, slots=True)
class OpenAIChatAgent(HttpAgent):
    """An agent that gets the whole conversation with each turn, at ``{url}/chat/completions``."""

    _: KW_ONLY
    model: str | None = None
    """What each request asks for; ``None``: nothing, for agents that are only one."""
    system: str | None = None
    """The first message of each request, if any."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further fields of each request, such as ``temperature``."""

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        split = urlsplit(self.address)
        path = split.path.rstrip("/")
        return split._replace(path=path if path.endswith(PATH) else path + PATH).geturl()

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[ChatSession]:  # noqa: ARG002 - each conversation is new to the agent
        """Begin a conversation."""
        require_real_tools(tools)
        yield ChatSession(self, self.line())


@dataclass(slots=True)
class ChatSession:
    """One conversation; the agent keeps nothing of it."""

    agent: OpenAIChatAgent
    line: Line
    history: list[Invocation] = field(default_factory=list[Invocation])

    async def turn(self, user: Content, /) -> Turn:
        """Send the conversation with what the user says now."""
        log = TurnLog(author=self.agent.name, user=user)
        number = len(self.history) + 1
        try:
            completion = await self._completion(user)
        except AgentError as error:
            return Turn(invocation=None, error=f"turn {number}: {error}")
        log.add(completion.piece(self.agent.name))
        if completion.error:
            return Turn(invocation=log.unfinished(), error=f"turn {number}: {completion.error}")
        invocation = log.finished()
        self.history.append(invocation)
        return Turn(invocation=invocation)

    def interrupted(self) -> Invocation | None:
        """Return nothing: an answer comes as a whole."""
        return None

    async def state(self) -> Json | None:
        """Return nothing: it is the agent's own."""
        return None

    async def _completion(self, user: Content) -> Completion:
        request = self._request(user)
        said = await self.line.ask(request)
        found = completion_of(said)
        if found is None:
            raise self.line.misfit(request, said, "a chat completion")
        return found

    def _request(self, user: Content) -> Request:
        refuse_all_but_text(user)
        agent = self.agent
        system = [{"role": "system", "content": agent.system}] if agent.system else []
        body = {**({"model": agent.model} if agent.model else {}), **agent.body, "messages": [*system, *chat_messages(self.history, user)]}
        return Request(url=agent.endpoint, body=body)


def refuse_all_but_text(user: Content) -> None:
    """Refuse a message that would lose something.

    Raises:
        AgentError: if there is more in it than text.
    """
    found = [name for part in user.parts or () for name in _MEDIA if getattr(part, name) is not None]
    if found:
        raise AgentError(f"the user's message has more than text ({found[0]}), which chat completions do not take here")
