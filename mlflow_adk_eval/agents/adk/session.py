"""One conversation with an ADK agent: a session in services of its own, and what is measured besides its events.

`AdkSession.turn` runs the agent on one message and collects ADK's events. A plugin, `_CallRecorder`, notes what events do not say: the
first request of each agent to its model, how long models and tools took, and the model calls of agents that are tools. It also asks the
tool environment for answers. Events and notes become an `Invocation` in `adk.events`.
"""

from __future__ import annotations

import asyncio
import copy
import os
import uuid
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.agents.adk.events import TurnRecord, model_call, plain, turn_invocation
from mlflow_adk_eval.agents.conversation import failure
from mlflow_adk_eval.agents.protocol import Tools, Turn
from mlflow_adk_eval.evalset import Content, Invocation, SessionInput
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.foreign import foreign_code

_USER_ID = "test_user_id"  # what ADK calls the user of a case without a session
_THREADS = 64
"""As many functions may run at once, those that were given up included."""
_MODEL_CALLS = 100
"""As many requests to models may one turn take; ADK's own limit is 500, so an agent that goes round in circles is paid for for an hour."""
_RETRIES = {"attempts": 7, "initial_delay": 5.0, "max_delay": 120.0, "exp_base": 2.0, "http_status_codes": [408, 429, 500, 502, 503, 504]}


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
    cut_off: BaseException | None = None
    """What cancelled a tool; ``None`` once something has come after it."""

    async def turn(self, user: Content, /) -> Turn:
        """Send the agent a message; a turn that fails is kept with the events it had."""
        self.user, self.events, self.record, self.cut_off = user, [], TurnRecord(), None
        self.turns += 1
        error = ""
        try:
            with foreign_code("the agent"):  # where nobody has cancelled us, tools that lose their connection may be
                await self._turn(user, self.events)
        except Exception as raised:  # noqa: BLE001 - tools and models are the user's own code: anything can go wrong
            error = failure(self.turns, raised, self.private)
        return Turn(invocation=turn_invocation(self.events, self.user, self.record), error=error)

    def interrupted(self) -> Invocation:
        """Return what happened in the turn so far."""
        self.record.cut_short()
        return turn_invocation(self.events, self.user, self.record)

    async def _turn(self, user: Content, events: list[Any]) -> None:
        from google.genai import types  # noqa: PLC0415

        message = types.Content.model_validate({"role": "user"} | user.model_dump(mode="json", exclude_none=True))
        asked = {"user_id": self.session.user_id, "session_id": self.session.id, "new_message": message}
        run = self.runner.run_async(**asked, run_config=self.run_config)
        async with aclosing(run) as stream:
            async for event in stream:
                events.append(event)
                self.cut_off = None
        if self.cut_off is not None:  # ADK 2 ends a run in which something was cancelled as if it were done
            raise self.cut_off

    async def state(self) -> Json:
        """Return the state without what is the framework's own or lives only through a turn."""
        from google.adk.sessions.base_session_service import GetSessionConfig  # noqa: PLC0415

        asked = {"app_name": self.session.app_name, "user_id": self.session.user_id, "session_id": self.session.id}
        # Without its events, as ADK copies what it returns.
        session = await self.runner.session_service.get_session(**asked, config=GetSessionConfig(num_recent_events=0))
        return {key: plain(value) for key, value in session.state.items() if not key.startswith(("__", "temp:"))}


async def start_session(
    app: Any, given: SessionInput | None, *, app_name: str, private: frozenset[str], limited: bool, tools: Tools | None = None
) -> AdkSession:
    """Begin a session in services that nobody else uses.

    Args:
        app: the app whose agent to run.
        given: the session that the case asks for.
        app_name: the app of a case that names none.
        private: the environment variables whose values no error may show.
        limited: whether the conversation may be cut off.
        tools: what answers tool calls in the place of some tools; ``None``: all are the real ones.
    """
    from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService  # noqa: PLC0415
    from google.adk.memory.in_memory_memory_service import InMemoryMemoryService  # noqa: PLC0415
    from google.adk.runners import Runner  # noqa: PLC0415
    from google.adk.sessions.in_memory_session_service import InMemorySessionService  # noqa: PLC0415

    name = (given.app_name if given else "") or app_name
    sessions = InMemorySessionService()
    session = await sessions.create_session(
        app_name=name,
        user_id=(given.user_id if given else "") or _USER_ID,
        session_id=(given.session_id if given else None) or f"adk-eval-session-{uuid.uuid4()}",
        state=copy.deepcopy(given.state) if given else {},
    )
    started = AdkSession(None, session, private, _run_config(in_threads=limited))
    # First, so that it sees every call, also those that a plugin of the app answers in the model's place.
    plugins = [_plugin(_CallRecorder(started, tools)), *app.plugins]
    started.runner = Runner(
        app=app.model_copy(update={"name": name, "plugins": plugins}),
        session_service=sessions,
        memory_service=InMemoryMemoryService(),
        artifact_service=InMemoryArtifactService(),
    )
    return started


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

    async def before_run(self, *, invocation_context: Any) -> None:
        # An agent that is a tool runs within the turn, under an id of its own.
        self.session.record.invocation_id = self.session.record.invocation_id or invocation_context.invocation_id

    async def before_model(self, *, callback_context: Any, llm_request: Any) -> None:
        record = self.session.record
        record.requests.setdefault(callback_context.agent_name, llm_request)
        record.begin(_key(callback_context), record.model)
        _wait_for_busy_providers(llm_request.config)

    async def after_model(self, *, callback_context: Any, llm_response: Any) -> None:
        record = self.session.record
        record.end(_key(callback_context))
        if callback_context.invocation_id != record.invocation_id:
            self.session.events.append(model_call(callback_context.agent_name, llm_response))

    async def on_model_error(self, *, callback_context: Any, **_: Any) -> None:
        self.session.record.end(_key(callback_context))

    async def before_tool(self, *, tool: Any, tool_args: Json, tool_context: Any) -> Json | None:
        record = self.session.record
        record.begin(tool_context.function_call_id, record.tool)
        return await self.tools.answer(tool.name, tool_args) if self.tools else None

    async def after_tool(self, *, tool_context: Any, **_: Any) -> None:
        self.session.record.end(tool_context.function_call_id)

    async def on_tool_error(self, *, tool_context: Any, error: BaseException, **_: Any) -> None:
        self.session.record.end(tool_context.function_call_id)
        if isinstance(error, asyncio.CancelledError):
            self.session.cut_off = error


def _key(callback_context: Any) -> tuple[str, str]:
    """Return what tells a model call from those that go on at the same time."""
    return callback_context.invocation_id, callback_context.agent_name


def _plugin(recorder: _CallRecorder) -> Any:
    from google.adk.plugins.base_plugin import BasePlugin  # noqa: PLC0415

    plugin: Any = BasePlugin(name="mlflow_adk_eval")
    plugin.before_run_callback = recorder.before_run
    plugin.before_model_callback, plugin.after_model_callback = recorder.before_model, recorder.after_model
    plugin.on_model_error_callback = recorder.on_model_error
    plugin.before_tool_callback, plugin.after_tool_callback = recorder.before_tool, recorder.after_tool
    plugin.on_tool_error_callback = recorder.on_tool_error
    return plugin


def _wait_for_busy_providers(config: Any) -> None:
    """Have a request sent again as ADK's own evaluation does, unless the agent says how: a busy provider is no fault of the agent."""
    from google.genai import types  # noqa: PLC0415

    options = config.http_options = config.http_options or types.HttpOptions()
    options.retry_options = options.retry_options or types.HttpRetryOptions.model_validate(_RETRIES)
