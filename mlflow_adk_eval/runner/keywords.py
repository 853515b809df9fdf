"""The keyword arguments that several functions share, each with its type and its meaning in one place.

A function takes ``**options: Unpack[...]`` of one of the groups below, from which type checkers know names and types, and says in its own
documentation what each of them means. At run time `keywords` gives it the same signature, and refuses what it does not know. Defaults are
those of the dataclasses that the values end up in, such as `Options`: `selected` picks the values for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from mlflow_adk_eval.agents.conversation import UserSource
from mlflow_adk_eval.agents.recordings import Recorded
from mlflow_adk_eval.errors import did_you_mean
from mlflow_adk_eval.judge.setup import BudgetSource, JudgeArgs, JudgeOptions, LedgerSource

P = ParamSpec("P")
R = TypeVar("R")

Progress = Callable[[int, int], None]
"""Called with the number of finished case runs and of all."""


class ConversationArgs(TypedDict, total=False):
    """How an agent has its conversations."""

    concurrency: int
    """The number of conversations to run in parallel."""
    case_timeout_s: float | None
    """The time limit for one case, in seconds; ``None``: no limit."""
    turn_timeout_s: float | None
    """The time limit for one answer of the agent, in seconds; ``None``: no limit."""
    user_simulator: UserSource
    """Plays the user in conversation scenarios: a model's name, a judge object, or a function of the scenario and the turns so far that
    returns the next message, or ``None`` to end the conversation; ``None``: the model that the config names."""


class AgentArgs(ConversationArgs, total=False):
    """Which agent has the conversations, and who is told of its progress."""

    agent_name: str | None
    """The sub-agent to evaluate instead of the root agent."""
    progress: Progress | None
    """Called with the numbers of finished and of all case runs."""


TraceLimit = int | bool | Literal["failed"]
"""Which turns get a trace, as `LogArgs` says."""


class LogArgs(TypedDict, total=False):
    """Where and as what an evaluation is logged."""

    experiment: str | None
    """The MLflow experiment, by name or id; ``None``: the active one."""
    run_name: str | None
    """The name of the MLflow run; ``None``: the agent and the time."""
    traces: TraceLimit
    """The most traces to log: of all turns or, if there are more, only of turns that did not pass; ``failed``: only of those, at most
    2,000; ``True``: of all turns; ``False``: none."""
    tracking_uri: str | None
    """The MLflow server or store; ``None``: MLflow's own setting."""
    pending_folder: str | Path | None
    """Where to save the evaluation if MLflow cannot store it; ``None``: ``adk_eval_pending``."""
    register_prompts: bool
    """Whether to save the judges' prompts in MLflow's prompt registry; the run then links their versions."""
    signing_key: str | Path | None
    """Signs the evaluation at the end: a PEM file with an ed25519 or ECDSA P-256 key, or its content; ``sigstore`` for the OIDC
    identity of this CI job, ``sigstore:FILE`` for the same with the services of a Sigstore ClientTrustConfig (extra `sigstore`);
    ``None``: ``MLFLOW_ADK_EVAL_SIGNING_KEY``, else no signature."""


class SparkArgs(JudgeArgs, LogArgs, total=False):
    """The keywords of `mlflow_adk_eval.spark.evaluate`."""


class EvaluateArgs(JudgeArgs, AgentArgs, LogArgs, total=False):
    """The keywords of `mlflow_adk_eval.evaluate`."""

    failed: str | None
    """The id of an earlier run, also as ``runs:/<id>``: run only the cases that did not pass there; the new run is not evidence for the
    whole eval set; ``None``: all cases."""
    num_runs: int
    """The number of times to run each conversation."""
    workers: int
    """The number of scoring processes. More than one needs a recording and no judged criteria."""
    resume: str | None
    """An earlier run of the same agent version on the same eval set, or ``latest``: its conversations and judges' answers are reused.
    If that run has no result yet, it is continued; otherwise there is a new run."""
    baseline: Recorded | None
    """The baseline of pairwise criteria: a recording of another agent, its file, or ``runs:/<id>`` for a run's conversations."""
    replay: Any
    """What answers the agent's tool calls instead of its tools: a run, a recording, traces of MLflow or a ``world.json``; a call that was
    never recorded is an error. ``None``: the tools."""
    record: bool
    """Whether to record what tools and models answer; with `replay`, tools answer calls that were never recorded."""
    replay_models: bool
    """Whether `replay` also answers the agent's requests to its models, where it has the same request."""
    policy: Any
    """The policy that will decide on the run, as for `gate`: the cases that it holds out are not run; ``None``: all cases are."""
    until_decided: bool
    """Whether to run only as many cases as decide `policy`."""
    max_runs: int
    """With `until_decided`: the most runs of each case, if all cases do not decide it."""
    max_conversations: int | None
    """With `until_decided`: the most conversations; ``None``: no limit."""
    model: str | None
    """With `until_decided`: the registered model of the policy's baseline, if the policy names only an alias or a version."""
    on_round: Callable[[str], None] | None
    """With `until_decided`: called after each round with what is open."""


class ScoreArgs(TypedDict, total=False):
    """The keywords of `mlflow_adk_eval.score`; how to judge as in `JudgeArgs`."""

    judge_hosts: Sequence[str] | None
    judge_options: JudgeOptions | None
    budget: BudgetSource
    ledger: LedgerSource
    rejudge_failed: bool
    progress: Progress | None
    """Called with the numbers of finished and of all case runs."""
    workers: int
    """The number of scoring processes; more than one can only apply computed criteria."""
    baseline: Recorded | None
    """The baseline of pairwise criteria: a recording, as for `actual`."""


class RecordArgs(AgentArgs, total=False):
    """The keywords of `mlflow_adk_eval.record`."""

    num_runs: int
    """The number of times to run each conversation."""
    agent_version: str
    """The agent version to store in the recording."""
    judge_hosts: Sequence[str] | None
    """Hosts that the config may use as the endpoint of a simulated user, in addition to ``MLFLOW_ADK_EVAL_JUDGE_HOSTS``."""
    budget: BudgetSource
    """The limit for the user simulator: a `Budget`, or a dict with ``max_calls``, ``max_tokens`` and ``name``."""
    ledger: LedgerSource
    """Stores the user simulator's messages, as for `evaluate`."""
    save_to: str | Path | None
    """A file for the recording. If you interrupt the run, it gets the conversations so far."""


def selected(options: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the options that a dataclass, a typed dict or a function has a field, key or parameter for."""
    names = kind.__annotations__ if isinstance(kind, type) else signature(kind).parameters
    return {name: value for name, value in options.items() if name in names}


def keywords(group: Any, *defaults: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function with ``**options: Unpack[group]`` the signature of its keywords at run time, and refuse others.

    Args:
        group: the typed dict of ``Unpack``.
        defaults: dataclasses and functions with parameters of the same names, whose defaults the signature shows; a keyword of none is ``None``.
    """
    known = {name: one.default for owner in defaults for name, one in signature(owner).parameters.items()}
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=known.get(name), annotation=getattr(kind, "__forward_arg__", kind))
        for name, kind in group.__annotations__.items()
    ]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        declared = signature(function)
        own = [one for one in declared.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        whole = declared.replace(parameters=[*own, *added])

        @wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name not in whole.parameters:
                    hint = did_you_mean(name, whole.parameters)
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}. {hint}".rstrip())
            return function(*args, **given)

        checked.__signature__ = whole  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - any function may have one
        return checked

    return decorate
