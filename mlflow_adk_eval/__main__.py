"""``python -m mlflow_adk_eval``."""

from mlflow_adk_eval.cli import main

main()
