"""The commands that need MLflow, on a SQLite store, and the demo."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import EXPECTED, invoke, written
from tests.mlflow_kit import opened

EXPERIMENT = "lights"


@pytest.fixture
def store(template: Path, tmp_path: Path) -> str:
    return opened(template, tmp_path / "store", EXPERIMENT)


@pytest.fixture
def lights(tmp_path: Path) -> Path:
    return written(tmp_path / "lights.evalset.json", EXPECTED)


def good(tmp_path: Path) -> Path:
    """Return a recording of an agent that does all that is expected, and took some time."""
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][0]["conversation"][0]["duration"] = 0.25
    return written(tmp_path / "good.json", actual)


def regressed(tmp_path: Path) -> Path:
    actual = json.loads(json.dumps(EXPECTED))
    actual["eval_cases"][1]["conversation"][0]["final_response"]["parts"][0]["text"] = "go away"
    return written(tmp_path / "regressed.json", actual)


def run_of(agent: Path, lights: Path, store: str, *, exit_code: int) -> dict[str, str]:
    result = invoke("run", agent, lights, "--tracking-uri", store, "--experiment", EXPERIMENT, "--register", "lights", "--json")
    assert result.exit_code == exit_code, result.stderr
    said: dict[str, str] = json.loads(result.stdout)
    return said


def test_a_good_version_goes_all_the_way(lights: Path, store: str, tmp_path: Path) -> None:
    said = run_of(good(tmp_path), lights, store, exit_code=0)
    at = ("--tracking-uri", store)
    assert said["model_version"] == "1"
    assert invoke("gate", said["run_id"], *at).exit_code == 0
    promoted = invoke("promote", "lights", "--version", "1", "--alias", "champion", "--run-id", said["run_id"], *at)
    assert promoted.exit_code == 0
    assert "champion is now version 1 of lights" in promoted.stdout
    assert invoke("verify", "lights", *at).exit_code == 0


def test_a_regressed_version_is_refused_with_1_and_the_alias_stays(lights: Path, store: str, tmp_path: Path) -> None:
    said = run_of(regressed(tmp_path), lights, store, exit_code=1)
    at = ("--tracking-uri", store)
    refused = invoke("promote", "lights", "--version", said["model_version"], "--run-id", said["run_id"], *at)
    assert refused.exit_code == 1
    assert "1 of 2 cases below the threshold 0.8" in refused.stdout
    assert "champion was not moved" in refused.stdout
    decision = json.loads(invoke("gate", said["run_id"], "--json", *at).stdout)
    assert decision["verdict"] == "failed"
    assert decision["scores"]["response_match_score"] == 0.5


def test_a_dry_run_moves_nothing(lights: Path, store: str, tmp_path: Path) -> None:
    said = run_of(good(tmp_path), lights, store, exit_code=0)
    at = ("--tracking-uri", store)
    tried = invoke("promote", "lights", "--version", "1", "--run-id", said["run_id"], "--dry-run", *at)
    assert tried.exit_code == 0
    assert "champion was not moved" in tried.stdout
    assert invoke("verify", "lights", *at).exit_code == 64


def test_run_prints_each_turn_and_the_run(lights: Path, store: str, tmp_path: Path) -> None:
    result = invoke("run", good(tmp_path), lights, "--tracking-uri", store, "--experiment", EXPERIMENT, "--print-detailed-results")
    assert "✓ response_match_score 1" in result.stdout
    run_id = re.search("^run id: (.*)$", result.stdout, re.MULTILINE)
    assert run_id
    assert f"\nnext: mlflow-adk-eval gate {run_id[1]} --tracking-uri {store}\n" in result.stdout
    page = re.search(rf"^page: http://127.0.0.1:5000/#/experiments/\d+/runs/{run_id[1]}\n  served by: (.*)$", result.stdout, re.MULTILINE)
    assert page
    assert page[1] == f"mlflow ui --backend-store-uri {store}"


def next_of(output: str) -> list[str]:
    """Return the words of the first command that a command says to run next, without the program's name."""
    found = re.search(r"^next: mlflow-adk-eval (.*?)(?:, .*)?$", output, re.MULTILINE)
    assert found, output
    return shlex.split(found[1])


def test_run_names_the_policy_that_lies_beside_the_eval_set(lights: Path, store: str, tmp_path: Path) -> None:
    policy = lights.with_name("gate.yaml")
    policy.write_text("rules: {case_pass_rate: {min: 1}, pass^1: {min: 1}, response_match_score/pass_rate: {min: 1}}\n")
    result = invoke("run", good(tmp_path), lights, "--tracking-uri", store, "--experiment", EXPERIMENT)
    command = next_of(result.stdout)
    assert command[-2:] == ["--policy", str(policy)]
    assert invoke(*command).exit_code == 0


