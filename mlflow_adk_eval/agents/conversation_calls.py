"""The tool calls that a conversation tells of, as a recording would have them: for replaying a run that nobody recorded.

Its turns say what was called and answered, and its changes what that did to the session. What the tool environment answered says nothing about a
tool, and is left out. A call that a user had to confirm is made again in a
later turn, which then has an answer of a call in an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.evalset.conversation import IN_THE_TOOLS_PLACE, CallChange, Conversation, RecordedCall, by_call
from mlflow_adk_eval.evalset.models import FunctionCall, FunctionResponse, Invocation, Json


def with_calls(run: Conversation) -> Conversation:
    """Return a conversation with the calls that its turns tell of."""
    reader = _Reader(list(run.changes))
    calls: list[RecordedCall] = []
    for turn, invocation in enumerate(run.actual):
        made = invocation.tool_calls
        injected = by_call(run.injections, turn, [call.name or "" for call in made])
        inner = run.inner_calls
        seen = _Seen(
            turn=turn,
            spared={id(call) for call, found in zip(made, injected, strict=True) if found and found.kind in IN_THE_TOOLS_PLACE},
            no_inner_calls=inner is not None and not any(call.turn == turn for call in inner),
        )
        calls += reader.calls(invocation, seen)
    return Conversation(actual=(), calls=tuple(calls), model_calls=run.model_calls, listings=run.listings)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is known of a turn besides its events."""

    turn: int
    spared: set[int]
    """The calls that no tool answered."""
    no_inner_calls: bool
    """Whether it is known that no agent called anything within a tool. Which call others were within is not known."""


@dataclass(slots=True)
class _Reader:
    """Reads the calls of a conversation, turn by turn."""

    changes: list[CallChange]
    """What calls did to the session; each is taken once."""
    known: dict[str, FunctionCall] = field(default_factory=dict[str, FunctionCall])
    """The calls of the turns so far, by id."""

    def calls(self, invocation: Invocation, seen: _Seen) -> Iterator[RecordedCall]:
        """Yield the calls of a turn."""
        answered = invocation.answered_calls()
        yield from self._made_again(invocation, seen, [answer for _, answer in answered if answer is not None])
        for call, answer in answered:
            if call.id:
                self.known[call.id] = call
            change = self._take(seen.turn, call)
            if id(call) not in seen.spared and (answer is not None or change is not None):
                yield _recorded(call, answer, change, seen)

    def _made_again(self, invocation: Invocation, seen: _Seen, answers: Sequence[FunctionResponse]) -> Iterator[RecordedCall]:
        """Yield the calls of earlier turns that are answered in this one: the framework makes them again when the user has confirmed them."""
        here = {id(answer) for answer in answers}
        for answer in invocation.tool_responses:
            call = self.known.get(answer.id or "")
            if id(answer) not in here and call is not None:
                yield _recorded(call, answer, self._take(seen.turn, call), seen)

    def _take(self, turn: int, call: FunctionCall) -> CallChange | None:
        """Return what a call did; ``None`` if that was not seen."""
        for place, change in enumerate(self.changes):
            if (change.turn, change.call_id, change.tool) == (turn, call.id, call.name):
                return self.changes.pop(place)
        return None


def _recorded(call: FunctionCall, answer: FunctionResponse | None, change: CallChange | None, seen: _Seen) -> RecordedCall:
    known: Json = {"turn": seen.turn, "tool": call.name or "", "args": call.args or {}}
    unknown: list[str] = []
    if change is None or change.lost:
        unknown.append("state")
    if not seen.no_inner_calls:
        unknown.append("inner_calls")
    known["unknown"] = tuple(unknown)
    if change is not None:
        names = ("actions", "state_in_place", "artifacts", "error", "duration_s")
        known |= {name: getattr(change, name) for name in names if name in change.model_fields_set}
    if "error" not in known:
        known["answer"] = _returned(answer.response) if answer is not None else None
    return RecordedCall(**known)


def _returned(response: Json | None) -> Any:
    """Return what a tool returned, of which an object was made if it was none."""
    return response["result"] if response is not None and response.keys() == {"result"} else response
