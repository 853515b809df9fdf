"""Policies from files: YAML or JSON, strictly read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlflow_adk_eval.analysis.calibration import load_calibration
from mlflow_adk_eval.errors import PolicyError, Problem, shown
from mlflow_adk_eval.evalset.parse import problems_of, read_text
from mlflow_adk_eval.evalset.schema import unknown_keys
from mlflow_adk_eval.gating.policy.model import DEFAULT_POLICY, Policy
from mlflow_adk_eval.gating.policy_yaml import decode_yaml

JSON_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"
_LARGEST = 256 * 1024


def load_policy(source: str | Path | Mapping[str, Any] | Policy | None = None) -> Policy:
    """Return a policy from a YAML or JSON file, a dict or an object; ``None``: the default policy.

    A calibration is read from the file that the policy names, beside which it looks, and becomes a part of the policy.

    Raises:
        PolicyError: with every problem of the policy.
        InputError: with every problem of its calibration.
    """
    if source is None:
        return DEFAULT_POLICY
    if isinstance(source, Policy):
        return source
    if isinstance(source, Mapping):
        return parse_policy(dict(source), "policy")
    path = Path(source)
    return parse_policy(decode_policy(read_text(path, error=PolicyError), path), str(path), beside=path.parent)


def decode_policy(text: bytes, path: Path) -> Any:
    """Return the value in the text of a policy file: JSON where its name says so, else YAML.

    Raises:
        PolicyError: if it is neither, or too large to be written by people.
    """
    if len(text) > _LARGEST:
        raise PolicyError(str(path), [Problem("$", f"{len(text):,} bytes", f"a policy of at most {_LARGEST:,} bytes")])
    return decode_json(text, str(path)) if path.suffix == ".json" else decode_yaml(text, str(path))


def decode_json(text: bytes, source: str) -> Any:
    """Return the value in JSON text. A key that stands twice is an error, not the last of its values.

    Raises:
        PolicyError: if it is no JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise PolicyError(source, [Problem("$", "lists or objects in lists without end", "a policy")]) from None
    except ValueError as error:
        found = f"text that is no JSON ({error})" if text.strip() else "an empty text"
        raise PolicyError(source, [Problem("$", found, "JSON")]) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            msg = f"the key {key!r} stands twice in one object"
            raise ValueError(msg)
        found[key] = value
    return found


def parse_policy(value: Any, source: str, *, beside: Path | None = None) -> Policy:
    """Return a decoded policy; `beside`: the folder of its file.

    Raises:
        PolicyError: with every problem of the policy.
        InputError: with every problem of its calibration.
    """
    if not isinstance(value, dict):
        raise PolicyError(source, [Problem("$", shown(value), "an object with rules")])
    value = _with_calibration(value, beside or Path())
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


def _with_calibration(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a policy that holds its calibration instead of naming it; one that it holds is checked."""
    given = value.get("calibration")
    if not isinstance(given, str | dict):
        return value
    read = load_calibration(folder / given if isinstance(given, str) else given)
    return value | {"calibration": read.model_dump(mode="json", exclude_none=True)}


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of policy files, for editors."""
    schema = Policy.model_json_schema(by_alias=False)
    properties = schema["properties"]
    properties["calibration"] = {
        "anyOf": [{"type": "string"}, {"type": "object"}],
        "description": "What `calibrate` found, for corrected_ci_low: the path of its file, beside this one.",
    }
    return {"$schema": JSON_SCHEMA_ID, **schema, "title": "mlflow-adk-eval gate policy"}
