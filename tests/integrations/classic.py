"""A real store of MLflow, and what ``mlflow.models.evaluate`` made of a table in it."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mlflow_adk_eval.results.report import Report
from tests.integrations.genai import tracking
from tests.mlflow_kit import copied


@pytest.fixture(scope="module")
def tracked(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a store that all tests of a module share."""
    import mlflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own import hook warns of itself
        importlib.import_module("mlflow.models.evaluation.evaluator_registry")
    folder = tmp_path_factory.mktemp("classic")
    store = copied(template, folder)
    with chdir(folder), tracking(store):
        mlflow.set_experiment("classic")
        yield store


@dataclass(frozen=True)
class Evaluated:
    """What a run of MLflow holds after an evaluation."""

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    """The rows of ``eval_results_table.json``."""
    described: list[dict[str, Any]]
    """The rows of ``genai_custom_metrics.json``."""
    text: str
    """All artifacts as one text."""

    def scores(self, criterion: str) -> list[float | None]:
        return [row[f"{criterion}/score"] for row in self.rows]

    def reasons(self, criterion: str) -> list[str]:
        return [row[f"{criterion}/justification"] for row in self.rows]

    def aggregates(self, criterion: str) -> dict[str, float]:
        start = f"{criterion}/"
        return {name.removeprefix(start): value for name, value in self.metrics.items() if name.startswith(start)}


def evaluated(data: Any, extra_metrics: Sequence[Any], **how: Any) -> Evaluated:
    """Return what is logged of an evaluation, which is also what the call returns."""
    import mlflow

    with mlflow.start_run() as run:
        found = mlflow.models.evaluate(data=data, extra_metrics=list(extra_metrics), **how)
    logged = mlflow.get_run(run.info.run_id)
    assert {name: float(value) for name, value in found.metrics.items()} == logged.data.metrics
    folder = Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id))
    texts = {path.name: path.read_text() for path in sorted(folder.rglob("*.json"))}
    return Evaluated(
        metrics=logged.data.metrics,
        rows=_records(texts["eval_results_table.json"]),
        described=[row["metric_args"] for row in _records(texts["genai_custom_metrics.json"])],
        text="".join(texts.values()),
    )


def _records(text: str) -> list[dict[str, Any]]:
    table = json.loads(text)
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def case_scores(report: Report, criterion: str) -> list[float | None]:
    """Return the score of each case, in order."""
    return [result.score for case in report.cases for result in case.results if result.criterion == criterion]


def frame(**columns: Any) -> pd.DataFrame:
    """Return a table whose cells are what is given, lists and dicts included."""
    return pd.DataFrame({name: pd.Series(list(cells), dtype=object) for name, cells in columns.items()})
