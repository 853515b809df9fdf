"""Agents built with Google's Agent Development Kit, found as ``adk eval`` finds them and run in isolation.

The one module that imports google-adk, and only inside functions, since that takes seconds and google-adk is an extra.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import uuid
import warnings
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from mlflow_adk_eval.agents.base import NO_LIMITS, Limits, Played, Tools, Turn
from mlflow_adk_eval.agents.conversing import converse
from mlflow_adk_eval.agents.events import TurnRecord, plain, turn_invocation
from mlflow_adk_eval.agents.modules import AgentModule, import_agent
from mlflow_adk_eval.agents.turns import failure
from mlflow_adk_eval.errors import AgentError, did_you_mean
from mlflow_adk_eval.evalset import Content, EvalCase, Invocation, SessionInput
from mlflow_adk_eval.evalset.models import Json

_LOG = logging.getLogger(__name__)
_USER_ID = "test_user_id"  # what ADK calls the user of a case without a session
_CLOSING_S = 5.0
_NEEDED = (
    "runners",
    "plugins.base_plugin",
    "artifacts.in_memory_artifact_service",
    "memory.in_memory_memory_service",
    "sessions.in_memory_session_service",
)
_RETRIES = {"attempts": 7, "initial_delay": 5.0, "max_delay": 120.0, "exp_base": 2.0, "http_status_codes": [408, 429, 500, 502, 503, 504]}


def load_adk_agent(source: str | Path | Any, *, agent_name: str | None = None, limits: Limits | None = None) -> AdkAgent:
    """Return the ADK agent that `source` names.

    Args:
        source: an importable module, a folder as ``adk eval`` takes it, an agent or an app. A module has a ``root_agent``, an async
            ``get_agent_async()`` or an ``app``, itself or in its submodule ``agent``.
        agent_name: the sub-agent to use instead of the root agent.
        limits: how long its conversations may take; ``None``: as long as they take.

    Raises:
        AgentError: if there is no such agent, saying where it was looked for.
    """
    _require_adk()
    _quieten()
    for module in _NEEDED:  # now, as that takes seconds which are no case's own
        importlib.import_module(f"google.adk.{module}")
    if isinstance(source, str | Path):
        found = import_agent(source)
        root, name, private = _root_of(found), found.name, found.env_names
    else:
        root, name, private = source, getattr(source, "name", ""), frozenset[str]()
    if not _is_factory(root):
        root = _app(root, name, agent_name)
    return AdkAgent(name=agent_name or name, root=root, app_name=name, agent_name=agent_name, private=private, limits=limits or NO_LIMITS)


@dataclass(slots=True)
class _Users:
    """How many conversations share an agent's tools and plugins right now."""

    count: int = 0
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while tools are closed, so that no conversation begins with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkAgent:
    """An ADK agent. Each conversation gets session, memory and artifact services of its own, so nothing leaks into the next."""

    name: str
    root: Any
    """An app, or the async function that makes an agent, which is called for each conversation."""
    app_name: str
    """The app of cases that name none."""
    agent_name: str | None = None
    private: frozenset[str] = frozenset()
    """The environment variables whose values no error may show, because they came from a ``.env`` file."""
    limits: Limits = NO_LIMITS
    users: _Users = field(default_factory=_Users, repr=False, compare=False)

    async def play(self, case: EvalCase, run_index: int) -> Played:
        """Have the written conversation of `case` from a fresh session. Whatever goes wrong ends it and is returned."""
        return await converse(self, case, run_index)

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[_Session]:  # noqa: ARG002 - all runs of an agent are alike
        """Begin a session in services of its own."""
        async with self._app() as (app, users):
            session = await _Session.start(app, case.session_input, self, tools)
            async with users.lock:
                users.count += 1
            try:
                yield session
            finally:
                users.count -= 1
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    async with users.lock:
                        # Closing a runner closes the tools of the agent, which other conversations may be using.
                        if not users.count:
                            await session.runner.close()

    @asynccontextmanager
    async def _app(self) -> AsyncGenerator[tuple[Any, _Users]]:
        if not _is_factory(self.root):
            yield self.root, self.users
            return
        made = self.root()
        made = await made if inspect.isawaitable(made) else made
        agent, stack = made if isinstance(made, tuple) else (made, None)
        try:
            yield _app(agent, self.app_name, self.agent_name), _Users()
        finally:
            if stack is not None:
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    await stack.aclose()


