"""The metrics of the Rapid Eval API, computed and judged locally or by Vertex AI."""

from mlflow_adk_eval.criteria.rapid.evaluate import aevaluate_instances, evaluate_instances
from mlflow_adk_eval.criteria.rapid.messages import RequestError

__all__ = ["RequestError", "aevaluate_instances", "evaluate_instances"]
