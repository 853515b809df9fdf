"""What an agent tells of a turn, piece by piece: texts, events and tool calls, kept as they come and put together as an invocation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from mlflow_adk_eval.agents.adk.events import TurnRecord, turn_invocation, union_s
from mlflow_adk_eval.agents.recordings.recording import invocation_of
from mlflow_adk_eval.errors import EvalSetError, Problem, shown
from mlflow_adk_eval.evalset import Content, FunctionCall, IntermediateData, Invocation, InvocationEvent, Part
from mlflow_adk_eval.evalset.models import Json
from mlflow_adk_eval.evalset.parse import parse

_EVENT = TypeAdapter(InvocationEvent)
_EVENT_KEYS = (
    "author",
    "content",
    "grounding_metadata",
    "groundingMetadata",
    "usage_metadata",
    "usageMetadata",
    "model_version",
    "modelVersion",
)
"""What is read of an event as ADK writes it; the rest, such as ids and state deltas, is the framework's own."""
_WANTED = "a text, an Invocation or a dict of one, an event of ADK, or a generator of those"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent:
    """One thing said or done in a turn, in the shape of ADK's events."""

    author: str
    content: Content | None = None
    final: bool = False
    """Whether it may be the turn's answer; of several, the last one is."""
    kind: Literal["text", "event", "call"] = "event"
    """*event*: as the agent tells of it; *call*: of a tool that was watched, or its answer."""
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


def text_event(author: str, text: str) -> TurnEvent:
    """Return a text that may be the turn's answer."""
    return TurnEvent(author=author, content=Content(role="model", parts=(Part(text=text),)), final=True, kind="text")


@dataclass(slots=True)
class TurnLog:
    """What is known of a turn so far. Pieces may come from several threads."""

    author: str
    """Who speaks where a piece does not say it."""
    user: Content
    record: TurnRecord = field(default_factory=TurnRecord)
    pieces: list[Any] = field(default_factory=list[Any])
    """Each a `TurnEvent` or an event of ADK."""
    given: Invocation | None = None
    """The turn as the agent itself sums it up."""
    closed: bool = False
    """Whether the turn is over, which a thread that was left behind finds out by this."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, piece: Any) -> None:
        """Keep a piece: a text, an event of ADK or one as a dict, or a finished invocation or one as a dict.

        Partial events are not kept: what a model streams comes again as a whole.

        Raises:
            EvalSetError: if it is nothing of the kind.
        """
        match piece:
            case None:
                return
            case str():
                self._append(text_event(self.author, piece))
            case TurnEvent():
                self._append(piece)
            case Mapping() if "author" in piece or "content" in piece:
                if not piece.get("partial"):
                    self._append(_event_of(piece, self.author))
            case Invocation() | Mapping():
                self.given = invocation_of(piece, f"answer of {self.author}", user=self.user)
            case _ if hasattr(piece, "is_final_response") and hasattr(piece, "content"):
                if not getattr(piece, "partial", None):
                    self._append(piece)
            case _:
                raise EvalSetError(f"answer of {self.author}", [Problem("$", shown(piece), _WANTED)])

    def _append(self, piece: Any) -> None:
        with self.lock:
            self.pieces.append(piece)

    def finished(self) -> Invocation:
        """End the turn and return it: as the agent sums it up, completed by its pieces."""
        self.closed = True
        given = self.given
        turn = self._turn(final=given is None or given.final_response is None)
        return turn if given is None else given.model_copy(update=_missing(given, turn))

    def unfinished(self) -> Invocation | None:
        """End the turn and return what happened so far; ``None``: nothing is known. No text on the way is taken for the answer."""
        self.closed = True
        if not self.pieces and self.given is None:
            return None
        turn = self._turn(final=False)
        return turn if self.given is None else self.given.model_copy(update=_missing(self.given, turn))

    def _turn(self, *, final: bool) -> Invocation:
        with self.lock:
            pieces = _not_twice(self.pieces)
        open_pieces = [replace(piece, final=False) if isinstance(piece, TurnEvent) and not final else piece for piece in pieces]
        turn = turn_invocation(open_pieces, self.user, self.record)
        # Of models nothing is known here, and of tools only what went through the session.
        known: Json = {"model_duration": None, "tool_duration": round(union_s(self.record.tool), 3) if self.record.tool else None}
        if all(isinstance(piece, TurnEvent) and piece.kind != "event" for piece in pieces):
            known["intermediate_data"] = _as_written(turn.events)
        return turn.model_copy(update=known)


def _missing(given: Invocation, turn: Invocation) -> Json:
    """Return what the agent left out of its own summary of a turn."""
    found: Json = {} if given.user_content.parts else {"user_content": turn.user_content}
    for name in ("final_response", "intermediate_data", "duration", "tool_duration"):
        if getattr(given, name) is None and getattr(turn, name) is not None:
            found[name] = getattr(turn, name)
    return found


def _not_twice(pieces: Iterable[Any]) -> list[Any]:
    """Return the pieces without the calls that were watched, if the agent tells of its calls itself."""
    kept = list(pieces)
    told = any(not _is_watched(piece) and piece.get_function_calls() for piece in kept)
    return [piece for piece in kept if not _is_watched(piece)] if told else kept


def _is_watched(piece: Any) -> bool:
    return isinstance(piece, TurnEvent) and piece.kind == "call"


def _as_written(events: Iterable[InvocationEvent]) -> IntermediateData | None:
    """Return texts and calls as people write them down; recorded events would claim that no model was called."""
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
    known = {key: given[key] for key in _EVENT_KEYS if key in given}
    content = known.get("content")
    if isinstance(content, str):
        known["content"] = Content(role="model", parts=(Part(text=content),))
    event = parse(_EVENT, {"author": author} | {key: value for key, value in known.items() if value is not None}, f"event of {author}")
    busy = event.content is None or any(part.function_call or part.function_response for part in event.content.parts or ())
    return TurnEvent(
        author=event.author,
        content=event.content,
        final=not busy,
        grounding_metadata=event.grounding_metadata,
        usage_metadata=event.usage_metadata,
        model_version=event.model_version,
    )
