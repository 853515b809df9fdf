"""`benchmarks/decisions.py --quick`: each cell runs, and the decisions that it counts are those of the gate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_each_cell_has_its_tables() -> None:
    command = [sys.executable, BENCHMARKS / "decisions.py", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    sections = done.stdout.split("### ")[1:]
    assert [section[:3] for section in sections] == ["(a)", "(b)", "(c)", "(d)", "(e)"]
    assert all("\n| :-- |" in section and "nan" not in section for section in sections)


def test_what_is_excluded_passes_and_the_rule_before_is_the_one_that_the_page_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import deciding

    for worse, better in ((0, 0), (2, 5), (5, 5), (9, 0), (1, 9)):
        assert (deciding.excluded(worse, better, 200) <= 0.05) == (deciding.verdict(worse, better, 200, 0.05, 0.05) == "passed")
    assert (deciding.verdict_before(0, 0, 20), deciding.verdict_before(0, 0, 19)) == ("passed", "undecided")
    assert deciding.verdict(0, 0, 20, 0.05, 0.05) == "undecided"
    assert deciding.looks(100) == [20, 30, 45, 68, 100]
