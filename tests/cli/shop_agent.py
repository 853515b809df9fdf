"""The code of an ADK agent with a scripted model, as teams keep it in a package of their own."""

from __future__ import annotations

_CODE = """
from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        last = llm_request.contents[-1].parts[-1]
        part = (
            types.Part(text=f"It is {last.function_response.response['result']}.")
            if last.function_response
            else types.Part(function_call=types.FunctionCall(name="opening_hours", args={"day": "Monday"}))
        )
        yield LlmResponse(content=types.Content(role="model", parts=[part]))

def opening_hours(day: str) -> str:
    '''Return when the shop is open.'''
    return "open from nine to six"

root_agent = Agent(name="NAME", model=Scripted(model="scripted"), instruction="Tell when the shop is open.", tools=[opening_hours])
"""


def adk_agent(name: str) -> str:
    """Return the code of an agent that tells when a shop is open."""
    return _CODE.replace("NAME", name)
