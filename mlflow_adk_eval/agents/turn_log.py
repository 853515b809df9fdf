"""From what an agent gives for a turn to an `Invocation`, whatever kind of agent it is.

An agent may answer with a text, with an invocation, or bit by bit: texts, events in the shape of ADK's, tool calls that were recorded. A
`TurnLog` takes each as it comes, so that a turn that fails or runs out of time keeps what happened in it, and turns them into one
invocation by the rules of `agents.adk.events`: the last event that may be the answer is the final response, the others are what led to it.
`invocation_of` is for answers that come as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.alias_generators import to_camel

from mlflow_adk_eval.agents.adk.events import TurnRecord, turn_invocation, union_s
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import (
    Content,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    Part,
    Rubric,
    RubricContent,
)
from mlflow_adk_eval.evalset.conversation import json_of
from mlflow_adk_eval.evalset.models import Json, Model
from mlflow_adk_eval.evalset.parse import parse

_EVENT, _INVOCATION = TypeAdapter(InvocationEvent), TypeAdapter(Invocation)
_TEXT_FIELDS = {"user_content": "user", "userContent": "user", "final_response": "model", "finalResponse": "model"}
"""What may be a text in an invocation that comes as a dict, and whose text it is."""
_EVENT_FIELDS = ("author", "content", "grounding_metadata", "usage_metadata", "model_version")
"""What is read of an event as ADK writes it; the rest, such as ids and state deltas, is the framework's own."""
_TEXT = frozenset({str})
_SCALARS = _TEXT | {int, float, bool, type(None)}
_MODELS = frozenset(
    {Content, FunctionCall, FunctionResponse, IntermediateData, InvocationEvent, InvocationEvents, Part, Rubric, RubricContent}
)
"""What a turn is made of: pydantic's `isinstance` would take as long as all else that it takes to look through one."""
_WANTED = "a text, an Invocation or a dict of one, an event of ADK, or a generator of those"


def invocation_of(answer: Any, source: str, *, user: Content | None = None) -> Invocation:
    """Return what an agent answered to a turn as an invocation: a text, an invocation, or one as a dict.

    Args:
        answer: the answer; in a dict the user's message may be left out, and messages may be texts.
        source: what errors call it.
        user: the user's message.

    Raises:
        EvalSetError: with every problem of the answer.
    """
    message = user or Content(role="user", parts=())
    match answer:
        case Invocation():
            return _plain(answer)
        case str():
            return Invocation(user_content=message, final_response=_text("model", answer))
        case None:
            return Invocation(user_content=message)
        case Mapping():
            given = {key: _text(_TEXT_FIELDS.get(key), value) for key, value in answer.items()}
            if not {"user_content", "userContent"} & set(given):
                given = {"user_content": message} | given
            return _plain(parse(_INVOCATION, given, source))
        case _:
            raise EvalSetError(source, [Problem("$", shown(answer), "a text, an Invocation or a dict of one")])


def _text(role: str | None, value: Any) -> Any:
    """Return a text as the message of `role`; anything else, and a text of nobody's, as it is."""
    return Content(role=role, parts=(Part(text=value),)) if role and isinstance(value, str) else value


def _plain(invocation: Invocation) -> Invocation:
    """Return a turn as it would be read from a file: a tuple among the arguments of a tool is a list in JSON, and so on.

    Nearly every turn is so already, which is far quicker to see than to write the turn as JSON and read it.
    """
    try:
        if _is_read(invocation):
            return invocation
        dumped = invocation.model_dump(mode="json", exclude_unset=True, fallback=json_of, warnings=False)
    except (ValueError, RecursionError):  # bytes that are no text, or something that holds itself; it can be compared with no eval set
        return invocation
    return Invocation.model_validate(dumped)


def _is_read(invocation: Invocation) -> bool:
    """Whether a turn is certainly as it would be read: models of JSON values and of tuples of models."""
    models: list[Model] = [invocation]
    for model in models:  # which grows
        extra = model.__pydantic_extra__
        if extra and not _is_json(extra):
            return False
        for value in vars(model).values():
            if value is None:
                continue
            kind = type(value)
            if kind is str:
                continue
            if kind in _MODELS:
                models.append(value)
            elif kind is tuple and _MODELS.issuperset(map(type, value)):
                models += value
            elif not _is_json(value):
                return False
    return True


