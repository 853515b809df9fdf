"""Replaying and recording what an ADK agent calls: its tools and its models, wherever in its tree they are.

ADK looks up a tool in the request to the model (``tools_dict``) and the model in the agent, both after all callbacks. `AdkWorld.prepare` runs
before each request. It puts copies of the tools into that request, whose ``run_async`` asks the world first, and has the agent's model do the
same. So callbacks and plugins, which belong to the agent, run as ever, and only what they lead to is replayed. What a tool did to the session
(state, artifacts, transfers) is recorded with its answer, and done again.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from mlflow_adk_eval.agents.adk.changes import SessionBefore, redo
from mlflow_adk_eval.agents.adk.requests import request_sha256
from mlflow_adk_eval.agents.replay import CaseWorld, error_of, raised_of
from mlflow_adk_eval.agents.turns import TurnRecord
from mlflow_adk_eval.evalset.conversation import STEERING, InnerCall, RecordedCall, RecordedModelCall
from mlflow_adk_eval.evalset.events import plain
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.redact import redacted, secrets_of

_LISTING = frozenset({"McpToolset", "MCPToolset", "ToolboxToolset"})
"""Toolsets that ask a server for their tools."""
_OURS = "_mlflow_adk_eval"
"""The attribute that marks copies of tools, and models that were prepared."""
_HERE: ContextVar[AdkWorld | None] = ContextVar("mlflow_adk_eval_world", default=None)
"""The world of the conversation that a model is called in: conversations share agents, and so models."""
WITHIN: ContextVar[list[InnerCall]] = ContextVar("mlflow_adk_eval_within")
"""What is called within the tool that is running: functions may run agents."""


@dataclass(frozen=True, slots=True)
class AdkWorld:
    """The world of one conversation with an ADK agent."""

    world: CaseWorld
    record: Callable[[], TurnRecord]
    """What is measured in the turn under way."""
    note_inner: Callable[[InnerCall], None]
    """Notes a call that leaves no event."""
    answered: set[str] = field(default_factory=set[str])
    """The ids of the calls that the tool environment, a recording or a tool answered."""

    @contextmanager
    def entered(self) -> Generator[None]:
        """Have this be the world of what is called within."""
        _prepare_toolsets()
        token = _HERE.set(self)
        try:
            yield
        finally:
            _HERE.reset(token)

    def check(self, agent: Any) -> None:
        """Refuse an agent that would be asked over the network.

        Raises:
            UnrecordedError: if it is one, and nothing must be called.
        """
        if self.world.replay.tools == "strict" and any(cls.__name__ == "RemoteA2aAgent" for cls in type(agent).__mro__):
            raise self.world.refused(f"agent {agent.name!r} runs elsewhere, and what it answers cannot be recorded")

    def prepare(self, agent: Any, request: Any) -> None:
        """Have a request's tools and the agent's model ask the world."""
        for name, tool in request.tools_dict.items():
            if not self._is_real(tool):
                request.tools_dict[name] = self._asking(tool, agent.name)
        if not (self.world.replay.models or self.world.replay.record):
            return
        model = agent.canonical_model
        if not getattr(model, _OURS, False):
            _prepare_model(model)
        if agent.canonical_model is not model:  # ADK 1 makes a new one of a name each time
            agent.model = model

    def _is_real(self, tool: Any) -> bool:
        """Whether a tool runs as it is: it is prepared, or ADK's own, or an agent whose calls are seen and known, so that it is these that are replayed."""
        from google.adk.tools.agent_tool import AgentTool  # noqa: PLC0415 - an extra

        replay = self.world.replay
        seen = isinstance(tool, AgentTool) and getattr(tool, "include_plugins", True) and tool.name not in replay.recorded
        inner = seen and (replay.inner or replay.record)
        return inner or getattr(tool, _OURS, False) or (tool.name in STEERING and type(tool).__module__.startswith("google.adk."))

    def _asking(self, tool: Any, agent: str) -> Any:
        from google.adk.tools.agent_tool import AgentTool  # noqa: PLC0415 - an extra

        asking = copy.copy(tool)

        async def run_async(*, args: Json, tool_context: Any) -> Any:
            return await self.call(tool, agent, args, tool_context)

        asking.run_async = run_async
        if isinstance(tool, AgentTool):
            asking.include_plugins = False  # then no plugin sees what the agent calls, and this one says so
        setattr(asking, _OURS, True)
        return asking

    async def answer(self, tool: Any, agent: str, args: Json, context: Any) -> Json | None:
        """Return the answer to a call that ADK makes without asking a model, as when it resumes one; ``None``: the tool asks by itself."""
        if self._is_real(tool):
            return None
        given = await self.call(tool, agent, args, context)
        return given if isinstance(given, dict) else {"result": given}

    def ended(self, tool: Any, context: Any) -> None:
        """Note that a call has an answer, which is the agent's own if nothing else was asked for one."""
        if getattr(tool, _OURS, False) and context.function_call_id not in self.answered:
            self.world.note_callback(tool.name)

    async def call(self, tool: Any, agent: str, args: Json, context: Any) -> Any:
        """Return what a tool answered when it was recorded, or else what it answers."""
        self.answered.add(context.function_call_id)
        given, record = copy.deepcopy(plain(args)), self.record()
        since = record.now()
        found = self.world.find(tool.name, given)
        if found is not None:
            await redo(found, context)
            record.skip_to(since + found.duration_s)
            for call in found.inner:
                self.note_inner(call)
            if found.error:
                raise raised_of(found.error)
            return copy.deepcopy(found.answer)
        turn, before = self.world.turn, SessionBefore.of(context)

        async def keep(answer: Any = None, error: BaseException | None = None) -> None:
            change = await before.change(context)
            came: dict[str, Any] = {"error": error_of(error)} if error else {"answer": plain(answer)}
            taken = round(record.now() - since, 6)
            where: Json = {"turn": turn, "agent": agent, "tool": tool.name, "args": given, "inner": (*within,), "duration_s": taken}
            self.world.calls.append(RecordedCall(**where, **dict(change), **came))

        token = WITHIN.set(within := list[InnerCall]())
        try:
            answer = await tool.run_async(args=args, tool_context=context)
        except Exception as raised:
            await keep(error=raised)
            raise
        finally:
            WITHIN.reset(token)
            WITHIN.get([]).extend(within)
        await keep(answer)
        return answer


