"""The recipes that score production on a schedule: their commands exist and run, and their fields are those that each scheduler knows."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click import NoSuchOption
from huey import crontab
from ruamel.yaml import YAML

from mlflow_adk_eval.config.surroundings import filled
from tests.integrations.genai import QUIET, tracking
from tests.mlflow_kit import copied
from tests.pages.test_cli_page import check, command_lines
from tests.production.lights import SESSIONS, talk

pytestmark = QUIET
PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "example_projects" / "production"
WORKFLOW = EXAMPLE / ".github" / "workflows" / "watch-production.yml"
LINE = "mlflow-adk-eval traces watch production --config production_config.json --level 0.9"
FIELDS = ("minute", "hour", "day", "month", "day_of_week")


def loaded(name: str) -> list[Any]:
    return list(YAML(typ="safe").load_all((EXAMPLE / name).read_text("utf-8")))


def bundle() -> dict[str, Any]:
    (found,) = loaded("databricks.yml")
    job: dict[str, Any] = found["resources"]["jobs"]["watch_production"]
    return job


def cron_line() -> tuple[str, str]:
    """Return the schedule and the command of the crontab."""
    (line,) = [line for line in (EXAMPLE / "crontab").read_text("utf-8").splitlines() if line[:1].isdigit()]
    *schedule, command = line.split(" ", 5)
    return " ".join(schedule), command


def environment(folder: Path, store: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ours = {"PATH": path, "MLFLOW_TRACKING_URI": store, "HOME": str(folder), "PYTHONWARNINGS": "ignore", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return kept | ours


@pytest.fixture
def deployed(template: Path, tmp_path: Path) -> tuple[Path, str]:
    """A folder with what the README says to copy, and a store with traces of production."""
    store = copied(template, tmp_path)
    with tracking(store):
        talk()
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as database:  # two hours ago, since a look leaves out what is young
        database.execute("UPDATE trace_info SET timestamp_ms = timestamp_ms - 7200000")
        database.commit()
    shutil.copy(EXAMPLE / "production_config.json", tmp_path)
    return tmp_path, store


def schedules() -> dict[str, str]:
    (workflow,) = loaded(str(WORKFLOW.relative_to(EXAMPLE)))
    (_, job) = loaded("cronjob.yaml")
    return {"crontab": cron_line()[0], "GitHub": workflow["on"]["schedule"][0]["cron"], "Kubernetes": job["spec"]["schedule"]}


@pytest.mark.parametrize("schedule", schedules().values(), ids=schedules())
def test_a_schedule_is_one_of_cron(schedule: str) -> None:
    fields = schedule.split()
    assert len(fields) == len(FIELDS)
    crontab(strict=True, **dict(zip(FIELDS, fields, strict=True)))
    with pytest.raises(ValueError, match="77"):
        crontab(strict=True, **dict(zip(FIELDS, ["77", *fields[1:]], strict=True)))


def test_each_file_has_a_command_that_exists_with_these_options() -> None:
    for name in ("crontab", str(WORKFLOW.relative_to(EXAMPLE)), "cronjob.yaml", "README.md"):
        lines = [line for line in command_lines(EXAMPLE / name) if line.startswith("traces watch")]
        assert lines, name
        for line in lines:
            check(line)
            assert "--level 0.9" in line
    check(shlex.join(bundle()["tasks"][0]["python_wheel_task"]["parameters"]))
    with pytest.raises(NoSuchOption):
        check("traces watch production --levels 0.9")


def test_kubernetes_knows_all_fields_and_gets_the_same_config() -> None:
    config, job = loaded("cronjob.yaml")
    assert json.loads(config["data"]["production_config.json"]) == json.loads((EXAMPLE / "production_config.json").read_text())
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert f"--config {mounts['config']}/production_config.json" in container["args"][0]
    assert container["workingDir"] == mounts["work"]
    assert next(volume for volume in pod["volumes"] if volume["name"] == "config")["configMap"]["name"] == config["metadata"]["name"]
    # As the page of exit codes has them: another try makes sense after 3 only.
    (rule,) = job["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]) == ("FailJob", {"operator": "In", "values": [1, 2, 4, 64]})
    assert pod["restartPolicy"] == "Never", "which a policy on exit codes demands"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_keeps_all_fields() -> None:
    """It reads them into its own types, which leaves out whatever it does not know."""

    def kept(manifest: str) -> Any:
        command = ["kubectl", "set", "env", "--local", "-f", "-", "-o", "json", "A=b"]
        return json.loads(subprocess.run(command, input=manifest, capture_output=True, text=True, check=True).stdout)

    def lost(ours: Any, theirs: Any, at: str = "$") -> list[str]:
        if isinstance(ours, dict):
            return [
                one
                for key, value in ours.items()
                for one in (lost(value, theirs[key], f"{at}.{key}") if key in theirs else [f"{at}.{key}"])
            ]
        if isinstance(ours, list):
            return [one for place, value in enumerate(ours) for one in lost(value, theirs[place], f"{at}[{place}]")]
        return [] if ours == theirs else [at]

    manifest = (EXAMPLE / "cronjob.yaml").read_text("utf-8").partition("---\n")[2]
    assert lost(loaded("cronjob.yaml")[1], kept(manifest)) == []
    wrong = manifest.replace("backoffLimit", "backofLimit")
    assert lost(YAML(typ="safe").load(wrong), kept(wrong)) == ["$.spec.jobTemplate.spec.backofLimit"]


def test_databricks_knows_all_fields() -> None:
    from databricks.sdk.service.jobs import JobSettings

    assert JobSettings.from_dict(bundle()).as_dict() == bundle()
    wrong = {**bundle(), "max_runs": 1}
    assert JobSettings.from_dict(wrong).as_dict() != wrong
    expression = bundle()["schedule"]["quartz_cron_expression"].split()
    assert (len(expression), expression[0], expression[-1]) == (6, "0", "?"), "Quartz has seconds, and one of two days is left open"
    (environment,) = bundle()["environments"]
    assert bundle()["tasks"][0]["environment_key"] == environment["environment_key"]
    scripts = re.search(r"\[project.scripts\]\n(\S+) =", (PROJECT / "pyproject.toml").read_text())
    assert scripts
    assert bundle()["tasks"][0]["python_wheel_task"]["entry_point"] == scripts[1]


def test_the_workflow_is_what_init_writes() -> None:
    template = (files("mlflow_adk_eval.cli") / "templates" / "production.yml.j2").read_text(encoding="utf-8")
    values = {"name": "production", "folder": ".", "judge": None, "requirements": "", "score": LINE}
    assert WORKFLOW.read_text("utf-8") == filled(template, values) + "\n"


@pytest.mark.slow
def test_the_crontab_looks_at_what_is_new_and_keeps_what_it_said(deployed: tuple[Path, str]) -> None:
    folder, store = deployed
    command = cron_line()[1].replace("/opt/evaluation", str(folder))
    looks = {f"{len(SESSIONS)} conversations: 0 scored before": "see watch.log\n", "0 conversations": ""}
    for found, mailed in looks.items():  # of the conversations that crashed, nobody knows how many calls they would have taken
        (folder / "watch.log").unlink(missing_ok=True)
        done = subprocess.run(["/bin/sh", "-c", command], env=environment(folder, store), capture_output=True, text=True, check=False)
        said = (folder / "watch.log").read_text()
        assert (done.stderr, done.stdout) == ("", mailed), said
        assert found in said
        assert "no alarm" in said


@pytest.mark.slow
def test_the_step_of_the_workflow_fails_as_the_command_does(deployed: tuple[Path, str]) -> None:
    folder, store = deployed
    (workflow,) = loaded(str(WORKFLOW.relative_to(EXAMPLE)))
    script, codes = workflow["jobs"]["score"]["steps"][-1]["run"], list[int]()
    for config in ("production_config.json", "nowhere.json"):
        command = ["bash", "-eo", "pipefail", "-c", script.replace("production_config.json", config)]
        done = subprocess.run(command, cwd=folder, env=environment(folder, store), capture_output=True, text=True, check=False)
        codes.append(done.returncode)
    assert codes == [2, 64]
