"""Where actual invocations come from: ADK agents, callables, agents behind HTTP and recordings."""

from mlflow_adk_eval.agents.functions.agent import Session
from mlflow_adk_eval.agents.http import A2AAgent, OpenAIChatAgent
from mlflow_adk_eval.agents.protocol import Agent, Conversation, Limits, LiveAgent
from mlflow_adk_eval.agents.recordings.recording import Recording, load_recording

__all__ = ["A2AAgent", "Agent", "Conversation", "Limits", "LiveAgent", "OpenAIChatAgent", "Recording", "Session", "load_recording"]
