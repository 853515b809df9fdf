import mlflow
from traced import record

import mlflow_adk_eval as adk_eval

CODES = {"passed": 0, "failed": 1, "undecided": 2}
record()
traces = mlflow.search_traces(return_type="list")
report = adk_eval.evaluate(
    "refunds.evalset.json:o7",
    agent=traces,
    config={"criteria": {"tool_trajectory_avg_score": 1.0}},
    experiment="scores",
)
print(report.verdict, *report.reasons)
raise SystemExit(CODES[report.verdict])
