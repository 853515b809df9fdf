"""A store for tests of what MLflow finds by entry points, and recordings with known scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mlflow_kit import copied
from tests.tracking.small import expected_of, rooms, turn


@contextlib.contextmanager
def configured_store(template: Path, folder: Path) -> Iterator[str]:
    """Have MLflow log to a copy of the empty store, and everybody work in its folder."""
    uri = copied(template, folder)
    with pytest.MonkeyPatch.context() as patched, contextlib.chdir(folder):
        patched.setenv("MLFLOW_TRACKING_URI", uri)
        patched.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
        yield uri


def cold() -> dict[str, list[Any]]:
    """Return a recording of `rooms` in which the agent is wrong about the heating."""
    return expected_of(rooms()) | {"heat": [turn("21 degrees please", "no")]}
