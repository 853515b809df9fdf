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
from tests.kit import case_json, eval_set_json, turn_json

CALL = {"name": "light", "args": {"on": True}}
EXPECTED = eval_set_json(
    case_json("on", turn_json("turn it on", "it is on", CALL)), case_json("hi", turn_json("hi", "hello")), eval_set_id="lights"
)


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
    """Run the command line in this process, by all that the program does."""
    command = [str(argument) for argument in arguments]
    runner = CliRunner()
    with runner.isolation() as streams:
        before, sys.argv = sys.argv, ["mlflow-adk-eval", *command]
        try:
            code = cli.run_here()
        finally:
            sys.argv = before
        return Result(runner, streams[0].getvalue(), streams[1].getvalue(), streams[2].getvalue(), None, code, None)


def test_score_passes_with_0(lights: Path) -> None:
    result = invoke("score", lights, "--actual", lights)
    assert result.exit_code == 0
    assert "2 of 2 cases passed in lights · verdict: passed" in result.stdout


def test_a_missed_threshold_is_1_with_the_reason(lights: Path, tmp_path: Path) -> None:
    actual = recorded(tmp_path, intermediate_data={"tool_uses": [{"name": "light", "args": {"on": False}}]})
    result = invoke("score", lights, "--actual", actual, "--print-detailed-results")
    assert result.exit_code == 1
    assert "- on: " in result.stdout
    assert "`$.on`: expected true, got false" in result.stdout


def test_missing_evidence_is_2(lights: Path, tmp_path: Path) -> None:
    actual = written(tmp_path / "actual.json", EXPECTED | {"eval_cases": EXPECTED["eval_cases"][:1]})
    result = invoke("score", lights, "--actual", actual)
    assert result.exit_code == 2
    assert "the recording does not contain the case · 1 case, 2 criteria\n    - hi\n" in result.stdout


def test_an_empty_eval_set_is_2(tmp_path: Path) -> None:
    empty = written(tmp_path / "empty.evalset.json", {"eval_set_id": "empty", "eval_cases": []})
    assert invoke("score", empty, "--actual", empty).exit_code == 2


@pytest.mark.parametrize("arguments", [["score"], ["score", "--acutal", "x"], ["nonsense"], ["run", "agent", "x.json", "--num-runs", "0"]])
def test_bad_usage_is_64(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 64
    assert "Traceback" not in result.stderr


def test_a_config_that_does_not_exist_is_64_and_not_the_defaults(lights: Path, tmp_path: Path) -> None:
    result = invoke("score", lights, "--actual", lights, "--config-file-path", tmp_path / "none.json")
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
    assert "verdict: passed" in shown.stdout
    assert "\x1b[" not in shown.stdout


def test_validate_names_the_kind_of_each_file(lights: Path, tmp_path: Path) -> None:
    config = written(tmp_path / "test_config.json", {"criteria": {"response_match_score": 0.5}})
    result = invoke("validate", lights, config)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{lights}: eval set, 2 cases, 2 written turns",
        (
            f"  {lights} with {config}: 1 case expects tool calls that no criterion reads (on); "
            "add tool_trajectory_avg_score: 1.0 to the criteria"
        ),
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
        assert [option for option in (*spelled, name) if "_" in option] == [], "dashes, whatever ADK writes; underscores are accepted"


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} ")


def test_the_list_of_commands_is_not_cut_off() -> None:
    shown = invoke("--help").stdout
    assert set(cli.cli.commands) <= set(shown.split())
    assert "..." not in shown.partition("Commands:")[2]


@pytest.mark.parametrize("option", ["--config_file_path=c.json", "--print_detailed_results", "--num_runs=2", "--log_level=info"])
def test_run_takes_the_names_of_adk_eval(tmp_path: Path, option: str) -> None:
    result = invoke("run", recorded(tmp_path), tmp_path / "gone.json", option)
    assert (result.exit_code, "found no such file" in result.stderr) == (64, True)


def rows(path: Path, **more: object) -> Path:
    path.write_text("\n".join(json.dumps(case | more) for case in EXPECTED["eval_cases"]))
    return path


def test_rows_with_what_is_recorded_are_scored_alone(tmp_path: Path) -> None:
    said = [turn_json("hi", "hello")]
    result = invoke("score", rows(tmp_path / "lights.jsonl", recorded=said))
    assert (result.exit_code, "1 of 2 cases passed in lights · verdict: failed" in result.stdout) == (1, True)


def test_score_without_anything_recorded_names_what_is_wanted(lights: Path, tmp_path: Path) -> None:
    for file in (lights, rows(tmp_path / "plain.jsonl")):
        result = invoke("score", file)
        assert result.exit_code == 64
        assert "the rows contain no conversations" in result.stderr


