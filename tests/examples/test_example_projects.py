"""What the READMEs of the example projects tell: their commands are run, in order, and print what stands there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from tests.cli.test_cli import invoke

EXAMPLES = Path(__file__).parents[2] / "example_projects"
PROJECTS = sorted(readme.parent.name for readme in EXAMPLES.glob("*/README.md") if any(readme.parent.rglob("*.evalset.json")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IDS = (r"\b[0-9a-f]{32}\b", "…"), (r"sqlite:///\S*?/mlflow_store", "sqlite:///…/mlflow_store")


@dataclass
class Terminal:
    """Runs commands in a folder, as their README has them."""

    folder: Path
    run_ids: list[str] = field(default_factory=list)

    def run(self, command: str) -> str:
        """Return what a command prints, after checking that it ends as it should."""
        first, *rest = shlex.split(command)
        arguments = [self._known(argument) for argument in rest]
        code, stdout = self._cli(arguments) if first == "mlflow-adk-eval" else self._process(first, arguments)
        refused = "_regressed" in command or "OTHER_RUN_ID" in command
        wanted = 1 if refused and "compare" not in arguments else 0
        assert code == wanted, f"{command}\n{stdout}"
        self.run_ids += re.findall(r"^run id: (\w+)$", stdout, re.MULTILINE)
        return stdout

    def _known(self, argument: str) -> str:
        """Return an argument with the ids of the runs before in the place of their names."""
        return self.run_ids[["RUN_ID", "OTHER_RUN_ID"].index(argument)] if argument.endswith("RUN_ID") else argument

    def _cli(self, arguments: list[str]) -> tuple[int, str]:
        result = invoke(*arguments)
        return result.exit_code, result.stdout + (result.stderr if result.exit_code not in {0, 1} else "")

    def _process(self, program: str, arguments: list[str]) -> tuple[int, str]:
        start = {"python": [], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}[program]
        done = subprocess.run([sys.executable, *start, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + (done.stderr if done.returncode not in {0, 1} else "")


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    folder = tmp_path / request.param
    shutil.copytree(EXAMPLES / request.param, folder, ignore=shutil.ignore_patterns("__pycache__", "mlflow_store"))
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PYTEST_ADDOPTS", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    store = f"sqlite:///{folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.chdir(folder)
    forget_agents()
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(store)  # whatever a test before has set outranks the environment
    yield Terminal(folder)
    mlflow.set_tracking_uri(before)
    forget_agents()


def forget_agents() -> None:
    """Have the next test import the modules of its own copy."""
    ours = {path.stem for path in EXAMPLES.glob("*/*") if path.is_dir() or path.suffix == ".py"}
    for name in list(sys.modules):
        if name.partition(".")[0] in ours | {"agent"}:
            del sys.modules[name]


def general(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, replacement in IDS:
        text = re.sub(pattern, replacement, text)
    return text


def test_there_are_at_least_three() -> None:
    assert {"home_automation", "travel_planner", "plain_python"} <= set(PROJECTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")  # of google-adk and MLflow, in whose hands the commands are
@pytest.mark.parametrize("terminal", PROJECTS, indirect=True)
def test_the_commands_of_the_readme_print_what_it_says(terminal: Terminal) -> None:
    blocks = BLOCK.findall((terminal.folder / "README.md").read_text(encoding="utf-8"))
    printed = ""
    for (language, text), (following, shown) in pairwise([*blocks, ("", "")]):
        if language == "python":
            with redirect_stdout(StringIO()) as said:
                exec(compile(text, "README.md", "exec"), {})  # noqa: S102 - what users are told to run
            printed = said.getvalue()
        if language == "bash":
            commands = [line for line in text.splitlines() if not line.startswith("pip install ")]
            printed = general("\n".join(map(terminal.run, commands)))
        if language in {"bash", "python"} and following == "text":
            assert shown in printed + "\n"
    champion_is_version_1_and_2_was_refused(terminal.folder)


GOOD = {
    "home_automation": "run home_automation_agent home_automation.evalset.json",
    "plain_python": "run support_bot:support_bot support.evalset.json",
    "travel_planner": "run travel_planner written/trips.evalset.json",
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("terminal", GOOD, indirect=True)
@pytest.mark.needs("google-adk")
def test_each_command_that_a_command_names_next_works_up_to_the_promotion(terminal: Terminal) -> None:
    commands = [GOOD[terminal.folder.name]]
    for command in commands:  # which grows with each
        if "MODEL" not in command:
            commands += re.findall(r"^next: mlflow-adk-eval (.*)$", terminal.run(f"mlflow-adk-eval {command}"), re.MULTILINE)
    audited = f"audit {'home_automation' if terminal.folder.name == 'home_automation' else ''}"
    assert commands[-1].replace("'", "").startswith(audited)
    assert any(command.startswith("promote ") and "MODEL" not in command for command in commands)


def champion_is_version_1_and_2_was_refused(folder: Path) -> None:
    store = next(folder.rglob("mlflow_store/mlflow.db"), folder / "mlflow.db")
    client = MlflowClient(f"sqlite:///{store}")
    (model,) = client.search_registered_models()
    gates = {str(version.version): version.tags["adk_eval.gate"] for version in client.search_model_versions(f"name = '{model.name}'")}
    assert {alias: str(version) for alias, version in client.get_registered_model(model.name).aliases.items()} == {"champion": "1"}
    assert gates == {"1": "passed", "2": "failed"}


@pytest.mark.parametrize("project", PROJECTS)
def test_what_the_readme_names_is_there(project: str) -> None:
    text = (EXAMPLES / project / "README.md").read_text(encoding="utf-8")
    assert (EXAMPLES / project).joinpath("README.md").is_file()
    linked = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text)
    files = re.findall(r"`([\w./]+(?:\.py|\.json|\.ini|/))`", text)
    named = [name for name in files if not name.startswith("adk_eval/")]
    assert [name for name in linked if not (EXAMPLES / project / name).exists()] == []
    assert [name for name in named if not any((EXAMPLES / project).rglob(name.rstrip("/")))] == []
