"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from mlflow_adk_eval.cli import main as cli
from tests.cli.bad_inputs import CASES, BadInput

CALL = {"name": "light", "args": {"on": True}}
EXPECTED = {
    "eval_set_id": "lights",
    "eval_cases": [
        {
            "eval_id": "on",
            "conversation": [
                {
                    "user_content": {"parts": [{"text": "turn it on"}]},
                    "final_response": {"parts": [{"text": "it is on"}]},
                    "intermediate_data": {"tool_uses": [CALL]},
                }
            ],
        },
        {
            "eval_id": "hi",
            "conversation": [{"user_content": {"parts": [{"text": "hi"}]}, "final_response": {"parts": [{"text": "hello"}]}}],
        },
    ],
}


def written(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture
def lights(tmp_path: Path) -> Path:
    return written(tmp_path / "lights.evalset.json", EXPECTED)


def recorded(tmp_path: Path, **changes: object) -> Path:
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0].update(changes)
    return written(tmp_path / "actual.json", actual)


def invoke(*arguments: object) -> Result:
    """Run the command line in this process, through the same `main` that users start."""

    command = [str(argument) for argument in arguments]
    runner = CliRunner()
    with runner.isolation() as streams:
        before, sys.argv = sys.argv, ["mlflow-adk-eval", *command]
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.argv = before
        return Result(runner, streams[0].getvalue(), streams[1].getvalue(), streams[2].getvalue(), None, code, None)


def test_score_passes_with_0(lights: Path) -> None:
    result = invoke("score", lights, "--actual", lights)
    assert result.exit_code == 0
    assert "PASSED  2 of 2 cases passed of lights" in result.stdout


def test_a_missed_threshold_is_1_with_the_reason(lights: Path, tmp_path: Path) -> None:
    actual = recorded(tmp_path, intermediate_data={"tool_uses": [{"name": "light", "args": {"on": False}}]})
    result = invoke("score", lights, "--actual", actual, "--print_detailed_results")
    assert result.exit_code == 1
    assert "on: tool_trajectory_avg_score is 0, below its threshold 1" in result.stdout
    assert "`$.on`: expected true, got false" in result.stdout


def test_missing_evidence_is_2(lights: Path, tmp_path: Path) -> None:
    actual = written(tmp_path / "actual.json", EXPECTED | {"eval_cases": EXPECTED["eval_cases"][:1]})
    result = invoke("score", lights, "--actual", actual)
    assert result.exit_code == 2
    assert "the recording does not hold case 'hi'" in result.stdout


def test_an_empty_eval_set_is_2(tmp_path: Path) -> None:
    empty = written(tmp_path / "empty.evalset.json", {"eval_set_id": "empty", "eval_cases": []})
    assert invoke("score", empty, "--actual", empty).exit_code == 2


@pytest.mark.parametrize("arguments", [["score"], ["score", "--acutal", "x"], ["nonsense"], ["run", "agent", "x.json", "--num_runs", "0"]])
def test_bad_usage_is_64(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 64
    assert "Traceback" not in result.stderr


def test_a_config_that_does_not_exist_is_64_and_not_the_defaults(lights: Path, tmp_path: Path) -> None:
    result = invoke("score", lights, "--actual", lights, "--config_file_path", tmp_path / "none.json")
    assert result.exit_code == 64
    assert "none.json" in result.stderr


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_every_broken_file_is_64_with_its_path_and_no_traceback(bad: BadInput, lights: Path, tmp_path: Path) -> None:
    file = tmp_path / ("broken_config.json" if bad.kind == "config" else "broken.evalset.json")
    file.write_bytes(bad.content)
    arguments = [lights, "--actual", lights, "--config", file] if bad.kind == "config" else [file, "--actual", lights]
    result = invoke("score", *arguments)
    assert result.exit_code == 64
    assert str(file) in result.stderr
    assert bad.path in result.stderr
    assert "Traceback" not in result.stderr + result.stdout


def test_json_is_one_object(lights: Path) -> None:
    result = invoke("score", lights, "--actual", lights, "--json")
    said = json.loads(result.stdout)
    assert said["verdict"] == "passed"
    assert said["criteria"]["response_match_score"] == {
        "threshold": 0.8, "mean": 1.0, "pass_rate": 1.0, "evaluated": 2, "errored": 0, "skipped": 0,
    }  # fmt: skip


def test_no_colour_where_there_is_no_terminal(lights: Path) -> None:
    command = [sys.executable, "-m", "mlflow_adk_eval", "score", str(lights), "--actual", str(lights)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "PASSED" in shown.stdout
    assert "\x1b[" not in shown.stdout


def test_validate_names_the_kind_of_each_file(lights: Path, tmp_path: Path) -> None:
    config = written(tmp_path / "test_config.json", {"criteria": {"response_match_score": 0.5}})
    result = invoke("validate", lights, config)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{lights}: eval set, 2 cases, 2 written turns",
        f"{config}: eval config, response_match_score 0.5",
    ]


def test_validate_tells_all_bad_files(lights: Path, tmp_path: Path) -> None:
    first, second = (
        written(tmp_path / "a.json", {"eval_set_id": 1, "eval_cases": []}),
        written(tmp_path / "b_config.json", {"criteria": {}}),
    )
    result = invoke("validate", first, lights, second)
    assert result.exit_code == 64
    assert "a.json" in result.stderr
    assert "b_config.json" in result.stderr
    assert "lights" in result.stdout


def test_migrate_writes_what_loads_and_does_not_overwrite(tmp_path: Path) -> None:
    old = written(tmp_path / "old.test.json", [{"query": "hi", "reference": "hello", "expected_tool_use": []}])
    new = tmp_path / "new.evalset.json"
    assert invoke("migrate", old, new).exit_code == 0
    assert invoke("validate", new).exit_code == 0
    assert invoke("migrate", old, new).exit_code == 64
    assert invoke("migrate", old, new, "--force").exit_code == 0


@pytest.mark.parametrize(
    "option", ["--tracking-uri", "--tracking_uri", "--tracking-uri=sqlite://", "--print-detailed-results", "--rejudge_failed"]
)
def test_options_take_dashes_and_underscores_alike(lights: Path, option: str) -> None:
    value = ["sqlite://"] if option in {"--tracking-uri", "--tracking_uri"} else []
    assert invoke("score", lights, "--actual", lights, option, *value).exit_code == 0


def test_every_option_is_listed_once_and_belongs_to_no_two_arguments() -> None:
    for name, command in commands(cli.cli):
        spelled = [option for found in command.params for option in found.opts if option.startswith("--")]
        assert len({option.replace("-", "_") for option in spelled}) == len(spelled), name


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")


def test_the_list_of_commands_is_not_cut_off() -> None:
    shown = invoke("--help").stdout
    assert set(cli.cli.commands) <= set(shown.split())
    assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize("name", ["--config_file_path", "--print_detailed_results", "--num_runs", "--log_level"])
def test_run_takes_the_names_of_adk_eval(name: str) -> None:
    assert name in [option for found in cli.run.params for option in found.opts]
