"""Agents built with Google's Agent Development Kit, found as ``adk eval`` finds them and run in isolation.

`load_adk_agent` imports the agent's module (`adk.modules`) and wraps its root agent or app. Each conversation gets a runner and a session in
services of its own. `AdkSession.turn` runs the agent on one message and collects ADK's events. A plugin notes what events do not say
(`_CallRecorder`): the first request of each agent to its model, how long models and tools took, and the model calls of agents that are tools. It
also asks the tool environment for answers. Events and notes become an `Invocation` in `agents.turns`.

This is the one module that imports google-adk, and only inside functions, since that takes seconds and google-adk is an extra.
"""

from __future__ import annotations

import asyncio
import copy
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import uuid
import warnings
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from mlflow_adk_eval.agents.adk.answers import OpenCalls
from mlflow_adk_eval.agents.adk.changes import ChangeObserver
from mlflow_adk_eval.agents.adk.modules import YAML, AgentModule, import_agent
from mlflow_adk_eval.agents.adk.replay import WITHIN, AdkWorld
from mlflow_adk_eval.agents.conversation import converse, described, failure
from mlflow_adk_eval.agents.protocol import NO_LIMITS, Limits, Turn
from mlflow_adk_eval.agents.replay import Tools
from mlflow_adk_eval.agents.turns import TurnRecord, turn_invocation
from mlflow_adk_eval.errors import AgentError, UsageError, did_you_mean, foreign_code
from mlflow_adk_eval.evalset.conversation import CallChange, Conversation, InnerCall
from mlflow_adk_eval.evalset.events import model_call, model_error, plain
from mlflow_adk_eval.evalset.models import Content, EvalCase, Invocation, Json
from mlflow_adk_eval.evalset.observation import Unknown
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
_THREADS = 64
"""As many functions may run at once, those that were given up included."""
_MODEL_CALLS = 100
"""As many requests to models may one turn take; ADK's own limit is 500, so an agent that goes round in circles is paid for for an hour."""
_RETRIES = {"attempts": 7, "initial_delay": 5.0, "max_delay": 120.0, "exp_base": 2.0, "http_status_codes": [408, 429, 500, 502, 503, 504]}


def load_adk_agent(source: str | Path | Any, *, agent_name: str | None = None, limits: Limits | None = None) -> AdkAgent:
    """Return the ADK agent that `source` names.

    Args:
        source: an importable module, a folder as ``adk eval`` takes it, an agent or an app. A module has a ``root_agent``, an async
            ``get_agent_async()`` or an ``app``, itself or in its submodule ``agent``; else a ``root_agent.yaml``.
        agent_name: the sub-agent to use instead of the root agent.
        limits: how long its conversations may take; ``None``: as long as they take.

    Raises:
        UsageError: if google-adk is not installed, or there is no such agent.
        AgentError: if the agent cannot be imported.
    """
    try:
        _import_adk()
    except UsageError:
        with suppress(AgentError):  # it lacks google-adk, too
            if isinstance(source, str | Path):
                import_agent(source)  # a name that does not exist needs no extra
        raise
    if isinstance(source, str | Path):
        module = import_agent(source)
        root, name = _root_of(module), module.name
        known: Json = {"private": module.env_names, "modules": module.holders}
    else:
        root, name, known = source, getattr(source, "name", ""), {}
    if not _is_factory(root):
        root = _app(root, name, agent_name)
    return AdkAgent(name=agent_name or name, root=root, app_name=name, agent_name=agent_name, limits=limits or NO_LIMITS, **known)


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
        from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService  # noqa: PLC0415
        from google.adk.memory.in_memory_memory_service import InMemoryMemoryService  # noqa: PLC0415
        from google.adk.plugins.base_plugin import BasePlugin  # noqa: PLC0415
        from google.adk.runners import Runner  # noqa: PLC0415
        from google.adk.sessions.in_memory_session_service import InMemorySessionService  # noqa: PLC0415

        given = case.session_input
        app_name = (given.app_name if given else "") or self.app_name
        async with self._app() as (app, conversations):
            sessions = InMemorySessionService()
            user_id = (given.user_id if given else "") or "test_user_id"  # what ADK calls the user of a case without a session
            session_id, state = (given.session_id if given else None) or f"adk-eval-session-{uuid.uuid4()}", given.state if given else {}
            created = await sessions.create_session(app_name=app_name, user_id=user_id, session_id=session_id, state=copy.deepcopy(state))
            session = AdkSession(None, created, self.private, _run_config(in_threads=self.limits != NO_LIMITS))
            session.open_calls = OpenCalls.of(case)
            session.world = AdkWorld(tools.world, lambda: session.record, session.note_inner) if tools and tools.world else None
            recorder, plugin = _CallRecorder(session, tools), BasePlugin(name="mlflow_adk_eval")
            for callback in [name for name in dir(recorder) if name.endswith("_callback")]:
                setattr(plugin, callback, getattr(recorder, callback))
            # First, so that it sees every call, also those that a plugin of the app answers in the model's place.
            whole = app.model_copy(update={"name": app_name, "plugins": [plugin, *app.plugins]})
            others: Json = {"memory_service": InMemoryMemoryService(), "artifact_service": InMemoryArtifactService()}
            session.runner = Runner(app=whole, session_service=sessions, **others)
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
        root = self.root()
        root = await root if inspect.isawaitable(root) else root
        agent, stack = root if isinstance(root, tuple) else (root, None)
        try:
            yield _app(agent, self.app_name, self.agent_name), _OpenConversations()
        finally:
            if stack is not None:
                with anyio.move_on_after(_CLOSING_S, shield=True):
                    await stack.aclose()


