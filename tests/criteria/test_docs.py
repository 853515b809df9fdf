"""The tables of criteria in the documentation say what the specs say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mlflow_adk_eval.config.spec import CRITERIA
from mlflow_adk_eval.judge.prompt import load_prompt

ROOT = Path(__file__).parents[2]


def test_the_tables_are_true() -> None:
    subprocess.run([sys.executable, "docs/criteria_table.py", "--check"], cwd=ROOT, check=True)


def test_the_reference_lists_every_criterion_once() -> None:
    rows = [line.split("`")[1] for line in (ROOT / "docs/criteria.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(CRITERIA)


def test_every_prompt_that_a_criterion_names_is_there() -> None:
    assert all(load_prompt(name).text for spec in CRITERIA.values() for name in spec.prompts)
    assert all(bool(spec.prompts) == spec.judged for spec in CRITERIA.values())