@pytest.mark.parametrize(
    ("policy", "register", "names"),
    [
        ("rules: {safety_v1: {min: 1}}", (), ["gate"]),
        ("rules: {case_pass_rate: {min: 1}}\nconfig: {criteria: {safety_v1: 1}}", (), ["gate"]),
        ("rules: {case_pass_rate: {max_drop: 0}}\nbaseline: {alias: champion}", (), ["gate"]),
        (
            "rules: {case_pass_rate: {min: 1, max_drop: 0}}\nbaseline: {alias: champion}",
            ("--register", "lights"),
            ["gate", "--policy", "--model"],
        ),
        ("rules: {case_pass_rate: {min: 1, max_drop: 0}}\nbaseline: {model: lights, alias: champion}", (), ["register", "lights"]),
        (
            "rules: {case_pass_rate: {min: 1, max_drop: 0}}\nbaseline: {model: lights, alias: champion}",
            ("--register", "lights"),
            ["gate", "--policy"],
        ),
    ],
)
def test_the_command_that_a_pass_names_next_works_whatever_the_policy_demands(
    lights: Path, store: str, tmp_path: Path, policy: str, register: tuple[str, ...], names: list[str]
) -> None:
    lights.with_name("gate.yaml").write_text(f"{policy}\n")
    result = invoke("run", good(tmp_path), lights, "--tracking-uri", store, "--experiment", EXPERIMENT, *register)
    command = next_of(result.stdout)
    assert (command[0], ("--policy" in command, "--model" in command)) == (names[0], ("--policy" in names, "--model" in names))
    done = invoke(*command)
    assert done.exit_code == 0, done.stderr
    if command[0] == "register":
        assert invoke(*next_of(done.stdout)).exit_code == 0


def test_a_policy_that_cannot_be_read_is_the_next_to_look_at(lights: Path, store: str, tmp_path: Path) -> None:
    policy = lights.with_name("gate.yaml")
    policy.write_text("rules: {case_pass_rate: {mni: 1}}\n")
    result = invoke("run", good(tmp_path), lights, "--tracking-uri", store, "--experiment", EXPERIMENT)
    assert next_of(result.stdout) == ["validate", str(policy)]


def test_what_a_failure_names_next_works(lights: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("run", regressed(tmp_path), lights, "--tracking-uri", store, "--experiment", EXPERIMENT)
    assert invoke(*next_of(result.stdout)).exit_code == 0
    assert (tmp_path / "report.html").is_file()


def test_each_command_leads_to_the_next_and_runs_are_listed_and_named(
    lights: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    at = ("--tracking-uri", store)
    first = run_of(good(tmp_path), lights, store, exit_code=0)
    # A run that passes is promoted, verified and audited, without a word to fill in.
    gated = invoke("gate", "latest", *at)
    assert gated.stderr.startswith(f"note: latest is run {first['run_id']} (")
    promote = next_of(gated.stdout)
    assert promote == ["promote", "lights", "--version", "1", "--run-id", first["run_id"], *at]
    promoted = invoke(*promote)
    verify = next_of(promoted.stdout)
    assert verify == ["verify", "lights", "--alias", "champion", *at]
    assert next_of(invoke(*verify).stdout) == ["audit", "lights", *at]
    # One that fails is compared with the last run that passed.
    failed = invoke("run", regressed(tmp_path), lights, *at, "--experiment", EXPERIMENT)
    compare = next_of(failed.stdout)
    assert compare[:2] == ["compare", first["run_id"]]
    compared = invoke(*compare)
    assert next_of(compared.stdout) == ["report", compare[2], *at]
    assert next_of(invoke("gate", "champion", *at).stdout) == promote
    listed = invoke("runs", *at, "--experiment", EXPERIMENT).stdout
    assert next_of(listed) == compare
    assert all(part in listed for part in ("1 of 2", "2 of 2", compare[2][:8], first["run_id"][:8], "passed", "failed"))
    assert max(map(len, listed.partition("next: ")[0].splitlines())) <= 100
    rows = json.loads(invoke("runs", *at, "--limit", "1", "--json").stdout)
    assert [(row["run_id"], row["verdict"], row["not_scored"]) for row in rows] == [(compare[2], "failed", 0)]
    misspelt = invoke("report", "lastest", *at)
    assert (misspelt.exit_code, misspelt.stderr.splitlines()[-1].rpartition(". ")[2]) == (64, "Did you mean 'latest'?")
    # A rule that is misspelt is a mistake in the file, before any run is read.
    policy = tmp_path / "gate.yaml"
    policy.write_text("rules: {case_pas_rate: {min: 1}}")
    refused = invoke("gate", "nonsense", "--policy", policy, *at)
    assert refused.exit_code == 64
    assert all(part in refused.stderr for part in ("gate.yaml", "$.rules.case_pas_rate", "wanted", "Did you mean 'case_pass_rate'?"))
    # Where there is no store, none is made.
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    looked = invoke("view", "--no-browser", "--tracking-uri", f"sqlite:///{empty}/mlflow.db")
    assert (looked.exit_code, list(empty.iterdir())) == (64, [])
    assert "there is no MLflow store" in looked.stderr


def test_run_says_what_it_has_made_here_once_and_what_to_do_about_a_failure(
    lights: Path, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("run", regressed(tmp_path), lights, "--experiment", EXPERIMENT)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "mlflow.db").unlink(missing_ok=True)
    first, second = invoke(*command), invoke(*command)
    assert re.search(r"^new here: mlflow\.db", first.stdout, re.MULTILINE)
    assert "new here" not in second.stdout
    assert re.search(r"^next: mlflow-adk-eval report [0-9a-f]{32}, or mlflow-adk-eval view", second.stdout, re.MULTILINE)


@pytest.mark.needs("google-adk")
def test_an_eval_set_is_found_by_its_id_in_the_agents_folder(tmp_path: Path, store: str) -> None:
    folder = tmp_path / "lamp"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text("root_agent = None\n")
    written(folder / "nightly.evalset.json", EXPECTED)
    missing = invoke("run", folder, "weekly", "--tracking-uri", store)
    assert missing.exit_code == 64
    assert "weekly" in missing.stderr
    found = invoke("run", folder, "nightly:hi", "--tracking-uri", store)
    assert found.exit_code == 64, "the set is found, and the folder has no agent"
    assert "the agent of lamp" in found.stderr
    assert invoke("run", folder / "__init__.py", "nightly:hi", "--tracking-uri", store).stderr == found.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["gate", "nonsense"],
        ["promote", "nobody", "--version", "1", "--run-id", "nonsense"],
        ["verify", "nobody"],
        ["upload", "nowhere"],
    ],
)
def test_what_does_not_exist_is_64_in_one_sentence(command: list[str], store: str) -> None:
    result = invoke(*command, "--tracking-uri", store)
    assert result.exit_code == 64
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")


