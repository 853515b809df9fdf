"""What holds for every test."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
from packaging.version import Version


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(package, version): skipped where the package is older, as in parts of `make matrix`")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        package, oldest = marker.args
        if reason := _too_old(package, oldest):
            pytest.skip(reason)


def _too_old(package: str, oldest: str) -> str | None:
    try:
        installed = version(package)
    except PackageNotFoundError:
        return f"{package} is not installed"
    if Version(installed) < Version(oldest):
        return f"{package} {installed} is older than {oldest}"
    return None


@pytest.fixture(autouse=True)
def _no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep nothing between tests, unless a test says where."""
    monkeypatch.setenv("ADK_EVAL_LEDGER", "off")
