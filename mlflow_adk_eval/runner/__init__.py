"""From an eval set, an agent and a config to a report. Nothing here knows of MLflow.

The data flows one way: `CaseExecutor` holds what several eval sets may share (the agent, the judges, the limits), `Evaluation` plans one eval
set with one config before anything is paid for, and executing it turns each case into a conversation, each conversation into cells (one for
each turn and criterion) and all cells into a `Report`. `mlflow_adk_eval.tracking` puts a run in MLflow around an `Evaluation`; scorers,
metrics and tests execute single cases with the same functions.
"""
