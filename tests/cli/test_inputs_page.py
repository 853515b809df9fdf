"""The commands of docs/how_to/large_eval_sets.md, in the order of the page, in a copy of the example project."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how_to" / "large_eval_sets.md"
PREFIX = "    mlflow-adk-eval "


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "example_projects" / "home_automation", tmp_path, dirs_exist_ok=True)
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    commands = [line.removeprefix(PREFIX) for line in PAGE.read_text("utf-8").splitlines() if line.startswith(PREFIX)]
    assert len(commands) == 7
    for command in commands:
        result = subprocess.run(
            [sys.executable, "-m", "mlflow_adk_eval", *shlex.split(command)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
