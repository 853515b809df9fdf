"""The server under whatever schemathesis makes of its OpenAPI document: nothing is a 500, and what comes back is as described."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.rapid_server.server_kit import judged_by, served
from tests.profiles import SHARE

SCHEMATHESIS = shutil.which("schemathesis", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


@pytest.mark.slow
@pytest.mark.skipif(SCHEMATHESIS is None, reason="schemathesis is not installed: uv tool install schemathesis")
def test_nothing_is_a_server_error_and_all_is_as_described(tmp_path: Path) -> None:
    with served(*judged_by("judge"), "--num-samples", "1") as server:
        examples = str(200 // SHARE)
        options = ("--request-timeout", "120", "--checks", "all", "--max-examples", examples, "--workers", "1", "--seed", "1", "--no-color")
        done = subprocess.run(
            [SCHEMATHESIS or "", "run", *options, f"{server.url}/openapi.json"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:]
        assert server.stop()[0] == 0
