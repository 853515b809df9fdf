"""Everything that reaches MLflow: evaluations as runs, traces, agent versions, datasets.

`evaluate` leads a reader through the package: an evaluation is planned (`mlflow_adk_eval.runner`), its run is opened (`logged_run`), the report
becomes a `bundle` and its turns `trace_records`, and both are written (`logged_run`, `traces`).
"""