def _prepare_model(model: Any) -> None:
    """Have a model ask the world of the conversation that calls it, where there is one."""
    ask = model.generate_content_async

    async def generate_content_async(llm_request: Any, stream: bool = False) -> AsyncGenerator[Any, None]:
        here = _HERE.get()
        if here is None:
            async with aclosing(ask(llm_request, stream=stream)) as answers:
                async for answer in answers:
                    yield answer
            return
        from google.adk.models.llm_response import LlmResponse  # noqa: PLC0415 - an extra

        world, record = here.world, here.record()
        agent = (llm_request.config.labels or {}).get("adk_agent_name", "") if llm_request.config else ""
        request, since, turn = request_sha256(llm_request), record.now(), world.turn
        found = world.find_answer(agent, request)
        if found is not None:
            record.skip_to(since + found.duration_s)
            for given in found.answers:
                yield LlmResponse.model_validate(given)
            if found.error:
                raise raised_of(found.error)
            return
        kept: list[Json] = []
        error, taken = None, 0.0
        try:
            async with aclosing(ask(llm_request, stream=stream)) as answers:
                async for answer in answers:
                    kept.append(answer.model_dump(mode="json", exclude_none=True))
                    taken = record.now() - since  # ADK calls tools before it asks for more
                    yield answer
        except Exception as raised:
            error, taken = error_of(raised), record.now() - since
            raise
        finally:  # also where ADK asks for no more, as after a transfer
            if world.replay.record and (error or kept) and not world.replay.answers_to(agent, request):
                came: dict[str, Any] = {"answers": tuple(kept), "error": error, "duration_s": round(taken, 6)}
                world.model_calls.append(RecordedModelCall(turn=turn, agent=agent, request=request, **came))

    object.__setattr__(model, "generate_content_async", generate_content_async)
    object.__setattr__(model, _OURS, True)


def _prepare_toolsets() -> None:
    """Have toolsets that ask a server for their tools ask the world, where there is one."""
    from google.adk.tools.base_tool import BaseTool  # noqa: PLC0415 - an extra
    from google.adk.tools.base_toolset import BaseToolset  # noqa: PLC0415 - an extra
    from google.genai import types  # noqa: PLC0415 - an extra

    listed: Any = BaseToolset.get_tools_with_prefix
    if getattr(listed, _OURS, False):
        return

    def declared(declaration: Json) -> Any:
        known = types.FunctionDeclaration.model_validate(declaration)
        tool_type: Any = type("RecordedTool", (BaseTool,), {"_get_declaration": lambda _: known})
        return tool_type(name=known.name, description=known.description or "")

    @wraps(listed)
    async def get_tools_with_prefix(self: Any, readonly_context: Any = None) -> list[Any]:
        here = _HERE.get()
        if here is None or _LISTING.isdisjoint(cls.__name__ for cls in type(self).__mro__):
            return list(await listed(self, readonly_context))
        world, key = here.world, _named(self)
        if world.replay.tools == "strict":
            return [declared(one) for one in world.listing(key)]
        tools = list(await listed(self, readonly_context))
        world.listings[key] = tuple(tool._get_declaration().model_dump(mode="json", exclude_none=True) for tool in tools)  # noqa: SLF001 - ADK has no other way
        return tools

    setattr(get_tools_with_prefix, _OURS, True)
    setattr(BaseToolset, "get_tools_with_prefix", get_tools_with_prefix)  # noqa: B010 - it is final for subclasses


def _named(toolset: Any) -> str:
    """Return what decides which tools a server lists: where it is, and which of its tools are wanted."""
    given = getattr(toolset, "_connection_params", None)
    server = getattr(given, "server_params", given)
    where = [getattr(server, name) for name in ("url", "command", "args") if getattr(server, name, None)]
    wanted = getattr(toolset, "tool_filter", None)
    wanted = getattr(wanted, "__qualname__", wanted)
    name = f"{type(toolset).__name__} {where} {wanted or 'all'} {getattr(toolset, 'tool_name_prefix', None) or ''}"
    return redacted(name.rstrip(), secrets_of())
