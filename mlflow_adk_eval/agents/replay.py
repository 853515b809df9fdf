"""Replaying a recorded world: tools and models answer what they answered when it was recorded, and nothing real is called.

A `Replay` is made once per evaluation. It finds recorded calls by their arguments, and it keeps those that are made while a world is recorded.
`CaseWorld` is its side of one conversation. The agent's session asks it before each call (`find`), and tells it of the calls that were made
after all (`keep`). What answers is decided by the call alone: the same tool and arguments, in the same case if that is recorded, then in any.
Of several such calls in a conversation, the nearest turn counts, and a later answer is never followed by an earlier one.
"""

from __future__ import annotations

import builtins
import json
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from mlflow_adk_eval.agents.conversation_calls import with_calls
from mlflow_adk_eval.agents.recordings import Recording, dumps_recording
from mlflow_adk_eval.agents.tool_environment import CaseTools
from mlflow_adk_eval.criteria.alignment import differences
from mlflow_adk_eval.errors import AgentError, UsageError, did_you_mean
from mlflow_adk_eval.evalset.conversation import (
    Conversation,
    Injection,
    RecordedCall,
    RecordedError,
    RecordedModelCall,
    parse_recorded,
)
from mlflow_adk_eval.evalset.models import Json, json_sha256, mapped
from mlflow_adk_eval.evalset.observation import Observation, Unknown
from mlflow_adk_eval.evalset.world import ToolsMode, World, without_turns, world_digest
from mlflow_adk_eval.redact import redacted, secrets_of
from mlflow_adk_eval.text import beginning, few

C = TypeVar("C", RecordedCall, RecordedModelCall)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\*|\d+)\]")
_MAX_NAMED, _LONGEST_ARGS = 3, 200
_UNSAID: Mapping[Observation, str] = {
    "state": "how they changed the session's state",
    "inner_calls": "what agents called within them",
    "timing": "how long they took",
}
_Known = tuple[int, C]
"""The run that a call is from, and the call."""


class UnrecordedError(AgentError):
    """A call was never recorded, and must not be made."""