@dataclass(slots=True)
class _Session:
    """A session with the runner that serves it."""

    runner: Any
    session: Any
    private: frozenset[str]
    user: Content = field(default_factory=Content)
    events: list[Any] = field(default_factory=list[Any])
    """Those of the turn that is under way, or was the last one."""
    record: TurnRecord = field(default_factory=TurnRecord)
    turns: int = 0

    @classmethod
    async def start(cls, app: Any, given: SessionInput | None, agent: AdkAgent, tools: Tools | None) -> _Session:
        """Begin a session in services that nobody else uses."""
        from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService  # noqa: PLC0415
        from google.adk.memory.in_memory_memory_service import InMemoryMemoryService  # noqa: PLC0415
        from google.adk.runners import Runner  # noqa: PLC0415
        from google.adk.sessions.in_memory_session_service import InMemorySessionService  # noqa: PLC0415

        app_name = (given.app_name if given else "") or agent.app_name
        sessions = InMemorySessionService()
        session = await sessions.create_session(
            app_name=app_name,
            user_id=(given.user_id if given else "") or _USER_ID,
            session_id=(given.session_id if given else None) or f"adk-eval-session-{uuid.uuid4()}",
            state=copy.deepcopy(given.state) if given else {},
        )
        started = cls(None, session, agent.private)
        # First, so that it sees every call, also those that a plugin of the app answers in the model's place.
        plugins = [_watcher(started, tools), *app.plugins]
        started.runner = Runner(
            app=app.model_copy(update={"name": app_name, "plugins": plugins}),
            session_service=sessions,
            memory_service=InMemoryMemoryService(),
            artifact_service=InMemoryArtifactService(),
        )
        return started

    async def turn(self, user: Content, /) -> Turn:
        """Say something to the agent; a turn that fails is kept with the events it had."""
        self.user, self.events, self.record = user, [], TurnRecord()
        self.turns += 1
        error = ""
        try:
            await self._turn(user, self.events)
        except Exception as raised:  # noqa: BLE001 - tools and models are the user's own code: anything can go wrong
            error = failure(self.turns, raised, self.private)
        return Turn(invocation=self.interrupted(), error=error)

    def interrupted(self) -> Invocation:
        """Return what happened in the turn so far."""
        return turn_invocation(self.events, self.user, self.record)

    async def _turn(self, user: Content, events: list[Any]) -> None:
        from google.genai import types  # noqa: PLC0415

        message = types.Content.model_validate({"role": "user"} | user.model_dump(mode="json", exclude_none=True))
        run = self.runner.run_async(user_id=self.session.user_id, session_id=self.session.id, new_message=message)
        async with aclosing(run) as stream:
            async for event in stream:
                events.append(event)  # noqa: PERF401 - one by one, since those before a failure are kept

    async def state(self) -> Json:
        """Return the state without what is the framework's own or lives only through a turn."""
        asked = {"app_name": self.session.app_name, "user_id": self.session.user_id, "session_id": self.session.id}
        session = await self.runner.session_service.get_session(**asked)
        return {key: plain(value) for key, value in session.state.items() if not key.startswith(("__", "temp:"))}


