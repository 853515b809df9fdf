"""What kind of file this is, and whether it holds what it must."""

from __future__ import annotations

from pathlib import Path

from mlflow_adk_eval.config.eval_config import parse_config
from mlflow_adk_eval.errors import ConfigError, EvalSetError
from mlflow_adk_eval.evalset import parse_eval_set, stem_of
from mlflow_adk_eval.evalset.conversation import is_recording, parse_recorded
from mlflow_adk_eval.evalset.parse import decode, read_text
from mlflow_adk_eval.evalset.result import parse_result
from mlflow_adk_eval.gating.policy.load import load_policy

_CONFIG_KEYS = {
    "criteria",
    "custom_metrics",
    "customMetrics",
    "user_simulator_config",
    "userSimulatorConfig",
    "case_criteria",
    "caseCriteria",
}


_POLICY_KEYS = {"rules", "slices", "must_pass", "mustPass", "thresholds", "waivers"}
_YAML = (".yaml", ".yml")
"""Only policies are written in YAML."""


def validate_file(file: Path) -> dict[str, str]:
    """Return what a file is and holds, as ``kind`` and ``summary``.

    Raises:
        InputError: with everything that is wrong with it.
    """
    if file.suffix in _YAML:
        return _policy(file)
    named_config = file.name.endswith("config.json")
    error = ConfigError if named_config else EvalSetError
    text = read_text(file, error=error)
    head = decode(text, str(file), error=error)
    if named_config or (isinstance(head, dict) and _CONFIG_KEYS & set(head)):
        config = parse_config(head, str(file))
        return {"kind": "eval config", "summary": ", ".join(f"{name} {threshold}" for name, threshold in config.thresholds().items())}
    if isinstance(head, dict) and _POLICY_KEYS & set(head):
        return _policy(file)
    if is_recording(text):
        return _recording(text, file)
    if isinstance(head, str) or (isinstance(head, dict) and {"eval_case_results", "evalCaseResults"} & set(head)):
        result = parse_result(text, str(file))
        return {"kind": "eval set result", "summary": f"{len(result.eval_case_results)} cases of {result.eval_set_id}"}
    eval_set = parse_eval_set(text, str(file), stem=stem_of(file))
    turns = sum(len(case.conversation or ()) for case in eval_set.eval_cases)
    kind = "legacy eval set" if isinstance(head, list) else "eval set"
    return {"kind": kind, "summary": f"{len(eval_set.eval_cases)} cases, {turns} written turns"}


def _recording(text: bytes, file: Path) -> dict[str, str]:
    recorded = parse_recorded(text, str(file))
    runs = [run for case in recorded.cases for run in case.runs]
    failed = sum(bool(run.error) for run in runs)
    told = f"{len(runs)} conversations on {len(recorded.cases)} cases of {recorded.eval_set_id or 'an unnamed eval set'}"
    return {"kind": "recording", "summary": f"{told}, {failed} of them failed" if failed else told}


def _policy(file: Path) -> dict[str, str]:
    policy = load_policy(file)
    demands = ["every threshold of the run's config"] if policy.thresholds else []
    demands += [_counted(len(policy.all_rules()), "rule")] if policy.all_rules() else []
    demands += [_counted(len(policy.must_pass), "case") + " that must pass"] if policy.must_pass else []
    demands += [_counted(len(policy.waivers), "waiver")] if policy.waivers else []
    return {"kind": "gate policy", "summary": f"{policy.name!r} with {', '.join(demands)}; sha256 {policy.digest()[:12]}…"}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
