from google.adk.models.llm_response import LlmResponse
from google.genai import types
from honest import agent, reply


def blocked(message, results):
    responses = reply(message, results)
    if results or "order" not in message:
        return responses + [LlmResponse(error_code="SAFETY", error_message="blocked", finish_reason=types.FinishReason.SAFETY)]
    return responses


root_agent = agent(blocked)
