"""From what an agent gives for a turn to an `Invocation`, whatever kind of agent it is. Knows the shape of ADK's objects, and does not import ADK.

An agent may answer with a text, with an invocation, or bit by bit: texts, events in the shape of ADK's, tool calls that were recorded. A
`TurnLog` takes each as it comes, so that a turn that fails or runs out of time keeps what happened in it. `invocation_of` is for answers that
come as a whole.

`turn_invocation` makes one invocation of a turn's events, ADK's own or each a `TurnEvent` of an agent that is none of ADK's, as `evalset.events`
says. What events do not say comes from a `TurnRecord`, which is filled while the turn runs: requests to models, and how long models and
tools took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic.alias_generators import to_camel

from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset.conversation import json_of
from mlflow_adk_eval.evalset.events import plain, split_answer
from mlflow_adk_eval.evalset.models import (
    AgentDetails,
    AppDetails,
    Content,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvent,
    InvocationEvents,
    Json,
    Model,
    Part,
    Rubric,
    RubricContent,
)
from mlflow_adk_eval.evalset.parse import members, parse

_TEXT_FIELDS = {"user_content": "user", "userContent": "user", "final_response": "model", "finalResponse": "model"}
"""What may be a text in an invocation that comes as a dict, and whose text it is."""
_EVENT_FIELDS = ("author", "content", "grounding_metadata", "usage_metadata", "model_version", "error_code", "error_message")
"""What is read of an event as ADK writes it; the rest, such as ids and state deltas, is the framework's own."""
_NODE_FIELDS = ("output", "node_info", "finish_reason")
"""What is read besides, to find out what the answer is and whether it is whole."""
_TEXT = frozenset({str})
_SCALARS = _TEXT | {int, float, bool, type(None)}
_MODELS = frozenset(
    {Content, FunctionCall, FunctionResponse, IntermediateData, InvocationEvent, InvocationEvents, Part, Rubric, RubricContent}
)
"""What a turn is made of: pydantic's `isinstance` would take as long as all else that it takes to look through one."""
_WANTED = "a text, an Invocation or a dict of one, an event of ADK, or a generator of those"


def object_of(value: Any) -> dict[str, Any]:
    """Return what a tool returned as ADK has it: an object, or another value under ``result``."""
    return dict(value) if isinstance(value, Mapping) else {"result": value}


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
            return _as_read(answer)
        case str():
            return Invocation(user_content=message, final_response=_text("model", answer))
        case None:
            return Invocation(user_content=message)
        case Mapping():
            given = {key: _text(_TEXT_FIELDS.get(key), value) for key, value in answer.items()}
            if not {"user_content", "userContent"} & set(given):
                given = {"user_content": message} | given
            invocation = parse(Invocation, given, source)
            if members(Invocation).keys().isdisjoint(answer):  # a silent turn, which scores 0, must be said to be one
                raise EvalSetError(source, [Problem("$", shown(answer), "a text, an Invocation or a dict of one")])
            return _as_read(invocation)
        case _:
            raise EvalSetError(source, [Problem("$", shown(answer), "a text, an Invocation or a dict of one")])


def _text(role: str | None, value: Any) -> Any:
    """Return a text as the message of `role`; anything else, and a text of nobody's, as it is."""
    return Content(role=role, parts=(Part(text=value),)) if role and isinstance(value, str) else value


def _as_read(invocation: Invocation) -> Invocation:
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
        values = model.__dict__
        for name in model.__pydantic_fields_set__:  # all others have their defaults
            value = values.get(name)  # a key of no field is among the others
            kind = type(value)
            if kind is str or value is None:
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
        if not _TEXT.issuperset(map(type, value)):
            return False
        return _SCALARS.issuperset(map(type, value.values())) or all(map(_is_json, value.values()))
    return kind in _SCALARS or (kind is list and all(map(_is_json, value)))


Interval = tuple[float, float]


@dataclass(slots=True)
class _Call:
    """A call of a model or a tool that has begun."""

    since: float
    ended: list[Interval]
    """Where its time is counted."""
    answered: bool = False
    """Whether something has come of it, which for a model that streams need not be all."""


