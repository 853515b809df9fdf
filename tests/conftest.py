"""What holds for every test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep nothing between tests, unless a test says where."""
    monkeypatch.setenv("ADK_EVAL_LEDGER", "off")
