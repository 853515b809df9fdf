"""Why a criterion came to another result: which call, argument, sentence or rubric is not what it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from mlflow_adk_eval.redact import cut

Kind = Literal["call", "argument", "response", "item", "state", "same", "error", "threshold", "reason"]
"""What changed: a call of a tool, an argument of one, the response, a rubric or sentence, the session's state; nothing that the agent
did (*same*); that there is a score at all (*error*); the threshold; or something that only the criterion's own *reason* tells."""

_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is not the same in both runs. What is not known is empty."""

    kind: Kind
    turn: int | None = None
    """The index of the turn; ``None``: the case as a whole."""
    subject: str = ""
    """The tool, or the rubric or sentence."""
    path: str = ""
    """Where in the arguments or in the state, as a JSON path."""
    before: str = ""
    after: str = ""
    wanted: str = ""
    """What the reference has."""
    said: str = ""
    """What the judge said in the second run, or, where only the first has a verdict, in that."""

    @property
    def sentence(self) -> str:
        """The cause in words."""
        return _TELLERS[self.kind](self)


def shortened(text: str) -> str:
    """Return a text on one line, not too long to stand in a sentence."""
    return cut(" ".join(text.split()), _LONGEST)


def _call(cause: Cause) -> str:
    if cause.before and cause.after:
        return f"{cause.after} comes in another place than before"
    return f"{cause.after} is called, which it was not before" if cause.after else f"{cause.before} is no longer called"


def _told_call(cause: Cause) -> str:
    expected = {"yes": " (the reference has this call)", "no": " (the reference has no such call)"}
    return _call(cause) + expected.get(cause.wanted, "")


def _told_argument(cause: Cause) -> str:
    wanted = f" (expected {cause.wanted})" if cause.wanted else ""
    return f"{cause.subject} is called with {cause.path} = {cause.after}, before it was {cause.before}{wanted}"


def _told_response(cause: Cause) -> str:
    if cause.before and cause.after:
        return f"the response says “{cause.after}” instead of “{cause.before}”"
    return f"the response also says “{cause.after}”" if cause.after else f"the response no longer says “{cause.before}”"


def _told_item(cause: Cause) -> str:
    about = f"{cause.subject}: " if cause.subject else ""
    said = f": {cause.said}" if cause.said else ""
    if not cause.after:
        return f"{about}no longer judged, was {cause.before}{said}"
    was = f", was {cause.before}" if cause.before else ""
    return f"{about}judged {cause.after}{was}{said}"


def _told_state(cause: Cause) -> str:
    return f"the session ends with {cause.path} = {cause.after}, before it was {cause.before} (expected {cause.wanted})"


def _told_error(cause: Cause) -> str:
    if cause.after:
        return f"not evaluated: {cause.after}"
    return f"evaluated again; before it was not: {cause.before}"


def _told_threshold(cause: Cause) -> str:
    if not cause.before:
        return f"the criterion is new, with the threshold {cause.after}"
    return f"the threshold is {cause.after}, was {cause.before}" if cause.after else "the criterion is no part of the second run"


def _told_same(cause: Cause) -> str:
    return f"on this turn the agent said and called the same in both runs; what changed is {cause.subject}"


def _told_reason(cause: Cause) -> str:
    return (cause.after or "no reason was given") + (f" (before: {cause.before})" if cause.before else "")


_TELLERS: Mapping[Kind, Callable[[Cause], str]] = {
    "call": _told_call,
    "argument": _told_argument,
    "response": _told_response,
    "item": _told_item,
    "state": _told_state,
    "same": _told_same,
    "error": _told_error,
    "threshold": _told_threshold,
    "reason": _told_reason,
}
