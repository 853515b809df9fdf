from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mlflow_adk_eval import Report
from mlflow_adk_eval.agents.resolve import resolve_agent
from mlflow_adk_eval.config.inputs import load_inputs
from mlflow_adk_eval.runner.evaluation import Options, run
from tests.judge.providers.gemini_kit import with_key
from tests.judge.servers import Call, Reply, gemini_answer, serving

PROJECT = Path(__file__).parents[2] / "example_projects" / "plain_python"
EVAL_SET, CONFIG = load_inputs(PROJECT / "support.evalset.json")
OURS = {"support_bot", "support_bot_regressed"}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import the example anew, without a key that would have it ask a real model."""
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(PROJECT), *sys.path])
    forget()
    yield
    forget()


def forget() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]


def agent(name: str) -> Callable[..., Any]:
    module: ModuleType = importlib.import_module("support_bot_regressed" if name.endswith("_regressed") else "support_bot")
    found: Callable[..., Any] = getattr(module, name)
    return found


def evaluated(name: str) -> Report:
    return run(EVAL_SET, resolve_agent(agent(name)), CONFIG, Options())


@pytest.mark.parametrize("name", ["support_bot", "support_bot_async"])
def test_the_good_version_passes_every_case_in_both_variants(name: str) -> None:
    report = evaluated(name)
    assert report.passed
    assert report.scores["final_session_state"] == report.scores["tool_trajectory_avg_score"] == 1.0


def test_the_regressed_version_fails_one_case_by_call_answer_and_state() -> None:
    failed = [case for case in evaluated("support_bot_regressed").cases if case.verdict == "failed"]
    assert [case.eval_id for case in failed] == ["money_back_too_late"]
    assert {result.criterion for result in failed[0].results if result.passed is False} == {
        "tool_trajectory_avg_score",
        "response_match_score",
        "final_session_state",
    }


def test_what_was_said_before_is_understood_from_the_history() -> None:
    case = next(case for case in evaluated("support_bot").cases if case.eval_id == "cancel_it")
    assert case.actual[1].user_text == "Then cancel it, please."
    assert [(call.name, call.args) for call in case.actual[1].tool_calls] == [
        ("find_order", {"order_id": "A-101"}),
        ("cancel_order", {"order_id": "A-101"}),
    ]


def test_the_orders_of_one_case_are_not_those_of_the_next() -> None:
    states = {case.eval_id: case.session_state for case in evaluated("support_bot").cases}
    assert states["money_back"]["orders"]["A-102"]["status"] == "refunded"
    assert states["money_back_too_late"]["orders"]["A-102"]["status"] == "delivered"
    assert list(states["another_customer"]["orders"]) == ["A-200"]


def test_a_lookup_that_fails_is_the_tool_environments_doing() -> None:
    case = next(case for case in evaluated("support_bot").cases if case.eval_id == "lookup_down")
    assert [(found.tool, found.kind) for found in case.injections] == [("find_order", "error")]
    assert case.session_state["orders"]["A-100"]["status"] == "shipped"


def test_with_a_key_gemini_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(call: Call) -> Reply:
        answered = "functionResponse" in str(call.body["contents"][-1])
        return gemini_answer("It is on its way.") if answered else called("find_order", order_id="A-100")

    case = next(case for case in EVAL_SET.eval_cases if case.eval_id == "where_is_it")
    with serving(reply) as server:
        with_key(monkeypatch, server.url)
        played = asyncio.run(resolve_agent(agent("support_bot")).converse(case, 0))
    assert played.error == ""
    assert played.actual[0].final_text == "It is on its way."
    assert [(call.name, call.args) for call in played.actual[0].tool_calls] == [("find_order", {"order_id": "A-100"})]
    declared = [function["name"] for function in server.calls[0].body["tools"][0]["functionDeclarations"]]
    assert declared == ["find_order", "cancel_order", "refund_order"]
    assert "kettle" in str(server.calls[1].body["contents"][-1])


def called(tool: str, **args: object) -> Reply:
    """Return a reply in which Gemini calls a tool."""
    content = {"role": "model", "parts": [{"functionCall": {"name": tool, "args": args}}]}
    return Reply(body={"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]})


@pytest.mark.slow
def test_it_runs_where_google_adk_is_not_installed(tmp_path: Path) -> None:
    without = "import sys; sys.modules['google.adk'] = None; import run, pathlib; run.main(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", without, str(tmp_path / "store")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "version 1 is now the champion" in done.stdout
    assert "version 2 is not the champion" in done.stdout
