"""The arguments of `adk eval` and `adk eval_set`, as the installed google-adk has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mlflow_adk_eval.cli import main as cli
from mlflow_adk_eval.cli.run import run as run_command
from tests.cli.test_cli import EXPECTED, invoke, recorded, written

pytestmark = pytest.mark.filterwarnings("ignore")


def options(command: click.Command) -> set[str]:
    return {name.replace("_", "-") for parameter in command.params if isinstance(parameter, click.Option) for name in parameter.opts}


def test_every_option_of_adk_eval_is_taken() -> None:
    from google.adk.cli.cli_tools_click import main

    assert options(main.commands["eval"]) - {"--help"} <= options(run_command)
    ours = cli.cli.commands["eval-set"]
    assert isinstance(ours, click.Group)
    for name, command in ours.commands.items():
        theirs = main.commands["eval_set"]
        assert isinstance(theirs, click.Group)
        assert options(theirs.commands[name.replace("-", "_")]) - {"--help", "--log-level"} <= options(command)


@pytest.fixture
def newer_adk() -> Iterator[None]:
    """The installed `adk eval`, with options that it does not have yet."""
    from google.adk.cli.cli_tools_click import main

    params = main.commands["eval"].params
    added = [click.Option(["--replay_from"]), click.Option(["--dry"], is_flag=True)]
    params.extend(added)
    yield
    for one in added:
        params.remove(one)


@pytest.mark.usefixtures("newer_adk")
def test_options_that_only_adk_has_are_passed_over_with_a_note(tmp_path: Path) -> None:
    lights = written(tmp_path / "lights.evalset.json", EXPECTED)
    result = invoke("run", recorded(tmp_path), tmp_path / "gone.json", "--replay-from", "x", "--dry")
    assert (result.exit_code, "gone.json" in result.stderr) == (64, True)
    assert "note: --replay-from of `adk eval` has no effect here\nnote: --dry of `adk eval` has no effect here\n" in result.stderr
    unknown = invoke("run", recorded(tmp_path), lights, "--no_such_thing", "x")
    assert (unknown.exit_code, "--no-such-thing" in unknown.stderr, "note" in unknown.stderr) == (64, True, False)
    assert "--concurrency" in invoke("run", recorded(tmp_path), lights, "--concurency", "2").stderr


def test_an_adk_that_cannot_switch_features_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.adk import features

    monkeypatch.delattr(features, "override_feature_enabled", raising=False)
    ran = invoke("run", recorded(tmp_path), tmp_path / "gone.json", "--enable-features", "ANY")
    assert ran.exit_code == 64
    assert "cannot switch features; upgrade it" in ran.stderr


@pytest.mark.needs("google-adk", "1.30")
def test_features_of_adk_are_switched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.adk import features

    first, second = list(features.FeatureName)[:2]
    monkeypatch.setattr("google.adk.features._feature_registry._FEATURE_OVERRIDES", {})
    given = ("run", recorded(tmp_path), tmp_path / "gone.json", f"--enable_features={first.value}, ,", "--disable-features", second.value)
    assert invoke(*given).exit_code == 64
    assert (features.is_feature_enabled(first), features.is_feature_enabled(second)) == (True, False)
    wrong = invoke("run", "agent", "set", "--enable_features", first.value[:-1])
    assert (wrong.exit_code, f"Did you mean '{first.value}'?" in wrong.stderr) == (64, True)


AGENT = """
from google.adk.agents import BaseAgent
from google.adk.events.event import Event
from google.genai import types

class Says(BaseAgent):
    async def _run_async_impl(self, ctx):
        yield Event(author=self.name, content=types.Content(role="model", parts=[types.Part(text="it is on")]))

root_agent = Says(name="says")
"""


@pytest.mark.needs("google-adk")
def test_an_eval_set_by_its_id_in_a_storage_leaves_its_result_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stored_says").mkdir()
    (tmp_path / "stored_says/agent.py").write_text(AGENT)
    storage = ["--eval_storage_uri", tmp_path.as_uri()]
    made = invoke("eval-set", "create", "stored_says", "lights", *storage)
    file = tmp_path / "stored_says/evals/eval_sets/lights.evalset.json"
    at = f"--eval-storage-uri {tmp_path.as_uri()}"
    assert made.stdout.splitlines() == [
        f"file://{file}: a new eval set without cases",
        f"next: mlflow-adk-eval eval-set add-eval-case stored_says lights --scenarios-file FILE {at}",
    ]
    scenarios = written(tmp_path / "s.json", {"scenarios": [{"starting_prompt": "Hi", "conversation_plan": "Bye"}]})
    for added in ("1 new case", "0 new cases; 1 was there already"):
        told = invoke("eval_set", "add_eval_case", "stored_says", "lights", "--scenarios_file", scenarios, *storage).stdout
        assert told.endswith(f"{added}\nnext: mlflow-adk-eval run stored_says lights {at}\n")
    written(file, EXPECTED)
    config = written(tmp_path / "c.json", {"criteria": {"response_match_score": 0.5}})
    uri = f"sqlite:///{tmp_path}/m.db"
    result = invoke("run", "stored_says", "lights:on", "--config", config, "--tracking-uri", uri, "--json", *storage)
    assert result.exit_code == 0, result.stderr
    kept = json.loads(Path(json.loads(result.stdout)["eval_set_result"].removeprefix("file://")).read_text())
    assert [(one["eval_id"], one["final_eval_status"]) for one in kept["eval_case_results"]] == [("on", 1)]
    assert kept["eval_set_result_id"].startswith("stored_says_lights_")


@pytest.mark.slow
def test_what_libraries_say_about_themselves_is_kept_out(tmp_path: Path) -> None:
    lights, actual = written(tmp_path / "lights.evalset.json", EXPECTED), recorded(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_LOGGING_LEVEL"}
    command = [sys.executable, "-m", "mlflow_adk_eval", "run", actual, lights, "--tracking-uri", f"sqlite:///{tmp_path}/new.db"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert "INFO" not in ended.stderr
