"""Saying that ``mlflow.genai.evaluate`` loses rows on SQLite where more threads write than its pool has connections."""

from __future__ import annotations

import os

import mlflow

WORKERS = "MLFLOW_GENAI_EVAL_MAX_WORKERS"
_POOL = "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE"
_MOST, _LARGE_POOL = 6, 60
"""As many workers as lose nothing with MLflow's own pool, and as large a pool as its default number of workers needs."""


def sqlite_warning() -> str:
    """Return what to say before evaluating on the store that MLflow is set to, or ``""`` where nothing will be lost."""
    if not mlflow.get_tracking_uri().startswith("sqlite") or _at_most(WORKERS, _MOST) or _at_least(_POOL, _LARGE_POOL):
        return ""
    return (
        "mlflow.genai.evaluate loses rows on a SQLite tracking URI at its default number of workers: traces and assessments that find "
        f"no free connection are dropped with no more than a warning. Set {WORKERS}=4 in the environment before evaluating, or use an "
        "MLflow server (`mlflow server`, then its http:// address as the tracking URI)."
    )


def _at_most(name: str, limit: int) -> bool:
    value = os.environ.get(name, "")
    return value.isdigit() and 0 < int(value) <= limit


def _at_least(name: str, limit: int) -> bool:
    value = os.environ.get(name, "")
    return value.isdigit() and int(value) >= limit
