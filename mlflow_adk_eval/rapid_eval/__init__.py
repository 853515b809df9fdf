"""The metrics of the Rapid Eval API, computed and judged here or asked of Vertex AI."""

from mlflow_adk_eval.rapid_eval.evaluating import aevaluate_instances, evaluate_instances
from mlflow_adk_eval.rapid_eval.messages import RequestError

__all__ = ["RequestError", "aevaluate_instances", "evaluate_instances"]