def test_an_mlflow_that_does_not_answer_is_3_before_the_agent_is_called(lights: Path) -> None:
    result = invoke("run", lights, lights, "--tracking-uri", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "cannot be reached" in result.stderr


@pytest.mark.slow
def test_the_demo_promotes_one_version_refuses_the_other_and_says_what_to_open(tmp_path: Path) -> None:
    pytest.importorskip("google.adk", reason="the demo runs ADK agents")
    secret = {"GEMINI_API_KEY": "not-a-key-of-anybody"}
    command = [sys.executable, "-m", "mlflow_adk_eval", "demo", "--folder", "store"]
    shown = subprocess.run(command, cwd=tmp_path, env=os.environ | secret, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "champion is now version 1" in shown.stdout
    assert "champion was not moved" in shown.stdout
    assert "mlflow ui --backend-store-uri sqlite:///" in " ".join(shown.stdout.split())
    assert secret["GEMINI_API_KEY"] not in shown.stdout + shown.stderr


def test_rows_with_what_is_recorded_are_evidence_unless_it_is_what_is_expected(lights: Path, store: str, tmp_path: Path) -> None:
    at = ("--tracking-uri", store)
    for actual, code in ((good(tmp_path), 0), (lights, 2)):
        beside = tmp_path / f"{actual.stem}.parquet"
        assert invoke("migrate", lights, beside, "--actual", actual).exit_code == 0
        result = invoke("run", beside, "--experiment", EXPERIMENT, "--register", "lights", "--json", *at)
        assert result.exit_code == 0, result.stderr
        decided = invoke("gate", json.loads(result.stdout)["run_id"], *at)
        assert decided.exit_code == code, decided.output
    assert "compared with itself" in decided.stdout


SAME = "self-comparison: the agent's conversations equal the expected ones"


def test_a_recording_that_is_compared_with_itself_passes_with_a_note_and_names_no_gate(lights: Path, store: str, tmp_path: Path) -> None:
    scored = invoke("score", lights, "--actual", lights)
    run = invoke("run", lights, lights, "--tracking-uri", store, "--experiment", EXPERIMENT)
    for result in (scored, run):
        assert (result.exit_code, result.stdout.count("verdict: passed"), " ".join(result.stdout.split()).count(SAME)) == (0, 1, 1)
    assert "next:" not in run.stdout
    assert SAME not in " ".join(invoke("score", lights, "--actual", good(tmp_path)).stdout.split())
    assert json.loads(invoke("score", lights, "--actual", lights, "--json").stdout)["notes"][0].startswith(SAME)
