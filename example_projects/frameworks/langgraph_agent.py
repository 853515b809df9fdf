"""An agent of LangGraph that switches lights. Its model follows a script, so it needs no key."""

from collections.abc import Iterator
from typing import Any

import mlflow
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver

mlflow.langchain.autolog()


def switch_light(room: str, on: bool) -> dict:
    """Switch the light of a room."""
    return {"room": room, "on": on}


def answers() -> Iterator[AIMessage]:
    """Yield what the model says, one answer a request."""
    call = {"name": "switch_light", "args": {"room": "hall", "on": True}, "id": "call_1"}
    usage = {"input_tokens": 30, "output_tokens": 8, "total_tokens": 38}
    yield AIMessage("", tool_calls=[call], usage_metadata=usage)
    yield AIMessage("The light in the hall is on.", usage_metadata=usage)
    yield AIMessage("You are welcome.", usage_metadata=usage)


class ScriptedModel(GenericFakeChatModel):
    """A model that follows a script, and may be offered tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Runnable[Any, AIMessage]:
        """Offer tools, as the clients of real models do."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools])


def chat(session: str, *messages: str) -> None:
    """Have a conversation."""
    model = ScriptedModel(messages=answers())
    agent = create_agent(
        model,
        [switch_light],
        system_prompt="You switch lights.",
        name="lights",
        checkpointer=InMemorySaver(),
    )
    for text in messages:
        message = {"role": "user", "content": text}
        agent.invoke({"messages": [message]}, {"configurable": {"thread_id": session}})
