"""Two that go on with one run at the same time: the agent has each conversation once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import RunError
from tests.mlflow_kit import copied
from tests.tracking.small import eval_set, turn

CASES = eval_set({"light": [turn("light on", "on")], "heat": [turn("warmer", "warm")]})
CONFIG = {"criteria": {"response_match_score": 0.5}}


def test_the_second_says_who_goes_on_with_it_and_calls_no_agent(template: Path, tmp_path: Path) -> None:
    uri, asked, going_on, may_end = copied(template, tmp_path), [], threading.Event(), threading.Event()
    is_first = True

    def agent(text: str) -> str:
        asked.append(text)
        if is_first and len(asked) == 2:
            raise KeyboardInterrupt
        going_on.set()
        assert is_first or may_end.wait(60)
        return "on" if text == "light on" else "warm"

    def evaluate(resume: str | None = None) -> adk_eval.Report:
        how = {"tracking_uri": uri, "experiment": "resume", "traces": False, "concurrency": 1, "ledger": tmp_path / "l.sqlite"}
        return adk_eval.evaluate(CASES, agent, CONFIG, resume=resume, **how)

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    is_first = False
    going_on.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(evaluate, "latest")
        assert going_on.wait(60)
        with pytest.raises(RunError, match="has been running this evaluation in process") as caught:
            evaluate("latest")
        may_end.set()
        report = first.result()
    assert caught.value.exit_code == 3
    assert (report.verdict, asked) == ("passed", ["light on", "warmer", "warmer"])
    assert evaluate("latest").verdict == "passed"
    assert len(asked) == 3
