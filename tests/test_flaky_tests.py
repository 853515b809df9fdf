"""Cases that are repeated inside tests: which of them are flaky, in the failure of a test and in the summary of a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_adk_eval.testing import evaluate_agent
from tests.testing.test_pytest_plugin import CONFIG, eval_set, run, turn

CASES = {"steady": [turn("hi", "Hello there")], "moody": [turn("hi", "Good morning")], "bad": [turn("hi", "Good evening")]}
RUNS = 3


def answer(eval_id: str, run_index: int) -> str:
    """Return what the agent says: as expected, in one of three runs as expected, never as expected."""
    if eval_id == "moody":
        return "Good morning" if run_index % 2 else "What?"
    return "Hello there"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home.evalset.json").write_text(eval_set(CASES))
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG))
    did = [{"eval_id": eval_id, "invocations": [turn("hi", answer(eval_id, run_index))]} for run_index in range(RUNS) for eval_id in CASES]
    (tmp_path / "recorded.json").write_text(json.dumps(did))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_failure_names_the_flaky_cases(project: Path) -> None:
    def agent(text: str, session: Any) -> dict[str, Any]:
        return {"final_response": answer(session.eval_id, session.run_index)}

    with pytest.raises(AssertionError) as raised:
        await evaluate_agent(agent, project / "home.evalset.json", num_runs=RUNS, print_detailed_results=False)
    said = str(raised.value)
    assert said.startswith("5 of 9 case runs did not pass\nflaky: moody: 1 of 3 runs passed, 2 failed\n\nfailed: moody (run 1)")
    assert said.count("flaky:") == 1


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_a_session_names_the_flaky_cases(project: Path, parallel: list[str]) -> None:
    summary = project / "summary.md"
    result = run(project, "--adk-num-runs", str(RUNS), *parallel, GITHUB_STEP_SUMMARY=str(summary))
    flaky = [line for line in result.stdout.splitlines() if line.startswith("flaky: ")]
    assert flaky == ["flaky: home.evalset.json::moody: 1 of 3 runs passed, 2 failed"], result.stdout + result.stderr
    assert "| home.evalset.json&#58;&#58;moody | 1 of 3 runs passed, 2 failed |" in summary.read_text()


@pytest.mark.slow
def test_a_session_without_repetitions_names_none(project: Path) -> None:
    result = run(project)
    assert "2 failed, 1 passed" in result.stdout
    assert "flaky" not in result.stdout
