"""Everything that reaches MLflow: evaluations as runs, traces, agent versions, datasets.

`evaluate` leads a reader through the package: an evaluation is planned (`mlflow_adk_eval.runner`), its run is opened (`logged_run`), the report
becomes a `bundle` and its turns `trace_records`, and both are written (`logged_run`, `traces`).
"""

from mlflow_adk_eval.tracking.agent_versions import register
from mlflow_adk_eval.tracking.earlier_runs import recording_of_run
from mlflow_adk_eval.tracking.evaluate import aevaluate, evaluate, log_report
from mlflow_adk_eval.tracking.logged_run import upload

__all__ = ["aevaluate", "evaluate", "log_report", "recording_of_run", "register", "upload"]
