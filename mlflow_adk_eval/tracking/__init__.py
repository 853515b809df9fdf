"""Everything that reaches MLflow: evaluations as runs, traces, agent versions."""

from mlflow_adk_eval.tracking.evaluate import aevaluate, evaluate, log_report
from mlflow_adk_eval.tracking.log import upload
from mlflow_adk_eval.tracking.register import register
from mlflow_adk_eval.tracking.replay import recording_of_run

__all__ = ["aevaluate", "evaluate", "log_report", "recording_of_run", "register", "upload"]
