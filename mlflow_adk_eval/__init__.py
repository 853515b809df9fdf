"""Evaluate ADK agents in MLflow and gate their promotion on the evidence. Public names are loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_adk_eval import metrics, rapid_eval, scorers, spark, testing
    from mlflow_adk_eval.agents.functions import Session
    from mlflow_adk_eval.agents.http.a2a import A2AAgent
    from mlflow_adk_eval.agents.http.chat import OpenAIChatAgent
    from mlflow_adk_eval.agents.http.http_agent import HttpError
    from mlflow_adk_eval.agents.recordings import Recording, load_recording, recording_of_report, save_recording
    from mlflow_adk_eval.analysis.calibration.bench import BenchError
    from mlflow_adk_eval.analysis.calibration.calibration import Calibration, CalibrationError, load_calibration
    from mlflow_adk_eval.analysis.calibration.labels import LabelError
    from mlflow_adk_eval.analysis.stats import compare_paired, proportion_interval
    from mlflow_adk_eval.config.eval_config import EvalConfig, load_config
    from mlflow_adk_eval.errors import (
        AdkEvalError,
        AgentError,
        AliasBusyError,
        AttestationError,
        ConfigError,
        EvalSetError,
        ExitError,
        InputError,
        JudgeError,
        OutputError,
        PolicyError,
        Problem,
        RunError,
        TrackingError,
        UsageError,
    )
    from mlflow_adk_eval.evalset.conversation import Ending
    from mlflow_adk_eval.evalset.conversion import migrate
    from mlflow_adk_eval.evalset.files import load_eval_set, write_eval_set
    from mlflow_adk_eval.evalset.models import ConversationScenario, EvalCase, EvalSet, Invocation, UserPersona, eval_set_digest
    from mlflow_adk_eval.evalset.rows import open_cases
    from mlflow_adk_eval.gating.api import Champion, audit, gate, load_champion, promote, rollback, verify
    from mlflow_adk_eval.gating.attested_files import export_attestation, verify_attestation
    from mlflow_adk_eval.gating.policy.load import load_policy, policy_schema
    from mlflow_adk_eval.gating.policy.model import Policy
    from mlflow_adk_eval.gating.promotion.claim_log import ClaimLogError
    from mlflow_adk_eval.integrations.agent_functions import genai_data, model_fn, predict_fn
    from mlflow_adk_eval.judge.protocol import Answer, Refused, Request, Unavailable
    from mlflow_adk_eval.judge.setup import Budget, JudgeOptions
    from mlflow_adk_eval.ledger import CallCache
    from mlflow_adk_eval.results.decision import Check, Decision, GateFailed
    from mlflow_adk_eval.results.outcomes import CaseResult, CriterionResult, Errored, Scored, Skipped, Vote
    from mlflow_adk_eval.results.report import Report
    from mlflow_adk_eval.runner.arrow import write_parts
    from mlflow_adk_eval.runner.batches import Scoring, score_batch
    from mlflow_adk_eval.runner.recordings import record, score
    from mlflow_adk_eval.signing.keys import make_key
    from mlflow_adk_eval.tracking.agent_versions import register
    from mlflow_adk_eval.tracking.calibrate import calibrate, label_sheet
    from mlflow_adk_eval.tracking.capture import capture
    from mlflow_adk_eval.tracking.client import open_store
    from mlflow_adk_eval.tracking.compare import compare, power
    from mlflow_adk_eval.tracking.eval_set_datasets import pull_eval_set, push_eval_set
    from mlflow_adk_eval.tracking.evaluate import aevaluate, evaluate, make_holdout_evaluator, make_reevaluator
    from mlflow_adk_eval.tracking.judge_bench import judge_bench
    from mlflow_adk_eval.tracking.logged_run import upload

_HOMES = {
    "agents.functions": ("Session",),
    "agents.http.a2a": ("A2AAgent",),
    "agents.http.chat": ("OpenAIChatAgent",),
    "agents.http.http_agent": ("HttpError",),
    "agents.recordings": ("Recording", "load_recording", "recording_of_report", "save_recording"),
    "analysis.calibration.bench": ("BenchError",),
    "analysis.calibration.calibration": ("Calibration", "CalibrationError", "load_calibration"),
    "analysis.calibration.labels": ("LabelError",),
    "analysis.stats": ("compare_paired", "proportion_interval"),
    "config.eval_config": ("EvalConfig", "load_config"),
    "errors": (
        "AdkEvalError",
        "AgentError",
        "AliasBusyError",
        "AttestationError",
        "ConfigError",
        "EvalSetError",
        "ExitError",
        "InputError",
        "JudgeError",
        "OutputError",
        "PolicyError",
        "Problem",
        "RunError",
        "TrackingError",
        "UsageError",
    ),
    "evalset.conversation": ("Ending",),
    "evalset.conversion": ("migrate",),
    "evalset.files": ("load_eval_set", "write_eval_set"),
    "evalset.models": ("ConversationScenario", "EvalCase", "EvalSet", "Invocation", "UserPersona", "eval_set_digest"),
    "evalset.rows": ("open_cases",),
    "gating.api": ("Champion", "audit", "gate", "load_champion", "promote", "rollback", "verify"),
    "gating.attested_files": ("export_attestation", "verify_attestation"),
    "gating.policy.load": ("load_policy", "policy_schema"),
    "gating.policy.model": ("Policy",),
    "gating.promotion.claim_log": ("ClaimLogError",),
    "integrations.agent_functions": ("genai_data", "model_fn", "predict_fn"),
    "judge.protocol": ("Answer", "Refused", "Request", "Unavailable"),
    "judge.setup": ("Budget", "JudgeOptions"),
    "ledger": ("CallCache",),
    "results.decision": ("Check", "Decision", "GateFailed"),
    "results.outcomes": ("CaseResult", "CriterionResult", "Errored", "Scored", "Skipped", "Vote"),
    "results.report": ("Report",),
    "runner.arrow": ("write_parts",),
    "runner.batches": ("Scoring", "score_batch"),
    "runner.recordings": ("record", "score"),
    "signing.keys": ("make_key",),
    "tracking.agent_versions": ("register",),
    "tracking.calibrate": ("calibrate", "label_sheet"),
    "tracking.capture": ("capture",),
    "tracking.client": ("open_store",),
    "tracking.compare": ("compare", "power"),
    "tracking.eval_set_datasets": ("pull_eval_set", "push_eval_set"),
    "tracking.evaluate": ("aevaluate", "evaluate", "make_holdout_evaluator", "make_reevaluator"),
    "tracking.judge_bench": ("judge_bench",),
    "tracking.logged_run": ("upload",),
}
_MODULES = ("metrics", "rapid_eval", "scorers", "spark", "testing")
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "A2AAgent",
    "AdkEvalError",
    "AgentError",
    "AliasBusyError",
    "Answer",
    "AttestationError",
    "BenchError",
    "Budget",
    "Calibration",
    "CalibrationError",
    "CallCache",
    "CaseResult",
    "Champion",
    "Check",
    "ClaimLogError",
    "ConfigError",
    "ConversationScenario",
    "CriterionResult",
    "Decision",
    "Ending",
    "Errored",
    "EvalCase",
    "EvalConfig",
    "EvalSet",
    "EvalSetError",
    "ExitError",
    "GateFailed",
    "HttpError",
    "InputError",
    "Invocation",
    "JudgeError",
    "JudgeOptions",
    "LabelError",
    "OpenAIChatAgent",
    "OutputError",
    "Policy",
    "PolicyError",
    "Problem",
    "Recording",
    "Refused",
    "Report",
    "Request",
    "RunError",
    "Scored",
    "Scoring",
    "Session",
    "Skipped",
    "TrackingError",
    "Unavailable",
    "UsageError",
    "UserPersona",
    "Vote",
    "aevaluate",
    "audit",
    "calibrate",
    "capture",
    "compare",
    "compare_paired",
    "eval_set_digest",
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
    "make_holdout_evaluator",
    "make_key",
    "make_reevaluator",
    "metrics",
    "migrate",
    "model_fn",
    "open_cases",
    "open_store",
    "policy_schema",
    "power",
    "predict_fn",
    "promote",
    "proportion_interval",
    "pull_eval_set",
    "push_eval_set",
    "rapid_eval",
    "record",
    "recording_of_report",
    "register",
    "rollback",
    "save_recording",
    "score",
    "score_batch",
    "scorers",
    "spark",
    "testing",
    "upload",
    "verify",
    "verify_attestation",
    "write_eval_set",
    "write_parts",
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
