"""Talk to an agent of a framework, then evaluate the traces that MLflow has of it: ``python evaluate.py langgraph``."""

import importlib
import sys

import mlflow

import mlflow_adk_eval as adk_eval

(framework,) = sys.argv[1:]
mlflow.set_experiment(framework)
agent = importlib.import_module(f"{framework}_agent")
agent.chat("monday", "Light on in the hall, please.", "Thanks.")
mlflow.flush_trace_async_logging()

report = adk_eval.evaluate(
    "lights.evalset.json",
    agent=mlflow.search_traces(),
    config="test_config.json",
    experiment="scores",
)
print(report.verdict, report.scores)
