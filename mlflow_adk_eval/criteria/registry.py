"""The criteria by name, and who decides them. A new one is a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlflow_adk_eval.criteria import judge_backed
from mlflow_adk_eval.criteria.criterion import Criterion, Factory
from mlflow_adk_eval.criteria.efficiency import MEASURES, per_turn
from mlflow_adk_eval.criteria.final_response import FinalResponseMatch
from mlflow_adk_eval.criteria.final_state import FinalSessionState
from mlflow_adk_eval.criteria.hallucinations import Hallucinations
from mlflow_adk_eval.criteria.rapid.criteria import RAPID_COMPUTED, RAPID_JUDGED
from mlflow_adk_eval.criteria.response_match import ResponseMatch
from mlflow_adk_eval.criteria.rubric_quality import FinalResponseQuality, ToolUseQuality, TrajectoryQuality
from mlflow_adk_eval.criteria.trajectory import ToolTrajectory
from mlflow_adk_eval.criteria.user_simulator import UserSimulatorQuality
from mlflow_adk_eval.criteria.vertex import VERTEX
from mlflow_adk_eval.judge import VoteCollector

__all__ = ["JUDGED", "REGISTRY", "VERTEX"]

REGISTRY: Mapping[str, Factory] = {
    "tool_trajectory_avg_score": ToolTrajectory,
    "response_match_score": ResponseMatch,
    "final_session_state": FinalSessionState,
    **{name: per_turn(measure) for name, measure in MEASURES.items()},
    **RAPID_COMPUTED,
}
"""Those that are computed: from a name to what makes the criterion of its settings."""

JUDGED: Mapping[str, Callable[[Any, VoteCollector], Criterion]] = {
    "final_response_match_v2": FinalResponseMatch,
    "rubric_based_final_response_quality_v1": FinalResponseQuality,
    "rubric_based_tool_use_quality_v1": ToolUseQuality,
    "rubric_based_multi_turn_trajectory_quality_v1": TrajectoryQuality,
    "hallucinations_v1": Hallucinations,
    "per_turn_user_simulator_quality_v1": UserSimulatorQuality,
    "safety_v1": judge_backed.safety,
    "response_evaluation_score": judge_backed.coherence,
    "multi_turn_task_success_v1": judge_backed.task_success,
    "multi_turn_trajectory_quality_v1": judge_backed.trajectory_quality,
    "multi_turn_tool_use_quality_v1": judge_backed.tool_use_quality,
    **RAPID_JUDGED,
}
"""Those that votes of a judge decide, or may decide."""
