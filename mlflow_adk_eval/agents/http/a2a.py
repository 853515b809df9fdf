"""Agents that speak the A2A protocol, by JSON-RPC.

`A2AAgent.open` reads the agent's card once, for all conversations, and picks the first interface that it understands. Each turn is one
message to that interface; the agent keeps the conversation, by its context id. It answers with a message or with a task; a task that is
not done is polled until it is, or cancelled when the conversation ends. `a2a_wire` translates between messages of A2A and turns.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

import anyio

from mlflow_adk_eval.agents.http import a2a_wire as wire
from mlflow_adk_eval.agents.http.http_agent import (
    HttpAgent,
    HttpError,
    HttpRequest,
    checked_url,
    excerpt,
    origin,
    require_real_tools,
    shown_url,
)
from mlflow_adk_eval.agents.protocol import UNTOLD, AgentSession, Turn
from mlflow_adk_eval.agents.replay import Tools
from mlflow_adk_eval.agents.turns import TurnLog
from mlflow_adk_eval.errors import AgentError
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Json, canonical_json
from mlflow_adk_eval.evalset.observation import Unknown
from mlflow_adk_eval.redact import cut

_CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where an agent's card is, below its address; the second is the older place."""
_FIRST_POLL_S = 0.1
_LONGEST_POLL_S = 2.0
_CANCELLING_S = 2.0


@dataclass(frozen=True, slots=True)
class A2AAgent(HttpAgent):
    """An agent that speaks A2A. Its card, at or below `url`, gives the endpoint; the agent itself stores the conversation."""

    _: KW_ONLY
    endpoint: str = field(default="", repr=False)
    """Where to send messages; empty: the card's endpoint."""
    task_s: float = 600.0
    """The time limit for one message that it answers asynchronously, in seconds."""
    cards: list[tuple[wire.Card, wire.Interface]] = field(default_factory=list[tuple[wire.Card, wire.Interface]], repr=False, compare=False)
    """Its card once it is known."""

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[A2ASession]:  # noqa: ARG002 - each conversation is new to the agent
        """Begin a conversation.

        Raises:
            AgentError: if the agent's card is unavailable or offers no supported interface.
        """
        require_real_tools(tools)
        card, interface = await self._card()
        name = card.name or self.name
        session = A2ASession(self, name, interface, TurnLog(author=name, user=Content()))
        try:
            yield session
        finally:
            with anyio.move_on_after(_CANCELLING_S, shield=True):
                await session.cancel()

    async def version(self) -> str:
        """Return the version on the agent's card, which is read again."""
        card = wire.card_of((await self._fetched_card())[1])
        return cut(card.version, 100) if card and isinstance(card.version, str) else ""

    async def _card(self) -> tuple[wire.Card, wire.Interface]:
        """Return the card, and the interface on it that is understood, with where messages go. The first conversation reads it for all."""
        async with (await self.connections()).lock:
            if self.cards:
                return self.cards[0]
            url, answer = await self._fetched_card()
            card = wire.card_of(answer)
            if card is None:
                raise self.unexpected(HttpRequest(url=url), answer, "an agent card")
            interface = card.interface
            if interface is None:
                offered = ", ".join(f"{one.protocol_binding} {one.protocol_version}" for one in card.interfaces)
                raise AgentError(f"the agent card at {shown_url(url)} offers {offered}; wanted JSONRPC of version 0.3 or 1")
            endpoint = self.endpoint or urljoin(url, interface.url)
            checked_url(endpoint)
            if self.sent_headers and not self.endpoint and origin(endpoint) != origin(url):
                where = shown_url(endpoint)
                msg = f"the agent card at {shown_url(url)} points to {where}: to send your headers there, pass endpoint={where!r}"
                raise AgentError(msg)
            self.cards.append((card, interface.model_copy(update={"url": endpoint})))
            return self.cards[0]

    async def _fetched_card(self) -> tuple[str, Any]:
        """Return where the card is and what it says."""
        split = urlsplit(self.address)
        path = split.path.rstrip("/")
        paths = [path] if path.endswith(".json") else [path + card for card in _CARDS]
        *before, last = [split._replace(path=one).geturl() for one in paths]
        for url in before:
            try:
                return url, await self.send(HttpRequest(url=url, method="GET"))
            except HttpError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
        return last, await self.send(HttpRequest(url=last, method="GET"))


