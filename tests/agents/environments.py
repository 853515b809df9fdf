"""Tool environments in a few words."""

from __future__ import annotations

from typing import Any

from mlflow_adk_eval.config.eval_config import EvalConfig, parse_config

ERROR: dict[str, Any] = {"injected_error": {"injected_http_error_code": 503, "error_message": "try again"}}
ERROR_ANSWER = {"error_code": 503, "error_message": "try again"}


def injecting(**tools: Any) -> dict[str, Any]:
    """An environment: for each tool one injection, or a list of them."""
    listed = {name: given if isinstance(given, list) else [given] for name, given in tools.items()}
    return {"tool_simulation_configs": [{"tool_name": name, "injection_configs": given} for name, given in listed.items()]}


def config_of(environment: Any = None, **more: Any) -> EvalConfig:
    """A config that every agent reaches, with a tool environment."""
    given = {} if environment is None else {"environment_simulation_config": environment}
    return parse_config({"criteria": {"tool_call_count_v1": 999}} | given | more, "config")
