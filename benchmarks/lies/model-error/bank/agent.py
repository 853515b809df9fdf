from google.adk.models.llm_response import LlmResponse
from honest import agent

root_agent = agent(lambda message, results: [LlmResponse(error_code="MALFORMED_FUNCTION_CALL", error_message="malformed")])
