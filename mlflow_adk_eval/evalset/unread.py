"""Unknown keys that cannot just be kept: what somebody expects, written where nothing would read it.

Files come from other versions of ADK, so unknown keys are kept. But an expectation that nothing reads is worse than
none: its author believes that it is checked. `place_of` says of an unknown key whether it is one, by its name, and
where it belongs. The names are a closed list, documented in ``docs/reference/files.md``:

- The key begins with one of `_BEGINNINGS`, its first word is one of `_FIRST_WORDS`, or a word of it is one of `_ANYWHERE`.
- It is a field of another level, such as ``final_response`` of a case, or another framework's name for a field of this
  level, such as ``arguments`` of a tool call: `_ELSEWHERE`.

Spelling does not matter: ``expected_tool_use``, ``expectedToolUse`` and ``Expected-Tool-Use`` are the same. A key that
begins with ``_`` or ``$`` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

Level = Literal[
    "set",
    "case",
    "session",
    "scenario",
    "turn",
    "steps",
    "event",
    "message",
    "part",
    "call",
    "old",
    "old case",
    "other",
]
"""What kind of object a key stands in; ``old`` is a turn of a legacy file."""

_BEGINNINGS = ("expect", "reference", "golden", "ideal", "groundtruth", "assert")
_FIRST_WORDS = frozenset({"correct", "desired", "gold", "must", "should", "target", "targets", "truth"})
_ANYWHERE = frozenset({"expected", "expectation", "expectations", "golden"})

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")

_TOOLS = "intermediate_data.tool_uses"
_RESPONSE = "final_response"
_INTERMEDIATE = "intermediate_data.intermediate_responses"
_STATE = "final_session_state"
_RUBRICS = "rubrics"
_USER = "user_content"

_BY_WORD: tuple[tuple[str, str], ...] = (
    ("intermediate", _INTERMEDIATE),
    ("rubric", _RUBRICS),
    ("state", _STATE),
    ("tool", _TOOLS),
    ("trajector", _TOOLS),
    ("call", _TOOLS),
    ("function", _TOOLS),
    ("keyword", _RUBRICS),
    ("fact", _RUBRICS),
    ("assert", _RUBRICS),
    ("contain", _RUBRICS),
    ("include", _RUBRICS),
)
"""What a word in an expectation's name says of its place; an expectation without such a word is an answer."""

_OF_A_TURN: Mapping[str, str] = {
    "finalresponse": _RESPONSE,
    "finalanswer": _RESPONSE,
    "intermediatedata": "intermediate_data",
    "intermediateresponses": _INTERMEDIATE,
    "invocationevents": "intermediate_data.invocation_events",
    "toolresponses": "intermediate_data.tool_responses",
    "tooluse": _TOOLS,
    "tooluses": _TOOLS,
    "toolcalls": _TOOLS,
    "usercontent": _USER,
    "query": _USER,
}
"""Fields of a turn and of what is in it, by the letters of their names."""
_OF_A_CASE: Mapping[str, str] = {
    "conversation": "conversation",
    "conversationscenario": "conversation_scenario",
    "finalsessionstate": _STATE,
    "finalstate": _STATE,
    "initialsession": "session_input",
    "rubrics": _RUBRICS,
    "sessioninput": "session_input",
}
_CALL_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("function", "functionname", "tool", "toolname"), "name"),
    **dict.fromkeys(("arguments", "input", "kwargs", "parameters", "params"), "args"),
    **dict.fromkeys(("toolargs", "toolarguments", "toolinput", "toolparameters"), "args"),
}
_OLD_NAMES: Mapping[str, str] = {
    _RESPONSE: "reference",
    _TOOLS: "expected_tool_use",
    _INTERMEDIATE: "expected_intermediate_agent_responses",
    _USER: "query",
}
"""What legacy files call the fields of a turn."""
_ELSEWHERE: Mapping[Level, Mapping[str, str]] = {
    "set": {**_OF_A_TURN, **_OF_A_CASE},
    "case": {**_OF_A_TURN, **_OF_A_CASE, "answer": _RESPONSE},
    "session": {"initialstate": "state", "finalsessionstate": _STATE},
    "scenario": {**_OF_A_TURN, **_OF_A_CASE},
    "turn": {
        **_OF_A_TURN,
        **_OF_A_CASE,
        "answer": _RESPONSE,
        "output": _RESPONSE,
        "response": _RESPONSE,
        "tools": _TOOLS,
        "trajectory": _TOOLS,
    },
    "steps": {
        **_OF_A_TURN,
        **_OF_A_CASE,
        "calls": _TOOLS,
        "events": "intermediate_data.invocation_events",
        "tools": _TOOLS,
        "trajectory": _TOOLS,
    },
    "event": {
        **_OF_A_TURN,
        **_OF_A_CASE,
        "functioncall": "content.parts[].function_call",
        "parts": "content.parts",
        "text": "content.parts[].text",
    },
    "message": {"text": "parts[].text", "content": "parts[].text"},
    "part": {},
    "call": _CALL_NAMES,
    "old": {**_OF_A_TURN, **_OF_A_CASE, "answer": _RESPONSE, "response": _RESPONSE},
    "old case": {**_OF_A_TURN, **_OF_A_CASE},
    "other": {},
}
"""By level, the keys that belong elsewhere, by their letters in lower case, and where that is."""
OTHERS = "mlflow_expectations"
"""The field of a case that keeps what a record of a dataset expects and ADK has no word for, such as MLflow's ``guidelines``; a push reads it."""


