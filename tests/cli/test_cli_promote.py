"""The commands `gate` and `promote` with policies, champions and everything that a CI system reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import Result

import mlflow_adk_eval as adk_eval
from mlflow_adk_eval.evalset.files import dumps
from mlflow_adk_eval.tracking.agent_versions import register
from tests.cli.test_cli import invoke, written
from tests.gating.gate_kit import TRAJECTORY, Lab, eval_set_of
from tests.gating.promotion.test_baseline_search import ALL_BUT_ONE, NINE, POLICY, Scene
from tests.mlflow_kit import copied
from tests.tracking.small import answering, many

HOSTILE = "##[error]x\n::add-mask::y"


@pytest.fixture
def scene(lab: Lab, model: str) -> Scene:
    return Scene(lab, f"{model}_by_hand")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return written(tmp_path / "gate.json", POLICY)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def gate(scene: Scene, run_id: str, *options: object) -> Result:
    return invoke("gate", run_id, "--tracking-uri", scene.lab.uri, *options)


def promote(scene: Scene, version: str, run_id: str, *options: object) -> Result:
    return invoke("promote", scene.name, "--version", version, "--run-id", run_id, "--tracking-uri", scene.lab.uri, *options)


def test_a_run_is_held_against_the_champion(scene: Scene, policy: Path) -> None:
    champion = scene.champion()
    good = gate(scene, scene.candidate(), "--policy", policy, "--model", scene.name)
    assert good.exit_code == 0
    assert good.stdout.count("verdict: passed") == 1
    bad = gate(scene, scene.candidate(wrong=ALL_BUT_ONE), "--policy", policy, "--baseline", f"runs:/{champion}")
    assert bad.exit_code == 1
    assert f"against 1 for run {champion}" in " ".join(bad.stdout.split())


def test_the_json_is_the_whole_decision(scene: Scene, policy: Path) -> None:
    champion = scene.champion()
    version, model_id = scene.register()
    run_id = scene.run(model_id)
    decision = json.loads(gate(scene, run_id, "--policy", policy, "--model", scene.name, "--json").stdout)
    assert decision["baseline_run_id"] == champion
    assert {check["measure"] for check in decision["checks"]} == {TRAJECTORY, "response_match_score"}
    assert set(decision) == set(asdict(scene.gate(run_id)))
    promoted = json.loads(promote(scene, version, run_id, "--policy", policy, "--json").stdout)
    assert (promoted["model"], promoted["version"], promoted["alias"], promoted["moved"]) == (scene.name, version, "champion", True)


def test_a_dry_run_says_so(scene: Scene, policy: Path) -> None:
    version, model_id = scene.register()
    tried = promote(scene, version, scene.run(model_id), "--policy", policy, "--dry-run")
    assert (tried.exit_code, scene.lab.alias(scene.name)) == (0, None)
    assert "champion was not moved (dry run)" in tried.stdout
    assert '"moved": false' in promote(scene, version, scene.run(model_id), "--dry-run", "--json").stdout


def test_summary_and_junit_are_written_where_asked(scene: Scene, policy: Path, tmp_path: Path) -> None:
    scene.champion()
    version, model_id = scene.register()
    files = ("--summary", tmp_path / "gate.md", "--junit", tmp_path / "gate.xml")
    assert promote(scene, version, scene.run(model_id, wrong=ALL_BUT_ONE), "--policy", policy, *files).exit_code == 1
    page = (tmp_path / "gate.md").read_text()
    assert f"❌ Agent gate: version {version} of {scene.name.replace('_', '&#95;')} as champion · verdict: failed" in page
    assert page.endswith("champion was not moved\n")
    suite = ET.parse(tmp_path / "gate.xml").getroot()  # noqa: S314 - our own
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")


def test_a_file_that_cannot_be_written_is_64(scene: Scene, tmp_path: Path) -> None:
    result = gate(scene, scene.candidate(), "--summary", tmp_path / "nowhere" / "gate.md")
    assert result.exit_code == 64
    assert "gate.md cannot be written: there is no folder" in result.stderr
    assert not result.stdout  # nothing was decided, and with `promote` nothing set, before that was found


def test_a_job_of_github_gets_a_summary_and_annotations(
    scene: Scene, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    scene.champion()
    bad = gate(scene, scene.candidate(wrong=ALL_BUT_ONE), "--policy", policy, "--model", scene.name)
    assert "### ❌ Agent gate: " in (tmp_path / "step.md").read_text()
    assert bad.stderr.startswith(f"::error title=agent gate%3A {TRAJECTORY} max_drop 0.35 failed::")
    begin, *_, end = bad.stdout.splitlines()
    assert end == f"::{begin.removeprefix('::stop-commands::')}::"


def test_a_hostile_case_commands_nothing_on_github(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    cases = eval_set_of({HOSTILE: [("hi", "hello", "tool")], "b": [("hi", "hello", "tool")]})
    run_id = scene.candidate(eval_set=cases, wrong=[HOSTILE])
    for options in ((), ("--json",)):
        result = gate(scene, run_id, *options)
        assert result.exit_code == 1
        fenced = result.stdout.splitlines()[1:-1] if not options else []
        free = [line for line in (result.stdout + result.stderr).splitlines() if line not in fenced]
        commands = [line for line in free if line.strip().startswith("::") or "##[" in line]
        assert all(line.startswith(("::error title=agent gate", "::stop-commands::")) or line.count(":") == 4 for line in commands)
    assert json.loads(gate(scene, run_id, "--json").stdout)["verdict"] == "failed"


def test_a_champion_agent_that_does_not_exist_is_bad_usage() -> None:
    result = invoke("gate", "any-run", "--champion-agent", "no_such_module")
    assert (result.exit_code, "there is no module 'no_such_module'" in result.output) == (64, True)
    result = invoke("promote", "helper", "--version", "1", "--run-id", "any-run", "--agent", "home")
    assert (result.exit_code, "--agent needs --eval-set, with the cases that the policy holds out" in result.output) == (64, True)


def test_an_incomparable_champion_is_undecided_with_the_way_out(scene: Scene, policy: Path) -> None:
    scene.champion()
    result = gate(scene, scene.candidate(eval_set=NINE), "--policy", policy, "--model", scene.name)
    assert result.exit_code == 2
    assert "--champion-agent AGENT" in " ".join(result.stdout.split())


def test_a_model_that_does_not_exist_is_64(scene: Scene, policy: Path) -> None:
    result = gate(scene, scene.candidate(), "--policy", policy, "--model", "nobody")
    assert result.exit_code == 64
    assert "nothing to compare with" in result.stderr


def crowned(store: str) -> adk_eval.Report:
    """Return the report of a champion in a store."""
    cases = many(8)
    config = {"criteria": {"tool_trajectory_avg_score": 1.0}}

    def champion(text: str, session: Any) -> Any:
        return answering(cases)(text, session)

    report = adk_eval.evaluate(cases, champion, config, tracking_uri=store, traces=False)
    adk_eval.promote("helper", register(report, "helper", tracking_uri=store), run_id=report, tracking_uri=store)
    return report


@pytest.mark.slow
def test_a_champion_is_judged_again_or_run_anew_if_asked(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Lab) -> None:
    monkeypatch.chdir(tmp_path)
    store = copied(template, tmp_path)
    champion = crowned(store)
    cases = many(8)
    config = {"criteria": {"tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "IN_ORDER"}}}
    candidate = adk_eval.evaluate(cases, answering(cases), config, tracking_uri=store, traces=False)
    rules = {"rules": {TRAJECTORY: {"max_drop": 0.35}}, "baseline": {"alias": "champion", "model": "helper"}}
    options = ("--policy", written(tmp_path / "gate.json", rules), "--tracking-uri", store)
    assert invoke("gate", candidate.run_id, *options).exit_code == 2
    given = (
        "--eval-set",
        written(tmp_path / "many.evalset.json", json.loads(dumps(cases))),
        "--config",
        written(tmp_path / "c.json", config),
    )
    recorded = tmp_path / "champion.json"
    adk_eval.save_recording(candidate, recorded)
    swapped = invoke("gate", candidate.run_id, *options, *given, "--champion-agent", recorded, "--json")
    assert "the recording is of another version" in swapped.stdout
    adk_eval.save_recording(champion, recorded)
    anew = invoke("gate", candidate.run_id, *options, *given, "--champion-agent", recorded, "--json")
    assert anew.exit_code == 0, anew.stderr + anew.stdout
    other = {"criteria": {TRAJECTORY: {"threshold": 1.0, "match_type": "ANY_ORDER"}}}
    more = adk_eval.evaluate(cases, answering(cases), other, tracking_uri=store, traces=False)
    written(tmp_path / "test_config.json", other)
    again = invoke("gate", more.run_id, *options, *given[:2], "--reevaluate", "--ledger", "off", "--json")
    assert again.exit_code == 0, again.stderr
    assert len({json.loads(found.stdout)["baseline_run_id"] for found in (anew, again)}) == 2


@pytest.mark.parametrize("command", ["gate", "promote"])
def test_the_help_tells_every_option_and_exit_code(command: str) -> None:
    told = " ".join(invoke(command, "--help").stdout.split())
    for option in (
        "--policy",
        "--reevaluate",
        "--champion-agent",
        "--eval-set",
        "--config-file-path",
        "--judge",
        "--summary",
        "--junit",
        "--json",
        "too few cases",
    ):
        assert option in told
