"""How a conversation is judged: one module per criterion, and the plan that a config asks for."""

from mlflow_adk_eval.criteria.criterion import CaseRun, Criterion, Planned, apply
from mlflow_adk_eval.criteria.plan import Plan, plan
from mlflow_adk_eval.criteria.registry import REGISTRY

__all__ = ["REGISTRY", "CaseRun", "Criterion", "Plan", "Planned", "apply", "plan"]