def test_run_without_eval_sets_names_what_is_wanted(lights: Path, tmp_path: Path) -> None:
    for named in ("agent", lights):
        result = invoke("run", named)
        assert result.exit_code == 64
        assert "Missing argument 'EVAL_SET[:CASE,CASE]...'" in result.stderr
    result = invoke("run", rows(tmp_path / "plain.jsonl"), "--tracking-uri", f"sqlite:///{tmp_path / 'm.db'}")
    assert result.exit_code == 64
    assert "agent: wanted a module with a root_agent" in result.stderr


def test_rows_are_validated_and_rewritten(lights: Path, tmp_path: Path) -> None:
    for name in ("lights.jsonl", "lights.parquet"):
        assert invoke("migrate", lights, tmp_path / name).stdout == f"{tmp_path / name}: 2 cases\n"
        assert invoke("validate", tmp_path / name).stdout == f"{tmp_path / name}: eval set, 2 cases, 2 written turns\n"
    beside = tmp_path / "beside.parquet"
    assert invoke("migrate", tmp_path / "lights.jsonl", beside, "--actual", recorded(tmp_path)).exit_code == 0
    assert invoke("validate", beside).stdout.endswith("eval set with recordings, 2 cases, 2 written turns, 2 recorded conversations\n")
    assert invoke("score", beside).exit_code == 0
    result = invoke("migrate", beside, tmp_path / "back.json")
    assert (result.exit_code, "cannot store the recorded conversation" in result.stderr) == (64, True)
    (tmp_path / "bad.jsonl").write_text("[]\n")
    result = invoke("validate", tmp_path / "bad.jsonl", lights)
    assert (result.exit_code, "line 1: $: found a list of 0" in result.stderr, "2 cases" in result.stdout) == (64, True, True)


def test_validate_finds_what_only_a_run_or_a_gate_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def metric(metric, actual, expected, scenario): return 1.0\n")
    custom = {"code_config": {"name": "mine.metric"}}
    good = {"criteria": {"mine": 0.5}, "custom_metrics": {"mine": custom}}
    config = written(tmp_path / "test_config.json", good)
    lost = {"criteria": {"mine": 0.5}, "custom_metrics": {"mine": {"code_config": {"name": "no.such.metric"}}}}
    (tmp_path / "elsewhere").mkdir()
    bad_config = written(tmp_path / "elsewhere" / "bad_config.json", lost)
    policy = tmp_path / "gate.yaml"
    policy.write_text(
        "rules:\n  mine: {min: 0.5}\n  response_match_scoree: {min: 0.5}\n  mine/pass_rate: {min: 0.5}\n  pass^2: {min: 0.5}\n"
    )
    result = invoke("validate", config, bad_config, policy, "--json")
    rows = {Path(row["file"]).name: row for row in json.loads(result.stdout)}
    assert result.exit_code == 64
    assert rows["test_config.json"]["valid"]
    assert [one["path"] for one in rows["bad_config.json"]["problems"]] == ["$.custom_metrics.mine.code_config.name"]
    (problem,) = rows["gate.yaml"]["problems"]
    assert problem["path"] == "$.rules.response_match_scoree"
    assert problem["message"].endswith("Did you mean 'response_match_score'?")


def test_the_help_has_commands_and_options_under_headings() -> None:
    shown = invoke("--help").stdout
    assert [line for line in shown.splitlines() if line in {"Start:", "Evaluate:", "Look:", "Decide:", "Judges:", "Files:"}] == [
        "Start:", "Evaluate:", "Look:", "Decide:", "Judges:", "Files:"
    ]  # fmt: skip
    shown = invoke("run", "--help").stdout
    headings = (
        "Conversations with the agent:",
        "Scoring:",
        "Judges:",
        "The run in MLflow:",
        "Accepted for compatibility with adk eval:",
        "Output:",
    )
    assert [line for line in shown.splitlines() if line in headings] == list(headings)


@pytest.mark.parametrize("spelling", ["--tracking-uri", "--tracking_uri"])
def test_every_command_that_says_something_says_it_as_json(spelling: str, tmp_path: Path) -> None:
    key = json.loads(invoke("keygen", "-o", tmp_path / "gate.pem", "--json").stdout)
    assert {name: Path(file).exists() for name, file in key.items()} == {"private_key": True, "public_key": True}
    old = written(tmp_path / "lights.evalset.json", EXPECTED)
    assert json.loads(invoke("migrate", old, tmp_path / "rows.jsonl", "--json").stdout)["cases"] == 2
    refused = invoke("upload", tmp_path / "nowhere", spelling, f"sqlite:///{tmp_path}/mlflow.db", "--json")
    assert (refused.exit_code, json.loads(refused.stdout)["kind"]) == (64, "UsageError")
