import mlflow

import mlflow_adk_eval as adk_eval

[run] = mlflow.search_runs(search_all_experiments=True, output_format="list", max_results=1)
decision = adk_eval.promote("bank", version=1, run_id=run.info.run_id, policy="gate.yaml")
print(decision.verdict, *decision.reasons)
