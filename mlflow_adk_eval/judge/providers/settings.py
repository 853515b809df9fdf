"""Checking a ``judge_model_config`` against what a provider knows, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from mlflow_adk_eval.errors import Problem
from mlflow_adk_eval.evalset.parse import problems_of
from mlflow_adk_eval.evalset.schema import unknown_keys


def problems_of_settings(model: type[BaseModel], settings: Mapping[str, Any]) -> list[Problem]:
    """Return what keeps `settings` from being a `model`: unknown keys and values of another kind."""
    value = dict(settings)
    try:
        model.model_validate(value, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False)
        found = problems_of(model, value, details, [key for key in unknown_keys(model, value) if key.amiss], at="$")
        return found or [Problem("$", details[0]["msg"], f"settings of {model.__name__}")]
    return []
