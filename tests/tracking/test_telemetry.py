"""What whoever has configured OpenTelemetry sees of us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_an_evaluation_and_a_decision_are_spans_and_requests_to_models_metrics(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("telemetry_worker.py")
    ran = subprocess.run([sys.executable, worker], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    by_name = {span["name"]: span for span in told["spans"]}
    assert set(by_name) == {"evaluate", "conversation", "chat scripted-1", "gate"}
    evaluate, conversation, chats = by_name["evaluate"], by_name["conversation"], [s for s in told["spans"] if s["name"].startswith("chat")]
    assert (evaluate["parent"], evaluate["adk_eval.eval_set"], evaluate["adk_eval.run_id"]) == (None, "lights", told["run_id"])
    assert evaluate["adk_eval.verdict"] == "passed"
    assert [span["adk_eval.operation"] for span in told["spans"]].count("chat") == 3
    assert (conversation["parent"], conversation["adk_eval.eval_id"], conversation["adk_eval.turns"]) == ("evaluate", "on", 2)
    assert by_name["gate"]["adk_eval.run_id"] == told["run_id"]
    assert told["agent_parents"] == [None, None], "the agent's own spans are traces of their own, as without us"
    assert [(chat["parent"], chat["gen_ai.request.model"]) for chat in chats] == [("evaluate", "scripted-1")] * 3
    assert [chat["ok"] for chat in chats].count(False) == 1  # the judge was busy once
    assert sum(chat.get("gen_ai.usage.input_tokens", 0) for chat in chats) == 200
    tokens = {facts["gen_ai.token.type"]: (count, total) for facts, count, total in told["metrics"]["gen_ai.client.token.usage"]}
    assert tokens == {"input": (2, 200), "output": (2, 14)}
    durations = told["metrics"]["gen_ai.client.operation.duration"]
    assert {facts.get("error.type"): count for facts, count, _ in durations} == {None: 2, "Unavailable": 1}


@pytest.mark.slow
def test_mlflow_collects_the_spans_of_agents_but_none_of_ours(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("telemetry_worker.py")
    env = os.environ | {"MLFLOW_USE_DEFAULT_TRACER_PROVIDER": "false"}  # then it collects whatever OpenTelemetry is given
    ran = subprocess.run(
        [sys.executable, worker, "mlflow"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == ["answer", "answer"]
