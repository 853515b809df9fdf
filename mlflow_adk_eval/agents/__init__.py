"""Where actual invocations come from: ADK agents, callables and recordings."""

from mlflow_adk_eval.agents.base import Agent, Limits, LiveAgent, Played
from mlflow_adk_eval.agents.recording import Recording, load_recording
from mlflow_adk_eval.agents.session import Session

__all__ = ["Agent", "Limits", "LiveAgent", "Played", "Recording", "Session", "load_recording"]
