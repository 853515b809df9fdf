"""What was observed of a conversation, turn by turn, and what nobody can know of it.

Whoever had a conversation saw some of it and not the rest: google-adk reports each call of a tool, a text that came from a chat
server does not. So each kind of `Observation` is *seen* in a turn, known to be *none*, or *unknown*; and unknown never counts as none.

The source of a conversation says what it could not see, as `Unknown` entries of `Conversation.unknown`. What the turn itself
shows, such as a duration that was not recorded, `unseen` adds. A criterion names what it needs (`CriterionSpec.needs`), of the case
and of the conversation in the same words; where a need is unknown it has no score (`criteria.criterion.result_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, get_args

from mlflow_adk_eval.evalset.models import OPEN_CALLS, EvalCase, IntermediateData, Invocation, InvocationEvents, Model

Expectation = Literal["reference", "expected_response", "expected_calls", "expected_state", "scenario", "rubrics", "baseline"]
"""What a case says beforehand.

``reference``: a written conversation. ``expected_response``, ``expected_calls``: what that conversation says or calls, which a row
of a table may leave out. ``expected_state``: the session's state at the end. ``scenario``: the plan of a simulated user.
``rubrics``: at least one rubric of the criterion's type. ``baseline``: what another agent did in the same case.
"""

Observation = Literal[
    "answer",
    "media",
    "calls",
    "call_results",
    "documents",
    "inner_calls",
    "state",
    "usage",
    "model_calls",
    "model_errors",
    "timing",
]
"""What can be seen of a turn.

``answer``: what the user got as the answer, thoughts apart. ``media``: images, audio and other files. ``calls``: the tools that the
agent called. ``call_results``: what they returned. ``documents``: what was retrieved for the model without a tool call.
``inner_calls``: the calls of agents that are tools. ``state``: the session's state at the end. ``usage``: tokens.
``model_calls``: how many requests models got. ``model_errors``: answers that a model did not give. ``timing``: seconds.
"""

Need = Expectation | Observation
"""What a criterion cannot judge without."""

EXPECTATIONS: tuple[Expectation, ...] = get_args(Expectation)
OBSERVATIONS: tuple[Observation, ...] = get_args(Observation)
Sight = Literal["seen", "none", "unknown"]

NAMES: Mapping[Need, str] = {
    "reference": "the reference conversation",
    "expected_response": "the expected response",
    "expected_calls": "the expected tool calls",
    "expected_state": "the expected session state",
    "scenario": "the scenario",
    "rubrics": "the rubrics",
    "baseline": "the baseline",
    "answer": "the answer",
    "media": "the media",
    "calls": "the tool calls",
    "call_results": "the results of the tool calls",
    "documents": "the retrieved documents",
    "inner_calls": "the tool calls of agents that are tools",
    "state": "the session's final state",
    "usage": "the token usage",
    "model_calls": "the number of model calls",
    "model_errors": "the errors of models",
    "timing": "the duration",
}
"""How sentences call each of them."""

_PLURAL = frozenset({"expected_calls", "rubrics", "media", "calls", "call_results", "documents", "inner_calls", "model_errors"})


ATTRIBUTE = "adk_eval.unknown"
"""The attribute by which spans of this package say what is unknown of a turn."""


class Unknown(Model, extra="forbid"):
    """One thing that the source of a conversation does not know."""

    what: Need
    why: str
    """What the source does not say, as a clause: ``a chat span does not say it``."""
    turn: int | None = None
    """The turn, counted from 0; ``None``: all of them."""

    def __str__(self) -> str:
        """Return it as a sentence: ``the tool calls are unknown: a chat span does not say it``."""
        return f"{NAMES[self.what]} {'are' if self.what in _PLURAL else 'is'} unknown: {self.why}"


def unwritten(case: EvalCase) -> tuple[Unknown, ...]:
    """Return what nobody has written of a case yet, which is not the same as expecting none."""
    if OPEN_CALLS not in case.tags:
        return ()
    why = f"nobody has written them; write them, and remove the tag {OPEN_CALLS!r} of the case"
    return (Unknown(what="expected_calls", why=why),)


class Observed(Protocol):
    """Anything that has a conversation's turns, and what is known of it besides."""

    @property
    def actual(self) -> Sequence[Invocation]:
        """The agent's turns."""
        ...

    @property
    def session_state(self) -> Mapping[str, Any] | None:
        """The state after the last turn."""
        ...

    @property
    def inner_calls(self) -> Sequence[Any] | None:
        """The calls of agents that are tools."""
        ...

    @property
    def unknown(self) -> Sequence[Unknown]:
        """What the source does not know."""
        ...


def unseen(conversation: Observed, turn: int, needs: Iterable[Need]) -> str:
    """Return why what is needed of a turn is unknown, as a sentence or several; empty where all is known.

    Args:
        conversation: the conversation.
        turn: the turn, counted from 0.
        needs: what is needed.

    >>> from types import SimpleNamespace
    >>> silent = Unknown(what="calls", why="a text does not say it")
    >>> known = SimpleNamespace(actual=[], session_state=None, inner_calls=None, unknown=(silent,))
    >>> unseen(known, 0, ["answer", "calls"])
    'the tool calls are unknown: a text does not say it'
    """
    reasons: dict[str, None] = {}
    for need in needs:
        why = reason(conversation, turn, need)
        if why:
            reasons[why] = None
    return "; ".join(reasons)


def reason(conversation: Observed, turn: int, need: Need) -> str:
    """Return why one thing is unknown of a turn, as a sentence; empty where it is known."""
    if conversation.unknown:
        wanted = (need, _OF.get(need))
        for entry in conversation.unknown:
            if entry.what in wanted and entry.turn in (None, turn):
                return str(entry)
    of_turn = _OF_TURNS.get(need)
    if of_turn is not None:
        return of_turn(conversation.actual[turn]) if turn < len(conversation.actual) else ""
    of_conversation = _OF_CONVERSATIONS.get(need)
    return of_conversation(conversation, turn) if of_conversation is not None else ""


