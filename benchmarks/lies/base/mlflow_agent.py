"""The ADK agent as MLflow's `predict_fn`: each question in a session of its own, each call of a tool a span."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import mlflow
from bank import root_agent
from google.adk.runners import InMemoryRunner
from google.genai import types

root_agent.tools = [mlflow.trace(tool, span_type="TOOL") if callable(tool) else tool for tool in root_agent.tools]


async def _said(question: str) -> str:
    runner = InMemoryRunner(agent=root_agent, app_name="bank")
    session = await runner.session_service.create_session(app_name="bank", user_id="u", session_id=uuid.uuid4().hex)
    said = ""
    message = types.Content(role="user", parts=[types.Part(text=question)])
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
        if event.is_final_response() and event.content:
            said = "".join(part.text or "" for part in event.content.parts or [] if not part.thought)
    return said


def asked(question: str) -> str:
    """Return what the agent says to a question."""
    return asyncio.run(_said(question))


@mlflow.trace
def predict(question: str) -> str:
    """Return what the agent says to a question, traced."""
    return asked(question)


def rows(*, expected: bool = True) -> list[dict[str, Any]]:
    """Return the cases as MLflow's rows."""
    from lie import CASES

    found: list[dict[str, Any]] = []
    for case in CASES:
        row: dict[str, Any] = {"inputs": {"question": case.question}}
        if expected:
            calls = [{"name": call["name"], "arguments": call["args"]} for call in case.calls]
            row["expectations"] = {"expected_response": case.expected, "expected_tool_calls": calls}
        found.append(row)
    return found
