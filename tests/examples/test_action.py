"""The GitHub action: the steps of action.yml are run as GitHub runs them, on an agent with a scripted model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from ruamel.yaml import YAML

from tests.cli.test_cli import invoke
from tests.mlflow_kit import copied

PROJECT = Path(__file__).parents[2]
EXAMPLES = PROJECT / "example_projects"
ACTION: dict[str, Any] = YAML(typ="safe").load((PROJECT / "action.yml").read_text("utf-8"))
INPUTS: dict[str, dict[str, Any]] = ACTION["inputs"]
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in ACTION["runs"]["steps"]}
CI: dict[str, Any] = YAML(typ="safe").load((PROJECT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
(GIVEN,) = (step["with"] for step in CI["jobs"]["action"]["steps"] if step.get("uses") == "./")
"""How this repository uses its own action."""
REUSABLE: dict[str, Any] = YAML(typ="safe").load((PROJECT / ".github" / "workflows" / "agent-gate.yml").read_text("utf-8"))
PAGE = (PROJECT / "docs" / "how_to" / "ci.md").read_text("utf-8")
EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")


@dataclass
class Runner:
    """Runs the action in a folder, on a store beside it."""

    folder: Path
    codes: dict[str, int] = field(default_factory=dict[str, int])
    said: str = ""
    known: dict[str, str] = field(default_factory=dict[str, str])
    """What expressions stand for."""
    base: str = ""
    """The branch that a pull request is to be merged into."""
    github: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of a pull request's job; empty: nobody comments."""

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder.parent / 'mlflow.db'}"

    def use(self, **given: str) -> dict[str, str]:
        """Run the action's steps until one fails, and return its outputs."""
        given = GIVEN | {name.replace("_", "-"): value for name, value in given.items()}
        self.known = {f"inputs.{name}": given.get(name, one.get("default", "")) for name, one in INPUTS.items()}
        self.known |= {"inputs.github-token": "t0ken", "github.event.pull_request.number": "7"}
        self.codes, self.said = {}, ""
        self._step(STEPS["Name what belongs to this evaluation"])
        for name in ("Policy", "Evaluate", "Decide"):
            if not any(self.codes.values()):
                self.codes[name] = self._step(STEPS[name])
        if self.github:
            assert [self._step(STEPS[name]) for name in ("Page and report", "Comment")] == [0, 0], self.said
        self.codes = {name: code for name, code in self.codes.items() if name != "Policy" or code}
        return {name: self._told(output["value"]) for name, output in ACTION["outputs"].items()}

    def _told(self, text: str) -> str:
        return EXPRESSION.sub(lambda found: self.known.get(found[1], ""), text)

    def _step(self, step: dict[str, Any]) -> int:
        output, summary = self.folder.parent / "output", self.folder.parent / "summary.md"
        output.write_text("")
        summary.write_text("")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "GITHUB_", "GOOGLE_", "GEMINI_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        github = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_BASE_REF": self.base}
        github |= {"GITHUB_WORKFLOW": "CI", "GITHUB_JOB": "gate", "GITHUB_ACTION_PATH": str(PROJECT)} | self.github
        ours = {"MLFLOW_TRACKING_URI": self.uri, "PYTHONWARNINGS": "ignore", "RUNNER_TEMP": str(self.folder.parent), "PATH": path}
        inputs = {name: self._told(value) for name, value in step["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder / self._told(step.get("working-directory", ".")),
            env=kept | github | ours | inputs,
            capture_output=True,
            text=True,
            check=False,
        )
        self.said += done.stdout + done.stderr + summary.read_text()
        outputs = (line.partition("=") for line in output.read_text().splitlines())
        self.known |= {f"steps.{step.get('id')}.outputs.{name}": value for name, _, value in outputs}
        return done.returncode


@pytest.fixture
def runner(template: Path, tmp_path: Path) -> Runner:
    if not all(map(shutil.which, ("jq", "bash"))):
        pytest.skip("the steps need jq and bash, which runners of GitHub have")
    pytest.importorskip("google.adk", reason="the example's agent is one of ADK")
    for name in ("home_automation", "ci_gate"):
        ignored = shutil.ignore_patterns("__pycache__", "mlflow.db", "mlruns")
        shutil.copytree(EXAMPLES / name, tmp_path / "repository" / "example_projects" / name, ignore=ignored)
    copied(template, tmp_path)
    return Runner(tmp_path / "repository")


@pytest.mark.slow
def test_a_good_agent_is_promoted_and_a_worse_one_is_refused(runner: Runner) -> None:
    promoted = runner.use()
    assert (runner.codes, promoted["verdict"], promoted["model-version"]) == ({"Evaluate": 0, "Decide": 0}, "passed", "1"), runner.said
    assert str(MlflowClient(runner.uri).get_registered_model("home_automation").aliases["champion"]) == "1"

    refused = runner.use(agent="home_automation_agent_regressed", promote="false", experiment="home", run_arguments="--run-name worse")
    assert (runner.codes, refused["verdict"], refused["model-version"]) == ({"Evaluate": 0, "Decide": 1}, "failed", ""), runner.said
    assert "### ❌ Agent gate: " in runner.said
    assert "the champion, version 1 of 'home&#95;automation'" in runner.said
    run = MlflowClient(runner.uri).get_run(refused["run-id"])
    assert (run.info.run_name, str(MlflowClient(runner.uri).get_registered_model("home_automation").aliases["champion"])) == ("worse", "1")


@pytest.mark.slow
def test_what_cannot_be_run_fails_in_its_first_step_with_the_reason(runner: Runner) -> None:
    outputs = runner.use(eval_set='$(touch spoilt); "`touch spoilt`"', run_arguments="; touch spoilt")
    assert (runner.codes, outputs["verdict"]) == ({"Evaluate": 64}, "")
    assert "touch spoilt" in runner.said
    assert list(runner.folder.rglob("spoilt")) == []


def test_promoting_needs_a_model(runner: Runner) -> None:
    runner.use(model="")
    assert runner.codes == {"Evaluate": 1}
    assert "the input promote needs the input model" in runner.said


def test_a_pull_request_promotes_nothing(runner: Runner) -> None:
    runner.base = "main"
    runner.use(promote="true")
    assert runner.codes == {"Policy": 64}
    assert "A pull request cannot promote" in runner.said


def test_no_input_becomes_part_of_a_script() -> None:
    assert [name for name, step in STEPS.items() if "${{" in step.get("run", "")] == []
    assert all(step["shell"] == "bash" for step in STEPS.values() if "run" in step)


def test_the_ledger_lies_outside_the_checkout_where_the_cache_finds_it(tmp_path: Path) -> None:
    step, environ = STEPS["Keep the ledger outside the checkout"], {"RUNNER_TEMP": "/tmp/r", "GITHUB_ENV": str(tmp_path / "env")}  # noqa: S108
    for named in ({}, {"MLFLOW_ADK_EVAL_LEDGER": "postgresql://db/x"}):
        subprocess.run(["bash", "-e", "-c", step["run"]], check=True, env=environ | named)
    assert (
        tmp_path / "env"
    ).read_text() == "MLFLOW_ADK_EVAL_LEDGER=/tmp/r/adk_eval/ledger.sqlite\nMLFLOW_ADK_EVAL_LEDGER=postgresql://db/x\n"
    assert STEPS["Answers that were paid for"]["with"]["path"] == "${{ runner.temp }}/adk_eval"


def test_each_input_is_used_and_each_expression_is_known() -> None:
    text = (PROJECT / "action.yml").read_text("utf-8")
    used = {name for expression in EXPRESSION.findall(text) for name in re.findall(r"(?:inputs|steps|github|runner)\.[\w.-]+", expression)}
    outputs = {
        f"steps.{step['id']}.outputs.{name}"
        for step in STEPS.values()
        for name in re.findall(r"echo \"([\w-]+)=.*GITHUB_OUTPUT", step.get("run", ""))
    }
    github = {"runner.temp", "github.run_id", "github.run_attempt", "github.job", "github.token", "github.event.pull_request.number"}
    assert used == {f"inputs.{name}" for name in INPUTS} | outputs | github | {"steps.page.outcome"}


def test_the_page_names_each_input_and_output() -> None:
    table = PAGE.partition("## The action")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert rows == [*INPUTS, *ACTION["outputs"]], "give each input and output of action.yml a row in docs/how_to/ci.md, in their order"


def test_the_workflow_that_can_be_called_is_the_action_with_a_job_around_it() -> None:
    called, (job,) = REUSABLE["on"]["workflow_call"], REUSABLE["jobs"].values()
    plain = {name: {key: value for key, value in one.items() if key != "type"} for name, one in called["inputs"].items()}
    assert plain.pop("environment")["default"] == ""
    assert job["environment"] == "${{ inputs.environment }}"
    commenting = {"comment": INPUTS["comment"], "github-token": INPUTS["github-token"]}
    assert plain | {"promote": plain["promote"] | {"default": "false"}} | commenting == INPUTS
    assert called["inputs"]["promote"]["default"] is False
    (ours, uses) = (next(step for step in job["steps"] if step.get(key) == value) for key, value in AT_ITS_COMMIT)
    assert ours["with"] == {"repository": "${{ job.workflow_repository }}", "ref": "${{ job.workflow_sha }}", "path": ".mlflow_adk_eval"}
    assert uses["with"] == {name: f"${{{{ inputs.{name} }}}}" for name in INPUTS if name not in commenting} | {"comment": "false"}
    assert set(called["secrets"]) == set(uses["env"]), "hand each secret of the workflow to the action as a variable, and no others"
    outputs = {name: one["description"] for name, one in ACTION["outputs"].items()}
    assert {name: one["description"] for name, one in called["outputs"].items()} == outputs
    assert job["outputs"] == {name: f"${{{{ steps.{uses['id']}.outputs.{name} }}}}" for name in outputs}
    assert [one["value"] for one in called["outputs"].values()] == [f"${{{{ jobs.gate.outputs.{name} }}}}" for name in outputs]


AT_ITS_COMMIT = (("name", "The action, of the same commit as this workflow"), ("uses", "./.mlflow_adk_eval"))


def test_the_page_and_our_own_workflow_call_it_with_inputs_that_it_has() -> None:
    inputs, file = REUSABLE["on"]["workflow_call"]["inputs"], ".github/workflows/agent-gate.yml"
    (shown,) = (text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if file in text)
    calls = [YAML(typ="safe").load(shown)["jobs"]["gate"], CI["jobs"]["workflow"]]
    assert [call["uses"] for call in calls] == [f"OWNER/mlflow_adk_eval/{file}@COMMIT", f"./{file}"]
    for call in calls:
        assert {name for name, one in inputs.items() if one.get("required")} <= set(call["with"]) <= set(inputs)


def test_what_init_writes_runs_the_commands_of_the_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not all(map(shutil.which, ("jq", "bash"))):
        pytest.skip("the steps need jq and bash, which runners of GitHub have")
    (tmp_path / "bot_of_action.py").write_text("def answer(message):\n    return 'Yes.'\n")
    (tmp_path / "requirements.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert invoke("init", "bot_of_action:answer", "--example", "Open?=Yes.").exit_code == 0
    (written,) = YAML(typ="safe").load((tmp_path / ".github/workflows/answer-eval.yml").read_text())["jobs"].values()
    (around,) = REUSABLE["jobs"].values()
    python, install = (
        (next(each["with"] for each in job["steps"] if "setup-python" in each.get("uses", "")) for job in (written, around)),
        "-r requirements.txt",
    )
    assert len({str(each) for each in python}) == 1
    assert [install in step["run"] for job in (written, around) for step in job["steps"] if step.get("name") == "Install"] == [True, True]

    program = tmp_path / "bin" / "mlflow-adk-eval"
    program.parent.mkdir()
    program.write_text(f'#!{shutil.which("bash")}\necho "$@" >> "$SEEN"\necho \'{{"run_id": "r1"}}\'\n')
    program.chmod(0o755)

    def commands(name: str, scripts: list[tuple[str, dict[str, str]]]) -> list[set[str]]:
        seen = tmp_path / name
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        ours = {"SEEN": str(seen), "PATH": path, "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(tmp_path / "output")}
        for script, given in scripts:
            subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env={**os.environ, **ours, **given}, check=True)
        return [set(line.split()) for line in seen.read_text().splitlines()]

    inputs = {name: one.get("default", "") for name, one in INPUTS.items()} | {
        "agent": "bot_of_action:answer",
        "eval-set": "evals/answer.evalset.json",
        "policy": "evals/gate.yaml",
        "experiment": "answer",
        "gate-arguments": "--junit gate.xml",
    }
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {
        "steps.evaluate.outputs.run-id": "r1",
        "steps.policy.outputs.path": "evals/gate.yaml",
        "steps.own.outputs.folder": str(tmp_path),
    }
    told = {
        name: {key: EXPRESSION.sub(lambda found: known.get(found[1], ""), text) for key, text in step.get("env", {}).items()}
        for name, step in STEPS.items()
        if "run" in step
    }
    action = commands("action", [(STEPS[name]["run"], told[name]) for name in ("Evaluate", "Decide")])
    init = commands(
        "init", [(step["run"], {"POLICY": "evals/gate.yaml"}) for step in written["steps"] if step.get("name") in ("Evaluate", "Gate")]
    )
    assert init == [action[0], action[1] - {"--comment", str(tmp_path / "comment.md")}], "the workflow of init has only a summary"
    assert len(init) == 2
