"""How a conversation is judged: one module per criterion, and the plan that a config asks for."""

from mlflow_adk_eval.criteria import efficiency, final_state, response_match, trajectory
from mlflow_adk_eval.criteria.base import REGISTRY, CaseRun, Criterion, Planned, apply
from mlflow_adk_eval.criteria.plan import Plan, plan

__all__ = ["REGISTRY", "CaseRun", "Criterion", "Plan", "Planned", "apply", "efficiency", "final_state", "plan", "response_match", "trajectory"]