@dataclass(slots=True)
class ModelRequests:
    """How many requests models got in one turn: those that ADK counts, and those that only an event tells of."""

    counters: dict[str, Any] = field(default_factory=dict[str, Any])
    """What ADK counts with, by the id of the invocation; an agent that is a tool has one of its own."""
    agents: set[str] = field(default_factory=set[str])
    """The agents whose requests ADK counts."""
    others: set[str] = field(default_factory=set[str])
    """The agents that are somebody's own code, which may ask a model itself."""

    def note(self, agent: str, context: Any) -> None:
        """Note that an agent is about to ask its model, unless a callback answers in the model's place."""
        self.agents.add(agent)
        # There is no public way: plugins are not told when a callback answers, nor of a model that streams nothing.
        self.counters.setdefault(context.invocation_id, getattr(context, "_invocation_cost_manager", None))

    def count(self, events: Sequence[Any]) -> int | None:
        """Return the number of requests; ``None``: this version of ADK does not say it."""
        counted = len(self._told(events))
        for counter in self.counters.values():
            calls: int | None = getattr(counter, "_number_of_llm_calls", None)
            if calls is None:
                return None
            counted += calls
        return counted

    def foreign(self, events: Sequence[Any]) -> str:
        """Return the first agent of somebody's own of whose models nothing is known; empty where there is none."""
        silent = self.others - {event.author for event in self._told(events)}
        return min(silent, default="")

    def _told(self, events: Sequence[Any]) -> list[Any]:
        """Return the events that tell of a request which ADK does not count."""
        own = [event for event in events if event.author not in self.agents and not getattr(event, "partial", None)]
        return [event for event in own if event.usage_metadata is not None or event.model_version is not None]


