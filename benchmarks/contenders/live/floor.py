"""The floor of live conversations: google-adk's Runner alone. What it answers is compared with the reference, and nothing is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data import EVAL_SET

from contenders import RESPONSE_MATCH, TRAJECTORY, Cell, Cells
from contenders.live import import_all


def imports() -> None:
    """Import all that the work needs."""
    import_all("google.adk.runners", "google.adk.sessions.in_memory_session_service")


def load(folder: Path) -> Any:
    """Return the cases as they are written."""
    return json.loads((folder / EVAL_SET).read_bytes())["eval_cases"]


def converse(cases: Any, at_once: int) -> Cells:
    """Have all conversations, so many at the same time."""
    found: list[Cell] = []
    waiting: Iterator[Any] = iter(cases)

    async def worker() -> None:
        for case in waiting:
            found.extend([cell async for cell in _conversation(case)])

    async def workers() -> None:
        await asyncio.gather(*(worker() for _ in range(at_once)))

    asyncio.run(workers())
    return iter(found)


async def _conversation(case: Any) -> Any:
    from google.adk.runners import Runner
    from google.adk.sessions.in_memory_session_service import InMemorySessionService
    from google.genai import types

    from contenders.live.agent import root_agent

    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="bench", user_id="user")
    runner = Runner(app_name="bench", agent=root_agent, session_service=sessions)
    for number, turn in enumerate(case["conversation"]):
        message = types.Content.model_validate(turn["user_content"])
        run = runner.run_async(user_id="user", session_id=session.id, new_message=message)
        events = [event async for event in run]
        called = [{"name": call.name, "args": call.args} for event in events for call in event.get_function_calls()]
        said = events[-1].content.parts[0].text
        yield TRAJECTORY, case["eval_id"], number, float(called == turn["intermediate_data"]["tool_uses"])
        yield RESPONSE_MATCH, case["eval_id"], number, float(said == turn["final_response"]["parts"][0]["text"])