class Replay:
    """The recorded world of one evaluation, and what is added to it."""

    def __init__(self, source: Recording | None, *, record: bool = False, models: bool = False, ignore: Sequence[str] = ()) -> None:
        """Take what is to answer.

        Args:
            source: what was recorded; ``None``: nothing is replayed.
            record: whether calls that were never recorded are made, and recorded.
            models: whether the agent's own models are replayed as well.
            ignore: JSON paths of arguments that do not matter, such as ``$.request_id``.

        Raises:
            UsageError: if nothing is to be replayed or recorded, or the source holds no call.
        """
        if source is None and not record:
            raise UsageError("replay_models: wanted something to replay; set replay=")
        if source is None and models:
            raise UsageError("replay_models: there are no recorded answers yet; set replay=, or leave it out while you record")
        self.tools: ToolsMode = "record" if source is None else "live" if record else "strict"
        self.record, self.models = record, models
        self._secrets = secrets_of()
        self._ignored = [[step[0] or step[1] for step in _STEP.findall(path)] for path in ignore]
        self._runs = {eval_id: list(runs) for eval_id, runs in source.runs.items()} if source else {}
        self._origin = source.origin if source else None
        self._calls: dict[tuple[str, str], dict[str, list[_Known[RecordedCall]]]] = {}
        self._answers: dict[tuple[str, str], dict[str, list[_Known[RecordedModelCall]]]] = {}
        self._by_tool: dict[str, list[tuple[str, Json]]] = {}
        self.recorded: set[str] = set()
        """The tools of which calls were recorded as such."""
        self.inner = False
        """Whether calls within agents that are tools were recorded, except for those agents whose own calls were."""
        self.listings: dict[str, tuple[Json, ...]] = {}
        for eval_id, runs in self._runs.items():
            self.recorded.update(call.tool for run in runs for call in run.calls)
            self.inner |= any(run.calls or run.model_calls for run in runs)
            runs[:] = [run if run.calls or run.model_calls else with_calls(run) for run in runs]
            for index, run in enumerate(runs):
                self.listings |= run.listings
                for call in run.calls:
                    self._calls.setdefault((call.tool, self._key(call.args)), {}).setdefault(eval_id, []).append((index, call))
                    self._by_tool.setdefault(call.tool, []).append((eval_id, call.args))
                for answer in run.model_calls:
                    self._answers.setdefault((answer.agent, answer.request), {}).setdefault(eval_id, []).append((index, answer))
        self.key = f"{self.tools} {self.models} {self.world().digest}"
        """What conversations depend on, so that those in another world are not taken for ones in this."""
        if source is not None and not (self._calls or self._answers):
            raise UsageError("replay: the recording holds no tool call and no answer of a model")
        if models and not self._answers:
            raise UsageError("replay_models: the recording holds no answer of a model; record one with --record")

    def keep(self, eval_id: str, run_index: int, conversation: Conversation) -> None:
        """Add what was recorded in a conversation."""
        if conversation.calls or conversation.model_calls or conversation.listings:
            known = self._runs.setdefault(eval_id, [])
            known += [Conversation(actual=())] * (run_index + 1 - len(known))
            old = known[run_index]
            calls, model_calls = (*old.calls, *conversation.calls), (*old.model_calls, *conversation.model_calls)
            known[run_index] = replace(old, calls=calls, model_calls=model_calls, listings={**old.listings, **conversation.listings})

    def world(self) -> World:
        """Return the world as far as it is known by now."""
        runs = {eval_id: tuple(known) for eval_id, known in sorted(self._runs.items())}
        recorded = without_turns(parse_recorded(dumps_recording(Recording(runs, origin=self._origin)).encode(), "world"))
        return World(tools=self.tools, models=self.models, digest=world_digest(recorded), recorded=recorded)

    def _mattering(self, args: Mapping[str, Any]) -> Any:
        """Return the arguments that matter. Secrets were masked when they were recorded."""
        given: Any = dict(args)
        for path in self._ignored:
            given = _without(given, path)

        def plain(leaf: Any) -> Any:
            if isinstance(leaf, float) and leaf.is_integer():  # models write 3.0 for 3
                return int(leaf)
            return redacted(leaf, self._secrets) if isinstance(leaf, str) and self._secrets else leaf

        return mapped(given, plain)

    def _key(self, args: Mapping[str, Any]) -> str:
        return json_sha256(self._mattering(args))

    def calls_like(self, tool: str, args: Mapping[str, Any]) -> Mapping[str, list[_Known[RecordedCall]]]:
        """Return the recorded calls of a tool with the same arguments, by eval id."""
        return self._calls.get((tool, self._key(args)), {})

    def answers_to(self, agent: str, request: str) -> Mapping[str, list[_Known[RecordedModelCall]]]:
        """Return the recorded answers to a request, by eval id."""
        return self._answers.get((agent, request), {})

    def unrecorded(self, eval_id: str, tool: str, args: Mapping[str, Any]) -> str:
        """Return that a call was never recorded, with what is nearest to it."""
        call = f"{tool}({redacted(beginning(json.dumps(args, ensure_ascii=False), _LONGEST_ARGS), self._secrets)})"
        known = self._by_tool.get(tool)
        if not known:
            names = ", ".join(few(sorted(self._by_tool), limit=_MAX_NAMED)) or "no calls"
            hint = did_you_mean(tool, self._by_tool) or f"recorded are {names}"
            return f"{call} was never recorded, nor was any call of {tool!r}; {hint}"
        here = [recorded for case, recorded in known if case == eval_id] or [recorded for _, recorded in known]
        apart = min(([one.path for one in differences(self._mattering(args), self._mattering(recorded))] for recorded in here), key=len)
        where = "" if any(case == eval_id for case, _ in known) else " (of another case)"
        return f"{call} was never recorded; the nearest recording{where} differs in {', '.join(few(apart, limit=_MAX_NAMED))}"


