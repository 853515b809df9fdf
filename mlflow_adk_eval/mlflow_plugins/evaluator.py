"""The evaluator that MLflow calls ``adk``."""

from __future__ import annotations

from typing import Any

from mlflow.models.evaluation.base import ModelEvaluator


class AdkEvaluator(ModelEvaluator):
    """Placeholder."""

    @classmethod
    def can_evaluate(cls, **_: Any) -> bool:
        """Whether it is meant."""
        return False
