"""The gate: from the evidence of a run to a decision, and from a decision to an alias in the model registry.

The module can be called: ``mlflow_adk_eval.gate(run)`` decides on a run, whether or not `mlflow_adk_eval.gate` was imported as
the package that it also is.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow_adk_eval.gate.baseline import Reevaluate
    from mlflow_adk_eval.gate.policy import DEFAULT_POLICY, Policy
    from mlflow_adk_eval.gate.policy_file import load_policy
    from mlflow_adk_eval.gate.promotion import gate, promote, verify
    from mlflow_adk_eval.outcome import Decision, Report

__all__ = ["DEFAULT_POLICY", "Policy", "gate", "load_policy", "promote", "verify"]

_HOMES = {"promote": "promotion", "verify": "promotion", "DEFAULT_POLICY": "policy", "Policy": "policy", "load_policy": "policy_file"}


class _Gate(ModuleType):
    """The type of this module, which makes it callable."""

    def __call__(  # noqa: PLR0913 - as that of `promotion`
        self,
        run: str | Report,
        policy: Any = None,
        *,
        baseline: str | None = None,
        model: str | None = None,
        reevaluate: Reevaluate | None = None,
        raise_on_failure: bool = True,
        agent_version: str | None = None,
        tracking_uri: str | None = None,
        registry_uri: str | None = None,
    ) -> Decision:
        """Do what `promotion.gate` does."""
        from mlflow_adk_eval.gate.promotion import gate as decide  # noqa: PLC0415 - it may be called without ever being imported

        return decide(
            run,
            policy,
            baseline=baseline,
            model=model,
            reevaluate=reevaluate,
            raise_on_failure=raise_on_failure,
            agent_version=agent_version,
            tracking_uri=tracking_uri,
            registry_uri=registry_uri,
        )


sys.modules[__name__].__class__ = _Gate


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used."""
    if name == "gate":
        return sys.modules[__name__]
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
