"""An agent of Strands that switches lights. Its model is a server on this machine, so it needs no key."""

import mlflow
from scripted_openai import serve
from strands import Agent, tool
from strands.models.openai import OpenAIModel

mlflow.strands.autolog()


@tool
def switch_light(room: str, on: bool) -> dict:
    """Switch the light of a room."""
    return {"room": room, "on": on}


def chat(session: str, *messages: str) -> None:
    """Have a conversation."""
    model = OpenAIModel(client_args={"base_url": serve(), "api_key": "none"}, model_id="scripted")
    agent = Agent(
        model,
        tools=[switch_light],
        system_prompt="You switch lights.",
        name="lights",
        callback_handler=None,
    )
    for text in messages:
        with mlflow.tracing.context(session_id=session):
            agent(text)
