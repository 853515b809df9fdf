"""The first hour of three teams, from the wheel to a promoted agent: what they type is counted, and stands in docs/how_to/new_agent.md.

``.venv/bin/pytest -q -rP tests/cli/test_first_hour.py`` prints the table.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from ruamel.yaml import YAML

from tests.cli.shop_agent import adk_agent
from tests.mlflow_kit import copied

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "how_to" / "new_agent.md"
CELL = re.compile(r'name="cell" value="(\w+)"')

SHOP = """
ANSWERS = {
    "open": "We are open until six.",
    "cars": "No, we sell bicycles.",
    "pay": "You can pay in cash or by card.",
    "dog": "Dogs are welcome.",
    "Sunday": "Perhaps.",
}

def answer(message):
    '''Answer what customers of a bicycle shop ask.'''
    return next((text for word, text in ANSWERS.items() if word in message), "I do not know.")
"""
JUDGE = """
def same(request):
    '''Stands for a model.'''
    said, wanted = (set(request.blocks[name].lower().split()) for name in ("response", "reference"))
    return {"rationale": "the words in common", "verdict": "valid" if len(said & wanted) > len(wanted) / 2 else "invalid"}
"""
EXAMPLES = (
    "When do you open?=We are open until six.",
    "Do you sell cars?=No, we sell bicycles.",
    "How can I pay?=You can pay in cash or by card.",
    "May my dog come in?=Dogs are welcome.",
    "Are you there on Sunday?=No, we are closed then.",
)
TALKED = """
import mlflow

