"""The workflow of the CI example: its steps are run as GitHub runs them, in a repository with a pull request that is worse and one that is not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from ruamel.yaml import YAML

from mlflow_adk_eval.gating.policy.load import load_policy
from tests.mlflow_kit import copied

PROJECT = Path(__file__).parents[2]
EXAMPLE, AGENT = (PROJECT / "example_projects" / name for name in ("ci_gate", "home_automation"))
FILE = ".github/workflows/agent-gate.yml"
WORKFLOW: dict[str, Any] = YAML(typ="safe").load((EXAMPLE / FILE).read_text())
MODEL = "home_automation"
CARELESS = "from home_automation_agent_regressed.agent import CarelessModel\n\nroot_agent = build_agent(CarelessModel())\n"


def commands(job: str) -> dict[str, str]:
    return {step["name"]: step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step}


@dataclass
class Actions:
    """A repository, a tracking store, and what runs a job's steps."""

    folder: Path
    summary: str = ""
    said: dict[str, str] = field(default_factory=dict[str, str])
    """What each step printed, by its name."""
    policy: str = ""
    """What the step that looks for the policy came to."""

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=dev", "-c", "user.email=dev@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--message", message)

    def job(self, name: str) -> dict[str, int]:
        """Run the steps of a job until one fails, and return the exit codes."""
        codes: dict[str, int] = {}
        self.said, self.summary = {}, ""
        for step, command in commands(name).items():
            if step != "Install" and not any(codes.values()):
                codes[step] = self._step(step, command, base="main" if name == "pull-request" else "")
        return {step: code for step, code in codes.items() if step != "Policy" or code}

    def _step(self, name: str, command: str, base: str) -> int:
        page, output = self.folder.parent / "summary.md", self.folder.parent / "output"
        page.unlink(missing_ok=True)
        output.write_text("")
        if name == "Policy":
            self.policy = "gate.yaml"
            subprocess.run(["git", "worktree", "remove", "--force", str(self.folder.parent / "base")], cwd=self.folder, check=False)
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command],
            cwd=self.folder,
            env={**self._environment(page), "GITHUB_BASE_REF": base, "GITHUB_OUTPUT": str(output), "POLICY": self.policy},
            capture_output=True,
            text=True,
            check=False,
        )
        self.said[name] = done.stdout + done.stderr
        self.summary += page.read_text() if page.exists() else ""
        if name == "Policy":
            self.policy = output.read_text().strip().removeprefix("path=")
        return done.returncode

    def _environment(self, page: Path) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "GITHUB_", "GOOGLE_", "GEMINI_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        github = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_ACTOR": "octocat", "GITHUB_STEP_SUMMARY": str(page)}
        secret = {"MLFLOW_TRACKING_URI": self.uri, "MODEL": WORKFLOW["env"]["MODEL"], "PYTHONWARNINGS": "ignore"}
        secret["RUNNER_TEMP"] = str(self.folder.parent)
        return kept | github | secret | {"PATH": path}

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder.parent / 'mlflow.db'}"

    @property
    def champion(self) -> str:
        return str(MlflowClient(self.uri).get_registered_model(MODEL).aliases["champion"])


@pytest.fixture
def actions(template: Path, tmp_path: Path) -> Actions:
    if not all(map(shutil.which, ("git", "jq", "bash"))):
        pytest.skip("the steps need git, jq and bash, which runners of GitHub have")
    pytest.importorskip("google.adk", reason="the example's agent is one of ADK")
    folder = tmp_path / "repository"
    shutil.copytree(AGENT, folder, ignore=shutil.ignore_patterns("__pycache__", "mlflow.db", "mlruns", "README.md"))
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
    (folder / ".gitignore").write_text("__pycache__\nmlruns\n.adk_eval\nrun.json\ngate.xml\n")
    copied(template, tmp_path)
    found = Actions(folder)
    found.git("init", "--initial-branch", "main")
    found.git("remote", "add", "origin", str(folder))
    found.commit("The agent")
    return found