def _is_json(value: Any) -> bool:
    """Whether a value is of the very types that JSON is read as."""
    kind = type(value)
    if kind is dict:
        return _TEXT.issuperset(map(type, value)) and all(map(_is_json, value.values()))
    return kind in _SCALARS or (kind is list and all(map(_is_json, value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """One thing said or done in a turn, in the shape of ADK's events."""

    author: str
    content: Content | None = None
    final: bool = False
    """Whether it may be the turn's answer; of several, the last one is."""
    kind: Literal["text", "event", "call"] = "event"
    """*event*: as the agent reports it; *call*: of a recorded tool, or its answer."""
    grounding_metadata: Json | None = None
    usage_metadata: Json | None = None
    model_version: str | None = None
    invocation_id: str = ""

    def is_final_response(self) -> bool:
        """Whether it may be the turn's answer."""
        return self.final

    def get_function_calls(self) -> list[FunctionCall]:
        """Return the tool calls in it."""
        return [part.function_call for part in (self.content and self.content.parts) or () if part.function_call]


@dataclass(slots=True)
class TurnLog:
    """What is known of a turn so far. Its events may come from several threads."""

    author: str
    """The author of what names none."""
    user: Content
    record: TurnRecord = field(default_factory=TurnRecord)
    events: list[Any] = field(default_factory=list[Any])
    """Each a `TurnEvent` or an event of ADK."""
    given: Invocation | None = None
    """The turn as the agent itself sums it up."""
    closed: bool = False
    """Whether the turn is over, which a thread that was left behind finds out by this."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, item: Any) -> None:
        """Keep a text, an event of ADK or one as a dict, or a finished invocation or one as a dict.

        Partial events are not kept: what a model streams comes again as a whole.

        Raises:
            EvalSetError: if it is nothing of the kind.
        """
        match item:
            case None:
                return
            case str():
                content = Content(role="model", parts=(Part(text=item),))
                self._append(TurnEvent(author=self.author, content=content, final=True, kind="text"))
            case TurnEvent():
                self._append(item)
            case Mapping() if "author" in item or "content" in item:
                if not item.get("partial"):
                    self._append(_event_of(item, self.author))
            case Invocation() | Mapping():
                self.given = invocation_of(item, f"answer of {self.author}", user=self.user)
            case _ if hasattr(item, "is_final_response") and hasattr(item, "content"):
                if not getattr(item, "partial", None):
                    self._append(item)
            case _:
                raise EvalSetError(f"answer of {self.author}", [Problem("$", shown(item), _WANTED)])

    def _append(self, event: Any) -> None:
        with self.lock:
            self.events.append(event)

    def finished(self) -> Invocation:
        """End the turn and return it: as the agent sums it up, completed by its events."""
        self.closed = True
        given = self.given
        turn = self._turn(final=given is None or given.final_response is None)
        return turn if given is None else given.model_copy(update=_missing(given, turn))

    def unfinished(self) -> Invocation | None:
        """End the turn and return what happened so far; ``None``: nothing is known. No text on the way is taken for the answer."""
        self.closed = True
        if not self.events and self.given is None:
            return None
        turn = self._turn(final=False)
        return turn if self.given is None else self.given.model_copy(update=_missing(self.given, turn))

    def _turn(self, *, final: bool) -> Invocation:
        with self.lock:
            events = _without_repeated_calls(self.events)
        if not final:
            events = [replace(event, final=False) if isinstance(event, TurnEvent) else event for event in events]
        turn = turn_invocation(events, self.user, self.record)
        # Of models nothing is known here, and of tools only what went through the session.
        known: Json = {"model_duration": None, "tool_duration": round(union_s(self.record.tool), 3) if self.record.tool else None}
        if all(isinstance(event, TurnEvent) and event.kind != "event" for event in events):
            known["intermediate_data"] = _intermediate_data(turn.events)
        return turn.model_copy(update=known)


def _missing(given: Invocation, turn: Invocation) -> Json:
    """Return what the agent left out of its own summary of a turn."""
    found: Json = {} if given.user_content.parts else {"user_content": turn.user_content}
    for name in ("final_response", "intermediate_data", "duration", "tool_duration"):
        if getattr(given, name) is None and getattr(turn, name) is not None:
            found[name] = getattr(turn, name)
    return found


def _without_repeated_calls(events: Iterable[Any]) -> list[Any]:
    """Return the events without the calls that were recorded, if the agent reports its calls itself."""
    every = list(events)
    reported = [event for event in every if not (isinstance(event, TurnEvent) and event.kind == "call")]
    return reported if any(event.get_function_calls() for event in reported) else every


def _intermediate_data(events: Iterable[InvocationEvent]) -> IntermediateData | None:
    """Return texts and calls as people write them in eval sets; recorded events would claim that no model was called."""
    parts = [(event.author, part) for event in events for part in (event.content and event.content.parts) or ()]
    if not parts:
        return None
    return IntermediateData(
        tool_uses=tuple(part.function_call for _, part in parts if part.function_call),
        tool_responses=tuple(part.function_response for _, part in parts if part.function_response),
        intermediate_responses=tuple((author, (part,)) for author, part in parts if part.text),
    )


def _event_of(given: Mapping[str, Any], author: str) -> TurnEvent:
    """Return an event that came as a dict; its content may be a text."""
    keys = [key for name in _EVENT_FIELDS for key in (name, to_camel(name)) if given.get(key) is not None]
    known = {key: _text("model" if key == "content" else None, given[key]) for key in keys}
    event = parse(_EVENT, {"author": author} | known, f"event of {author}")
    busy = event.content is None or any(part.function_call or part.function_response for part in event.content.parts or ())
    return TurnEvent(final=not busy, **{name: getattr(event, name) for name in _EVENT_FIELDS})
