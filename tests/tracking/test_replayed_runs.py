"""Runs whose tools are replayed: from a run, a file and by the command line, resumed, and compared by the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.errors import UsageError
from tests.cli.test_cli import invoke as run_cli
from tests.mlflow_kit import copied
from tests.tracking.small import eval_set, turn

CASES = eval_set({name: [turn(f"{name} on", f"{name} is 1"), turn(f"{name} again", f"{name} is 2")] for name in ("light", "heat", "fan")})
CONFIG = {"criteria": {"response_match_score": 0.0, "tool_call_count_v1": 9}}


class House:
    """An agent with a tool, which counts real calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stop_at = 0

    def switch(self, device: str) -> int:
        """Switch something."""
        self.calls.append(device)
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        return len(self.calls)

    def __call__(self, text: str, session: Any) -> str:
        device = text.split(maxsplit=1)[0]
        return f"{device} is {session.tool(self.switch)(device)}"


class Barn(House):
    """Another agent."""


def answers(report: adk_eval.Report) -> list[str]:
    return [turn.final_text for case in report.cases for turn in case.actual]


@pytest.fixture
def how(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    return {
        "tracking_uri": copied(template, tmp_path),
        "experiment": "e",
        "traces": False,
        "concurrency": 1,
        "ledger": tmp_path / "l.sqlite",
    }


def test_a_resumed_recording_has_what_was_recorded_before(how: dict[str, Any]) -> None:
    house, away = House(), House()
    house.stop_at = 3
    with pytest.raises(KeyboardInterrupt):
        adk_eval.evaluate(CASES, house, CONFIG, record=True, **how)
    live = adk_eval.evaluate(CASES, house, CONFIG, record=True, resume="latest", **how)
    assert house.calls == ["light", "light", "heat", "heat", "heat", "fan", "fan"]
    replayed = adk_eval.evaluate(CASES, away, CONFIG, replay=f"runs:/{live.run_id}", **how)
    assert (
        answers(replayed)
        == answers(live)
        == [f"{name} is {n}" for name, n in zip(["light"] * 2 + ["heat"] * 2 + ["fan"] * 2, (1, 2, 4, 5, 6, 7), strict=True)]
    )
    assert not away.calls
    # What was had in another world is not taken for what is had in this one.
    again = adk_eval.evaluate(CASES, away, CONFIG, resume=replayed.run_id, **how)
    assert again.from_ledger == 0
    assert len(away.calls) == 6


def test_two_versions_meet_the_same_world_and_the_gate_compares_them(how: dict[str, Any], tmp_path: Path) -> None:
    house, away = House(), House()
    live = adk_eval.evaluate(CASES, house, CONFIG, record=True, **how)
    adk_eval.save_recording(live, tmp_path / "world.json")
    candidate = adk_eval.evaluate(CASES, away, CONFIG, replay=tmp_path / "world.json", **how)
    policy = {
        "baseline": {"run": live.run_id},
        "rules": {"response_match_score": {"max_drop": 0.5, "use": "mean"}},
        "replay": {"tools": "strict"},
    }
    decision = adk_eval.gate(str(candidate.run_id), policy, tracking_uri=how["tracking_uri"])
    assert (decision.verdict, away.calls) == ("passed", [])
    asks = {"tracking_uri": how["tracking_uri"], "raise_on_failure": False}
    assert adk_eval.gate(str(live.run_id), {"thresholds": True, "replay": {"tools": "strict"}}, **asks).verdict == "undecided"
    alone = adk_eval.evaluate(CASES, Barn(), CONFIG, **how)
    refused = adk_eval.gate(str(alone.run_id), {key: value for key, value in policy.items() if key != "replay"}, **asks)
    assert refused.verdict == "undecided"
    assert "world" in " ".join(refused.reasons)


def test_the_command_line_replays_a_run(how: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "replayed_house.py").write_text("from tests.tracking.test_replayed_runs import House\nagent = House()\n")
    (tmp_path / "cases.evalset.json").write_text(CASES.model_dump_json(exclude_none=True))
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG))

    def run(*words: str) -> Any:
        given = ["run", "replayed_house:agent", "cases.evalset.json", "--tracking-uri", how["tracking_uri"], *words]
        return run_cli(*given)

    live = json.loads(run("--record", "--json").stdout)
    for source in (live["run_id"], f"runs:/{live['run_id']}"):
        replayed = run("--replay", source)
        assert replayed.exit_code == 0, replayed.output
        assert "6 of 6 tool calls" in replayed.output
    wrong = run("--replay", "nowhere.json")
    assert (wrong.exit_code, "nowhere.json" in wrong.output) == (64, True)


def test_an_agent_behind_an_address_is_refused_before_anything_is_called(how: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the tools of an agent behind HTTP run in its own process"):
        adk_eval.evaluate(CASES, "http://127.0.0.1:9/a2a", CONFIG, record=True, **how)
