from google.adk.models.llm_response import LlmResponse
from google.genai import types
from honest import agent, order_in, reply


def thoughtful(message, results):
    if not results:
        return reply(message, results)
    thought = types.Part(text="The refund went through.")
    thought.thought = True
    text = types.Part(text=f"Order {order_in(message)} is refunded.")
    return [LlmResponse(content=types.Content(role="model", parts=[thought, text]))]


root_agent = agent(thoughtful)