found = mlflow.search_traces(locations=[mlflow.get_experiment_by_name("production").experiment_id])
"""


@dataclass
class Team:
    """Types commands in a folder of its own, where nothing but the wheel is installed."""

    folder: Path
    scripts: Path
    commands: list[list[str]] = field(default_factory=list[list[str]])
    labels: int = 0

    def types(self, line: str, *, wanted: int = 0) -> str:
        """Type a command, wait for it and return what it printed."""
        done = self.runs(shlex.split(line))
        assert done.returncode == wanted, done.stdout + done.stderr
        return done.stdout

    def runs(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(words)
        return subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)

    def evaluates(self, line: str, *, wanted: int = 0) -> str:
        """Type a command that evaluates, and return the id of the run."""
        (run_id,) = re.findall(r"^run id: (\w+)$", self.types(line, wanted=wanted), re.MULTILINE)
        return str(run_id)

    def pushes(self) -> tuple[int, str]:
        """Do what GitHub does on a pull request, but for the installation. Nobody types that."""
        (workflow,) = (self.folder / ".github" / "workflows").glob("*-eval.yml")
        job = YAML(typ="safe").load(workflow.read_text("utf-8"))["jobs"]["evaluate"]
        done = subprocess.CompletedProcess[str]([], 1)
        for script in (step["run"] for step in job["steps"] if "run" in step and step["name"] != "Install"):
            words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
            ours = {"POLICY": job["steps"][1]["env"]["POLICY"], "GITHUB_OUTPUT": os.devnull}
            done = subprocess.run(words, cwd=self.folder, env={**self.environment, **ours}, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    @contextmanager
    def views(self, line: str) -> Iterator[str]:
        """Type the command that opens the viewer, and yield its address; it is stopped afterwards."""
        self.commands.append(words := shlex.split(line))
        options = ["--no-browser", "--port", "0"]
        with subprocess.Popen([*words, *options], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True) as viewer:
            try:
                assert viewer.stdout is not None
                yield viewer.stdout.readline().removeprefix("viewer: ").strip()
            finally:
                viewer.terminate()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "GITHUB_", "GOOGLE_"))}
        path = f"{self.scripts}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "PYTHONWARNINGS": "ignore", "MLFLOW_DISABLE_TELEMETRY": "true", "COLUMNS": "200"}

    @property
    def effort(self) -> str:
        words = len(" ".join(word for command in self.commands for word in command).split())
        return f"{len(self.commands)} | {words} | {self.labels}"


INSTALL = "pip install mlflow-adk-eval[adk,view]"


def plain_python(team: Team) -> None:
    """A function, and a judge that is measured before anything rests on it."""
    (team.folder / "shop.py").write_text(SHOP)
    (team.folder / "judges.py").write_text(JUDGE)
    examples = " ".join(f"--example {shlex.quote(example)}" for example in EXAMPLES)
    team.types(f"mlflow-adk-eval init shop:answer --judge judges:same {examples}")
    run = "mlflow-adk-eval run shop:answer evals/answer.evalset.json --experiment answer"
    first = team.evaluates(f"{run} --num-runs 10", wanted=1)
    with team.views("mlflow-adk-eval view --label") as viewer, httpx.Client(base_url=viewer, timeout=300, follow_redirects=True) as browser:
        assert first in browser.get("/").text
        label_all(team, browser, f"/runs/{first}/label")
    said = team.types(f"mlflow-adk-eval calibrate {first} -o evals/calibration.json")
    assert re.search(r"final_response_match_v2 .*\b50\b", said)
    assert team.types(f"mlflow-adk-eval gate {first} --policy evals/gate.yaml", wanted=1)

    good = SHOP.replace("Perhaps.", "No, we are closed on Sunday.")
    (team.folder / "shop.py").write_text(good)
    better = team.evaluates(f"{run} --register answer")
    decided = team.types(f"mlflow-adk-eval promote answer --version 1 --run-id {better} --policy evals/gate.yaml")
    assert "champion is now version 1 of answer" in decided
    assert team.pushes()[0] == 0

    (team.folder / "shop.py").write_text(good.replace("Dogs are welcome.", "Who knows?"))
    code, told = team.pushes()
    assert (code, "may_my_dog_come_in" in told) == (1, True), told
    worse = json.loads((team.folder / "run.json").read_text())["run_id"]
    assert "may_my_dog_come_in" in team.types(f"mlflow-adk-eval compare {better} {worse}")


def label_all(team: Team, browser: httpx.Client, path: str) -> None:
    """Press a key for each turn, as somebody does who knows the shop."""
    page, origin = browser.get(path).text, str(browser.base_url).rstrip("/")
    while cell := CELL.search(page):
        wrong = "Perhaps" in page.partition('<section class="asked" aria-labelledby="cell">')[2].partition("</section>")[0]
        page = browser.post(path, data={"cell": cell[1], "label": "fail" if wrong else "pass"}, headers={"origin": origin}).text
        team.labels += 1
    assert "Everything is labelled" in page


def adk(team: Team) -> None:
    """An agent of google-adk, whose tool calls and answers of today are what is expected."""
    (team.folder / "hours").mkdir()
    (team.folder / "hours/agent.py").write_text(adk_agent("hours"))
    team.types("mlflow-adk-eval init --yes --example 'When are you open?'")
    assert "tool_trajectory_avg_score" in (team.folder / "evals/test_config.json").read_text()
    run_id = team.evaluates("mlflow-adk-eval run hours evals/hours.evalset.json --experiment hours --register hours")
    team.types(f"mlflow-adk-eval promote hours --version 1 --run-id {run_id} --policy evals/gate.yaml")


def langgraph(team: Team) -> None:
    """An agent of LangGraph, of which there are traces."""
    (team.folder / "talked.py").write_text(TALKED)
    in_production(team.folder)
    team.types("mlflow-adk-eval init talked:found --traces production --name lights --yes")
    run_id = team.evaluates("mlflow-adk-eval run talked:found evals/lights.evalset.json --experiment lights --register lights")
    team.types(f"mlflow-adk-eval promote lights --version 1 --run-id {run_id} --policy evals/gate.yaml")


def in_production(folder: Path) -> None:
    """Put the traces into the store that MLflow uses in a folder, as autologging does."""
    import mlflow
    from mlflow.tracing.utils.copy import copy_trace_to_experiment

    from tests.agents.traces.framework_traces import recorded
    from tests.integrations.genai import tracking

    with tracking(f"sqlite:///{folder / 'mlflow.db'}"):
        experiment = mlflow.set_experiment("production").experiment_id
        for trace in recorded("langgraph"):
            copy_trace_to_experiment(trace, experiment)
        mlflow.flush_trace_async_logging()


JOURNEYS = {"plain Python, with a judge": plain_python, "google-adk": adk, "LangGraph, by its traces": langgraph}


@pytest.mark.slow
def test_what_a_team_types_in_its_first_hour_is_what_the_page_says(scripts: Path, tmp_path: Path, template: Path) -> None:
    found: list[str] = []
    for name, journey in JOURNEYS.items():
        team = Team(tmp_path / journey.__name__, scripts)
        (team.folder / ".git").mkdir(parents=True)
        copied(template, team.folder)
        team.commands.append(shlex.split(INSTALL))
        journey(team)
        found.append(f"| {name} | {team.effort} |")
    print(*found, sep="\n")  # noqa: T201 - what `pytest -rP` shows
    assert [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(tuple(f"| {name} |" for name in JOURNEYS))] == found
