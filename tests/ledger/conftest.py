"""Ledgers of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres_kit import Postgres, postgres

__all__ = ["postgres"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a new ledger."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.sqlite")
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()
