"""What a callable agent is told besides the user's text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlflow_adk_eval.evalset import Invocation


@dataclass(slots=True, kw_only=True)
class Session:
    """What a callable agent is told besides the user's text."""

    eval_id: str
    run_index: int
    state: dict[str, Any]
    """Lives through the case; starts as the case's session state."""
    history: list[Invocation] = field(default_factory=list)
    """The turns so far."""
