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
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from mlflow_adk_eval.agents.base import Played
from mlflow_adk_eval.agents.events import TurnRecord, plain, turn_invocation
from mlflow_adk_eval.agents.modules import AgentModule, import_agent
from mlflow_adk_eval.agents.turns import described, failure, no_simulated_user, within
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


def load_adk_agent(source: str | Path | Any, *, agent_name: str | None = None, timeout_s: float | None = None) -> AdkAgent:
    """Return the ADK agent that `source` names.

    Args:
        source: an importable module, a folder as ``adk eval`` takes it, an agent or an app. A module has a ``root_agent``, an async
            ``get_agent_async()`` or an ``app``, itself or in its submodule ``agent``.
        agent_name: the sub-agent to use instead of the root agent.
        timeout_s: how long one case may take, in seconds; ``None``: as long as it takes.

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
    return AdkAgent(name=agent_name or name, root=root, app_name=name, agent_name=agent_name, private=private, timeout_s=timeout_s)


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
    timeout_s: float | None = None
    """How long one case may take, in seconds; ``None``: as long as it takes."""
    users: _Users = field(default_factory=_Users, repr=False, compare=False)

    async def play(self, case: EvalCase, run_index: int) -> Played:  # noqa: ARG002 - all runs of an agent are alike
        """Have the conversation of `case` from a fresh session. Whatever goes wrong ends it and is returned."""
        if case.conversation is None:
            return no_simulated_user("ADK agents")
        written = [turn.user_content for turn in case.conversation]

        async def talk(turns: list[Invocation]) -> Played:
            played = None
            try:
                async with self._opened(case.session_input) as conversation:
                    played = await conversation.talk(written, turns, self.private)
            except Exception as error:  # noqa: BLE001 - the agent is the user's own code: anything can go wrong
                if played is None:
                    return Played(actual=(), error=f"the agent could not be started: {described(error, self.private)}")
                _LOG.warning("the tools of agent %s could not be closed: %s", self.name, described(error, self.private))
            return played

        return await within(self.timeout_s, talk)

    @asynccontextmanager
    async def _opened(self, given: SessionInput | None) -> AsyncGenerator[_Conversation]:
        async with self._app() as (app, users):
            conversation = await _Conversation.start(app, given, self.app_name)
            async with users.lock:
                users.count += 1
            try:
                yield conversation
            finally:
                users.count -= 1
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    async with users.lock:
                        # Closing a runner closes the tools of the agent, which other conversations may be using.
                        if not users.count:
                            await conversation.runner.close()

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
class _Conversation:
    """A session with the runner that serves it."""

    runner: Any
    session: Any
    record: TurnRecord

    @classmethod
    async def start(cls, app: Any, given: SessionInput | None, default_app_name: str) -> _Conversation:
        """Begin a session in services that nobody else uses."""
        from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService  # noqa: PLC0415
        from google.adk.memory.in_memory_memory_service import InMemoryMemoryService  # noqa: PLC0415
        from google.adk.runners import Runner  # noqa: PLC0415
        from google.adk.sessions.in_memory_session_service import InMemorySessionService  # noqa: PLC0415

        app_name = (given.app_name if given else "") or default_app_name
        sessions = InMemorySessionService()
        session = await sessions.create_session(
            app_name=app_name,
            user_id=(given.user_id if given else "") or _USER_ID,
            session_id=(given.session_id if given else None) or f"adk-eval-session-{uuid.uuid4()}",
            state=copy.deepcopy(given.state) if given else {},
        )
        conversation = cls(None, session, TurnRecord())
        # First, so that it sees every call, also those that a plugin of the app answers in the model's place.
        plugins = [_watcher(conversation), *app.plugins]
        conversation.runner = Runner(
            app=app.model_copy(update={"name": app_name, "plugins": plugins}),
            session_service=sessions,
            memory_service=InMemoryMemoryService(),
            artifact_service=InMemoryArtifactService(),
        )
        return conversation

    async def talk(self, written: Sequence[Content], turns: list[Invocation], private: frozenset[str]) -> Played:
        """Have the turns of a written conversation; the turn that fails is kept with the events it had."""
        for number, user in enumerate(written, start=1):
            events: list[Any] = []
            self.record = TurnRecord()
            try:
                await self._turn(user, events)
            except Exception as error:  # noqa: BLE001 - tools and models are the user's own code: anything can go wrong
                failed = turn_invocation(events, user, self.record)
                return Played(actual=(*turns, failed), error=failure(number, error, private), unfinished=True)
            turns.append(turn_invocation(events, user, self.record))
        return Played(actual=tuple(turns), session_state=await self._state())

    async def _turn(self, user: Content, events: list[Any]) -> None:
        from google.genai import types  # noqa: PLC0415

        message = types.Content.model_validate({"role": "user"} | user.model_dump(mode="json", exclude_none=True))
        run = self.runner.run_async(user_id=self.session.user_id, session_id=self.session.id, new_message=message)
        async with aclosing(run) as stream:
            async for event in stream:
                events.append(event)  # noqa: PERF401 - one by one, since those before a failure are kept

    async def _state(self) -> Json:
        """Return the state without what is the framework's own or lives only through a turn."""
        asked = {"app_name": self.session.app_name, "user_id": self.session.user_id, "session_id": self.session.id}
        session = await self.runner.session_service.get_session(**asked)
        return {key: plain(value) for key, value in session.state.items() if not key.startswith(("__", "temp:"))}


def _watcher(conversation: _Conversation) -> Any:
    """Return a plugin that keeps what events do not tell: the requests to the models, and how long models and tools took."""
    from google.adk.plugins.base_plugin import BasePlugin  # noqa: PLC0415
    from google.genai import types  # noqa: PLC0415

    async def before_model(*, callback_context: Any, llm_request: Any) -> None:
        conversation.record.requests.setdefault(callback_context.agent_name, llm_request)
        conversation.record.begin(callback_context.agent_name)
        # As ADK's own evaluation does: a busy provider is no fault of the agent.
        options = llm_request.config.http_options = llm_request.config.http_options or types.HttpOptions()
        options.retry_options = options.retry_options or types.HttpRetryOptions.model_validate(_RETRIES)

    async def after_model(*, callback_context: Any, **_: Any) -> None:
        conversation.record.end(callback_context.agent_name, conversation.record.model)

    async def before_tool(*, tool_context: Any, **_: Any) -> None:
        conversation.record.begin(tool_context.function_call_id)

    async def after_tool(*, tool_context: Any, **_: Any) -> None:
        conversation.record.end(tool_context.function_call_id, conversation.record.tool)

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
