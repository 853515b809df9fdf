"""From whatever the caller names as an agent to an `Agent`: the first step of an evaluation.

`resolve_agent` looks at the source and loads what it stands for: a module or folder with a ``root_agent`` and ADK's own objects
(`agents.adk`), an address (`agents.http`), a function (`agents.functions`), a recording (`agents.recordings`), or MLflow's traces
(`agents.traces`, which makes a recording of them). What it returns either has conversations as they are needed (a `LiveAgent`) or had
them before. The environment variables below are for addresses only, since those have no other place for secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from mlflow_adk_eval.agents.adk.modules import import_agent
from mlflow_adk_eval.agents.functions import CallableAgent, name_of
from mlflow_adk_eval.agents.http.a2a import A2AAgent
from mlflow_adk_eval.agents.http.chat import PATH, OpenAIChatAgent
from mlflow_adk_eval.agents.http.http_agent import HttpAgent
from mlflow_adk_eval.agents.protocol import NO_LIMITS, Agent, Limits
from mlflow_adk_eval.agents.recordings import load_recording
from mlflow_adk_eval.agents.traces.conversations import recording_of_traces
from mlflow_adk_eval.agents.traces.spans import is_traces
from mlflow_adk_eval.errors import UsageError, did_you_mean, foreign_code, shown
from mlflow_adk_eval.evalset.conversation import EvalSetResult
from mlflow_adk_eval.evalset.files import JsonFile, file_at
from mlflow_adk_eval.evalset.models import EvalSet
from mlflow_adk_eval.runtime import OBJECT

TOKEN = "MLFLOW_ADK_EVAL_AGENT_TOKEN"  # noqa: S105 - the name of a variable
"""Sent as ``Authorization: Bearer …``."""
HEADERS = "MLFLOW_ADK_EVAL_AGENT_HEADERS"
"""Further headers, as OpenTelemetry writes them: ``name=value,name=value``, percent-encoded."""
MODEL = "MLFLOW_ADK_EVAL_AGENT_MODEL"
"""The model that chat completions are asked of."""


@foreign_code("the agent")
def resolve_agent(source: Any, *, agent_name: str | None = None, limits: Limits | None = None, eval_set: EvalSet | None = None) -> Agent:
    """Return the agent that `source` stands for.

    Args:
        source: an importable module or a folder with a ``root_agent``, ``module:attribute``, an ADK agent or app, a callable, a recording (the path
            of a file, an eval set, a result of ADK, or a dict of invocations by eval id), traces of MLflow, the address of
            an agent behind HTTP, or an agent of our own protocol.
        agent_name: the sub-agent to use instead of the root agent.
        limits: how long its conversations may take; ``None``: as long as they take.
        eval_set: the cases that traces are matched with.

    Raises:
        UsageError: if it is none of these.
        AgentError: if the agent cannot be loaded.
        InputError: if the recording or the traces cannot be read.
    """
    if isinstance(source, str) and source.strip().lower().startswith(("http://", "https://")):
        agent = agent_at(source, limits)
        if agent_name is not None:
            raise _no_sub_agents(agent_name, agent.name)
        return agent
    if isinstance(source, str) and OBJECT.fullmatch(source) and not Path(source).exists():
        source = _attribute(source)
    recorded = isinstance(source, str | Path) and _is_recorded(source)
    of_adk = any(cls.__module__.partition(".")[0] == "google" for cls in type(source).__mro__)
    if of_adk or (isinstance(source, str | Path) and not recorded):
        from mlflow_adk_eval.agents.adk.agent import load_adk_agent  # noqa: PLC0415 - google-adk is an extra

        return load_adk_agent(source, agent_name=agent_name, limits=limits)
    if agent_name is not None:
        raise _no_sub_agents(agent_name, shown(source))
    if limits and isinstance(source, CallableAgent | HttpAgent):  # anybody else's agent is as it is
        given = {name: value for name, value in asdict(limits).items() if value is not None}
        return replace(source, limits=replace(source.limits, **given))
    if hasattr(source, "converse"):
        return cast("Agent", source)
    if callable(source):
        return CallableAgent(function=source, name=name_of(source), limits=limits or NO_LIMITS)
    if is_traces(source):
        return recording_of_traces(source, eval_set)
    if recorded or isinstance(source, EvalSet | EvalSetResult | Mapping):
        return load_recording(source)
    msg = f"an agent is a module name, an ADK agent, a callable, an address, a recording or traces of MLflow, not {shown(source)}"
    raise UsageError(msg)


def _attribute(named: str) -> Any:
    """Return what ``module:attribute`` names.

    Raises:
        UsageError: if there is nothing of that name that could be an agent.
        AgentError: if its module cannot be imported.
    """
    module, _, name = named.partition(":")
    holders = import_agent(module).holders
    agent = next((getattr(holder, name) for holder in holders if hasattr(holder, name)), None)
    if agent is None or isinstance(agent, str):
        near = did_you_mean(name, [known for holder in holders for known in vars(holder)])
        raise UsageError(f"{named}: module {module!r} has no agent {name!r}. {near}".strip())
    return agent


def _is_recorded(source: str | Path) -> bool:
    """Whether a path or URI names a recording. A folder with code in it is an agent, whatever else lies there."""
    path = Path(source)
    if os.path.isdir(path) and (any(path.glob("*.py")) or (path / "root_agent.yaml").is_file()):  # noqa: PTH112 - unlike Path.is_dir, it never raises
        return False
    return not isinstance(file_at(source), JsonFile) or (path.suffix == ".json" and path.is_file())


def _no_sub_agents(agent_name: str, source: str) -> UsageError:
    return UsageError(f"agent_name={agent_name!r}: only an ADK agent has sub-agents, but {source} is not one")


def agent_at(url: str, limits: Limits | None = None) -> HttpAgent:
    """Return the agent at an address: a chat model's, if it ends in ``/chat/completions``, otherwise one that speaks A2A.

    Raises:
        UsageError: if it is no address, or an environment variable does not say what it must.
    """
    chosen = limits or NO_LIMITS
    headers, private = headers_of_environment(), frozenset({HEADERS, TOKEN})
    if urlsplit(url.strip()).path.rstrip("/").endswith(PATH):
        return OpenAIChatAgent(url.strip(), model=os.environ.get(MODEL) or None, headers=headers, limits=chosen, private=private)
    return A2AAgent(url.strip(), headers=headers, limits=chosen, private=private)


def headers_of_environment() -> dict[str, str]:
    """Return the headers that environment variables ask for.

    Raises:
        UsageError: naming the variable and the entry, without its value.
    """
    token = os.environ.get(TOKEN, "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for number, entry in enumerate(filter(str.strip, os.environ.get(HEADERS, "").split(",")), start=1):
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{HEADERS}: entry {number} is not name=value")
        headers[name.strip()] = unquote(value.strip())
    return headers