@dataclass(slots=True)
class AdkSession:
    """A session with the runner that serves it."""

    runner: Any
    session: Any
    private: frozenset[str]
    run_config: Any = None
    """How the agent is run: ADK's ``RunConfig``."""
    user: Content = field(default_factory=Content)
    events: list[Any] = field(default_factory=list[Any])
    """Those of the turn that is under way, or was the last one."""
    record: TurnRecord = field(default_factory=TurnRecord)
    turns: int = 0
    inner_calls: list[InnerCall] = field(default_factory=list[InnerCall])
    observer: ChangeObserver = field(default_factory=ChangeObserver)
    cut_off: BaseException | None = None
    """What cancelled a tool; ``None`` once something has come after it."""
    world: AdkWorld | None = None
    """What replays or records its calls; ``None``: they are real."""
    open_calls: OpenCalls = field(default_factory=OpenCalls)
    requests: ModelRequests = field(default_factory=ModelRequests)
    """What is known of the requests to models in the turn."""
    unseen: list[Unknown] = field(default_factory=list[Unknown])
    """What is not known of the turns before this one."""

    async def turn(self, user: Content, /) -> Turn:
        """Send the agent a message; a turn that fails is kept with the events it had."""
        self.unseen = list(self.unknown())
        self.user, self.events, self.record, self.cut_off = user, [], TurnRecord(), None
        self.requests = ModelRequests()
        self.turns += 1
        error = ""
        try:
            # Where nobody has cancelled us, tools that lose their connection may be.
            with foreign_code("the agent"), self.world.entered() if self.world else nullcontext():
                await self._run(user)
        except Exception as raised:  # noqa: BLE001 - tools and models are the user's own code: anything can go wrong
            error = failure(self.turns, raised, self.private)
        return Turn(invocation=self._invocation(), error=error)

    @property
    def changes(self) -> Sequence[CallChange]:
        """What the tool calls so far did to the session; a conversation with a world has that in its recorded calls."""
        return self.observer.log.changes

    def note_inner(self, call: InnerCall) -> None:
        """Note a call that leaves no event."""
        WITHIN.get([]).append(call)
        after = sum(part.function_call is not None for event in self.events if event.content for part in event.content.parts or ())
        self.inner_calls.append(call.model_copy(update={"turn": self.turns - 1, "after": after}))

    def interrupted(self) -> Invocation:
        """Return what happened in the turn so far."""
        self.record.cut_short()
        return self._invocation()

    def unknown(self) -> Sequence[Unknown]:
        """Return what plugins of ADK do not see of the turns so far."""
        turn = self.turns - 1
        unseen = list(self.unseen)
        hidden = next((call.tool for call in self.inner_calls if call.turn == turn and call.unseen), "")
        if hidden and not self.world:
            why = f"the agent {hidden} runs without plugins (include_plugins is false), so nobody sees what its model does"
            unseen.append(Unknown(what="model_calls", why=why, turn=turn))
            unseen.append(Unknown(what="model_errors", why=why, turn=turn))
        foreign = self.requests.foreign(self.events)
        if foreign:
            why = f"the agent {foreign} is none of ADK's own kinds, and its events do not say which models it asked"
            unseen.append(Unknown(what="model_calls", why=why, turn=turn))
        return unseen

    def _invocation(self) -> Invocation:
        """Return what happened in the turn so far."""
        self.record.model_calls = self.requests.count(self.events)
        if any(entry.what == "model_calls" and entry.turn == self.turns - 1 for entry in self.unknown()):
            self.record.model_calls = None
        return turn_invocation(self.events, self.user, self.record)

    async def _run(self, user: Content) -> None:
        from google.genai import types  # noqa: PLC0415

        message = types.Content.model_validate({"role": "user"} | user.model_dump(mode="json", exclude_none=True))
        self.open_calls.bind([part.function_response for part in message.parts or () if part.function_response])
        session = {"user_id": self.session.user_id, "session_id": self.session.id}
        run = self.runner.run_async(**session, new_message=message, run_config=self.run_config)
        async with aclosing(run) as stream:
            async for event in stream:
                self.events.append(event)
                if not event.partial:
                    self.open_calls.add(event.get_function_calls())
                self.cut_off = None
        if self.cut_off is not None:  # ADK 2 ends a run in which something was cancelled as if it were done
            raise self.cut_off

    async def state(self) -> Json:
        """Return the state without what is the framework's own or lives only through a turn."""
        from google.adk.sessions.base_session_service import GetSessionConfig  # noqa: PLC0415

        names = {"app_name": self.session.app_name, "user_id": self.session.user_id, "session_id": self.session.id}
        # Without its events, as ADK copies what it returns.
        session = await self.runner.session_service.get_session(**names, config=GetSessionConfig(num_recent_events=0))
        return {key: plain(value) for key, value in session.state.items() if not key.startswith(("__", "temp:"))}


def _run_config(*, in_threads: bool) -> Any:
    """Return how the agent is run: with a limit on its requests to models, as ``ADK_MAX_LLM_CALLS`` says or by default.

    Args:
        in_threads: whether functions which are not async run in threads, where ADK can do so: no limit could cut them off otherwise.
    """
    from google.adk.agents import run_config  # noqa: PLC0415

    given = os.environ.get("ADK_MAX_LLM_CALLS", "")
    calls = int(given) if given.removeprefix("-").isdecimal() else _MODEL_CALLS
    pool = getattr(run_config, "ToolThreadPoolConfig", None) if in_threads else None
    threads = {"tool_thread_pool_config": pool(max_workers=_THREADS)} if pool else {}
    return run_config.RunConfig(max_llm_calls=calls, **threads)