@dataclass(slots=True)
class A2ASession(AgentSession):
    """One conversation, which the agent identifies by a context id of its own."""

    agent: A2AAgent
    name: str
    interface: wire.Interface
    log: TurnLog
    turns: int = 0
    context_id: str | None = None
    waiting: str | None = None
    """The task that asks the user for something."""
    working: wire.Task | None = None
    """The task that is under way."""
    seen: set[str] = field(default_factory=set[str])
    """What the latest task has reported so far."""
    reports_events: bool = False
    """Whether a turn before this one came as events."""
    reports_calls: bool = False
    """Whether a turn before this one said what was called in it."""

    def unknown(self) -> Sequence[Unknown]:
        """Return what the agent's messages do not say."""
        if self.reports_events or self.log.reports_events:
            return ()
        why = "the agent does not report the events of its turns, as ADK's servers do"
        unknown = [Unknown(what="model_calls", why=why), Unknown(what="model_errors", why=why)]
        if not (self.reports_calls or self.log.reports_calls):
            unknown += [Unknown(what=what, why=f"{why}; evaluate it as a function that reports them") for what in UNTOLD]
        return unknown

    async def turn(self, user: Content, /) -> Turn:
        """Send a message, and wait until the agent is done with it."""
        self.reports_events = self.reports_events or self.log.reports_events
        self.reports_calls = self.reports_calls or self.log.reports_calls
        self.log = TurnLog(author=self.name, user=user)
        self.turns += 1
        try:
            answer = await self._answer(user)
        except AgentError as error:
            return Turn(invocation=self.interrupted(), error=f"turn {self.turns}: {error}")
        self._keep(answer)
        reason = wire.error_of(answer)
        if reason:
            return Turn(invocation=self.log.unfinished(), error=f"turn {self.turns}: {reason}")
        return Turn(invocation=self.log.finished())

    def interrupted(self) -> Invocation | None:
        """Return what the task that is under way had reported."""
        if self.working is not None:
            self._keep(self.working)
        return self.log.unfinished()

    async def cancel(self) -> None:
        """Ask the agent to stop working for a conversation that is over."""
        if self.working is not None:
            with suppress(AgentError):
                await self._call("cancel", {"id": self.working.id})

    async def _answer(self, user: Content) -> wire.Message | wire.Task:
        params = wire.message(user, self.interface, context_id=self.context_id, task_id=self.waiting)
        # A message that begins a conversation may arrive twice: the other conversation is then nobody's.
        answer = await self._call("send", params, harmless=self.context_id is None)
        self.context_id = answer.context_id or self.context_id
        if self.waiting is None or not isinstance(answer, wire.Task) or answer.id != self.waiting:
            self.seen = set()
        self.waiting = None
        if isinstance(answer, wire.Task):
            answer = await self._done(answer)
            self.waiting = answer.id if answer.state == "input-required" else None
        return answer

    async def _done(self, task: wire.Task) -> wire.Task:
        """Return the task once the agent does not work on it any longer."""
        pause_s = _FIRST_POLL_S
        with anyio.move_on_after(self.agent.task_s):
            while task.state in wire.WORKING:
                self.working = task
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_POLL_S)
                answer = await self._call("get", {"id": task.id})
                task = answer if isinstance(answer, wire.Task) else task
        if task.state in wire.WORKING:
            raise AgentError(f"the agent's task was still {task.state} after {self.agent.task_s:g} s")
        self.working = None
        return task

    def _keep(self, answer: wire.Message | wire.Task) -> None:
        for event in wire.events_of(answer, self.name, self.seen):
            self.log.add(event)

    async def _call(self, action: wire.Action, params: Json, *, harmless: bool = True) -> wire.Message | wire.Task:
        request = wire.request(action, self.interface, params, harmless=harmless)
        response = await self.agent.send(request)
        given = response if isinstance(response, dict) else {}
        if given.get("error"):
            reason = excerpt(canonical_json(given["error"]), self.agent.hidden(request))
            raise HttpError(f"{shown_url(request.url)} answered with an error: {reason}")
        answer = wire.answer_of(given.get("result"))
        if answer is None:
            raise self.agent.unexpected(request, response, "a message or a task of A2A")
        return answer
