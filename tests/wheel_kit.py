"""The wheel, installed as a user has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.workers import made_once

PROJECT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment in which the wheel is installed. What the wheel needs is taken from the environment of the tests."""
    uv = shutil.which("uv", path=sysconfig.get_path("scripts"))
    if uv is None or not all(map(shutil.which, ("bash", "jq"))):
        pytest.skip("following a page from the wheel needs uv, bash and jq")
    pytest.importorskip("google.adk", reason="the agents are ADK's")
    return made_once(tmp_path_factory, "wheel", lambda folder: _installed(folder, uv)) / "venv" / "bin"


def _installed(folder: Path, uv: str) -> None:
    alone = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": ""}

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([uv, *words, "--quiet"], env=alone, capture_output=True, text=True, check=False)

    built = run("build", "--wheel", "--python", sys.executable, "--out-dir", folder, PROJECT)
    if built.returncode:
        pytest.skip(f"the wheel cannot be built here: {built.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    for done in (
        run("venv", "--python", sys.executable, folder / "venv"),
        run("pip", "install", "--no-deps", "--python", folder / "venv", wheel),
    ):
        assert done.returncode == 0, done.stderr
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = subprocess.check_output(
        [folder / "venv/bin/python", "-I", "-c", "import mlflow_adk_eval as one; print(one.__file__)"], text=True
    )
    assert Path(where.strip()).is_relative_to(site)
