"""Our criteria as scorers of `mlflow.genai.evaluate`: `genai.py CONFIG`."""

import sys

import mlflow

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import scorers

result = mlflow.genai.evaluate(
    data=adk_eval.genai_data("refunds.evalset.json"),
    predict_fn=adk_eval.predict_fn("bank"),
    scorers=[*scorers.from_config(sys.argv[1]), *scorers.expectations()],
)
print(result.metrics, result.reason)
raise SystemExit(0 if result.passed else 1)
