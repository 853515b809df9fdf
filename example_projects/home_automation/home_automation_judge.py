"""A judge without a model, so that the example runs offline: it compares names and numbers, nothing else.

A real judge reads. This one shows what comes of its verdicts: votes, explanations, and turns that fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mlflow_adk_eval import Request

_FACT = re.compile(r"device_\d+|\d+|\b(?:on|off|already|cannot|no)\b|\b(?:Living Room|Bedroom|Kitchen)\b")
_KNOWN = ("developer_instructions", "tools", "earlier_turns", "user_message", "tool_calls")
"""The blocks that a statement may rest on."""


def names_and_numbers(request: Request) -> dict[str, Any]:
    """Answer by the facts in the material: device names, rooms, numbers, and whether something is on or off."""
    if request.name == "hallucinations_v1":
        known = "\n".join(request.blocks.get(name, "") for name in _KNOWN)
        return {item: _support(text, known) for item, text in request.blocks.items() if item.startswith("item_")}
    return _match(request.blocks)


def _match(blocks: Mapping[str, str]) -> dict[str, str]:
    """Say whether a response has all the facts of the reference."""
    missing = _facts(blocks["reference"]) - _facts(blocks["response"])
    if missing:
        return {"rationale": f"The reference says {_listed(missing)}; the response does not.", "verdict": "invalid"}
    return {"rationale": "The response has every name and number of the reference.", "verdict": "valid"}


def _support(sentence: str, known: str) -> dict[str, str]:
    """Say whether the names and numbers of a sentence occur in what the agent knew."""
    unknown = {fact for fact in _facts(sentence) if fact.casefold() not in known.casefold()}
    label = "unsupported" if unknown else "supported"
    rationale = f"Nothing that the agent knew says {_listed(unknown)}." if unknown else "Every name and number is in what the agent knew."
    return {"rationale": rationale, "supporting_excerpt": "", "contradicting_excerpt": "", "verdict": label}


def _facts(text: str) -> set[str]:
    return set(_FACT.findall(text))


def _listed(facts: set[str]) -> str:
    return ", ".join(sorted(facts))
