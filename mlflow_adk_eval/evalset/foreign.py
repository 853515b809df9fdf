"""Files of others that look like ours: which format they are, and what to do instead, in one sentence.

Google's agents-cli (its Gen AI evaluation) has datasets whose cases are called ``eval_cases``, too, and a config in YAML. Neither is
read yet. A hint at a misspelt key would lead nowhere, so a reader that fails asks here first what it has before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic.alias_generators import to_snake

from mlflow_adk_eval.errors import ConfigError, EvalSetError, InputError, Problem

_DATASET_KEYS = (
    "eval_case_id",
    "prompt",
    "responses",
    "agent_data",
    "agent_info",
    "conversation_history",
    "intermediate_events",
    "rubric_groups",
    "user_scenario",
)
_SOURCES = frozenset({"conversation", "conversation_scenario"})
_AGENT_KEYS = frozenset({"agent_class", "instruction", "model", "sub_agents", "tools"})
_TOP_KEY = re.compile(rb"^([A-Za-z_]\w*)[ \t]*:", re.MULTILINE)


def foreign_case(case: Any) -> str:
    """Return the keys by which a case is one of agents-cli, as a list in words; empty where it is none."""
    if not isinstance(case, Mapping):
        return ""
    keys = {to_snake(str(key)) for key in case}
    return "" if keys & _SOURCES else ", ".join(key for key in _DATASET_KEYS if key in keys)


def dataset_problem(keys: str, at: str = "$") -> Problem:
    """Return the problem of a dataset of agents-cli, with the keys that told it."""
    found = f"a dataset of agents-cli, Google's Gen AI evaluation ({keys})"
    wanted = "an eval set of ADK, whose cases have eval_id and conversation"
    return Problem(at, found, wanted, "agents-cli's format is not read yet. Write each prompt as user_content of a turn in conversation.")


def refuse_dataset(value: Any, source: str) -> None:
    """Refuse a dataset of agents-cli.

    Raises:
        EvalSetError: if `value` is one.
    """
    cases = value
    if isinstance(value, Mapping):
        cases = value.get("eval_cases") or value.get("evalCases")
    keys = next(filter(None, map(foreign_case, cases)), "") if isinstance(cases, list) else ""
    if keys:
        raise EvalSetError(source, [dataset_problem(keys)])


def refuse_other_file(value: Any, source: str) -> None:
    """Refuse the config of agents-cli and the file of an agent, which are neither a config of ADK nor a policy.

    Raises:
        ConfigError: if `value` is a config of agents-cli.
        InputError: if it is an agent.
    """
    if not isinstance(value, Mapping):
        return
    keys = {to_snake(str(key)) for key in value}
    if "metrics_to_run" in keys or ("criteria" not in keys and isinstance(value.get("custom_metrics"), list)):
        _refuse_config(source, keys)
    if "name" in keys and keys & _AGENT_KEYS and not keys & {"rules", "thresholds"}:
        found = f"an ADK agent in YAML ({', '.join(sorted(keys & _AGENT_KEYS))})"
        wanted = "an eval set, an eval config, a policy, a recording or a result"
        hint = "Agents are not validated. Evaluate it: mlflow-adk-eval run FOLDER EVAL_SET, with the folder of this file."
        raise InputError(source, [Problem("$", found, wanted, hint)])


def refuse_yaml_config(text: bytes, source: str) -> None:
    """Refuse a config in YAML, without parsing it.

    Raises:
        ConfigError: always.
    """
    keys = {match.decode() for match in _TOP_KEY.findall(text)}
    if "metrics_to_run" in keys:
        _refuse_config(source, keys)
    raise ConfigError(source, [Problem("$", "YAML", "JSON with criteria, as ADK's test_config.json has them")])


def _refuse_config(source: str, keys: Collection[str]) -> None:
    told = ", ".join(sorted({"metrics_to_run", "custom_metrics"} & set(keys)))
    found = f"a config of agents-cli, Google's Gen AI evaluation ({told})"
    wanted = "an eval config of ADK: JSON with criteria"
    hint = "agents-cli's format is not read yet. Write each metric as a criterion with a threshold in test_config.json."
    raise ConfigError(source, [Problem("$", found, wanted, hint)])
