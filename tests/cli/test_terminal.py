"""Terminals that cannot show our marks, and readers that end before the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import EXPECTED, written

FAILED = 1
SCORE = ("score", "lights.evalset.json", "--actual", "recording.json", "--config", "config.json")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    written(tmp_path / "lights.evalset.json", EXPECTED)
    recording = json.loads(json.dumps(EXPECTED))
    recording["eval_cases"][0]["conversation"][0]["final_response"]["parts"][0]["text"] = "\u6771 \u2713 no"
    written(tmp_path / "recording.json", recording)
    written(tmp_path / "config.json", {"criteria": {"response_match_score": 0.9}})
    return tmp_path


def scored(here: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "MLFLOW_ADK_EVAL_LEDGER": "off", **environment}
    return subprocess.run([sys.executable, "-m", "mlflow_adk_eval", *SCORE, *more], cwd=here, env=env, capture_output=True, check=False)


@pytest.mark.parametrize("encoding", ["cp1252", pytest.param("ascii", marks=pytest.mark.slow)])
def test_marks_are_ascii_where_no_others_can_be_written(encoding: str, here: Path) -> None:
    done = scored(here, "--detailed", PYTHONIOENCODING=encoding)
    shown = done.stdout.decode(encoding)
    assert done.returncode == FAILED, done.stderr
    assert "x response_match_score below its threshold" in shown
    assert "\\u6771 + no" in shown
    assert "?" not in shown
    assert ">= 0.9" in shown
    assert b"Error" not in done.stderr


def test_json_stays_json_where_its_characters_cannot_be_written(here: Path) -> None:
    done = scored(here, "--json", PYTHONIOENCODING="cp1252")
    assert done.returncode == FAILED
    assert json.loads(done.stdout.decode("ascii"))["verdict"] == "failed"


@pytest.mark.slow
def test_the_locale_c_makes_no_question_marks(here: Path) -> None:
    done = scored(here, "--detailed", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert done.returncode == FAILED
    assert b"x response_match_score" in done.stdout
    assert b"?" not in done.stdout


@pytest.mark.parametrize("errors", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["output", "output and errors"])
def test_a_reader_that_ends_early_changes_no_exit_code(errors: bool, here: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mlflow_adk_eval", *SCORE, "--detailed"]
    where = writer if errors else subprocess.PIPE
    done = subprocess.run(command, cwd=here, stdout=writer, stderr=where, check=False)
    os.close(writer)
    assert done.returncode == FAILED
    assert not done.stderr


@pytest.mark.slow
def test_a_large_output_whose_reader_ends_early(here: Path) -> None:
    case = EXPECTED["eval_cases"][0]
    many = EXPECTED | {"eval_cases": [case | {"eval_id": f"case {number}"} for number in range(3000)]}
    for name in ("lights.evalset.json", "recording.json"):
        written(here / name, many)
    shell = f"set -o pipefail; {sys.executable} -m mlflow_adk_eval {' '.join(SCORE)} --detailed | head -1"
    done = subprocess.run(["bash", "-c", shell], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert "error" not in done.stderr