def _without(value: Any, path: Sequence[str]) -> Any:
    """Return a JSON value without what is at a path."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {key: _without(one, rest) if key == first else one for key, one in value.items() if key != first or rest}
    if isinstance(value, list):
        return [
            _without(one, rest) if first in ("*", str(at)) else one for at, one in enumerate(value) if first not in ("*", str(at)) or rest
        ]
    return value


@dataclass(slots=True)
class CaseWorld:
    """The world of one conversation. Its methods may be called from several threads."""

    replay: Replay
    eval_id: str
    run_index: int
    environment: CaseTools | None
    """The tool environment, which comes first; ``None``: there is none."""
    turn: int = -1
    unrecorded: str = ""
    """The first call that was never recorded, whatever the agent made of the error."""
    unknown: list[Unknown] = field(default_factory=list[Unknown])
    """What is not known of the conversation, since the recorded calls that answered in it do not say it."""
    calls: list[RecordedCall] = field(default_factory=list[RecordedCall])
    """Those that were made and recorded, in the order in which they ended."""
    model_calls: list[RecordedModelCall] = field(default_factory=list[RecordedModelCall])
    listings: dict[str, tuple[Json, ...]] = field(default_factory=dict[str, tuple[Json, ...]])
    _done: list[Injection] = field(default_factory=list[Injection])
    _last: dict[int, int] = field(default_factory=dict[int, int])
    """Which of several recorded calls with the same arguments has answered last."""
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def world(self) -> CaseWorld:
        """Return itself, as tools that have a world do."""
        return self

    def next_turn(self) -> None:
        """Note that the next turn begins."""
        self.turn += 1
        self._numbers.clear()
        if self.environment:
            self.environment.next_turn()

    async def answer(self, tool: str, args: Mapping[str, Any], /) -> Json | None:
        """Return what the tool environment has to say to a call."""
        answered = await self.environment.answer(tool, args) if self.environment else None
        if answered is not None:
            with self._lock:
                self._next_number(tool)
        return answered

    @property
    def injections(self) -> tuple[Injection, ...]:
        """What was answered in the place of tools and models so far."""
        return (*(self.environment.injections if self.environment else ()), *self._done)

    def find(self, tool: str, args: Json) -> RecordedCall | None:
        """Return the recorded call that answers this one; ``None``: it is to be made.

        Raises:
            UnrecordedError: if it was never recorded, and must not be made.
        """
        with self._lock:
            number = self._next_number(tool)
            found = self._nearest(self.replay.calls_like(tool, args))
            if found is not None:
                self._note_unknown(found.unseen)
                self._done.append(Injection(invocation_index=self.turn, tool=tool, kind="replayed", call_index=number))
                for call in found.inner:  # they are answered with it, so that a later call is not given their answers
                    self._done.append(Injection(invocation_index=self.turn, tool=call.tool, kind="replayed"))
                    self._nearest(self.replay.calls_like(call.tool, call.args))
            elif self.replay.tools == "strict":
                raise self.refused(self.replay.unrecorded(self.eval_id, tool, args))
            return found

    def _note_unknown(self, unseen: Iterable[Observation]) -> None:
        for what in unseen:
            unknown = Unknown(what=what, why=f"the replayed calls do not say {_UNSAID[what]}; record the run with --record")
            if what != "state":
                unknown = unknown.model_copy(update={"turn": self.turn})
            if unknown not in self.unknown:
                self.unknown.append(unknown)

    def note_callback(self, tool: str) -> None:
        """Note that a callback of the agent answered a call, so that nothing was called or replayed."""
        with self._lock:
            number = self._next_number(tool)
            self._done.append(Injection(invocation_index=self.turn, tool=tool, kind="callback", call_index=number))

    def _next_number(self, tool: str) -> int:
        number = self._numbers[tool] = self._numbers.get(tool, -1) + 1
        return number

    def refused(self, problem: str) -> UnrecordedError:
        """Note why the conversation cannot go on, and return that as an error."""
        self.unrecorded = self.unrecorded or problem
        return UnrecordedError(problem)

    def listing(self, toolset: str) -> tuple[Json, ...]:
        """Return the declarations of the tools that a server listed.

        Raises:
            UnrecordedError: if they were never recorded.
        """
        if toolset not in self.replay.listings:
            raise self.refused(f"the tools of {toolset} were never recorded")
        return self.replay.listings[toolset]

    def find_answer(self, agent: str, request: str) -> RecordedModelCall | None:
        """Return the recorded answer to a request; ``None``: the model is to be asked."""
        if not self.replay.models:
            return None
        with self._lock:
            found = self._nearest(self.replay.answers_to(agent, request))
            if found is not None:
                self._note_unknown(found.untimed)
                self._done.append(Injection(invocation_index=self.turn, tool=agent, kind="replayed_model"))
            return found

    def _nearest(self, known: Mapping[str, list[_Known[C]]]) -> C | None:
        """Return the call that answers next: the nearest in the conversation of those that have not answered yet, and never an earlier one."""
        candidates = known.get(self.eval_id) or next(iter(known.values()), None)
        if not candidates:
            return None
        runs = {run for run, _ in candidates}
        mine = self.run_index if self.run_index in runs else min(runs)
        last = self._last.get(id(candidates), -1)
        later = [index for index, (run, _) in enumerate(candidates) if run == mine and index > last]
        chosen = min(later, key=lambda index: abs(candidates[index][1].turn - self.turn), default=last)
        self._last[id(candidates)] = chosen
        return candidates[chosen][1]


Tools = CaseTools | CaseWorld
"""What may answer the tool calls of a case run in place of the agent's own tools."""


def error_of(error: BaseException) -> RecordedError:
    """Return what is kept of an error that a tool or model raised."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return RecordedError(type=name, message=redacted(str(error), secrets_of()))


def raised_of(recorded: RecordedError) -> Exception:
    """Return an error like the recorded one: of the same class if that is an exception which is imported already, else of one with its name."""
    module, _, name = recorded.type.rpartition(".")
    known = getattr(sys.modules.get(module) if module else builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        error: Exception = known.__new__(known, recorded.message)
        error.args = (recorded.message,)
        if str(error) == recorded.message:  # one that makes its text of something else is not like it
            return error
    like: type[Exception] = type(name, (Exception,), {"__module__": module or "builtins"})
    return like(recorded.message)


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Json:
    """Return the entries of a state that a call has set.

    >>> changed({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4})
    {'b': 3, 'c': 4}
    """
    return {key: value for key, value in after.items() if key not in before or before[key] != value}
