"""What an agent knew in a turn, for judges that ask whether its answer is founded on that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlflow_adk_eval.criteria.transcript import (
    conversation_text,
    grounding_text,
    instructions_text,
    tool_steps_text,
    tools_text,
    user_text,
)
from mlflow_adk_eval.evalset import AppDetails, Invocation


def knowledge(turns: Sequence[Invocation]) -> Mapping[str, str]:
    """Return what the agent knew in the last of some turns, whatever it did in it."""
    app = _latest_app(turns)
    return {
        "developer_instructions": instructions_text(app),
        "tools": tools_text(app),
        "grounding_metadata": "\n".join(filter(None, map(grounding_text, turns))),
        "earlier_turns": conversation_text(turns[:-1]),
        "user_message": user_text(turns[-1]),
    }


def _latest_app(turns: Sequence[Invocation]) -> AppDetails | None:
    """Return the agents as they were last recorded; not as they were before, since instructions may hold the state of a session."""
    return next((turn.app_details for turn in reversed(turns) if turn.app_details), None)


def knowledge_text(turns: Sequence[Invocation]) -> str:
    """Return all that the agent knew when it gave the last answer, the results of its tools included, as one text."""
    texts = {**knowledge(turns), "tool_calls": tool_steps_text(turns[-1])}
    return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items() if text)
