"""Errors of models that nobody raises, and whether the agent got over them.

A model that is blocked, or that calls a tool in a way nobody can read, answers with an error code. ADK reports that as an event like any
other, and the run goes on: an earlier agent's text, or none, looks like the answer. So a turn with such an error is one in which the agent
failed, just as if the model had raised, unless the same agent went on afterwards, as in a loop or after a retry.

`failed_turn` decides that, for turns that take place now and for those that were recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_adk_eval.evalset.models import Invocation, InvocationEvent

_CUT = "MAX_TOKENS"
"""The code of a text that ends where the model may say no more. It is an answer, though not all of it."""


def unrecovered(turn: Invocation) -> str:
    """Return the error of a model after which its agent did not go on in this turn; empty where there is none.

    >>> said = {"user_content": {"parts": [{"text": "hi"}]}}
    >>> events = [{"author": "a", "error_code": "SAFETY"}, {"author": "b", "content": {"parts": [{"text": "hello"}]}}]
    >>> unrecovered(Invocation.model_validate(said | {"intermediate_data": {"invocation_events": events}}))
    'SAFETY'
    """
    for event in turn.events:
        if event.error_code or event.error_message:
            break
    else:
        return ""  # as in most turns, each of which is looked at
    waiting: dict[str, str] = {}
    """The errors of agents that have not gone on since."""
    for event in turn.events:
        if event.error and not _is_cut(event, turn):
            waiting[event.author] = event.error
        elif event.error or _goes_on(event, turn):
            waiting.pop(event.author, None)
    return next(iter(waiting.values()), "")


def told_errors(turn: Invocation) -> list[str]:
    """Return all errors of models in a turn, with what came of those that did not end it."""
    left = unrecovered(turn)
    told: list[str] = []
    for event in turn.events:
        if not event.error:
            continue
        if _is_cut(event, turn):
            told.append(f"{event.error} (the text is cut)")
        elif left:
            told.append(event.error)
        else:
            told.append(f"{event.error} (the agent went on)")
    return told


def failed_turn(turns: Sequence[Invocation]) -> tuple[int, str] | None:
    """Return the first turn, counted from 0, in which a model's error had the last word, and the error; ``None``: no turn."""
    for index, turn in enumerate(turns):
        error = unrecovered(turn)
        if error:
            return index, error
    return None


def _is_cut(event: InvocationEvent, turn: Invocation) -> bool:
    """Whether an event has text that is only cut."""
    if event.error_code != _CUT:
        return False
    if event.content and event.content.text:
        return True
    return bool(turn.final_text) and _has_answer(event, turn)


def _has_answer(event: InvocationEvent, turn: Invocation) -> bool:
    """Whether the turn's answer came with an error; where nobody says so, no other event may be the one that it came with."""
    if event.with_answer is not None:
        return event.with_answer
    others = [other for other in turn.events if other is not event and not other.error]
    return not any(other.content is None for other in others)


def _goes_on(event: InvocationEvent, turn: Invocation) -> bool:
    """Whether an event without an error shows that its agent's model said or did something."""
    if event.content is None:  # a call of a model, or the answer, whose text is the turn's
        return turn.final_response is None or turn.answered
    made = [part for part in event.content.parts or () if part.says_something]
    return any(part.function_response is None for part in made)
