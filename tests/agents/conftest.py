from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to put agents into, which the interpreter forgets again."""
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        module = sys.modules[name]
        if str(tmp_path) in str(getattr(module, "__file__", None) or list(getattr(module, "__path__", []))):
            del sys.modules[name]
