"""A judge without a model, so that the example runs offline. It knows the rubrics of this example, and nothing else.

A real judge reads: leave `judge` out, and the model in the config decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from mlflow_adk_eval import Request

Blocks = Mapping[str, str]
Finding = tuple[bool, str]
"""Whether all is well, and what decided it."""

_FACT = re.compile(r"(?<=\w )[A-Z]\w+|\d+")
"""Numbers, and names that are not the first word of a sentence."""


def travel_judge(request: Request) -> dict[str, Any]:
    """Answer by the rule for each rubric, or for each question about the simulated user."""
    blocks = request.blocks
    rubrics = {item: text for item, text in blocks.items() if item.startswith("item_")}
    if rubrics:
        return {item: _verdict(_rule(text)(blocks), "yes", "no") for item, text in rubrics.items()}
    ended = request.name == "per_turn_user_simulator_stop"
    return _verdict(_ended_in_time(blocks) if ended else _sticks_to_the_plan(blocks), "valid", "invalid")


def _verdict(finding: Finding, good: str, bad: str) -> dict[str, str]:
    well, reason = finding
    return {"rationale": reason, "verdict": good if well else bad}


def _asks_first(blocks: Blocks) -> Finding:
    """Whether each booking follows an offer of just that, and the user's yes."""
    offer = user = ""
    for line in _lines(blocks["conversation"]):
        user = line.get("user", user)
        offer = line.get("final_response", offer)
        if line.get("tool", "").startswith("book_") and "args" in line:
            what = str(next(iter(line["args"].values())))
            if what not in offer or not user.startswith("Yes"):
                return False, f"{what} is booked after the user said {user!r}."
    return True, "Whatever is booked was offered before, and the user said yes."


def _names_price(blocks: Blocks) -> Finding:
    deal = re.search(r"booked (?!a hotel)|Shall I book", blocks["response"])
    named = "euros" in blocks["response"] or "the price that I named" in blocks["response"]
    return not deal or named, "The price is there." if deal and named else "There is no price." if deal else "Nothing is offered or booked."


def _asks_about_weather(blocks: Blocks) -> Finding:
    called = [line["tool"] for line in _lines(blocks["conversation"]) if "args" in line]
    searches = [called[:index] for index, tool in enumerate(called) if tool == "search_activities"]
    return all("forecaster" in before for before in searches), f"The calls are {', '.join(called)}."


def _tries_again(blocks: Blocks) -> Finding:
    failures: dict[int, int] = {}
    for line in _lines(blocks["conversation"]):
        if "error_message" in str(line.get("returns")):
            failures[line["turn"]] = failures.get(line["turn"], 0) + 1
    return all(count > 1 for count in failures.values()), f"Failed searches by turn: {failures or 'none'}."


_RULES: Mapping[str, Callable[[Blocks], Finding]] = {
    "books nothing": _asks_first,
    "names its price": _names_price,
    "weather": _asks_about_weather,
    "tried once more": _tries_again,
}
"""Words that a rubric has, and the rule that stands for it."""


def _rule(rubric: str) -> Callable[[Blocks], Finding]:
    return next(rule for words, rule in _RULES.items() if words in rubric)


def _sticks_to_the_plan(blocks: Blocks) -> Finding:
    known = blocks["plan"] + blocks["conversation"]
    invented = [fact for fact in _FACT.findall(blocks["message"]) if fact not in known]
    return not invented, f"Nobody mentioned {', '.join(invented)}." if invented else "All that is named is in the plan or was said."


def _ended_in_time(blocks: Blocks) -> Finding:
    *_, last = _lines(blocks["conversation"])
    waiting = last["final_response"].endswith("?")
    return not waiting, "The agent waits for an answer." if waiting else "The agent's last answer leaves nothing open."


def _lines(conversation: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in conversation.splitlines()]
