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
    changes = _Changes(list(run.changes))
    told = _Told(changes)
    calls: list[RecordedCall] = []
    for turn, invocation in enumerate(run.actual):
        injected = by_call(run.injections, turn, [call.name or "" for call in invocation.tool_calls])
        spared = {
            id(call) for call, found in zip(invocation.tool_calls, injected, strict=True) if found and found.kind in IN_THE_TOOLS_PLACE
        }
        calls += told.calls(turn, invocation, spared)
    return Conversation(actual=(), calls=tuple(calls), model_calls=run.model_calls, listings=run.listings)


@dataclass(slots=True)
class _Changes:
    """What calls did to the session; each is taken once."""

    left: list[CallChange]

    def take(self, turn: int, call: FunctionCall) -> CallChange | None:
        """Return what a call did; ``None`` if that was not seen."""
        for place, change in enumerate(self.left):
            if (change.turn, change.call_id, change.tool) == (turn, call.id, call.name):
                return self.left.pop(place)
        return None


@dataclass(slots=True)
class _Told:
    """The calls of a conversation, turn by turn."""

    changes: _Changes
    known: dict[str, FunctionCall] = field(default_factory=dict[str, FunctionCall])
    """The calls of the turns so far, by id."""

    def calls(self, turn: int, invocation: Invocation, spared: set[int]) -> Iterator[RecordedCall]:
        """Yield the calls of a turn, except for those that are `spared`."""
        answered = invocation.answered_calls()
        yield from self._made_again(turn, invocation, [answer for _, answer in answered if answer is not None])
        for call, answer in answered:
            if call.id:
                self.known[call.id] = call
            change = self.changes.take(turn, call)
            if id(call) not in spared and (answer is not None or change is not None):
                yield _recorded(turn, call, answer, change)

    def _made_again(self, turn: int, invocation: Invocation, answers: Sequence[FunctionResponse]) -> Iterator[RecordedCall]:
        """Yield the calls of earlier turns that are answered in this one: the framework makes them again when the user has confirmed them."""
        here = {id(answer) for answer in answers}
        for answer in invocation.tool_responses:
            call = self.known.get(answer.id or "")
            if id(answer) not in here and call is not None:
                yield _recorded(turn, call, answer, self.changes.take(turn, call))


def _recorded(turn: int, call: FunctionCall, answer: FunctionResponse | None, change: CallChange | None) -> RecordedCall:
    known: Json = {"turn": turn, "tool": call.name or "", "args": call.args or {}, "changes_known": change is not None and not change.lost}
    if change is not None:
        known |= {name: getattr(change, name) for name in ("actions", "state_in_place", "artifacts", "error") if getattr(change, name)}
    if "error" not in known:
        known["answer"] = _returned(answer.response) if answer is not None else None
    return RecordedCall(**known)


def _returned(response: Json | None) -> Any:
    """Return what a tool returned, of which an object was made if it was none."""
    return response["result"] if response is not None and response.keys() == {"result"} else response
