"""mlflow_adk_eval where MLflow evaluates: as metrics, as scorers and as an evaluator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from data import ACTUAL, EVAL_SET, Json

from contenders import CRITERIA, Cells, mlflow_scorers, ours


class Data(NamedTuple):
    """What MLflow is given."""

    folder: Path
    rows: list[Json]
    """A record of MLflow per turn."""


def imports(*, logging: bool) -> None:
    """Import all that the work needs."""
    import mlflow.genai
    import mlflow.models  # noqa: F401

    from mlflow_adk_eval import metrics, scorers  # noqa: F401

    ours.imports(logging=logging)


def load(folder: Path) -> Data:
    """Return what MLflow is given. The files are read anew by the evaluator, as it is given their paths."""
    return Data(folder, [_row(row) for row in mlflow_scorers.load(folder)])


def _row(row: Json) -> Json:
    expected = dict(row["expectations"])
    return {
        "inputs": row["inputs"],
        "outputs": {"response": row["outputs"], "tool_calls": expected.pop("actual_tool_calls")},
        "expectations": expected,
    }


def metrics(data: Data) -> Cells:
    """Score as metrics of `mlflow.models.evaluate`."""
    import mlflow
    import pandas as pd

    import mlflow_adk_eval as adk_eval

    table = pd.DataFrame(
        {
            "case": row["inputs"]["eval_id"],
            "turn": row["inputs"]["turn"],
            "inputs": row["inputs"]["query"],
            "answer": row["outputs"]["response"],
            "expected": row["expectations"]["expected_response"],
            # as text, since MLflow cannot log what pyarrow has no common type for, such as the arguments of several tools
            "tool_calls": json.dumps(row["outputs"]["tool_calls"]),
            "expected_tool_calls": json.dumps(row["expectations"]["expected_tool_calls"]),
        }
        for row in data.rows
    )
    chosen = adk_eval.metrics.from_config(ours.CONFIG)
    found: dict[str, Any] = {}

    def keep(_table: Any, values: dict[str, Any], _folder: str) -> dict[str, Any]:  # MLflow rounds what its table holds
        return found.update(values) or {}

    mlflow.models.evaluate(data=table, predictions="answer", targets="expected", extra_metrics=chosen, custom_artifacts=[keep])
    return [
        (criterion, row["inputs"]["eval_id"], row["inputs"]["turn"], score)
        for criterion in CRITERIA
        for row, score in zip(data.rows, found[criterion].scores, strict=True)
    ]


def scorers(data: Data) -> Cells:
    """Score as scorers of `mlflow.genai.evaluate`, with settings that lose nothing in SQLite and no rate limits."""
    import mlflow

    import mlflow_adk_eval as adk_eval

    os.environ["MLFLOW_GENAI_EVAL_MAX_WORKERS"] = "4"
    os.environ["MLFLOW_GENAI_EVAL_PREDICT_RATE_LIMIT"] = "0"
    os.environ["MLFLOW_GENAI_EVAL_SCORER_RATE_LIMIT"] = "0"
    result = mlflow.genai.evaluate(data=data.rows, scorers=adk_eval.scorers.from_config(ours.CONFIG))
    return _of_frame(result.result_df)


def _of_frame(frame: Any) -> Iterator[tuple[str, str, int, float | None]]:
    for criterion in CRITERIA:
        for request, score in zip(frame["request"], frame[f"{criterion}/value"].tolist(), strict=True):
            yield criterion, request["eval_id"], request["turn"], score


def evaluator(data: Data) -> Cells:
    """Score and log with `evaluators="adk"`."""
    import mlflow

    dataset = mlflow.data.from_adk_evalset(str(data.folder / EVAL_SET))
    config = {"config": ours.CONFIG, "actual": str(data.folder / ACTUAL), "traces": True}
    with mlflow.start_run() as run:
        mlflow.models.evaluate(data=dataset, model_type="adk", evaluators="adk", evaluator_config=config)
    return _of_artifact(mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/adk_eval/invocations.json"))


def _of_artifact(table: Json) -> Cells:
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    return ((criterion, row["eval_id"], row["invocation_index"], row[f"{criterion}/score"]) for criterion in CRITERIA for row in rows)
