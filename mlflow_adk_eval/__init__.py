"""Evaluate ADK agents in MLflow, and gate their promotion on the evidence. Public names are resolved when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_adk_eval import metrics, rapid_eval, scorers, testing
    from mlflow_adk_eval.agents import A2AAgent, OpenAIChatAgent, Recording, Session, load_recording
    from mlflow_adk_eval.agents.saving import save_recording
    from mlflow_adk_eval.config import EvalConfig, load_config
    from mlflow_adk_eval.course import Ending
    from mlflow_adk_eval.errors import (
        AdkEvalError,
        AgentError,
        ConfigError,
        EvalSetError,
        GateFailed,
        InputError,
        JudgeError,
        PolicyError,
        RunError,
        TrackingError,
        UsageError,
    )
    from mlflow_adk_eval.evalset import EvalCase, EvalSet, Invocation, load_eval_set, migrate
    from mlflow_adk_eval.gate import gate, promote, verify
    from mlflow_adk_eval.judge import Budget, JudgeOptions
    from mlflow_adk_eval.outcome import CaseResult, CriterionResult, Decision, Errored, Report, Scored, Skipped, Vote
    from mlflow_adk_eval.recorder import record
    from mlflow_adk_eval.runner import score
    from mlflow_adk_eval.tracking import aevaluate, evaluate, register, upload
    from mlflow_adk_eval.tracking.capturing import capture
    from mlflow_adk_eval.tracking.datasets import pull_eval_set, push_eval_set
    from mlflow_adk_eval.tracking.modelling import model_fn
    from mlflow_adk_eval.tracking.predicting import predict_fn, records

_HOMES = {
    "agents": ("A2AAgent", "OpenAIChatAgent", "Recording", "Session", "load_recording"),
    "agents.saving": ("save_recording",),
    "config": ("EvalConfig", "load_config"),
    "course": ("Ending",),
    "errors": (
        "AdkEvalError",
        "AgentError",
        "ConfigError",
        "EvalSetError",
        "GateFailed",
        "InputError",
        "JudgeError",
        "PolicyError",
        "RunError",
        "TrackingError",
        "UsageError",
    ),
    "judge": ("Budget", "JudgeOptions"),
    "evalset": ("EvalCase", "EvalSet", "Invocation", "load_eval_set", "migrate"),
    "gate": ("gate", "promote", "verify"),
    "outcome": ("CaseResult", "CriterionResult", "Decision", "Errored", "Report", "Scored", "Skipped", "Vote"),
    "recorder": ("record",),
    "runner": ("score",),
    "tracking": ("aevaluate", "evaluate", "register", "upload"),
    "tracking.capturing": ("capture",),
    "tracking.datasets": ("pull_eval_set", "push_eval_set"),
    "tracking.modelling": ("model_fn",),
    "tracking.predicting": ("predict_fn", "records"),
}
_MODULES = ("metrics", "rapid_eval", "scorers", "testing")
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "A2AAgent",
    "AdkEvalError",
    "AgentError",
    "Budget",
    "CaseResult",
    "ConfigError",
    "CriterionResult",
    "Decision",
    "Ending",
    "Errored",
    "EvalCase",
    "EvalConfig",
    "EvalSet",
    "EvalSetError",
    "GateFailed",
    "InputError",
    "Invocation",
    "JudgeError",
    "JudgeOptions",
    "OpenAIChatAgent",
    "PolicyError",
    "Recording",
    "Report",
    "RunError",
    "Scored",
    "Session",
    "Skipped",
    "TrackingError",
    "UsageError",
    "Vote",
    "aevaluate",
    "capture",
    "evaluate",
    "gate",
    "load_config",
    "load_eval_set",
    "load_recording",
    "metrics",
    "migrate",
    "model_fn",
    "predict_fn",
    "promote",
    "pull_eval_set",
    "push_eval_set",
    "rapid_eval",
    "record",
    "records",
    "register",
    "save_recording",
    "score",
    "scorers",
    "testing",
    "upload",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether or not they were used."""
    return sorted([*__all__, "__version__"])