@dataclass(slots=True)
class _CallRecorder:
    """Records what events do not say: requests to models, the calls of agents that are tools, and how long models and tools took.

    Where something else than the tools is to answer tool calls, this is what asks it.
    """

    session: AdkSession
    tools: Tools | None

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        # An agent that is a tool runs within the turn, under an id of its own.
        self.session.record.invocation_id = self.session.record.invocation_id or invocation_context.invocation_id

    async def before_agent_callback(self, *, agent: Any, **_: Any) -> None:
        if _asks_by_itself(agent):
            self.session.requests.others.add(agent.name)
        if self.session.world:
            self.session.world.check(agent)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        from google.genai import types  # noqa: PLC0415

        record = self.session.record
        record.requests.setdefault(callback_context.agent_name, llm_request)
        context = callback_context._invocation_context  # noqa: SLF001 - ADK has no other way
        self.session.requests.note(callback_context.agent_name, context)
        record.begin(_key(callback_context), record.model)
        if self.session.world:
            self.session.world.prepare(context.agent, llm_request)
        # Sent again as ADK's own evaluation does, unless the agent says how: a busy provider is no fault of the agent.
        config = llm_request.config
        options = config.http_options = config.http_options or types.HttpOptions()
        options.retry_options = options.retry_options or types.HttpRetryOptions.model_validate(_RETRIES)

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        record = self.session.record
        record.end(_key(callback_context))
        if callback_context.invocation_id != record.invocation_id:
            self.session.events.append(model_call(callback_context.agent_name, llm_response))

    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        # As it is when the callbacks of the agent, which may answer instead, are done with it.
        is_inner = invocation_context.invocation_id != self.session.record.invocation_id
        error = model_error(event.author, event) if is_inner and not event.partial else None
        if error is not None:
            self.session.events.append(error)

    async def on_model_error_callback(self, *, callback_context: Any, **_: Any) -> None:
        self.session.record.end(_key(callback_context))

    async def before_tool_callback(self, *, tool: Any, tool_args: Json, tool_context: Any) -> Json | None:
        record, world = self.session.record, self.session.world
        record.begin(tool_context.function_call_id, record.tool)
        inner = tool_context.invocation_id != record.invocation_id
        unseen = getattr(tool, "include_plugins", True) is False  # of an agent that is a tool: then it runs without this plugin
        if unseen or inner:
            given = plain(tool_args)
            self.session.note_inner(InnerCall(turn=0, after=0, agent=tool_context.agent_name, tool=tool.name, args=given, unseen=unseen))
        if not (world or inner):  # an agent that is a tool has a session of its own, whose changes come with its answer
            self.session.observer.begin(tool_context)
        answered = await self.tools.answer(tool.name, tool_args) if self.tools else None
        if answered is None and world:
            return await world.answer(tool, tool_context.agent_name, tool_args, tool_context)
        if world:
            world.answered.add(tool_context.function_call_id)
        return answered

    async def after_tool_callback(self, *, tool: Any, tool_context: Any, **_: Any) -> None:
        self.session.record.end(tool_context.function_call_id)
        await self.session.observer.end(self.session.turns - 1, tool.name, tool_context)
        if self.session.world:
            self.session.world.ended(tool, tool_context)

    async def on_tool_error_callback(self, *, tool: Any, tool_context: Any, error: BaseException, **_: Any) -> None:
        self.session.record.end(tool_context.function_call_id)
        if isinstance(error, asyncio.CancelledError):
            self.session.cut_off = error
        elif isinstance(error, Exception):
            await self.session.observer.end(self.session.turns - 1, tool.name, tool_context, error)


def _key(callback_context: Any) -> tuple[str, str]:
    """Return what tells a model call from those that go on at the same time."""
    return callback_context.invocation_id, callback_context.agent_name


def _asks_by_itself(agent: Any) -> bool:
    """Whether an agent may ask a model in a way that ADK does not see: code of somebody's own that runs no other agents."""
    from google.adk.agents import LlmAgent  # noqa: PLC0415 - an extra

    return not isinstance(agent, LlmAgent) and not getattr(agent, "sub_agents", None)


