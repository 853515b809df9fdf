"""Evaluate two versions of the support agent, promote the good one, and be refused the other: ``python run.py [FOLDER]``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from support_bot import support_bot
from support_bot_regressed import support_bot_regressed

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import open_store, register

HERE = Path(__file__).parent
NAME = "support_bot"


def main(folder: Path) -> None:
    """Do it in an MLflow store in `folder`."""
    store = open_store(folder, experiment=NAME)
    for agent in (support_bot, support_bot_regressed):
        report = evaluate(agent, store)
        print(f"{agent.__name__}: {report.verdict} (MLflow run {report.run_id})")
        gate(report, store)
    print(f"Now open MLflow:\n  mlflow ui --backend-store-uri {store}")


def evaluate(agent: Callable[..., str], store: str) -> adk_eval.Report:
    """Have each conversation, and log the run."""
    return adk_eval.evaluate(HERE / "support.evalset.json", agent=agent, experiment=NAME, run_name=agent.__name__, tracking_uri=store)


def gate(report: adk_eval.Report, store: str) -> None:
    """Promote the evaluated version, if the run allows it."""
    version = register(report, NAME, tracking_uri=store)
    decision = adk_eval.promote(NAME, version, "champion", run_id=report, raise_on_failure=False, tracking_uri=store)
    print(f"  version {version} is {'now' if decision.passed else 'not'} the champion:")
    for reason in decision.reasons:
        print(f"  - {reason.partition(';')[0]}")
    print()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "mlflow_store"))
