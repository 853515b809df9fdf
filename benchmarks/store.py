"""A new MLflow store in SQLite for each measurement, and what has arrived in it afterwards."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from contenders import CRITERIA
from contenders.mlflow_scorers import NAMES

EXPERIMENT = "bench"


def make(folder: Path) -> None:
    """Make a store in `folder` and point MLflow at it.

    What a process pays once, whoever writes, is paid here and so stays outside the clock: the schema, which takes seconds,
    and the first trace. The trace goes to another experiment.
    """
    import mlflow

    os.chdir(folder)
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    os.environ["MLFLOW_TRACKING_URI"] = mlflow.get_tracking_uri()
    mlflow.set_experiment("warm-up")
    with mlflow.start_span("warm-up"):
        pass
    mlflow.flush_trace_async_logging()
    mlflow.create_experiment(EXPERIMENT, artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_experiment(EXPERIMENT)


def arrived(folder: Path) -> dict[str, int]:
    """Return how many traces, scores on them and rows of tables the store in `folder` holds."""
    names = (*CRITERIA, *NAMES)
    marks = ", ".join("?" * len(names))
    with closing(sqlite3.connect(f"file:{folder}/mlflow.db?mode=ro", uri=True)) as database:
        ((experiment,),) = database.execute("select experiment_id from experiments where name = ?", (EXPERIMENT,))
        ((traces,),) = database.execute("select count(*) from trace_info where experiment_id = ?", (experiment,))
        ((assessments,),) = database.execute(
            "select count(*) from assessments join trace_info on trace_id = request_id"
            f" where trace_info.experiment_id = ? and name in ({marks}) and error is null",
            (experiment, *names),
        )
    return {"traces": traces, "assessments": assessments, "table_rows": _table_rows(folder / "artifacts")}


def _table_rows(artifacts: Path) -> int:
    """Return the length of the longest table that MLflow's pages can show."""
    contents = (json.loads(file.read_bytes()) for file in artifacts.rglob("*.json"))
    return max(
        (len(content["data"]) for content in contents if isinstance(content, dict) and {"columns", "data"} <= set(content)), default=0
    )