def observed(conversation: Observed, turn: int) -> Mapping[Observation, Sight]:
    """Return for each observation whether it was seen in a turn, known to be none, or unknown.

    Args:
        conversation: the conversation.
        turn: one of its turns, counted from 0.
    """
    invocation = conversation.actual[turn]
    found: dict[Observation, bool] = {
        "answer": invocation.answered,
        "media": any(part.media_types for content in invocation.contents for part in content.parts or ()),
        "calls": bool(invocation.tool_calls),
        "call_results": bool(invocation.tool_responses),
        "documents": any(event.grounding_metadata for event in invocation.events),
        "inner_calls": any(call.turn == turn for call in conversation.inner_calls or ()),
        "state": bool(conversation.session_state),
        "usage": any(event.usage_metadata for event in invocation.events),
        "model_calls": bool(invocation.model_calls),
        "model_errors": bool(invocation.errors),
        "timing": invocation.duration is not None,
    }
    sights: dict[Observation, Sight] = {}
    for what, is_there in found.items():
        if reason(conversation, turn, what):
            sights[what] = "unknown"
        else:
            sights[what] = "seen" if is_there else "none"
    return sights


SILENT = "silent"
"""How `blind_spots` calls a turn in which the agent did nothing."""


def blind_spots(conversation: Observed, turn: int, case: EvalCase | None = None) -> list[str]:
    """Return the names of all that is unknown of a turn, and ``silent`` where the agent did nothing in it.

    Args:
        conversation: the conversation.
        turn: the turn, counted from 0.
        case: what may not say what it expects; ``None``: it says it.

    >>> from types import SimpleNamespace
    >>> said = Invocation.model_validate({"user_content": {}, "final_response": {"parts": [{"text": "hello"}]}, "duration": 1})
    >>> blind_spots(SimpleNamespace(actual=[said], session_state={}, inner_calls=None, unknown=()), 0)
    ['documents', 'usage', 'model_calls', 'model_errors']
    """
    open_needs = {entry.what for entry in unwritten(case)} if case else set[Need]()
    suspects = NAMES if conversation.unknown else SHOWN_BY_ITSELF
    names: list[str] = []
    for need in NAMES:  # in their order
        if need in open_needs or (need in suspects and reason(conversation, turn, need)):
            names.append(need)
    if turn < len(conversation.actual) and is_void(conversation.actual[turn]):
        names.append(SILENT)
    return names


def is_void(invocation: Invocation) -> bool:
    """Whether nothing came of a turn that anybody could notice: no text but thoughts, no media and no call.

    An agent that made no call because it did nothing did not decide against a call.
    """
    if invocation.answered:
        return False
    data = invocation.intermediate_data
    if isinstance(data, IntermediateData):
        return not (data.tool_uses or data.tool_responses or data.intermediate_responses)
    return not any(event.content and event.content.says_something for event in invocation.events)


def _call_results(invocation: Invocation) -> str:
    data = invocation.intermediate_data
    if isinstance(data, IntermediateData) and data.tool_uses and not data.tool_responses:
        return "the recording has calls without what they returned"
    return ""


def _documents(invocation: Invocation) -> str:
    return "" if isinstance(invocation.intermediate_data, InvocationEvents) else "no events were recorded"


def _usage(invocation: Invocation) -> str:
    return "" if any(event.usage_metadata for event in invocation.events) else "no token usage was recorded"


def _model_calls(invocation: Invocation) -> str:
    return "no model call was recorded" if invocation.model_calls is None else ""


def _model_errors(invocation: Invocation) -> str:
    return "" if isinstance(invocation.intermediate_data, InvocationEvents) else "no events were recorded"


def _timing(invocation: Invocation) -> str:
    return "no duration was recorded" if invocation.duration is None else ""


def _inner_calls(conversation: Observed, turn: int) -> str:
    if turn < len(conversation.actual) and not conversation.actual[turn].tool_calls:
        return ""  # without a call, no agent was called as a tool
    hidden = unseen_inner_calls(conversation.inner_calls, turn)
    return f"include_inner_calls: {hidden}" if hidden else ""


def unseen_inner_calls(inner: Sequence[Any] | None, turn: int) -> str:
    """Return whose calls are not known in a turn, as a clause; empty where those of all agents that are tools are.

    Args:
        inner: the known calls of agents that are tools; ``None``: not known.
        turn: the turn, counted from 0.
    """
    whose = "AgentTools" if inner is None else next((call.tool for call in inner if call.turn == turn and call.unseen), "")
    if not whose:
        return ""
    return f"the calls of {whose} are not known; they are kept where this package runs an agent of ADK, and plugins see what they call"


def _state(conversation: Observed, _: int) -> str:
    return "the session's final state is unknown" if conversation.session_state is None else ""


_OF: Mapping[Need, Need] = {"call_results": "calls", "inner_calls": "calls"}
"""What cannot be known where something else is not."""
_OF_TURNS: Mapping[Need, Callable[[Invocation], str]] = {
    "call_results": _call_results,
    "documents": _documents,
    "usage": _usage,
    "model_calls": _model_calls,
    "model_errors": _model_errors,
    "timing": _timing,
}
_OF_CONVERSATIONS: Mapping[Need, Callable[[Observed, int], str]] = {"inner_calls": _inner_calls, "state": _state}
"""What shows by itself that something is unknown."""
SHOWN_BY_ITSELF = frozenset(_OF_TURNS) | frozenset(_OF_CONVERSATIONS)
"""The needs that may be unknown although the source does not say so."""