@pytest.mark.slow
def test_a_worse_pull_request_is_refused_and_a_good_one_becomes_the_champion(actions: Actions) -> None:
    agent = actions.folder / "home_automation_agent" / "agent.py"
    assert actions.job("promote") == {"Evaluate": 0, "Promote": 0}, actions.said
    assert actions.champion == "1"
    assert "there is no baseline yet" in actions.summary

    actions.git("switch", "--create", "careless")
    good = agent.read_text()
    agent.write_text(good.replace("root_agent = build_agent(ScriptedModel())\n", CARELESS))
    actions.commit("Act at once")
    assert actions.job("pull-request") == {"Evaluate": 0, "Gate": 1}, actions.said
    assert "### ❌ Agent gate: " in actions.summary
    assert "the champion, version 1 of 'home&#95;automation'" in actions.summary
    assert "::error title=agent gate%3A tool_trajectory_avg_score max_drop 0.25 failed::" in actions.said["Gate"]
    assert 'failures="4"' in (actions.folder / "gate.xml").read_text()

    actions.git("switch", "main")
    agent.write_text(good.replace("Controls lights", "Looks after lights"))
    actions.commit("Say it nicely")
    assert actions.job("pull-request") == {"Evaluate": 0, "Gate": 0}, actions.said
    assert "### ✅ Agent gate: " in actions.summary
    assert actions.champion == "1"
    assert actions.job("promote") == {"Evaluate": 0, "Promote": 0}, actions.said
    assert actions.champion == "2"
    assert "::notice title=agent gate passed::" in actions.said["Promote"]


@pytest.mark.slow
def test_a_pull_request_is_held_to_the_policy_of_the_branch_that_it_is_to_be_merged_into(actions: Actions) -> None:
    agent = actions.folder / "home_automation_agent" / "agent.py"
    assert actions.job("promote") == {"Evaluate": 0, "Promote": 0}, actions.said
    actions.git("switch", "--create", "careless")
    agent.write_text(agent.read_text().replace("root_agent = build_agent(ScriptedModel())\n", CARELESS))
    (actions.folder / "gate.yaml").write_text("rules: {response_match_score: {min: 0.01}}\n")
    actions.commit("Act at once, and demand nothing")
    assert actions.job("pull-request") == {"Evaluate": 0, "Gate": 1}, actions.said
    assert actions.policy == str(actions.folder.parent / "base" / "gate.yaml")

    actions.git("switch", "main")
    actions.git("rm", "gate.yaml")
    actions.commit("No policy yet")
    actions.git("switch", "careless")
    assert actions.job("pull-request") == {"Evaluate": 0, "Gate": 0}, actions.said
    assert actions.said["Policy"] == "::warning::main has no gate.yaml yet, so the policy of this pull request decides\n"


@pytest.mark.slow
def test_a_job_without_a_tracking_server_fails_in_its_first_step(actions: Actions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Actions, "uri", "http://127.0.0.1:9")
    assert actions.job("pull-request") == {"Evaluate": 1}
    assert "cannot be reached" in actions.said["Evaluate"]


def test_the_page_shows_the_commands_of_the_workflow() -> None:
    page = (PROJECT / "docs" / "how_to" / "ci.md").read_text()
    shown = {command for job in WORKFLOW["jobs"] for name, command in commands(job).items() if name not in ("Install", "Policy")}
    documented = {textwrap.dedent(lines) for lines in re.findall(r"  run: \|\n((?:    .*\n)+)", page)}
    assert shown == documented, "show the commands of the example's workflow in docs/how_to/ci.md to the letter"


def test_each_job_is_for_one_event_and_only_one_promotes_at_a_time() -> None:
    jobs = WORKFLOW["jobs"]
    assert {name: job["if"] for name, job in jobs.items()} == {
        "pull-request": "github.event_name == 'pull_request'",
        "promote": "github.event_name == 'push'",
    }
    assert jobs["promote"]["concurrency"]["cancel-in-progress"] is False
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not any("promote" in command for command in commands("pull-request").values())


def test_the_policy_is_the_one_that_the_page_tells_of() -> None:
    (told,) = re.findall(r"```yaml\n# gate.yaml\n(.*?)```", (PROJECT / "docs" / "how_to" / "ci.md").read_text(), re.DOTALL)
    assert YAML(typ="safe").load(told) == YAML(typ="safe").load((EXAMPLE / "gate.yaml").read_text())
    assert load_policy(EXAMPLE / "gate.yaml").name == MODEL
