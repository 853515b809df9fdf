"""Who a simulated user is: the personas that ADK knows by id, described in our own words, and how a judge reads any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from mlflow_adk_eval.evalset.models import UserBehavior, UserPersona

_STOP_SIGNAL = re.compile(r"\{\{\s*stop_signal\s*\}\}")
"""What ADK writes into the personas that it saves, in place of the signal."""


@cache
def prebuilt_personas() -> Mapping[str, UserPersona]:
    """Return the personas that an eval set may name, by id."""
    data = json.loads((files(__package__ or "mlflow_adk_eval.criteria") / "personas.json").read_text("utf-8"))
    behaviors = {
        key: UserBehavior(
            name=found["name"],
            description=found["description"],
            behavior_instructions=(),
            violation_rubrics=tuple(found["violations"]),
        )
        for key, found in data["behaviors"].items()
    }
    return {
        key: UserPersona(id=key, description=found["description"], behaviors=tuple(behaviors[name] for name in found["behaviors"]))
        for key, found in data["personas"].items()
    }


def persona_text(persona: UserPersona | str, stop_signal: str) -> str:
    """Return a persona, or the one of an id, with what it does and what would violate it."""
    found = prebuilt_personas()[persona] if isinstance(persona, str) else persona
    text = "\n\n".join([found.description, *map(_behavior_text, found.behaviors)])
    return _STOP_SIGNAL.sub(lambda _match: stop_signal, text)


def _behavior_text(behavior: UserBehavior) -> str:
    violations = [f"- {rubric}" for rubric in behavior.violation_rubrics]
    return "\n".join([f"{behavior.name}: {behavior.description}", *(["Violations:", *violations] if violations else [])])