def _import_adk() -> None:
    """Import google-adk, and what it imports at an agent's first turn, as that takes seconds which are no turn's own."""
    with require_extra("adk", "running ADK agents"):
        importlib.import_module("google.adk")
    # The results say what went wrong. A handler of their own keeps Python from printing ADK's messages about itself, tracebacks included,
    # where the user has set up no logging; where they have, they see everything.
    for name in ("google_adk", "google_genai"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    # Said of most of ADK's own classes, and nothing that someone who evaluates an agent could change.
    warnings.filterwarnings("ignore", r"\[EXPERIMENTAL\]", UserWarning)
    for module in _NEEDED:
        importlib.import_module(f"google.adk.{module}")
    if importlib.util.find_spec("google.adk.workflow"):  # what runs agents in ADK 2
        importlib.import_module("google.adk.workflow").Workflow  # noqa: B018 - a name that is imported when it is asked for


def _root_of(module: AgentModule) -> Any:
    """Return the app, the agent or the function that makes it."""
    from google.adk.apps.app import App  # noqa: PLC0415

    for holder in module.holders:
        app = getattr(holder, "app", None)
        if isinstance(app, App):
            return app
        for name in ("root_agent", "get_agent_async"):
            if hasattr(holder, name):
                return getattr(holder, name)
    if module.yaml:
        return _from_yaml(module.yaml, module.env_names)
    places = " and ".join(holder.__name__ for holder in module.holders)
    agents = [name for holder in module.holders for name, value in vars(holder).items() if isinstance(value, (App, _node_type()))]
    hint = f"It has {', '.join(agents)}: name it root_agent, or pass the object itself." if agents else ""
    hint = hint or did_you_mean("root_agent", [name for holder in module.holders for name in vars(holder)])
    own = [value for holder in module.holders for value in vars(holder).values() if getattr(value, "__module__", "") == holder.__name__]
    functions = [f"{value.__module__}:{value.__name__}" for value in own if inspect.isfunction(value)]
    hint = hint or (f"If a function is the agent, name it: {functions[0]}." if functions else "")
    msg = f"module {module.name!r} contains no agent; looked in {places} for root_agent, get_agent_async and app, and for {YAML}. {hint}"
    raise UsageError(msg.strip())


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
        raise UsageError(msg)
    # Unchecked, since App's rules for names do not hold for agents that were never to be one.
    app = root if isinstance(root, App) else App.model_construct(name=name, root_agent=root, plugins=[])
    if agent_name is None:
        return app
    agents = {agent.name: agent for agent in _tree(app.root_agent)}
    if agent_name not in agents:
        msg = f"agent {name!r} has no sub-agent {agent_name!r}; it has {', '.join(agents)}. {did_you_mean(agent_name, agents)}"
        raise UsageError(msg.strip())
    return app.model_copy(update={"root_agent": agents[agent_name]})


def _tree(agent: Any) -> list[Any]:
    """Return an agent and all below it."""
    return [agent, *(below for sub_agent in getattr(agent, "sub_agents", ()) for below in _tree(sub_agent))]


def set_features(wanted: Mapping[str, bool]) -> None:
    """Switch features of google-adk on or off, by name.

    Raises:
        UsageError: if google-adk is not installed, or is too old to have features that can be switched, or has no such feature.
    """
    with require_extra("adk", "switching features of google-adk"):
        from google.adk import features, version  # noqa: PLC0415 - an extra
    if not hasattr(features, "override_feature_enabled"):
        raise UsageError(f"google-adk {version.__version__} cannot switch features; upgrade it")
    known = {feature.value: feature for feature in features.FeatureName}
    for name, enabled in wanted.items():
        if name not in known:
            raise UsageError(f"google-adk has no feature {name!r}. {did_you_mean(name, known)}".strip())
        features.override_feature_enabled(known[name], enabled)


def option_of_adk_eval(name: str) -> Any | None:
    """Return click's option of ``adk eval`` of the installed google-adk that has this name; ``None`` where there is none."""
    try:
        from google.adk.cli.cli_tools_click import main  # noqa: PLC0415 - an extra, and slow
    except ImportError:
        return None
    options = getattr(main, "commands", {})["eval"].params
    return next((option for option in options if name.replace("-", "_") in [each.replace("-", "_") for each in option.opts]), None)