def _watcher(session: _Session, tools: Tools | None) -> Any:
    """Return a plugin that keeps what events do not tell: the requests to the models, and how long models and tools took.

    Where tool calls are to be answered by something else than their tools, it is what asks for that.
    """
    from google.adk.plugins.base_plugin import BasePlugin  # noqa: PLC0415
    from google.genai import types  # noqa: PLC0415

    async def before_model(*, callback_context: Any, llm_request: Any) -> None:
        session.record.requests.setdefault(callback_context.agent_name, llm_request)
        session.record.begin(callback_context.agent_name)
        # As ADK's own evaluation does: a busy provider is no fault of the agent.
        options = llm_request.config.http_options = llm_request.config.http_options or types.HttpOptions()
        options.retry_options = options.retry_options or types.HttpRetryOptions.model_validate(_RETRIES)

    async def after_model(*, callback_context: Any, **_: Any) -> None:
        session.record.end(callback_context.agent_name, session.record.model)

    async def before_tool(*, tool: Any, tool_args: Json, tool_context: Any) -> Json | None:
        session.record.begin(tool_context.function_call_id)
        answer = await tools.answer(tool.name, tool_args) if tools else None
        if answer is not None:  # ADK calls nobody after a tool that was answered for
            session.record.end(tool_context.function_call_id, session.record.tool)
        return answer

    async def after_tool(*, tool_context: Any, **_: Any) -> None:
        session.record.end(tool_context.function_call_id, session.record.tool)

    watcher: Any = BasePlugin(name="mlflow_adk_eval")
    watcher.before_model_callback, watcher.after_model_callback = before_model, after_model
    watcher.before_tool_callback, watcher.after_tool_callback = before_tool, after_tool
    watcher.on_tool_error_callback = after_tool
    return watcher


def _require_adk() -> None:
    try:
        importlib.import_module("google.adk")
    except ModuleNotFoundError as error:
        msg = f"running ADK agents needs google-adk, which is not installed ({error}): pip install 'mlflow-adk-eval[adk]'"
        raise AgentError(msg) from None


def _quieten() -> None:
    """Keep what ADK says about itself off the terminal: the results tell what went wrong."""
    # A handler of their own keeps Python from printing these logs, tracebacks included, where the user has set up no
    # logging; where they have, they see everything.
    for name in ("google_adk", "google_genai"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    # Said of most of ADK's own classes, and nothing that someone who evaluates an agent could change.
    warnings.filterwarnings("ignore", r"\[EXPERIMENTAL\]", UserWarning)


def _root_of(found: AgentModule) -> Any:
    """Return the app, the agent or the function that makes it."""
    from google.adk.apps.app import App  # noqa: PLC0415

    for holder in found.holders:
        app = getattr(holder, "app", None)
        if isinstance(app, App):
            return app
        for name in ("root_agent", "get_agent_async"):
            if hasattr(holder, name):
                return getattr(holder, name)
    places = " and ".join(holder.__name__ for holder in found.holders)
    agents = [name for holder in found.holders for name, value in vars(holder).items() if isinstance(value, (App, _node_type()))]
    hint = f"It has {', '.join(agents)}: name it root_agent, or pass the object itself." if agents else ""
    hint = hint or did_you_mean("root_agent", [name for holder in found.holders for name in vars(holder)])
    msg = f"module {found.name!r} holds no agent; looked in {places} for root_agent, get_agent_async and app. {hint}"
    raise AgentError(msg.strip())


def _node_type() -> type[Any]:
    """Return the widest class that can be a root: a node since ADK 2, an agent before."""
    from google.adk.agents.base_agent import BaseAgent  # noqa: PLC0415

    widest: type[Any] = next(cls for cls in reversed(BaseAgent.__mro__) if cls.__module__.startswith("google.adk."))
    return widest


def _is_factory(root: Any) -> bool:
    return callable(root) and not isinstance(root, _node_type())


def _app(root: Any, name: str, agent_name: str | None) -> Any:
    """Return `root`, or its sub-agent `agent_name`, as an app."""
    from google.adk.apps.app import App  # noqa: PLC0415

    if not isinstance(root, (App, _node_type())):
        msg = f"the agent of {name or 'this run'} is of type {type(root).__name__}; wanted an agent of google-adk, or an App"
        raise AgentError(msg)
    # Unchecked, since App's rules for names do not hold for agents that were never to be one.
    app = root if isinstance(root, App) else App.model_construct(name=name, root_agent=root, plugins=[])
    if agent_name is None:
        return app
    agents = {agent.name: agent for agent in _tree(app.root_agent)}
    if agent_name not in agents:
        msg = f"agent {name!r} has no sub-agent {agent_name!r}; it has {', '.join(agents)}. {did_you_mean(agent_name, agents)}"
        raise AgentError(msg.strip())
    return app.model_copy(update={"root_agent": agents[agent_name]})


def _tree(agent: Any) -> list[Any]:
    """Return an agent and all below it."""
    return [agent, *(below for sub_agent in getattr(agent, "sub_agents", ()) for below in _tree(sub_agent))]
