"""Each workflow that we show, ship or write for somebody: what the code of a pull request can reach in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.test_cli import invoke

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")), *sorted((PROJECT / "example_projects").rglob("README.md"))]
Workflow = dict[str, Any]
COMMENTS = re.compile(r"/agent-comment\.yml(@COMMIT)?$")
"""The workflow that may write on a pull request, since it runs nothing of it."""


def loaded(text: str) -> Workflow:
    found: Workflow = YAML(typ="safe").load(text)
    return found


def shown() -> dict[str, Workflow]:
    """Return the workflows that pages show in full."""
    blocks = ((page, text) for page in PAGES for text in re.findall(r"```ya?ml\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    return {
        f"{page.name}, block {number}": loaded(text)
        for number, (page, text) in enumerate(blocks)
        if re.search(r"^jobs:", text, re.MULTILINE)
    }


def shipped() -> dict[str, Workflow]:
    files = [*(PROJECT / ".github" / "workflows").glob("*.yml"), *(PROJECT / "example_projects").rglob(".github/workflows/*.yml")]
    return {str(file.relative_to(PROJECT)): loaded(file.read_text("utf-8")) for file in files}


ALL = shown() | shipped()


@pytest.fixture
def of_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workflow:
    (tmp_path / "bot_of_init.py").write_text("def answer(message):\n    return 'Yes.'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert invoke("init", "bot_of_init:answer", "--example", "Open?=Yes.").exit_code == 0
    return loaded((tmp_path / ".github/workflows/answer-eval.yml").read_text())


def problems(workflow: Workflow) -> list[str]:
    """Return what the code of a pull request could use."""
    events = workflow.get("on", {})
    found = ["pull_request_target"] if "pull_request_target" in events else []
    if "workflow_run" in events and not all(
        COMMENTS.search(job.get("uses", "")) and "secrets" not in job for job in workflow["jobs"].values()
    ):
        found.append("workflow_run")
    if workflow.get("permissions") is None or "write" in str(workflow["permissions"]):
        found.append("permissions")
    if "secrets." in str(workflow.get("env", "")):
        found.append("secrets for all jobs and steps")
    for name, job in workflow["jobs"].items():
        writes = any(right == "write" for right in job.get("permissions", {}).values())
        if writes and {"pull_request", "workflow_run"} & set(events) and not COMMENTS.search(job.get("uses", "")):
            found.append(f"{name} may write")
        if job.get("secrets") == "inherit":
            found.append(f"{name} inherits all secrets")
        if "secrets." in str(job.get("env", "")):
            found.append(f"{name} gives secrets to all steps")
        steps = job.get("steps", [])
        found += [f"{name}: {step['name']} installs with secrets" for step in steps if step.get("name") == "Install" and "env" in step]
        promotes = any("mlflow-adk-eval promote" in step.get("run", "") for step in steps)
        if promotes and (job.get("if") != "github.event_name == 'push'" or not job.get("environment") or not job.get("concurrency")):
            found.append(f"{name} promotes on other events, beside others, or without an environment")
        if "pull_request" in events and any("mlflow-adk-eval gate" in step.get("run", "") for step in steps):
            found += (
                []
                if "$POLICY" in str(steps) and any("GITHUB_BASE_REF" in step.get("run", "") for step in steps)
                else [f"{name}: its own policy"]
            )
    return found


def test_there_are_workflows_to_look_at() -> None:
    assert len(shown()) == 4
    assert {"example_projects/ci_gate/.github/workflows/agent-gate.yml", ".github/workflows/agent-gate.yml"} <= set(shipped())


@pytest.mark.parametrize("name", ALL)
def test_the_code_of_a_pull_request_gets_only_what_it_must_have(name: str) -> None:
    if name.endswith(("ci.yml", "site.yml")):
        assert problems(ALL[name]) in ([], ["permissions"]), "our own pages are written by the job of main"
    else:
        assert problems(ALL[name]) == []


def test_so_it_is_in_the_workflow_of_init(of_init: Workflow) -> None:
    assert problems(of_init) == []
    assert of_init["permissions"] == {"contents": "read"}


def test_each_takes_the_policy_of_the_base_branch_in_the_same_words(of_init: Workflow) -> None:
    example = loaded((PROJECT / "example_projects/ci_gate/.github/workflows/agent-gate.yml").read_text())["jobs"]["pull-request"]
    action = loaded((PROJECT / "action.yml").read_text("utf-8"))["runs"]
    (ours,) = of_init["jobs"].values()
    scripts = [next(step["run"] for step in job["steps"] if step.get("id") == "policy") for job in (ours, example, action)]
    assert scripts[0] == scripts[1]
    assert scripts[2].endswith(scripts[0])


def test_what_was_wrong_is_found() -> None:
    call = {"uses": "OWNER/x@COMMIT", "secrets": "inherit"}
    promote = {"steps": [{"run": "mlflow-adk-eval promote m"}]}
    gate = {"steps": [{"run": "mlflow-adk-eval gate r --policy gate.yaml"}], "env": {"KEY": "${{ secrets.KEY }}"}}
    workflow = {
        "on": {"pull_request": None, "pull_request_target": None},
        "env": {"KEY": "${{ secrets.KEY }}"},
        "jobs": {"a": call, "b": promote, "c": gate, "d": {"permissions": {"pull-requests": "write"}}},
    }
    assert problems(workflow) == [
        "pull_request_target",
        "permissions",
        "secrets for all jobs and steps",
        "a inherits all secrets",
        "b promotes on other events, beside others, or without an environment",
        "c gives secrets to all steps",
        "c: its own policy",
        "d may write",
    ]
    comment = {"uses": "OWNER/x/.github/workflows/agent-comment.yml@COMMIT", "permissions": {"pull-requests": "write"}}
    assert problems({"on": {"workflow_run": None}, "permissions": {}, "jobs": {"a": comment}}) == []
    assert problems({"on": {"workflow_run": None}, "permissions": {}, "jobs": {"a": comment | {"secrets": {"K": "k"}}}}) == ["workflow_run"]
    assert problems({"on": {"workflow_run": None}, "permissions": {}, "jobs": {"a": {"steps": []}}}) == ["workflow_run"]
