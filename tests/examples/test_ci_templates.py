"""The templates for GitLab CI, Cloud Build, Azure Pipelines and Jenkins: their schemas, and their scripts, run as they stand on the example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.examples import test_example_ci_gate
from tests.examples.github_api import ME, TOKEN, GitHub, github
from tests.examples.test_example_ci_gate import CARELESS, EXAMPLE, PROJECT, Actions

actions = test_example_ci_gate.actions
JENKINS = (EXAMPLE / "Jenkinsfile").read_text("utf-8")


def loaded(name: str) -> Any:
    return YAML(typ="safe").load((EXAMPLE / name).read_text("utf-8"))


def of_gitlab() -> dict[str, str]:
    jobs = loaded(".gitlab-ci.yml")
    return {role: "\n".join(jobs[job]["script"]) for role, job in (("gate", "agent gate"), ("comment", "comment"), ("promote", "promote"))}


def of_cloud_build() -> dict[str, str]:
    steps = {step["id"]: step["script"] for step in loaded("cloudbuild.yaml")["steps"]}
    (promote,) = re.findall(r"`(bash agent_gate.sh promote)`", (EXAMPLE / "cloudbuild.yaml").read_text("utf-8"))
    return {"gate": steps["gate"], "comment": steps["comment"], "promote": promote}


def of_azure() -> dict[str, str]:
    gate, comment, deployment = loaded("azure-pipelines.yml")["jobs"]
    steps = [*gate["steps"], *comment["steps"], *deployment["strategy"]["runOnce"]["deploy"]["steps"]]
    return {step["displayName"].lower(): step["bash"] for step in steps if "bash" in step and step["displayName"] != "Install"}


def of_jenkins() -> dict[str, str]:
    _, gate, comment, promote = (textwrap.dedent(script) for script in re.findall(r"sh '''\n(.*?)'''", JENKINS, re.DOTALL))
    return {"gate": gate, "comment": comment, "promote": promote}


SYSTEMS: dict[str, Callable[[], dict[str, str]]] = {
    "gitlab": of_gitlab,
    "cloud build": of_cloud_build,
    "azure": of_azure,
    "jenkins": of_jenkins,
}


def variables(api: GitHub, folder: Path, target: str = "main") -> dict[str, str]:
    """Return what the systems set for a job of a merge request."""
    gitlab = {
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": target,
        "CI_MERGE_REQUEST_IID": "7",
        "CI_PROJECT_ID": "5",
        "CI_PROJECT_PATH": "team/agents",
    }
    gitlab |= {"CI_API_V4_URL": f"{api.url}/api/v4", "CI_PIPELINE_URL": "https://gitlab.example/1", "NOTE_TOKEN": TOKEN}
    build = {"TARGET": target, "NUMBER": "7", "BUILD": "b1", "PROJECT": "p1", "GITHUB_TOKEN": TOKEN, "NO_INSTALL": "1"}
    azure = {"SYSTEM_PULLREQUEST_TARGETBRANCH": f"refs/heads/{target}", "SYSTEM_PULLREQUEST_PULLREQUESTID": "7", "BUILD_BUILDID": "1"}
    azure |= {"SYSTEM_COLLECTIONURI": f"{api.url}/", "SYSTEM_TEAMPROJECTID": "p", "BUILD_REPOSITORY_ID": "r", "SYSTEM_DEFINITIONID": "3"}
    azure |= {"SYSTEM_ACCESSTOKEN": TOKEN, "PIPELINE_WORKSPACE": str(folder.parent)}
    jenkins = {"CHANGE_TARGET": target, "CHANGE_ID": "7", "BUILD_URL": "https://jenkins.example/1", "TOKEN": TOKEN}
    return gitlab | build | azure | jenkins | api.environment


@pytest.fixture
def api() -> Iterator[GitHub]:
    with github() as state:
        yield state


def run(script: str, actions: Actions, environment: dict[str, str]) -> tuple[int, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "CI", "MLFLOW_"))}
    ours = {"MLFLOW_TRACKING_URI": actions.uri, "PYTHONWARNINGS": "ignore"}
    path = os.pathsep.join([*environment.get("FIRST", "").split(), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=actions.folder,
        env=kept | ours | environment | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("gitlab-ci", [".gitlab-ci.yml"]),
        ("cloudbuild", ["cloudbuild.yaml"]),
        ("azure-pipelines", ["azure-pipelines.yml"]),
        ("github-workflows", [".github/workflows/agent-gate.yml", *(PROJECT / ".github" / "workflows").glob("*.yml")]),
        ("github-actions", [PROJECT / "action.yml"]),
    ],
)
def test_each_file_is_as_its_schema_has_it(schema: str, files: list[str | Path]) -> None:
    pytest.importorskip("check_jsonschema", reason="it has the schemas")
    named = [str(EXAMPLE / file) for file in files]
    transform = ["--data-transform", schema] if schema == "gitlab-ci" else []
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", "--regex-variant", "nonunicode"]
    done = subprocess.run([*command, *transform, *named], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_script_has_a_value_of_others_in_it() -> None:
    scripts = {system: [*scripts().values()] for system, scripts in SYSTEMS.items()}
    assert {system: len(found) for system, found in scripts.items()} == dict.fromkeys(SYSTEMS, 3)
    assert not any(re.search(r"\$\((?!cat |mlflow)[A-Za-z_.]+\)", script) for script in scripts["azure"]), (
        "Azure puts $(NAME) into the command"
    )
    assert '"""' not in JENKINS, "Groovy puts ${NAME} into what stands in double quotes"
    for script in re.findall(r"^\s+script: .*|args", (EXAMPLE / "cloudbuild.yaml").read_text("utf-8"), re.MULTILINE):
        assert script.strip() == "script: |", "Cloud Build puts substitutions into args"
    assert not any("_BASE_BRANCH" in script for script in scripts["cloud build"])


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_name_of_a_branch_is_no_command(system: str, actions: Actions, api: GitHub, tmp_path: Path) -> None:
    branch = "$(touch${IFS}spoilt);`touch${IFS}spoilt`;'\"x"
    actions.git("branch", branch)
    program = tmp_path / "bin" / "mlflow-adk-eval"
    program.parent.mkdir()
    program.write_text(f'#!{shutil.which("bash")}\necho "$@" >> "$SEEN"\necho \'{{"error": "$(touch spoilt) </pre>@team"}}\'\nexit 3\n')
    program.chmod(0o755)
    given = variables(api, actions.folder, branch) | {"SEEN": str(tmp_path / "seen"), "FIRST": str(program.parent)}
    code, said = run(SYSTEMS[system]()["gate"], actions, given)
    assert code == 3, said
    assert (tmp_path / "seen").read_text().startswith("run home_automation_agent home_automation.evalset.json ")
    page = (actions.folder / "agent_gate" / "comment.md").read_text()
    assert "no decision\n\n<pre>\n $(touch spoilt) &lt;/pre&gt;@team\n</pre>" in page
    assert list(tmp_path.rglob("spoilt")) == []


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_scripts_gate_comment_and_promote(system: str, actions: Actions, api: GitHub) -> None:
    scripts, given = SYSTEMS[system](), variables(api, actions.folder)
    shutil.copy(PROJECT / ".github" / "comment.sh", actions.folder / "github_comment.sh")
    actions.commit("The script that comments")
    assert scripts["promote"].strip() == "bash agent_gate.sh promote"
    code, said = run(scripts["promote"], actions, given)
    assert (code, actions.champion) == (0, "1"), said

    actions.git("switch", "--create", "careless")
    agent = actions.folder / "home_automation_agent" / "agent.py"
    agent.write_text(agent.read_text().replace("root_agent = build_agent(ScriptedModel())\n", CARELESS))
    (actions.folder / "gate.yaml").write_text("rules: {response_match_score: {min: 0.01}}\n")
    actions.commit("Act at once, and demand nothing")
    code, said = run(scripts["gate"], actions, given)
    assert code == 1, said
    left = actions.folder / "agent_gate"
    assert 'failures="4"' in (left / "gate.xml").read_text()
    assert (left / "report.html").is_file()
    shutil.copytree(left, actions.folder.parent / "agent_gate")  # as Azure downloads it into another job

    api.says("another comment", "somebody")
    for _ in range(2):
        code, said = run(scripts["comment"], actions, given)
        assert (code, "warning" in said) == (0, False), said
    (body,) = api.ours
    assert re.match(r"<!-- mlflow-adk-eval:[0-9a-f]{16} -->\n\n### ❌ Agent gate: failed", body)
    marker = body.partition("\n")[0]
    api.comments[:] = []
    api.says(f"{marker}\nfrom somebody", "attacker")
    run(scripts["comment"], actions, given)
    assert [one["user"]["login"] for one in api.comments] == ["attacker", ME]
    assert api.comments[0]["body"] == f"{marker}\nfrom somebody"
