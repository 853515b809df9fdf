"""Where actual invocations come from: ADK agents, functions, agents behind HTTP, recordings and traces.

    source ── resolve ──> Agent ── open ──> AgentSession ── turn, turn, … ──> Conversation

`protocol` says what an agent is, `resolve` finds it, `conversation` decides who talks to it and has the conversation. The kinds of agents
are in `adk`, `functions`, `http`, `recordings` and `traces`; `users` writes the messages of simulated users, `tool_environment` answers tool
calls in place of tools, and `turns` makes an `Invocation` of whatever an agent gives for a turn.
"""

from mlflow_adk_eval.agents.functions import Session
from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent
from mlflow_adk_eval.agents.protocol import Agent, Limits, LiveAgent
from mlflow_adk_eval.agents.recordings import Recording, load_recording
from mlflow_adk_eval.evalset.conversation import Conversation

__all__ = ["A2AAgent", "Agent", "Conversation", "Limits", "LiveAgent", "OpenAIChatAgent", "Recording", "Session", "load_recording"]
