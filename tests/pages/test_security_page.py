"""The threat model names a test for what it says: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:tests/[\w/]+?/)?test_\w+)\.py(?:::(test_\w+))?`", PAGE)))
"""The file without its ending, below the attacks on the gate unless it says a folder; and a test in it, if one is named."""
TABLES = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("file", "function"), NAMED)
def test_what_the_threat_model_names_is_there(file: str, function: str) -> None:
    path = ROOT / (file if "/" in file else f"tests/gating/attacks/{file}")
    where = f"name the file and the test in docs/explanation/security.md where they are now, instead of {file}.py::{function}"
    assert path.with_suffix(".py").is_file(), where
    assert not function or f"def {function}(" in path.with_suffix(".py").read_text("utf-8"), where


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def test_each_row_of_attempts_names_a_test_or_says_that_there_is_none() -> None:
    attempts = [table.splitlines() for table in TABLES if _cells(table.splitlines()[0])[-1] == "test"]
    assert attempts
    for _, _, *rows in attempts:
        untested = [row for row in rows if not ("`" in _cells(row)[-1] or _cells(row)[-1] == "–")]
        assert untested == [], "name a test in the last cell of each of these rows of docs/explanation/security.md, or write – there"
