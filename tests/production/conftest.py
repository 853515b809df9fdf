from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.production.watched_kit import production, webhook

__all__ = ["production", "webhook"]


@pytest.fixture(scope="session", autouse=True)
def no_surroundings() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("MLFLOW_")}
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    yield
    del os.environ["MLFLOW_DISABLE_TELEMETRY"]
    os.environ.update(kept)
