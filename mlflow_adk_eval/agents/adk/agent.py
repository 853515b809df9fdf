"""Agents built with Google's Agent Development Kit, found as ``adk eval`` finds them and run in isolation.

`load_adk_agent` imports the agent's module (`adk.modules`) and wraps its root agent or app. Each conversation gets a runner and a session
of its own (`adk.session`), whose events become turns by `adk.events`. With `adk.session` this is the one module that imports google-adk,
and only inside functions, since that takes seconds and google-adk is an extra.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from mlflow_adk_eval.agents.adk.modules import YAML, AgentModule, import_agent
from mlflow_adk_eval.agents.adk.session import AdkSession, start_session
from mlflow_adk_eval.agents.conversation import converse, described
from mlflow_adk_eval.agents.protocol import NO_LIMITS, Conversation, Limits, Tools
from mlflow_adk_eval.errors import AgentError, did_you_mean
from mlflow_adk_eval.evalset import EvalCase
from mlflow_adk_eval.foreign import foreign_code
from mlflow_adk_eval.runtime import require_extra

_CLOSING_S = 5.0
_NEEDED = (
    "runners",
    "plugins.base_plugin",
    "artifacts.in_memory_artifact_service",
    "flows.llm_flows.auto_flow",
    "memory.in_memory_memory_service",
    "models.google_llm",
    "sessions.in_memory_session_service",
)


def load_adk_agent(source: str | Path | Any, *, agent_name: str | None = None, limits: Limits | None = None) -> AdkAgent:
    """Return the ADK agent that `source` names.

    Args:
        source: an importable module, a folder as ``adk eval`` takes it, an agent or an app. A module has a ``root_agent``, an async
            ``get_agent_async()`` or an ``app``, itself or in its submodule ``agent``; else a ``root_agent.yaml``.
        agent_name: the sub-agent to use instead of the root agent.
        limits: how long its conversations may take; ``None``: as long as they take.

    Raises:
        UsageError: if google-adk is not installed.
        AgentError: if there is no such agent, saying where it was looked for.
    """
    _require_adk()
    _quieten()
    _warm_up()
    if isinstance(source, str | Path):
        found = import_agent(source)
        root, name, private, modules = _root_of(found), found.name, found.env_names, found.holders
    else:
        root, name, private, modules = source, getattr(source, "name", ""), frozenset[str](), ()
    if not _is_factory(root):
        root = _app(root, name, agent_name)
    return AdkAgent(
        name=agent_name or name,
        root=root,
        app_name=name,
        agent_name=agent_name,
        private=private,
        limits=limits or NO_LIMITS,
        modules=modules,
    )


@dataclass(slots=True)
class _OpenConversations:
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
    modules: tuple[ModuleType, ...] = field(default=(), repr=False, compare=False)
    """What it was imported from; empty for an object."""
    conversations: _OpenConversations = field(default_factory=_OpenConversations, repr=False, compare=False)

    async def converse(self, case: EvalCase, run_index: int) -> Conversation:
        """Have the conversation of `case` from a fresh session. Whatever goes wrong ends it and is returned."""
        return await converse(self, case, run_index)

    @asynccontextmanager
    async def open(self, case: EvalCase, run_index: int, tools: Tools | None, /) -> AsyncGenerator[AdkSession]:  # noqa: ARG002 - all runs of an agent are alike
        """Begin a session in services of its own."""
        async with self._app() as (app, conversations):
            limited = self.limits != NO_LIMITS
            session = await start_session(
                app, case.session_input, app_name=self.app_name, private=self.private, limited=limited, tools=tools
            )
            async with conversations.lock:
                conversations.count += 1
            try:
                yield session
            finally:
                conversations.count -= 1
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    async with conversations.lock:
                        # Closing a runner closes the tools of the agent, which other conversations may be using.
                        if not conversations.count:
                            await session.runner.close()

    @asynccontextmanager
    async def _app(self) -> AsyncGenerator[tuple[Any, _OpenConversations]]:
        if not _is_factory(self.root):
            yield self.root, self.conversations
            return
        made = self.root()
        made = await made if inspect.isawaitable(made) else made
        agent, stack = made if isinstance(made, tuple) else (made, None)
        try:
            yield _app(agent, self.app_name, self.agent_name), _OpenConversations()
        finally:
            if stack is not None:
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    await stack.aclose()


def _require_adk() -> None:
    with require_extra("adk", "running ADK agents"):
        importlib.import_module("google.adk")


def _warm_up() -> None:
    """Import now what ADK imports at an agent's first turn, as that takes seconds which are no turn's own."""
    for module in _NEEDED:
        importlib.import_module(f"google.adk.{module}")
    if importlib.util.find_spec("google.adk.workflow"):  # what runs agents in ADK 2
        importlib.import_module("google.adk.workflow").Workflow  # noqa: B018 - a name that is imported when it is asked for


def _quieten() -> None:
    """Keep ADK's messages about itself off the terminal: the results say what went wrong."""
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
    if found.yaml:
        return _from_yaml(found.yaml, found.env_names)
    places = " and ".join(holder.__name__ for holder in found.holders)
    agents = [name for holder in found.holders for name, value in vars(holder).items() if isinstance(value, (App, _node_type()))]
    hint = f"It has {', '.join(agents)}: name it root_agent, or pass the object itself." if agents else ""
    hint = hint or did_you_mean("root_agent", [name for holder in found.holders for name in vars(holder)])
    own = [value for holder in found.holders for value in vars(holder).values() if getattr(value, "__module__", "") == holder.__name__]
    functions = [f"{value.__module__}:{value.__name__}" for value in own if inspect.isfunction(value)]
    hint = hint or (f"If a function is the agent, name it: {functions[0]}." if functions else "")
    msg = f"module {found.name!r} holds no agent; looked in {places} for root_agent, get_agent_async and app, and for {YAML}. {hint}"
    raise AgentError(msg.strip())


def _from_yaml(file: Path, private: frozenset[str]) -> Any:
    """Return the agent that google-adk makes of a file, with the sub-agents and tools that it names."""
    version = importlib.metadata.version("google-adk")
    try:
        from google.adk.agents.config_agent_utils import from_config  # noqa: PLC0415

        with foreign_code("it"):
            return from_config(str(file))
    except Exception as error:
        raise AgentError(f"{file}: google-adk {version} cannot load this agent: {described(error, private)}") from error


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
