"""Every attack is done twice: on a SQLite store and on a server."""

from __future__ import annotations

import pytest

from tests.gating.gate_kit import Lab


@pytest.fixture(scope="session", params=["SQLite", pytest.param("server", marks=pytest.mark.slow)])
def lab(request: pytest.FixtureRequest, lab: Lab) -> Lab:
    served: Lab = request.getfixturevalue("served_lab") if request.param == "server" else lab
    return served
