"""Agents that speak the A2A protocol, by JSON-RPC.

`A2AAgent.open` reads the agent's card once, for all conversations, and picks the first interface that it understands. Each turn is one
message to that interface; the agent keeps the conversation, by its context id. It answers with a message or with a task; a task that is
not done is polled until it is, or cancelled when the conversation ends. `a2a_wire` translates between messages of A2A and turns.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio

from mlflow_adk_eval.agents.http.a2a_wire import (
    WORKING,
    Action,
    Card,
    Interface,
    Message,
    Task,
    answer_of,
    call,
    card_of,
    error_of,
    events_of,
    headers,
    message,
)
from mlflow_adk_eval.agents.http.client import (
    HttpClient,
    HttpError,
    HttpRequest,
    checked_url,
    excerpt,
    origin,
    shown_url,
)
from mlflow_adk_eval.agents.http.session import HttpAgent, require_real_tools
from mlflow_adk_eval.agents.protocol import Tools, Turn
from mlflow_adk_eval.agents.turn_log import TurnLog
from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation
from mlflow_adk_eval.evalset.digest import canonical_json
from mlflow_adk_eval.evalset.models import Json

_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where an agent's card is, below its address; the second is the older place."""
_FIRST_POLL_S = 0.1
_LONGEST_POLL_S = 2.0
_CANCELLING_S = 2.0


@dataclass(frozen=True, slots=True)
class A2AAgent(HttpAgent):
    """An agent that speaks A2A. Its card, below `url` or at it, says where; the agent itself keeps what was said before."""

    _: KW_ONLY
    endpoint: str = field(default="", repr=False)
    """Where messages are sent; empty: where its card says."""
    task_s: float = 600.0
    """How long it may work on one message that it does not answer at once, in seconds."""
    cards: list[tuple[Card, Interface]] = field(default_factory=list[tuple[Card, Interface]], repr=False, compare=False)
    """Its card once it is known."""

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[A2ASession]:  # noqa: ARG002 - each conversation is new to the agent
        """Begin a conversation.

        Raises:
            AgentError: if the agent's card cannot be had, or offers no interface that is understood.
        """
        require_real_tools(tools)
        client = self.client()
        card, interface = await self._card(client)
        session = A2ASession(self, client, card.name or self.name, interface)
        try:
            yield session
        finally:
            with anyio.move_on_after(_CANCELLING_S, shield=True):
                await session.cancel()

    async def version(self) -> str:
        """Return the version on the agent's card, which is read again."""
        card = card_of((await _fetched_card(self.client(), self.address))[1])
        return card.version if card else ""

    async def _card(self, client: HttpClient) -> tuple[Card, Interface]:
        async with (await self.pool.connections()).lock:
            if not self.cards:
                self.cards.append(self._read(client, *await _fetched_card(client, self.address)))
        return self.cards[0]

    def _read(self, client: HttpClient, url: str, answer: Any) -> tuple[Card, Interface]:
        card = card_of(answer)
        if card is None:
            raise client.unexpected(HttpRequest(url=url), answer, "an agent card")
        interface = card.interface()
        if interface is None:
            offered = ", ".join(f"{one.protocol_binding} {one.protocol_version}" for one in card.interfaces)
            raise AgentError(f"the agent card at {shown_url(url)} offers {offered}; wanted JSONRPC of version 0.3 or 1")
        endpoint = self.endpoint or urljoin(url, interface.url)
        checked_url(endpoint)
        if client.headers and not self.endpoint and origin(endpoint) != origin(url):
            where = shown_url(endpoint)
            raise AgentError(f"the agent card at {shown_url(url)} leads to {where}: for headers to be sent there, pass endpoint={where!r}")
        return card, interface.model_copy(update={"url": endpoint})


