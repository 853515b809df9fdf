"""``run --watch``: what changes is evaluated again, and what flipped is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.test_cli import EXPECTED, invoke, recorded, written
from tests.mlflow_kit import copied

pytestmark = pytest.mark.filterwarnings("ignore")

BOT = """
def answer(message):
    return {answers!r}.get(message, "")
"""


@pytest.mark.slow
def test_a_change_of_the_agent_is_evaluated_and_what_flipped_is_told(tmp_path: Path, template: Path) -> None:
    pytest.importorskip("watchfiles")
    uri = copied(template, tmp_path)
    written(tmp_path / "lights.evalset.json", EXPECTED)
    written(tmp_path / "test_config.json", {"criteria": {"response_match_score": 0.8}})
    answers = {
        turn["user_content"]["parts"][0]["text"]: turn["final_response"]["parts"][0]["text"]
        for case in EXPECTED["eval_cases"]
        for turn in case["conversation"]
    }
    bot = tmp_path / "bot.py"
    bot.write_text(BOT.format(answers=answers))
    command = [sys.executable, "-m", "mlflow_adk_eval", "run", "bot:answer", "lights.evalset.json", "--tracking-uri", uri, "--watch"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - a shell ignores it in what runs in the background
    )
    limit = threading.Timer(300, process.kill)
    limit.start()
    assert process.stdout is not None

    def said() -> list[str]:
        lines = []
        for line in process.stdout or ():
            lines.append(line.rstrip("\n"))
            if line.startswith("watching for changes"):
                break
        return lines

    try:
        (first, _) = said()
        assert first.startswith("passed: ")
        bot.write_text(BOT.format(answers={}))
        second = said()
        assert second[0].startswith("failed: ")
        assert f"  Passed before, fails now: {', '.join(case['eval_id'] for case in EXPECTED['eval_cases'])}" in second
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        limit.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def test_json_is_refused(tmp_path: Path) -> None:
    lights = written(tmp_path / "lights.evalset.json", EXPECTED)
    refused = invoke("run", recorded(tmp_path), lights, "--watch", "--json")
    assert (refused.exit_code, "--watch cannot be combined with --json" in refused.stderr) == (64, True)