@lru_cache(maxsize=1024)  # the same few keys are unknown in every case of a file
def place_of(key: str, level: Level, *, simulated: bool = False) -> str:
    """Return where an unknown key belongs, as the end of "Did you mean …?"; empty where it may just be kept.

    Args:
        key: the key.
        level: what it stands in.
        simulated: whether it stands in a case with a scenario, whose turns are not known in advance.

    >>> place_of("expectedToolUse", "turn"), place_of("reference", "case")
    ("'intermediate_data.tool_uses'", "'conversation[].final_response'")
    >>> place_of("note", "turn")
    ''
    """
    place = meaning_of(key, level)
    return _from(level, place, simulated=simulated) if place else ""


def meaning_of(key: str, level: Level) -> str:
    """Return the place of what an unknown key says: a path within a turn, or a field of the case; empty where it may just be kept."""
    if key.startswith(("_", "$")) or (key == OTHERS and level == "case"):
        return ""
    words = [word.casefold() for word in _WORD.findall(key)]
    letters = "".join(words)
    elsewhere = _ELSEWHERE[level].get(letters)
    if elsewhere is None and not _is_expectation(words, letters):
        return ""
    return elsewhere or next((place for word, place in _BY_WORD if word in letters), _RESPONSE)


def _is_expectation(words: list[str], letters: str) -> bool:
    if letters.startswith(_BEGINNINGS) or not _ANYWHERE.isdisjoint(words):
        return True
    return bool(words) and words[0] in _FIRST_WORDS


def _from(level: Level, place: str, *, simulated: bool) -> str:
    """Return a place as somebody would write it who stands at a level."""
    of_case = place in _OF_A_CASE.values()
    if simulated and not of_case:
        return "'rubrics' or 'final_session_state' of the case, since a scenario's turns are not known in advance"
    if level in ("old", "old case"):
        old_name = _OLD_NAMES.get(place)
        within = "data[]." if level == "old case" else ""
        return repr(f"{within}{old_name}") if old_name else f"{place!r} of the current format, which `migrate` writes"
    if level == "set":
        return repr(f"eval_cases[].{place}" if of_case else f"eval_cases[].conversation[].{place}")
    if level == "case":
        return repr(place if of_case else f"conversation[].{place}")
    return _within_case(level, place, of_case=of_case)


def _within_case(level: Level, place: str, *, of_case: bool) -> str:
    if place.startswith(_NEAR.get(level, ())):
        return repr(place.removeprefix("intermediate_data."))
    if of_case and (place != _RUBRICS or level in ("session", "scenario")):
        return f"{place!r} of the case"
    if level == "turn":
        return repr(place)
    return f"{place!r} of the turn"


_NEAR: Mapping[Level, tuple[str, ...]] = {
    "session": ("state",),
    "steps": ("intermediate_data.",),
    "event": ("content",),
    "message": ("parts",),
    "call": ("args", "name"),
}
"""How the places begin that are in the object itself."""
