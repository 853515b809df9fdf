"""Evaluate ADK agents in MLflow and gate their promotion on the evidence. Public names are loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "agents.functions": ("Session",),
    "agents.http.a2a": ("A2AAgent",),
    "agents.http.chat": ("OpenAIChatAgent",),
    "agents.http.http_agent": ("HttpError",),
    "agents.recordings": ("Recording", "load_recording", "recording_of_report", "save_recording"),
    "agents.replay": ("UnrecordedError",),
    "analysis.calibration.bench": ("BenchError",),
    "analysis.calibration.calibration": ("Calibration", "CalibrationError", "load_calibration"),
    "analysis.calibration.labels": ("LabelError",),
    "analysis.stats.intervals": ("proportion_interval",),
    "analysis.stats.paired": ("compare_paired",),
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
    "production.cases": ("ProductionCases", "cases_from_traces"),
    "production.draw": ("Rate", "Stratum"),
    "production.score": ("ScoredTraces", "score_traces"),
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
__all__ = [*_MODULES, *_MODULE_OF]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] - type checkers read the stub


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
