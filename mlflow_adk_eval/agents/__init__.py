"""Where actual invocations come from: ADK agents, callables, agents behind HTTP and recordings."""

from mlflow_adk_eval.agents.functions.agent import Session
from mlflow_adk_eval.agents.http import A2AAgent, OpenAIChatAgent
from mlflow_adk_eval.agents.protocol import Agent, Limits, LiveAgent, Played
from mlflow_adk_eval.agents.recordings.recording import Recording, load_recording

__all__ = ["A2AAgent", "Agent", "Limits", "LiveAgent", "OpenAIChatAgent", "Played", "Recording", "Session", "load_recording"]
