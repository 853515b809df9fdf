"""Simulated users without a model, so that the example runs offline: they follow the plan of a scenario by a few rules.

A real simulated user is a model: leave `user_simulator` out, and the one in ``user_simulator_config`` plays it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_adk_eval import ConversationScenario, Invocation

_GOAL = re.compile(r"^\d+\. ([^:\n]+?)(?:: (.+))?\.$", re.MULTILINE)
_REACHED = re.compile(r"^I have booked|^Your itinerary")
_FAILED = re.compile(r"does not answer|There is no|cannot")
_OFFER = "Shall I book it?"
_ASKED = {"from": r"from\?", "to": r"to\?", "on": r"day\?", "in": r"city\?", "for": r"nights\?"}
"""How a detail begins, and how the agent asks for it."""


@dataclass(frozen=True)
class Goal:
    """One thing that a user wants."""

    wish: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Character:
    """How a user behaves."""

    terse: bool = False
    """Whether details have to be asked for."""
    haggles: bool = False
    """Whether each offer is first met with the question for a cheaper one."""
    patience: int = 0
    """How many failures are put up with."""


CHARACTERS = {
    "EXPERT": Character(patience=1),
    "NOVICE": Character(terse=True),
    "EVALUATOR": Character(),
    "BARGAIN_HUNTER": Character(haggles=True),
}


def traveller(scenario: ConversationScenario, turns: Sequence[Invocation]) -> str | None:
    """Return what the user says next; ``None`` to leave."""
    character, goals = character_of(scenario), goals_of(scenario.conversation_plan)
    answers = [turn.final_text for turn in turns]
    reached = sum(bool(_REACHED.search(answer)) for answer in answers)
    if reached == len(goals) or sum(bool(_FAILED.search(answer)) for answer in answers) > character.patience:
        return None
    return reaction(character, goals[reached], turns[-1])


def reaction(character: Character, goal: Goal, turn: Invocation) -> str:
    """Return the answer to what the agent said last."""
    said = turn.final_text
    if _FAILED.search(said):
        return "Please try again."
    if said.endswith(_OFFER):
        return "Is there anything cheaper?" if character.haggles and "cheaper" not in turn.user_text else "Yes, please."
    asked = next((word for word, question in _ASKED.items() if re.search(question, said)), "")
    if asked:
        known = next((detail for detail in goal.details if detail.startswith(f"{asked} ")), "I do not know")
        return f"{known[0].upper()}{known[1:]}."
    return f"{goal.wish}." if character.terse or not goal.details else f"{goal.wish} {' '.join(goal.details)}."


def goals_of(plan: str) -> list[Goal]:
    """Return the numbered goals of a plan.

    >>> goals_of("1. Book a flight: from Berlin, to Lisbon.")
    [Goal(wish='Book a flight', details=('from Berlin', 'to Lisbon'))]
    """
    return [Goal(wish, tuple(details.split(", ")) if details else ()) for wish, details in _GOAL.findall(plan)]


def character_of(scenario: ConversationScenario) -> Character:
    """Return how the persona of a scenario behaves."""
    persona = scenario.user_persona
    return CHARACTERS[persona if isinstance(persona, str) else persona.id if persona else "EVALUATOR"]
