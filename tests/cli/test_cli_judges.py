"""Judges from the command line: options, accounts, and going on where a run stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from mlflow_adk_eval.cli.main import cli
from tests.cli.test_cli import invoke as started
from tests.judge.servers import Server, judging, serving
from tests.kit import turn_json
from tests.mlflow_kit import copied

CONFIG = {"criteria": {"final_response_match_v2": {"threshold": 1.0, "judge_model_options": {"num_samples": 3}}}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(judging(lambda _call: "valid")) as running:
        monkeypatch.setenv("GOOGLE_API_KEY", "a-key-for-tests")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", running.url)
        for name in ("GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
            monkeypatch.delenv(name, raising=False)
        yield running


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    def turn(number: int) -> dict[str, object]:
        return turn_json(f"q{number}", f"answer {number}")

    cases = [{"eval_id": f"c{number}", "conversation": [turn(number)]} for number in range(3)]
    path = tmp_path / "set.evalset.json"
    path.write_text(json.dumps({"eval_set_id": "set", "eval_cases": cases}), encoding="utf-8")
    (tmp_path / "test_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_the_accounts_are_printed_and_are_part_of_the_json(server: Server, recorded: Path) -> None:
    text = invoke("score", recorded, "--actual", recorded)
    assert (
        f"Judged by gemini-2.5-flash at 127.0.0.1:{urlsplit(server.url).port}: 6 calls, 108 tokens, 3 votes saved by stopping early"
        in " ".join(text.output.split())
    )
    assert text.exit_code == 0
    found = json.loads(invoke("score", recorded, "--actual", recorded, "--json").output)["judging"]
    assert (found["calls"], found["input_tokens"], found["output_tokens"], found["calls_saved"], found["flip_rate"]) == (6, 66, 42, 3, 0.0)
    assert len(server.calls) == 12


def test_the_model_of_the_config_can_be_replaced(server: Server, recorded: Path) -> None:
    assert invoke("score", recorded, "--actual", recorded, "--judge", "gemini-2.5-pro").exit_code == 0
    assert {call.model for call in server.calls} == {"gemini-2.5-pro"}


@pytest.mark.slow
def test_a_spent_budget_is_2_and_the_run_can_be_gone_on_with(template: Path, server: Server, recorded: Path, tmp_path: Path) -> None:
    options = ["--tracking-uri", copied(template, tmp_path), "--ledger", tmp_path / "ledger.sqlite"]
    stopped = invoke("run", recorded, recorded, *options, "--max-calls", "4")
    assert stopped.exit_code == 2
    assert "4 calls" in " ".join(stopped.output.split())
    hinted = re.search(r"--resume (\w+)", stopped.output)
    assert hinted
    resumed = invoke("run", recorded, recorded, *options, "--resume", hinted[1], "--json")
    assert resumed.exit_code == 0
    found = json.loads(resumed.output)
    assert (found["judging"]["calls"], found["judging"]["reused"]) == (2, 4)
    assert found["run_id"] != hinted[1]  # what a run has said cannot be changed
    assert len(server.calls) == 6
    again = invoke("run", recorded, recorded, *options, "--resume", "latest", "--json")
    assert json.loads(again.output)["judging"]["calls"] == 0


def test_a_budget_with_a_name_is_spent_by_all_who_use_it(server: Server, recorded: Path, tmp_path: Path) -> None:
    def score(name: str, ledger: object = tmp_path / "ledger.sqlite") -> Result:
        given = ("--ledger", ledger, "--max-calls", "4", "--budget-name", name, "--judge-quota", "600", "--rejudge-failed")
        return invoke("score", recorded, "--actual", recorded, *given)

    assert (score("build-1").exit_code, len(server.calls)) == (2, 4)
    recorded.write_text(recorded.read_text().replace("answer", "another"))  # so that the ledger knows no answer
    assert "the budget of 4 model calls for all processes is used up" in " ".join(score("build-1").output.split())
    assert len(server.calls) == 4
    assert (score("build-2").exit_code, len(server.calls)) == (2, 8)
    assert str(score("build-3", "off").exception) == "budget 'build-3': processes share it through a ledger, but there is none"


@pytest.mark.parametrize(
    ("resume", "message"),
    [("0123456789", "does not have this run"), ("latest", "has no run of this eval set")],
)
def test_a_run_that_the_ledger_does_not_know_cannot_be_gone_on_with(
    resume: str, message: str, template: Path, server: Server, recorded: Path, tmp_path: Path
) -> None:
    store = copied(template, tmp_path)
    found = invoke("run", recorded, recorded, "--tracking-uri", store, "--ledger", tmp_path / "ledger.sqlite", "--resume", resume)
    assert message in str(found.exception)
    assert server.calls == []


def test_without_a_key_nothing_is_begun(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_ENTERPRISE"):
        monkeypatch.delenv(name, raising=False)
    found = invoke("score", recorded, "--actual", recorded)
    assert "GOOGLE_API_KEY" in str(found.exception)
    assert getattr(found.exception, "exit_code", None) == 3


def test_prompts_are_registered_where_that_is_asked_for(
    template: Path, server: Server, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    store = copied(template, tmp_path)
    done = invoke("run", recorded, recorded, "--tracking-uri", store, "--register-prompts", "--json")
    assert done.exit_code == 0, done.output
    params = MlflowClient(store).get_run(json.loads(done.stdout)["run_id"]).data.params
    assert params["adk_eval.prompt_uri.final_response_match_v2"] == "prompts:/adk_eval.final_response_match_v2/1"


@pytest.mark.parametrize(
    ("judge", "code", "wanted"),
    [
        ("gpt", 64, "'gpt' is not a judge model"),
        ("no_such_module:judge", 64, "--judge=no_such_module:judge: No module named 'no_such_module'"),
        ("judge_by_name:jugde", 64, "--judge=judge_by_name:jugde: module 'judge_by_name' has no attribute 'jugde'. Did you mean 'judge'?"),
        ("needs_another:judge", 3, "--judge=needs_another:judge: No module named 'nowhere_installed'"),
    ],
)
def test_a_judge_that_nobody_knows_is_a_mistake_of_usage_and_one_that_cannot_be_imported_is_not(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, judge: str, code: int, wanted: str
) -> None:
    monkeypatch.chdir(recorded.parent)
    Path("judge_by_name.py").write_text("def judge(): ...\n")
    Path("needs_another.py").write_text("import nowhere_installed\n")
    result = started("score", recorded, "--actual", recorded, "--judge", judge)
    assert (result.exit_code, result.stdout) == (code, "")
    assert wanted in result.stderr
