"""From whatever the user calls an agent to something that can have a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from mlflow_adk_eval.agents.base import NO_LIMITS, Agent, Limits
from mlflow_adk_eval.agents.calls import CallableAgent
from mlflow_adk_eval.agents.recording import load_recording
from mlflow_adk_eval.agents.traces import is_traces, recording_of_traces
from mlflow_adk_eval.errors import UsageError, shown
from mlflow_adk_eval.evalset import EvalSet, EvalSetResult


def resolve_agent(source: Any, *, agent_name: str | None = None, limits: Limits | None = None, eval_set: EvalSet | None = None) -> Agent:
    """Return the agent that `source` stands for.

    Args:
        source: an importable module or a folder with a ``root_agent``, an ADK agent or app, a callable, a recording (the path
            of a JSON file, an eval set, a result of ADK, or a dict of invocations by eval id), traces of MLflow, or an agent
            of our own protocol.
        agent_name: the sub-agent to use instead of the root agent.
        limits: how long its conversations may take; ``None``: as long as they take.
        eval_set: the cases that traces are matched with.

    Raises:
        UsageError: if it is nothing of the kind.
        AgentError: if the agent cannot be loaded.
        InputError: if the recording or the traces cannot be read.
    """
    recorded = isinstance(source, str | Path) and Path(source).suffix == ".json" and Path(source).is_file()
    if not recorded and (isinstance(source, str | Path) or _is_adk(source)):
        from mlflow_adk_eval.agents.adk import load_adk_agent  # noqa: PLC0415 - google-adk is an extra

        return load_adk_agent(source, agent_name=agent_name, limits=limits)
    if agent_name is not None:
        raise UsageError(f"agent_name={agent_name!r}: only an ADK agent has sub-agents, and {shown(source)} is none")
    if is_traces(source):
        return recording_of_traces(source, eval_set)
    if recorded or isinstance(source, EvalSet | EvalSetResult | Mapping):
        return load_recording(source)
    if hasattr(source, "play"):
        return cast("Agent", source)
    if callable(source):
        return CallableAgent(function=source, name=getattr(source, "__name__", type(source).__name__), limits=limits or NO_LIMITS)
    raise UsageError(f"an agent is a module name, an ADK agent, a callable, a recording or traces of MLflow, not {shown(source)}")


def _is_adk(source: Any) -> bool:
    return any(cls.__module__.partition(".")[0] == "google" for cls in type(source).__mro__)
