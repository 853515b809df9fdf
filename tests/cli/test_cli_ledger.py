"""The ledger on the command line: what it holds, and forgetting some of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlflow_adk_eval.cli.main import cli
from mlflow_adk_eval.judge.protocol import Answer
from mlflow_adk_eval.ledger import CallCache, StartedRun


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with CallCache(path) as ledger:
        for number in range(3):
            ledger.put(f"a{number}", Answer(text="x", model="[red]m" if number else "", input_tokens=1_000, output_tokens=1))
        run = StartedRun(
            run_id="r1",
            eval_set_digest="",
            config_digest="",
            agent_name="home",
            agent_version="",
            started_at=datetime(2026, 3, 1, tzinfo=UTC),
        )
        ledger.begin(run)
        ledger.keep_conversation("r1", "case", b"[]")
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["ledger", *map(str, arguments)])


def test_show_tells_what_there_is(file: Path) -> None:
    shown = invoke("show", "--ledger", file)
    text = " ".join(shown.output.split())
    assert shown.exit_code == 0
    assert "3 answers, 1 conversations, 1 runs" in text
    assert "[red]m 2 2,000 2" in text
    assert "unknown 1 1,000 1" in text
    assert "Unfinished: run r1 of home, started 2026-03-01 00:00 UTC" in text
    found = json.loads(invoke("show", "--ledger", file, "--json").output)
    assert (found["answers"], found["models"][0]["model"], found["unfinished_runs"]) == (3, "[red]m", ["r1"])
    assert found["oldest"].startswith("20")


def test_prune_deletes_and_only_counts_in_a_dry_run(file: Path) -> None:
    dry = invoke("prune", "--model", "[red]m", "--dry-run", "--ledger", file)
    assert dry.output == f"{file}: 2 answers, 0 conversations and 0 runs would be deleted\n"
    assert invoke("prune", "--model", "[red]m", "--ledger", file).output.endswith(": 2 answers, 0 conversations and 0 runs deleted\n")
    assert json.loads(invoke("prune", "--older-than", "0.000000001", "--dry-run", "--ledger", file, "--json").output) == {
        "answers": 1,
        "conversations": 1,
        "runs": 1,
        "dry_run": True,
    }
    assert json.loads(invoke("show", "--ledger", file, "--json").output)["answers"] == 1


def test_what_makes_no_sense_is_said(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(invoke("prune", "--ledger", file).exception) == "name what to prune: an age, a model or a run"
    monkeypatch.setenv("MLFLOW_ADK_EVAL_LEDGER", "off")
    assert "MLFLOW_ADK_EVAL_LEDGER says 'off'" in str(invoke("show").exception)
    nothing = tmp_path / "none.sqlite"
    assert json.loads(invoke("show", "--ledger", nothing, "--json").output)["answers"] == 0
    assert not nothing.exists()
    (tmp_path / "text").write_text("no ledger")
    assert "this is not a ledger, or it is damaged" in str(invoke("show", "--ledger", tmp_path / "text").exception)
