"""The criteria that this version can apply, by name. A new one is a line here."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_adk_eval.criteria.base import Factory
from mlflow_adk_eval.criteria.efficiency import MEASURES, per_turn
from mlflow_adk_eval.criteria.final_state import FinalSessionState
from mlflow_adk_eval.criteria.response_match import ResponseMatch
from mlflow_adk_eval.criteria.trajectory import ToolTrajectory

REGISTRY: Mapping[str, Factory] = {
    "tool_trajectory_avg_score": ToolTrajectory,
    "response_match_score": ResponseMatch,
    "final_session_state": FinalSessionState,
    **{name: per_turn(measure) for name, measure in MEASURES.items()},
}
"""From a name to what makes the criterion of its settings."""
