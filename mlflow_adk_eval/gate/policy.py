"""What a run must show before it may be promoted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_adk_eval.errors import UsageError
from mlflow_adk_eval.evalset.digest import canonical_json


@dataclass(frozen=True, slots=True)
class Policy:
    """A named set of demands."""

    name: str
    demands: Mapping[str, Any]
    """What is demanded, as JSON values."""

    def to_json(self) -> dict[str, Any]:
        """Return the policy as JSON values, for the record of a decision."""
        return {"name": self.name, "demands": dict(self.demands)}

    def digest(self) -> str:
        """Return the sha256 of the policy, in hex."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()


DEFAULT_POLICY = Policy("default", {"thresholds": "the run's own", "cases": "every", "unevaluated": 0})
"""Every case must be evaluated on every criterion of the run's config and reach the threshold given there."""


def load_policy(source: Any = None) -> Policy:
    """Return the policy that `source` names; ``None``: the default policy.

    Raises:
        UsageError: for anything but the default policy.
    """
    if source is None or source == DEFAULT_POLICY:
        return DEFAULT_POLICY
    raise UsageError("policy files are not supported by this version; without one, the thresholds of the run's own config decide")
