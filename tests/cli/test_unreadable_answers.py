"""The step that is named after answers of a judge that cannot be read is one that asks for others."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mlflow_adk_eval.cli.main import cli
from tests.kit import turn_json
from tests.mlflow_kit import copied

JUDGE = """
from pathlib import Path


def judge(prompt: str) -> str:
    log = Path(__file__).with_name("asked")
    log.write_text(log.read_text() + "." if log.exists() else ".")
    return Path(__file__).with_name("says").read_text()
"""
CONFIG = {"criteria": {"final_response_match_v2": {"threshold": 0.5, "judge_model_options": {"num_samples": 1}}}}


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"judge_{tmp_path.name.replace('-', '_')}.py").write_text(JUDGE)
    (tmp_path / "says").write_text("I would rather not say.")
    cases = [{"eval_id": "a", "conversation": [turn_json("hello", "good day")]}]
    (tmp_path / "set.evalset.json").write_text(json.dumps({"eval_set_id": "set", "eval_cases": cases}))
    (tmp_path / "actual.evalset.json").write_text(json.dumps({"eval_set_id": "set", "eval_cases": cases}))
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def asked(here: Path) -> int:
    return len((here / "asked").read_text())


def invoke(here: Path, *arguments: str) -> tuple[int, str]:
    judge = f"judge_{here.name.replace('-', '_')}:judge"
    found = CliRunner().invoke(cli, [*arguments, "--judge", judge, "--ledger", str(here / "ledger.sqlite")])
    return found.exit_code, " ".join(found.output.split())


def options_in(output: str) -> list[str]:
    """Return the options that the next step names."""
    step = output.rpartition("next: ")[2].partition(";")[0]
    assert step.startswith("run the same command with --"), step
    return shlex.split(step.removeprefix("run the same command with "))


@pytest.mark.parametrize("command", ["run", "score"])
def test_the_next_step_asks_the_judge_again(command: str, here: Path, template: Path) -> None:
    words: dict[str, list[str]] = {
        "run": ["run", "actual.evalset.json", "set.evalset.json", "--tracking-uri", copied(template, here)],
        "score": ["score", "set.evalset.json", "--actual", "actual.evalset.json"],
    }
    code, output = invoke(here, *words[command])
    first = asked(here)
    assert (code, first > 0) == (2, True)
    step = options_in(output)
    assert "--rejudge-failed" in step
    (here / "says").write_text('{"verdict": "valid", "reasoning": "the same"}')
    code, output = invoke(here, *words[command], *step)
    assert asked(here) > first, output


@pytest.mark.parametrize("command", ["run", "score"])
def test_a_judge_that_stays_unreadable_is_not_named_for_ever(command: str, here: Path, template: Path) -> None:
    words: dict[str, list[str]] = {
        "run": ["run", "actual.evalset.json", "set.evalset.json", "--tracking-uri", copied(template, here)],
        "score": ["score", "set.evalset.json", "--actual", "actual.evalset.json"],
    }
    _, output = invoke(here, *words[command])
    _, output = invoke(here, *words[command], *options_in(output))
    assert "next: run the same command with another judge (--judge)" in output


def test_where_asking_helps_nothing_the_report_says_why(here: Path, template: Path) -> None:
    turn: Any = turn_json("hello", "good day")
    del turn["final_response"]
    cases = [{"eval_id": "a", "conversation": [turn]}]
    (here / "set.evalset.json").write_text(json.dumps({"eval_set_id": "set", "eval_cases": cases}))
    code, output = invoke(here, "run", "actual.evalset.json", "set.evalset.json", "--tracking-uri", copied(template, here))
    assert code == 2
    assert "next: mlflow-adk-eval report" in output
    assert "--resume" not in output
