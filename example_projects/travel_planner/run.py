"""Evaluate two versions of the travel planner, promote the good one, and be refused the other: ``python run.py [FOLDER]``."""

from __future__ import annotations

import sys
from pathlib import Path

from travel_judge import travel_judge
from travellers import traveller

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval import open_store, register

HERE = Path(__file__).parent
EVAL_SETS = [HERE / "written" / "trips.evalset.json", HERE / "simulated" / "travellers.evalset.json"]
NAME = "travel_planner"


def main(folder: Path) -> None:
    """Do it in an MLflow store in `folder`."""
    store = open_store(folder, experiment=NAME)
    for agent in (NAME, f"{NAME}_regressed"):
        report = evaluate(agent, store)
        show(agent, report)
        gate(report, store)
    print(f"Now open MLflow:\n  mlflow ui --backend-store-uri {store}")


def evaluate(agent: str, store: str) -> adk_eval.Report:
    """Have each conversation three times, and log the run."""
    return adk_eval.evaluate(
        EVAL_SETS,
        agent=HERE / agent,
        num_runs=3,
        judge=travel_judge,  # without this line: the model that the config names
        user_simulator=traveller,  # without this line: the model that the config names
        experiment=NAME,
        run_name=agent,
        tracking_uri=store,
    )


def show(agent: str, report: adk_eval.Report) -> None:
    """Print what came of it."""
    print(f"{agent}: {report.verdict} (MLflow run {report.run_id})")
    for case in report.repeats.flaky:
        print(f"  flaky: {case.eval_id}, {case.summary}")


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
