"""The command line ``mlflow-adk-eval``: one file per command."""
