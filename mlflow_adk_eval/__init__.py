"""Evaluate ADK agents in MLflow, and gate their promotion on the evidence. Public names are resolved when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_adk_eval import metrics, rapid_eval, scorers, testing
    from mlflow_adk_eval.agents import A2AAgent, OpenAIChatAgent, Recording, Session, load_recording
    from mlflow_adk_eval.agents.recordings import recording_of_report, save_recording
    from mlflow_adk_eval.analysis.calibration.calibration import Calibration, load_calibration
    from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
    from mlflow_adk_eval.errors import (
        AdkEvalError,
        AgentError,
        AttestationError,
        ConfigError,
        EvalSetError,
        InputError,
        JudgeError,
        PolicyError,
        RunError,
        TrackingError,
        UsageError,
    )
    from mlflow_adk_eval.evalset import EvalCase, EvalSet, Invocation, load_eval_set, migrate
    from mlflow_adk_eval.evalset.conversation import Ending
    from mlflow_adk_eval.gating.api import Champion, audit, gate, load_champion, promote, rollback, verify
    from mlflow_adk_eval.gating.attested_files import export_attestation, verify_attestation
    from mlflow_adk_eval.gating.policy.load import load_policy
    from mlflow_adk_eval.gating.policy.model import Policy
    from mlflow_adk_eval.integrations.agent_functions import genai_data, model_fn, predict_fn
    from mlflow_adk_eval.judge import Budget, JudgeOptions
    from mlflow_adk_eval.results.decision import Check, Decision, GateFailed
    from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored, Skipped, Vote
    from mlflow_adk_eval.results.report import Report
    from mlflow_adk_eval.runner import record, score
    from mlflow_adk_eval.tracking import aevaluate, evaluate, register, upload
    from mlflow_adk_eval.tracking.calibrate import calibrate, label_sheet
    from mlflow_adk_eval.tracking.capture import capture
    from mlflow_adk_eval.tracking.compare import compare, power
    from mlflow_adk_eval.tracking.eval_set_datasets import pull_eval_set, push_eval_set
    from mlflow_adk_eval.tracking.evaluate import make_reevaluator
    from mlflow_adk_eval.tracking.judge_bench import judge_bench

_HOMES = {
    "agents": ("A2AAgent", "OpenAIChatAgent", "Recording", "Session", "load_recording"),
    "agents.recordings": ("recording_of_report", "save_recording"),
    "analysis.calibration.calibration": ("Calibration", "load_calibration"),
    "config.eval_config": ("EvalConfig", "load_config"),
    "evalset.conversation": ("Ending",),
    "errors": (
        "AdkEvalError",
        "AgentError",
        "AttestationError",
        "ConfigError",
        "EvalSetError",
        "InputError",
        "JudgeError",
        "PolicyError",
        "RunError",
        "TrackingError",
        "UsageError",
    ),
    "judge": ("Budget", "JudgeOptions"),
    "evalset": ("EvalCase", "EvalSet", "Invocation", "load_eval_set", "migrate"),
    "gating.api": ("Champion", "audit", "gate", "load_champion", "promote", "rollback", "verify"),
    "gating.attested_files": ("export_attestation", "verify_attestation"),
    "gating.policy.load": ("load_policy",),
    "gating.policy.model": ("Policy",),
    "results.decision": ("Check", "Decision", "GateFailed"),
    "results.outcomes": ("CaseResult", "CriterionResult", "Errored", "Scored", "Skipped", "Vote"),
    "results.report": ("Report",),
    "tracking.compare": ("compare", "power"),
    "runner": ("record", "score"),
    "tracking": ("aevaluate", "evaluate", "register", "upload"),
    "tracking.calibrate": ("calibrate", "label_sheet"),
    "tracking.judge_bench": ("judge_bench",),
    "tracking.capture": ("capture",),
    "tracking.eval_set_datasets": ("pull_eval_set", "push_eval_set"),
    "integrations.agent_functions": ("genai_data", "model_fn", "predict_fn"),
    "tracking.evaluate": ("make_reevaluator",),
}
_MODULES = ("metrics", "rapid_eval", "scorers", "testing")
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "A2AAgent",
    "AdkEvalError",
    "AgentError",
    "AttestationError",
    "Budget",
    "Calibration",
    "CaseResult",
    "Champion",
    "Check",
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
    "Policy",
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
    "audit",
    "calibrate",
    "capture",
    "compare",
    "evaluate",
    "export_attestation",
    "gate",
    "genai_data",
    "judge_bench",
    "label_sheet",
    "load_calibration",
    "load_champion",
    "load_config",
    "load_eval_set",
    "load_policy",
    "load_recording",
    "make_reevaluator",
    "metrics",
    "migrate",
    "model_fn",
    "power",
    "predict_fn",
    "promote",
    "pull_eval_set",
    "push_eval_set",
    "rapid_eval",
    "record",
    "recording_of_report",
    "register",
    "rollback",
    "save_recording",
    "score",
    "scorers",
    "testing",
    "upload",
    "verify",
    "verify_attestation",
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
