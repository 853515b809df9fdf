"""What user and agent said to each other, as text for judges, who need not know which tools were called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow_adk_eval.criteria.steps import steps
from mlflow_adk_eval.criteria.transcript import final_text, json_text, step_record, user_text
from mlflow_adk_eval.evalset import Invocation
from mlflow_adk_eval.evalset.models import Json


def dialogue_text(turns: Sequence[Invocation]) -> str:
    """Return the words of a conversation as JSON lines: the user's, those on the way to each answer, and the answers."""
    return "\n".join(json_text({"turn": number} | record) for number, turn in enumerate(turns, 1) for record in _said(turn))


def _said(turn: Invocation) -> Iterator[Json]:
    yield {"user": user_text(turn)}
    yield from (step_record(step) for step in steps(turn) if step.kind in ("text", "media"))
    yield {"final_response": final_text(turn)}
