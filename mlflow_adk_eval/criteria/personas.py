"""Who a simulated user is: the personas that ADK knows by id, in our own words, and how their players and their judges read any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from mlflow_adk_eval.evalset.models import UserBehavior, UserPersona

_STOP_SIGNAL = re.compile(r"\{\{\s*stop_signal\s*\}\}")
"""What ADK writes into the personas that it saves, in place of the signal."""


@cache
def prebuilt_personas() -> Mapping[str, UserPersona]:
    """Return the personas that an eval set may name, by id."""
    data = json.loads((files(__package__ or "mlflow_adk_eval.criteria") / "personas.json").read_text("utf-8"))
    traits, personas = data["behaviors"], data["personas"].items()
    return {
        key: UserPersona.model_validate({"id": key, **one, "behaviors": [traits[name] for name in one["behaviors"]]})
        for key, one in personas
    }


def persona_of(persona: UserPersona | str, stop_signal: str) -> UserPersona:
    """Return a persona, or the one of an id, with the signal wherever its texts mention it."""
    template = prebuilt_personas()[persona] if isinstance(persona, str) else persona

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _STOP_SIGNAL.sub(lambda _match: stop_signal, value)
        return [filled(item) for item in value] if isinstance(value, list | tuple) else value

    behaviors = [{name: filled(value) for name, value in behavior} for behavior in template.behaviors]
    return UserPersona.model_validate({"id": template.id, "description": filled(template.description), "behaviors": behaviors})


def persona_text(persona: UserPersona | str, stop_signal: str) -> str:
    """Return a persona as its judges read it: what it does, and what would violate it."""
    return _described(persona_of(persona, stop_signal), "Violations", lambda behavior: behavior.violation_rubrics)


def role_text(persona: UserPersona | str, stop_signal: str) -> str:
    """Return a persona as who plays it reads it: what it does, and how."""
    return _described(persona_of(persona, stop_signal), "Instructions", lambda behavior: behavior.behavior_instructions)


def _described(persona: UserPersona, title: str, listed: Callable[[UserBehavior], Sequence[str]]) -> str:
    texts = [persona.description]
    for behavior in persona.behaviors:
        lines = [f"- {line}" for line in listed(behavior)]
        texts.append("\n".join([f"{behavior.name}: {behavior.description}", *([f"{title}:", *lines] if lines else [])]))
    return "\n\n".join(texts)
