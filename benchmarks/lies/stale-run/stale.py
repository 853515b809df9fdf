import time

import mlflow
from mlflow.entities import RunStatus
from mlflow.tracking._tracking_service.utils import _get_store

import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}
report = adk_eval.evaluate("refunds.evalset.json", agent="bank", experiment="bank")
month_ago_ms = int((time.time() - 30 * 86400) * 1000)
_get_store().update_run_info(report.run_id, RunStatus.FINISHED, month_ago_ms, None)
print(mlflow.get_run(report.run_id).info.end_time)
policy = {"max_age": "7d", "rules": {"case_pass_rate": {"min": 1.0}}}
decision = adk_eval.gate(report.run_id, policy, raise_on_failure=False)
print(decision.verdict, *decision.reasons)
raise SystemExit(CODES[decision.verdict])
