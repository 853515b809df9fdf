"""Agents behind HTTP: `A2AAgent` for the A2A protocol, `OpenAIChatAgent` for the API of chat models.

`session` has what both share, `client` sends requests, `a2a_wire` and `chat` translate between the wire and turns.
"""

from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent

__all__ = ["A2AAgent", "OpenAIChatAgent"]
