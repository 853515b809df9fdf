"""The gate's MLflow store, which the commands that decide are tested with."""

from __future__ import annotations

from tests.gating.conftest import lab, model

__all__ = ["lab", "model"]
