"""Agents behind HTTP: those that speak the A2A protocol, and those that are spoken with as chat models are."""

from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent

__all__ = ["A2AAgent", "OpenAIChatAgent"]
