from google.adk.tools import ToolContext
from honest import agent, call, say


def save_note(note: str, tool_context: ToolContext) -> dict:
    """Save a note."""
    return {"status": "ok"}


def reply(message, results):
    if not results:
        return [call(("save_note", {"note": "call me"}))]
    return [say("Saved.")]


root_agent = agent(reply, [save_note])
