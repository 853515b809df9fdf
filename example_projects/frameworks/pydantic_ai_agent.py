"""An agent of PydanticAI that switches lights. Its model is a function, so it needs no key."""

import mlflow
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

mlflow.pydantic_ai.autolog()


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model would."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart("The light in the hall is on.")])
    if "light" in str(last.content).lower():
        return ModelResponse(parts=[ToolCallPart("switch_light", {"room": "hall", "on": True}, "call_1")])
    return ModelResponse(parts=[TextPart("You are welcome.")])


agent = Agent(FunctionModel(model), instructions="You switch lights.", name="lights")


@agent.tool_plain
def switch_light(room: str, on: bool) -> dict:
    """Switch the light of a room."""
    return {"room": room, "on": on}


def chat(session: str, *messages: str) -> None:
    """Have a conversation."""
    history: list[ModelMessage] = []
    for text in messages:
        with mlflow.tracing.context(session_id=session):
            history = agent.run_sync(text, message_history=history).all_messages()
