"""Where actual invocations come from: ADK agents, functions, agents behind HTTP, recordings and traces.

    source ── resolve ──> Agent ── open ──> AgentSession ── turn, turn, … ──> Conversation

`protocol` says what an agent is, `resolve` finds it, `setup` decides who talks to it, `conversation` has the conversation. The kinds of
agents are in `adk`, `functions`, `http`, `recordings` and `traces`; `users` writes the user's messages, `tool_environment` answers tool
calls in place of tools, and `turn_log` makes an `Invocation` of whatever an agent gives for a turn.
"""

from mlflow_adk_eval.agents.functions import Session
from mlflow_adk_eval.agents.http import A2AAgent, OpenAIChatAgent
from mlflow_adk_eval.agents.protocol import Agent, Conversation, Limits, LiveAgent
from mlflow_adk_eval.agents.recordings import Recording, load_recording

__all__ = ["A2AAgent", "Agent", "Conversation", "Limits", "LiveAgent", "OpenAIChatAgent", "Recording", "Session", "load_recording"]
