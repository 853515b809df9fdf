"""MLflow loses rows on SQLite under many workers: scorers say so, and under few nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import mlflow
import pytest

from mlflow_adk_eval import scorers
from tests.integrations.genai import QUIET, WORKERS, genai_store, tracking

pytestmark = QUIET

store = genai_store
ROOT = Path(__file__).parents[2]
POOL = "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE"
LOSES = "mlflow.genai.evaluate loses rows on a SQLite tracking URI.*Set MLFLOW_GENAI_EVAL_MAX_WORKERS=4"


def worker(store: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Return what a process of its own found."""
    given = {**os.environ, "MLFLOW_TRACKING_URI": store, "PYTHONPATH": str(ROOT), "MLFLOW_ADK_EVAL_LEDGER": "off", **environment}
    given.pop("MLFLOW_EXPERIMENT_ID", None)
    command = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "integrations" / "genai_worker.py"), *arguments]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_with_four_workers_every_row_and_every_score_is_stored(store: str) -> None:
    found = worker(store, "rows", "60", **{WORKERS: "4"})
    assert (found["traces"], found["feedback"], found["errors"]) == (60, 180, 0)
    assert found["metrics"] == {"tool_trajectory_avg_score/mean": 1.0, "response_match_score/mean": 1.0, "tool_call_count_v1/mean": 0.0}


@pytest.mark.parametrize("value", ["", "10", "0", "many"])
def test_scorers_warn_where_rows_will_be_lost(store: str, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(WORKERS, value)
    with pytest.warns(UserWarning, match=LOSES) as warned:
        made = scorers.from_config({"criteria": {"response_match_score": 0.5, "tool_trajectory_avg_score": 1}})
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert made[0](inputs={"query": "q"}, outputs="a", expectations={"expected_response": "a"}).value == 1.0  # and says it no more


@pytest.mark.parametrize(("name", "value"), [(WORKERS, "4"), (WORKERS, "6"), (POOL, "60")])
def test_they_are_silent_where_nothing_is_lost(store: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv(WORKERS, raising=False)
    monkeypatch.setenv(name, value)
    assert len(scorers.from_config(None)) == 2


def test_they_are_silent_on_a_server(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKERS, raising=False)
    mlflow.set_tracking_uri("http://127.0.0.1:1")
    try:
        made = scorers.response_match_score(threshold=0.5)
    finally:
        mlflow.set_tracking_uri(store)
    with pytest.warns(UserWarning, match=LOSES):  # the store was set to SQLite after the scorer was made
        made(inputs={"query": "q"}, outputs="a", expectations={"expected_response": "a"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(inputs={"query": "q"}, outputs="a", expectations={"expected_response": "a"}).value == 1.0


def test_a_function_warns_where_the_user_calls_it(store: str) -> None:
    with tracking(store, None), pytest.warns(UserWarning, match=LOSES) as warned:
        scorers.response_match_score(threshold=0.5)
    assert len(warned) == 1