@dataclass(slots=True)
class TurnRecord:
    """What is measured while a turn runs, besides its events."""

    invocation_id: str = ""
    requests: dict[str, Any] = field(default_factory=dict[str, Any])
    """The first request of each agent to its model, by the agent's name."""
    model: list[Interval] = field(default_factory=list[Interval])
    tool: list[Interval] = field(default_factory=list[Interval])
    calls: dict[Any, _Call] = field(default_factory=dict[Any, _Call])
    began: float = field(default_factory=time.perf_counter)
    began_at: float = field(default_factory=time.time)
    skipped_s: float = 0.0
    """How much of the time that replayed calls once took nobody waited for."""
    model_calls: int | None = None
    """How many requests models got; ``None``: not all of them could be seen."""

    def now(self) -> float:
        """Return the time, as if replayed calls took as long as they did when they were recorded."""
        return time.perf_counter() + self.skipped_s

    def skip_to(self, moment: float) -> None:
        """Go on as if it were a moment to come."""
        self.skipped_s = max(self.skipped_s, moment - time.perf_counter())

    def begin(self, key: Any, ended: list[Interval]) -> None:
        """Note that the call `key` begins, whose time is to be counted in `ended`."""
        self.calls[key] = _Call(self.now(), ended)

    def end(self, key: Any) -> None:
        """Note that the call `key` ends, or, for a model that streams, that a piece of its answer came."""
        if call := self.calls.get(key):
            now = self.now()
            call.ended.append((call.since, now))
            call.since, call.answered = now, True

    def cut_short(self) -> None:
        """Count what is still waited for, since nobody will wait any longer."""
        for key, call in self.calls.items():
            if not call.answered:
                self.end(key)


