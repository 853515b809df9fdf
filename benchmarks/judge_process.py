"""The judge of a measurement, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conditions import Conditions


class JudgeProcess:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def configure(self, conditions: Conditions) -> None:
        """Change the conditions and count anew."""
        self._ask("/config", json.dumps(asdict(conditions)).encode())

    def stats(self) -> dict[str, Any]:
        """Return what has come since then."""
        return self._ask("/stats")

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data=body), timeout=10) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found


@contextmanager
def judge_process() -> Iterator[JudgeProcess]:
    """Run a server for as long as the block takes."""
    command = [sys.executable, str(Path(__file__).parent / "gemini_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield JudgeProcess(int(process.stdout.readline()))
        finally:
            process.kill()
