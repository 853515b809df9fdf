"""Everything that reaches MLflow: evaluations as runs, traces, agent versions."""

from mlflow_adk_eval.tracking.evaluation import aevaluate, evaluate
from mlflow_adk_eval.tracking.register import register
from mlflow_adk_eval.tracking.upload import upload

__all__ = ["aevaluate", "evaluate", "register", "upload"]
