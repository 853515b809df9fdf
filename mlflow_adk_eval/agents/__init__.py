"""Where actual invocations come from: ADK agents, callables and recordings."""

from mlflow_adk_eval.agents.base import Agent, Played, Session
from mlflow_adk_eval.agents.recording import Recording, load_recording

__all__ = ["Agent", "Played", "Recording", "Session", "load_recording"]
