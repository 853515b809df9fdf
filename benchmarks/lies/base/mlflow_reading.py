"""What `mlflow.genai.evaluate` gives a pipeline to read."""

from __future__ import annotations

from typing import Any

from reading import conclude


def read_passed(result: Any) -> None:
    """Conclude from `result.passed`, where no expectation is a text: MLflow takes a text for a failed score."""
    conclude(success=bool(result.passed), reading="T" if result.passed else "F")


def read_means(result: Any, *names: str) -> None:
    """Conclude from the means of scorers: success if each is 1."""
    means = [result.metrics.get(f"{name}/mean") for name in names]
    if any(mean is None or mean != mean for mean in means):  # noqa: PLR0124 - NaN
        conclude(success=False, reading="n")
        return
    conclude(success=min(means) >= 1.0, reading=float(min(means)))
