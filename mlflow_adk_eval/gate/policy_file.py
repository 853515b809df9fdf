"""Policies from files: YAML or JSON, strictly read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlflow_adk_eval.errors import PolicyError, Problem, shown
from mlflow_adk_eval.evalset.parse import decode, problems_of, read_text
from mlflow_adk_eval.evalset.schema import unknown_keys
from mlflow_adk_eval.gate.policy import DEFAULT_POLICY, Policy

JSON_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def load_policy(source: str | Path | Mapping[str, Any] | Policy | None = None) -> Policy:
    """Return a policy from a YAML or JSON file, a dict or an object; ``None``: the default policy.

    A calibration is read from the file that the policy names, beside which it looks, and becomes a part of the policy.

    Raises:
        PolicyError: with every problem of the policy.
    """
    if source is None:
        return DEFAULT_POLICY
    if isinstance(source, Policy):
        return source
    if isinstance(source, Mapping):
        return parse_policy(dict(source), "policy")
    path = Path(source)
    text = read_text(path, error=PolicyError)
    value = decode(text, str(path), error=PolicyError) if path.suffix == ".json" else decode_yaml(text, str(path))
    return parse_policy(value, str(path), beside=path.parent)


def parse_policy(value: Any, source: str, *, beside: Path | None = None) -> Policy:
    """Return a decoded policy; `beside`: the folder of its file.

    Raises:
        PolicyError: with every problem of the policy.
    """
    if not isinstance(value, dict):
        raise PolicyError(source, [Problem("$", shown(value), "an object with rules")])
    given = value.get("calibration")
    if isinstance(given, str):
        path = (beside or Path()) / given
        value = value | {"calibration": decode(read_text(path, error=PolicyError), str(path), error=PolicyError)}
    unknown = list(unknown_keys(Policy, value))
    try:
        policy = Policy.model_validate(value)
        details = []
    except ValidationError as error:
        policy, details = None, error.errors(include_url=False)
    found = problems_of(Policy, value, details, unknown, at="$")
    if found or policy is None:
        raise PolicyError(source, found)
    return policy


def decode_yaml(text: bytes, source: str) -> Any:
    """Return the value in YAML text, of which JSON is a part. A key that stands twice is an error, not the last of its values.

    Raises:
        PolicyError: if it is no YAML, or more than one document.
    """
    from ruamel.yaml import YAML  # noqa: PLC0415 - only policies are YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415

    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise PolicyError(source, [Problem("$", f"text that is no YAML ({error.problem}{where})", "YAML or JSON")]) from None
    except (YAMLError, ValueError) as error:
        found = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PolicyError(source, [Problem("$", f"text that is no YAML ({found})", "YAML or JSON")]) from None


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of policy files, for editors."""
    schema = Policy.model_json_schema(by_alias=False)
    properties = schema["properties"]
    properties["calibration"] = {
        "anyOf": [{"type": "string"}, {"type": "object"}],
        "description": "What `calibrate` found, for corrected_ci_low: the path of its file, beside this one.",
    }
    return {"$schema": JSON_SCHEMA_ID, **schema, "title": "mlflow-adk-eval gate policy"}
