"""``python -m mlflow_adk_eval``."""

from mlflow_adk_eval.cli.main import main

main()
