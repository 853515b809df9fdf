import time

import mlflow

import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}
report = adk_eval.evaluate("refunds.evalset.json", agent="bank", experiment="bank")
month_ago_ms = int((time.time() - 30 * 86400) * 1000)
mlflow.MlflowClient().set_terminated(report.run_id, end_time=month_ago_ms)
policy = {"max_age": "7d", "rules": {"case_pass_rate": {"min": 1.0}}}
decision = adk_eval.gate(report.run_id, policy, raise_on_failure=False)
print(decision.verdict, *decision.reasons)
raise SystemExit(CODES[decision.verdict])