def union_s(intervals: Iterable[Interval]) -> float:
    """Return how many seconds lie in at least one interval.

    >>> union_s([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, counted_to = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, counted_to))
        counted_to = max(counted_to, end)
    return total


def turn_invocation(events: Sequence[Any], user: Content, record: TurnRecord) -> Invocation:
    """Return what happened in one turn. A turn without events is an invocation without an answer, not a missing one.

    Args:
        events: those of the agent, and finished ones that it does not report.
        user: the user's message.
        record: what was measured besides.
    """
    finished = [event for event in events if not getattr(event, "partial", None)]  # what a model streams comes again as a whole
    final_response, before = split_answer([event for event in finished if (event.author or "agent").lower() != "user"])
    model_s = union_s(record.model)
    agents: dict[str, AgentDetails] = {}
    for name, request in record.requests.items():
        instruction = request.config.system_instruction
        agents[name] = AgentDetails(
            name=name,
            instructions=instruction if isinstance(instruction, str) else Content.model_validate(plain(instruction) or {}).text,
            tool_declarations=tuple(plain(tool) for tool in request.config.tools or ()),
        )
    turn = Invocation(
        invocation_id=record.invocation_id or (events[0].invocation_id if events else ""),
        user_content=user,
        final_response=final_response,
        intermediate_data=InvocationEvents(invocation_events=before),
        creation_timestamp=record.began_at,
        duration=round(record.now() - record.began, 3),
        model_duration=round(model_s, 3),
        # A tool that is an agent waits for models inside its own interval; that time is the models'.
        tool_duration=round(union_s(record.model + record.tool) - model_s, 3),
        app_details=AppDetails(agent_details=agents) if agents else None,
    )
    if record.model_calls in (None, turn.model_calls):
        return turn
    return turn.model_copy(update={"inference_call_count": record.model_calls})  # which google-adk 2.13 has no place for


def is_busy(content: Content | None) -> bool:
    """Whether a content calls a tool, or answers such a call, so that it is no answer to the user."""
    return any(part.function_call or part.function_response for part in (content and content.parts) or ())


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
    error_code: str | None = None
    error_message: str | None = None
    output: Any = None
    """What a node of a workflow gives out."""
    node_info: Json | None = None
    """Which node that is, and whose output it is besides."""
    finish_reason: str | None = None
    """Why the model ended."""
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
        event: Any
        match item:
            case None:
                return
            case str():
                content = Content(role="model", parts=(Part(text=item),))
                event = TurnEvent(author=self.author, content=content, final=True, kind="text")
            case TurnEvent():
                event = item
            case Mapping() if "author" in item or "content" in item:
                event = None if item.get("partial") else _event_of(item, self.author)
            case Invocation() | Mapping():
                self.given = invocation_of(item, f"answer of {self.author}", user=self.user)
                return
            case _ if hasattr(item, "is_final_response") and hasattr(item, "content"):
                event = None if getattr(item, "partial", None) else item
            case _:
                raise EvalSetError(f"answer of {self.author}", [Problem("$", shown(item), _WANTED)])
        if event is not None:
            with self.lock:
                self.events.append(event)

    @property
    def reports_events(self) -> bool:
        """Whether the agent gave an event, as ADK has them."""
        with self.lock:
            return any(not isinstance(event, TurnEvent) or event.kind == "event" for event in self.events)

    @property
    def reports_calls(self) -> bool:
        """Whether the agent tells what it calls, even if it called nothing in this turn: it gave an event, or summed the turn up."""
        if self.given is not None:
            return True
        with self.lock:
            return any(not isinstance(event, TurnEvent) or event.kind != "text" or event.get_function_calls() for event in self.events)

    def finished(self) -> Invocation:
        """End the turn and return it: as the agent sums it up, completed by its events."""
        self.closed = True
        given = self.given
        with self.lock:
            events = list(self.events)
        reported = [event for event in events if not (isinstance(event, TurnEvent) and event.kind == "call")]
        if any(event.get_function_calls() for event in reported):  # then the agent reports its calls itself
            events = reported
        if given is not None and given.final_response is not None:
            events = _not_final(events)
        turn = turn_invocation(events, self.user, self.record)
        # Of models nothing is known here, and of tools only what went through the session.
        known: Json = {"model_duration": None, "tool_duration": round(union_s(self.record.tool), 3) if self.record.tool else None}
        if all(isinstance(event, TurnEvent) and event.kind != "event" for event in events):
            # As people write texts and calls in eval sets; recorded events would claim that no model was called.
            parts = [(event.author, part) for event in turn.events for part in (event.content and event.content.parts) or ()]
            steps = IntermediateData(
                tool_uses=tuple(part.function_call for _, part in parts if part.function_call),
                tool_responses=tuple(part.function_response for _, part in parts if part.function_response),
                intermediate_responses=tuple((author, (part,)) for author, part in parts if part.text),
            )
            known["intermediate_data"] = steps if parts else None
        turn = turn.model_copy(update=known)
        if given is None:
            return turn
        missing: Json = {} if given.user_content.parts else {"user_content": turn.user_content}
        for name in ("final_response", "intermediate_data", "duration", "tool_duration"):
            if getattr(given, name) is None and getattr(turn, name) is not None:
                missing[name] = getattr(turn, name)
        return given.model_copy(update=missing)

    def unfinished(self) -> Invocation | None:
        """End the turn and return what happened so far; ``None``: nothing is known. No text on the way is taken for the answer."""
        self.closed = True
        with self.lock:
            self.events = _not_final(self.events)
        return self.finished() if self.events or self.given else None


def _not_final(events: Iterable[Any]) -> list[Any]:
    """Return the events so that none of ours may be the turn's answer."""
    return [replace(event, final=False) if isinstance(event, TurnEvent) else event for event in events]


def _event_of(given: Mapping[str, Any], author: str) -> TurnEvent:
    """Return an event that came as a dict; its content may be a text."""
    known = _present(given, _EVENT_FIELDS)
    if "content" in known:
        known["content"] = _text("model", known["content"])
    event = parse(InvocationEvent, {"author": author} | known, f"event of {author}")
    of_node = _present(given, _NODE_FIELDS)
    if isinstance(of_node.get("node_info"), Mapping):
        of_node["node_info"] = _present(of_node["node_info"], ("path", "output_for", "message_as_output"))
    return TurnEvent(
        final=event.content is not None and not is_busy(event.content),
        **{name: getattr(event, name) for name in _EVENT_FIELDS},
        **of_node,
    )


def _present(given: Mapping[str, Any], names: Iterable[str]) -> Json:
    """Return the fields that a JSON object has, in either spelling, by their names in Python."""
    found: Json = {}
    for name in names:
        value = given.get(name)
        if value is None:
            value = given.get(to_camel(name))
        if value is not None:
            found[name] = value
    return found
