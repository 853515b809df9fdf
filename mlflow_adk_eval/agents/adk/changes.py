"""What a tool call does to the session of an ADK agent: seen while it runs, and done again when the call is replayed.

`SessionBefore` is taken before a call, and its `change` after it. `ChangeObserver` does this for each call of a conversation that
neither replays nor records its calls. `redo` does such a change to the session of another conversation.
"""

from __future__ import annotations

import copy
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.agents.changes import ChangeLog
from mlflow_adk_eval.agents.replay import changed, error_of
from mlflow_adk_eval.errors import foreign_code
from mlflow_adk_eval.evalset.conversation import CallChange, SessionChange
from mlflow_adk_eval.evalset.events import plain
from mlflow_adk_eval.evalset.models import Json

_PRIVATE = frozenset({"requested_auth_configs", "artifact_delta"})
"""Actions that are not recorded: credentials, and versions of artifacts, which follow from saving them."""
_BY_CALL = "requested_tool_confirmations"
"""The action whose keys are ids of calls."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A list or an object in the state before a call, which the call may change without setting it."""

    key: str
    value: Any
    content: Any


@dataclass(frozen=True, slots=True)
class SessionBefore:
    """The session as a tool call finds it."""

    actions: Json
    held: tuple[_Held, ...]

    @classmethod
    def of(cls, context: Any) -> SessionBefore:
        """Return it, from the call's context of ADK."""
        entries = context.state.to_dict().items()
        held = tuple(_Held(key, value, plain(value)) for key, value in entries if isinstance(value, dict | list))
        return cls(_actions(context), held)

    async def change(self, context: Any) -> SessionChange:
        """Return what has changed since then."""
        artifacts: dict[str, Json] = {}
        for name in changed(self.actions.get("artifact_delta", {}), context.actions.artifact_delta):
            saved = await context.load_artifact(name)
            if saved is not None:
                artifacts[name] = saved.model_dump(mode="json", exclude_none=True)
        actions = self._changed_actions(context)
        return SessionChange(
            actions=actions,
            artifacts=artifacts,
            state_in_place=self._changed_in_place(context, actions.get("state_delta", {})),
        )

    def _changed_actions(self, context: Any) -> Json:
        actions: Json = {}
        for name, value in changed(self.actions, _actions(context)).items():
            if name in _PRIVATE:
                continue
            actions[name] = changed(self.actions.get(name) or {}, value) if isinstance(value, dict) else value
        return actions

    def _changed_in_place(self, context: Any, state_delta: Json) -> Json:
        # Newer versions of ADK note such a change among the actions themselves.
        changes: Json = {}
        for held in self.held:
            if held.key in state_delta or context.state.get(held.key) is not held.value:
                continue
            content = plain(held.value)
            if content != held.content:
                changes[held.key] = content
        return changes


def _actions(context: Any) -> Json:
    dumped: Json = plain(context.actions.model_dump(exclude_none=True))
    return copy.deepcopy({name: value for name, value in dumped.items() if value or value is False})


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call that has begun."""

    at: float
    before: SessionBefore | None
    """``None`` if the session could not be read."""


@dataclass(slots=True)
class ChangeObserver:
    """Sees what the tool calls of a conversation do to its session."""

    log: ChangeLog = field(default_factory=ChangeLog)
    _begun: dict[str, _Begun] = field(default_factory=dict[str, _Begun])

    def begin(self, context: Any) -> None:
        """Note that a call begins."""
        before = None
        with suppress(Exception), foreign_code("the state"):  # which may hold anything, and must not cost the conversation
            before = SessionBefore.of(context)
        self._begun[context.function_call_id] = _Begun(time.perf_counter(), before)

    async def end(self, turn: int, tool: str, context: Any, error: Exception | None = None) -> None:
        """Note that a call ends, or fails. A callback may answer one that failed, so that it ends twice."""
        call_id = context.function_call_id
        if call_id not in self._begun:
            return
        begun = self._begun.pop(call_id)
        call: Json = {"turn": turn, "tool": tool, "call_id": call_id, "duration_s": round(time.perf_counter() - begun.at, 6)}
        if error is not None:
            call["error"] = error_of(error)
        change = None
        if begun.before is not None:
            with suppress(Exception), foreign_code("the state"):  # as above
                change = await begun.before.change(context)
        self.log.add(CallChange(**call), change)


async def redo(change: SessionChange, context: Any) -> None:
    """Do to the session what a call did to another one."""
    for key, value in copy.deepcopy(change.state_in_place).items():
        held = context.state.get(key)
        if isinstance(held, list) and isinstance(value, list):
            held[:] = value
        elif isinstance(held, dict) and isinstance(value, dict):
            held.clear()
            held.update(value)
    _redo_actions(change.actions, context)
    if not change.artifacts:
        return
    from google.genai import types  # noqa: PLC0415 - an extra

    for name, part in change.artifacts.items():
        await context.save_artifact(name, types.Part.model_validate(part))


def _redo_actions(actions: Json, context: Any) -> None:
    redone = type(context.actions).model_validate(actions)
    for name in redone.model_fields_set:
        value = getattr(redone, name)
        if name == "state_delta":
            for key, item in value.items():
                context.state[key] = copy.deepcopy(item)
        elif name == _BY_CALL:  # the call has another id now
            for item in value.values():
                getattr(context.actions, name)[context.function_call_id] = item
        elif isinstance(value, dict):
            getattr(context.actions, name).update(value)
        else:
            setattr(context.actions, name, value)