async def _fetched_card(client: HttpClient, address: str) -> tuple[str, Any]:
    """Return where the card is and what it says."""
    split = urlsplit(address)
    path = split.path.rstrip("/")
    *before, last = [split._replace(path=one).geturl() for one in ([path] if path.endswith(".json") else [path + card for card in _CARDS])]
    for url in before:
        try:
            return url, await client.send(HttpRequest(url=url, method="GET"))
        except HttpError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return last, await client.send(HttpRequest(url=last, method="GET"))


@dataclass(slots=True)
class A2ASession:
    """One conversation, which the agent identifies by a context id of its own."""

    agent: A2AAgent
    client: HttpClient
    name: str
    interface: Interface
    log: TurnLog = field(init=False)
    turns: int = 0
    context_id: str | None = None
    waiting: str | None = None
    """The task that asks the user for something."""
    working: Task | None = None
    """The task that is under way."""
    seen: set[str] = field(default_factory=set[str])
    """What the latest task has reported so far."""

    def __post_init__(self) -> None:
        """Begin before the first turn."""
        self.log = TurnLog(author=self.name, user=Content())

    async def turn(self, user: Content, /) -> Turn:
        """Send a message, and wait until the agent is done with it."""
        self.log = TurnLog(author=self.name, user=user)
        self.turns += 1
        try:
            answer = await self._answer(user)
        except AgentError as error:
            return Turn(invocation=self.interrupted(), error=f"turn {self.turns}: {error}")
        self._keep(answer)
        reason = error_of(answer)
        if reason:
            return Turn(invocation=self.log.unfinished(), error=f"turn {self.turns}: {reason}")
        return Turn(invocation=self.log.finished())

    def interrupted(self) -> Invocation | None:
        """Return what the task that is under way had reported."""
        if self.working is not None:
            self._keep(self.working)
        return self.log.unfinished()

    async def state(self) -> Json | None:
        """Return nothing: it is the agent's own."""
        return None

    async def cancel(self) -> None:
        """Ask the agent to stop working for a conversation that is over."""
        if self.working is not None:
            with suppress(AgentError):
                await self._call("cancel", {"id": self.working.id})

    async def _answer(self, user: Content) -> Message | Task:
        params = message(user, self.interface, context_id=self.context_id, task_id=self.waiting)
        # A message that begins a conversation may arrive twice: the other conversation is then nobody's.
        answer = await self._call("send", params, harmless=self.context_id is None)
        self.context_id = answer.context_id or self.context_id
        if self.waiting is None or not isinstance(answer, Task) or answer.id != self.waiting:
            self.seen = set()
        self.waiting = None
        if isinstance(answer, Task):
            answer = await self._done(answer)
            self.waiting = answer.id if answer.state == "input-required" else None
        return answer

    async def _done(self, task: Task) -> Task:
        """Return the task once the agent does not work on it any longer."""
        pause_s = _FIRST_POLL_S
        with anyio.move_on_after(self.agent.task_s):
            while task.state in WORKING:
                self.working = task
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_POLL_S)
                answer = await self._call("get", {"id": task.id})
                task = answer if isinstance(answer, Task) else task
        if task.state in WORKING:
            raise AgentError(f"the agent's task was still {task.state} after {self.agent.task_s:g} s")
        self.working = None
        return task

    def _keep(self, answer: Message | Task) -> None:
        for event in events_of(answer, self.name, self.seen):
            self.log.add(event)

    async def _call(self, action: Action, params: Json, *, harmless: bool = True) -> Message | Task:
        body = call(action, self.interface, params)
        request = HttpRequest(url=self.interface.url, body=body, headers=headers(self.interface), harmless=harmless)
        response = await self.client.send(request)
        given = response if isinstance(response, dict) else {}
        if given.get("error"):
            reason = excerpt(canonical_json(given["error"]), self.client.hidden(request))
            raise HttpError(f"{shown_url(request.url)} answered with an error: {reason}")
        answer = answer_of(given.get("result"))
        if answer is None:
            raise self.client.unexpected(request, response, "a message or a task of A2A")
        return answer
