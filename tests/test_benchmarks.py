"""The benchmarks on tiny data: that they run, and that they would notice a wrong score."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.agents import load_recording

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CASES, TURNS = 60, 5

Import = Callable[[str], ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Return a function that imports a module of the benchmarks, which forgets it after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def folder(module: Import, tmp_path: Path) -> Path:
    made = tmp_path / f"n{CASES}x{TURNS}"
    made.mkdir()
    module("data").generate(made, CASES, TURNS)
    return made


def measure(folder: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the benchmarks on the data set in `folder`; return how that ended and the file of results."""
    command = [sys.executable, BENCHMARKS / "run.py", *args, "--rounds", "1", "--cases", str(CASES), "--out", folder.parent / "results.md"]
    environment = {**os.environ, "BENCH_DATA": str(folder.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done, (folder.parent / "results.md").read_text("utf-8")


def row(markdown: str, start: str) -> list[str]:
    """Return the cells of the last row whose first cell begins with `start`."""
    return next(line for line in reversed(markdown.splitlines()) if line.startswith(f"| {start}")).strip("| ").split(" | ")


def test_our_scores_are_the_floors_and_the_truth(folder: Path) -> None:
    pytest.importorskip("msgspec", reason="the floor needs msgspec: uv sync --group bench")
    done, results = measure(folder, "w1", "--contenders", "ours,floor")
    assert done.returncode == 0, done.stderr
    assert row(results, "**mlflow_adk_eval**")[-2:] == ["all 600", "all 300"]
    assert row(results, "floor")[-2:] == ["reference", "all 300"]


def test_a_score_that_is_not_the_truth_fails_the_command(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    truth["case_00007"][3]["EXACT"] = 1 - truth["case_00007"][3]["EXACT"]
    (folder / "truth.json").write_text(json.dumps(truth))
    done, results = measure(folder, "w1", "--contenders", "ours")
    assert done.returncode == 1
    assert "WRONG: w1: **mlflow_adk_eval**: 1 differ of 300" in done.stderr
    assert row(results, "**mlflow_adk_eval**")[-1] == "1 differ of 300"


def test_sections_that_were_not_measured_anew_are_kept(folder: Path) -> None:
    _, results = measure(folder, "import", "--contenders", "ours")
    again, both = measure(folder, "w1", "--contenders", "ours")
    assert again.returncode == 0, again.stderr
    assert results.partition("<!-- import -->")[2] == both.partition("<!-- import -->")[2]
    assert both.index("<!-- w1 -->") < both.index("<!-- import -->")


@pytest.mark.parametrize("match_type", ["EXACT", "IN_ORDER", "ANY_ORDER"])
def test_the_generator_knows_the_truth_for_each_way_of_matching(folder: Path, match_type: str) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    assert {turn["kind"] for case in truth.values() for turn in case} == {"equal", "extra", "swap", "extra_swap", "missing", "args", "name"}
    recorded = {eval_id: played[0].actual for eval_id, played in load_recording(folder / "actual.json").runs.items()}
    config = {"criteria": {"tool_trajectory_avg_score": {"threshold": 0.5, "match_type": match_type}}}
    cells = adk_eval.score(folder / "set.evalset.json", recorded, config).to_frame("invocations")
    cells = cells[cells.criterion == "tool_trajectory_avg_score"]
    assert list(cells.score) == [turn[match_type] for case in truth.values() for turn in case]


def test_data_are_the_same_each_time(module: Import, folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    module("data").generate(again, CASES, TURNS)
    for name in ("set.evalset.json", "actual.json", "truth.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_scores_are_compared_to_the_last_bit(module: Import) -> None:
    agreement = module("agreement")
    found = agreement.compare({"a": {"x": 0.1 + 0.2, "y": None}}, {"a": {"x": 0.3, "y": 1.0, "z": 0.0}})
    assert found == agreement.Agreement(cells=3, missing=2, different=1)
    assert str(found) == "1 differ, 2 missing of 3"


@pytest.mark.parametrize(("logs", "stored", "lost"), [("traces", {"assessments": 19}, 1), ("table", {"table_rows": 7}, 3)])
def test_what_mlflow_lost_is_counted(module: Import, logs: str, stored: dict[str, int], lost: int) -> None:
    assert module("workloads").Job("", "ours", cases=2, logs=logs).lost(stored) == lost
