"""An agent of the OpenAI Agents SDK that switches lights. Its model is a server on this machine, so it needs no key."""

import mlflow
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI
from scripted_openai import serve

mlflow.openai.autolog()


@function_tool
def switch_light(room: str, on: bool) -> dict:
    """Switch the light of a room."""
    return {"room": room, "on": on}


def chat(session: str, *messages: str) -> None:
    """Have a conversation."""
    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(base_url=serve(), api_key="none"))
    agent = Agent(
        "lights",
        instructions="You switch lights.",
        model=model,
        tools=[switch_light],
    )
    history: list = []
    for text in messages:
        with mlflow.tracing.context(session_id=session):
            message = {"role": "user", "content": text}
            history = Runner.run_sync(agent, [*history, message]).to_input_list()
