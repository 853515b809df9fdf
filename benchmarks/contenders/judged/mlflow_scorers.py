"""The judged ADK scorers that MLflow ships, each thread with a row of its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from data import Json
from judging import MODEL, Judging
from truth import FINAL_RESPONSE, HALLUCINATIONS

from contenders import Cells, mlflow_scorers
from contenders.judged import import_all

load = mlflow_scorers.load


def imports() -> None:
    """Import all that the work needs."""
    names = (FINAL_RESPONSE, HALLUCINATIONS)
    import_all("mlflow.genai.scorers.google_adk", "google.adk.models.google_llm", *(f"google.adk.evaluation.{name}" for name in names))


def judge(rows: list[Json], judging: Judging) -> Cells:
    """Score in as many threads as requests may be in flight: no run, no traces."""
    scorer = _scorer(judging)
    with ThreadPoolExecutor(judging.in_flight) as pool:
        found = list(pool.map(lambda row: scorer(**row), rows))
    return (
        (judging.criterion, row["inputs"]["eval_id"], row["inputs"]["turn"], None if feedback.error else feedback.metadata["score"])
        for row, feedback in zip(rows, found, strict=True)
    )


def _scorer(judging: Judging) -> Any:
    from mlflow.genai.scorers.google_adk import Hallucination, ResponseEvaluation

    scorers = {FINAL_RESPONSE: ResponseEvaluation, HALLUCINATIONS: Hallucination}
    return scorers[judging.criterion](model=MODEL, num_samples=judging.votes)
