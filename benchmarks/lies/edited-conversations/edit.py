import tempfile

import mlflow

import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}


def wrong(message):
    return "I sold your account."


good = adk_eval.evaluate("refunds.evalset.json", agent="bank", experiment="bank")
bad = adk_eval.evaluate("refunds.evalset.json", agent=wrong, experiment="bank")
client = mlflow.MlflowClient()
with tempfile.TemporaryDirectory() as folder:
    client.download_artifacts(good.run_id, "adk_eval", folder)
    client.log_artifacts(bad.run_id, folder)
decision = adk_eval.gate(bad.run_id, raise_on_failure=False)
print(decision.verdict, *decision.reasons)
raise SystemExit(CODES[decision.verdict])
