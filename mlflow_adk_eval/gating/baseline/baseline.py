"""What a run is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlflow_adk_eval.config.eval_config import EvalConfig
from mlflow_adk_eval.evalset import EvalSet
from mlflow_adk_eval.gating.evidence.integrity import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The evidence about the champion, or whatever else the policy names; or that there is none."""

    name: str
    """How reasons call it, such as ``the champion, version 3 of 'home_automation'``."""
    evidence: Evidence | None = None
    """``None``: there is no such version yet, or what there is cannot be used."""
    version: str | None = None
    """The number of its version; ``None`` for a run that the policy names, and where there is none."""
    problems: tuple[str, ...] = ()
    """Why there is no evidence, although there is a baseline; empty where there is none yet."""

    @property
    def absent(self) -> bool:
        """Whether there is nothing to compare with yet, which is no problem by itself."""
        return self.evidence is None and not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class ReevaluationRequest:
    """What is to be evaluated anew, since nothing that is known of it can be compared with the candidate."""

    model_id: str
    """The LoggedModel of the baseline, which the new run must be about."""
    agent_version: str
    """How people call that, such as ``models:/home_automation/3``."""
    run_id: str
    """The run that is known of it and cannot be used; empty where none is."""
    candidate_run_id: str
    eval_set: EvalSet
    """The candidate's, as are config and num_runs."""
    config: EvalConfig
    num_runs: int
    reasons: tuple[str, ...]
    """Why what is known cannot be compared with the candidate."""


Reevaluate = Callable[[ReevaluationRequest], str]
"""Evaluates a baseline anew and returns the id of the run. A `UsageError` says why that cannot be done."""
