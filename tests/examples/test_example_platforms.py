"""The files for Kubernetes, Databricks, Vertex AI and Docker: each platform's own tools know their fields, and their commands do what the README says.

No cluster and no daemon is at hand: commands run here as they stand in the files, with the folders of an image or a workspace in a temporary one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from ruamel.yaml import YAML

from tests.mlflow_kit import copied
from tests.pages.test_cli_page import check

PROJECT = Path(__file__).parents[2]
EXAMPLE = PROJECT / "example_projects" / "platforms"
AGENT = PROJECT / "example_projects" / "home_automation"
DOCKERFILE = (EXAMPLE / "Dockerfile").read_text("utf-8")
MODEL = "home_automation"
FINAL = [1, 2, 4, 64]
"""The exit codes after which another try makes no sense, as the page of exit codes has them."""
UV = shutil.which("uv", path=sysconfig.get_path("scripts"))
needs_uv = pytest.mark.skipif(UV is None, reason="needs uv")
needs_adk = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::ResourceWarning")


def loaded(name: str) -> Any:
    return YAML(typ="safe").load((EXAMPLE / name).read_text("utf-8"))


def job_of(manifest: Any) -> Any:
    """Return the specification of the Job that a manifest is or makes."""
    return manifest["spec"]["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else manifest["spec"]


def containers(manifest: Any) -> dict[str, Any]:
    pod = job_of(manifest)["template"]["spec"]
    return {one["name"]: one for one in [*pod.get("initContainers", []), *pod["containers"]]}


@dataclass(frozen=True)
class Place:
    """Where a container or a task runs: a folder with the agent, the policy and a work folder, and an MLflow store."""

    folder: Path
    store: str

    def run(self, words: list[str], variables: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run a command with the folders of an image in this one; return its exit code and what it printed."""
        moved = {"/agent": f"{self.folder}/agent", "/policy": f"{self.folder}/policy", "${workspace.file_path}": f"{self.folder}/agent"}
        for place, here in moved.items():
            words = [re.sub(rf"(?<![\w.]){re.escape(place)}(?=/)", here, word) for word in words]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ours = {"PATH": path, "MLFLOW_TRACKING_URI": self.store, "PYTHONWARNINGS": "ignore", "MLFLOW_DISABLE_TELEMETRY": "true"}
        (self.folder / "work").mkdir(exist_ok=True)
        environment = kept | ours | (variables or {})
        done = subprocess.run(words, cwd=self.folder / "work", env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def container(self, container: Mapping[str, Any], **variables: str) -> tuple[int, str]:
        """Run a container of a manifest, in which some variables have other values."""
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one and one["name"] != "TMPDIR"} | variables
        words = [re.sub(r"\$\((\w+)\)", lambda found: given[found[1]], word) for word in [*container["command"], *container["args"]]]
        return self.run(words, given)

    def task(self, task: Mapping[str, Any], version: str) -> tuple[int, str]:
        """Run a task of the deployment job for a version of the model."""
        known = {"{{job.parameters.model_name}}": MODEL, "{{job.parameters.model_version}}": version, "{{task.name}}": task["task_key"]}
        program, kind = ["mlflow-adk-eval"], "python_wheel_task"
        if kind not in task:
            kind = "spark_python_task"
            program = [sys.executable, str(EXAMPLE / "databricks" / task[kind]["python_file"])]
        words = [re.sub(r"\{\{[\w.]+\}\}", lambda found: known[found[0]], word) for word in task[kind]["parameters"]]
        return self.run([*program, *words])

    def break_agent(self) -> None:
        """Make the agent write the names of rooms in lower case, as in the tutorials."""
        script = self.folder / "agent" / "home_automation_agent" / "scripted_model.py"
        script.write_text(script.read_text("utf-8").replace("room=room, t", "room=room.lower(), t"), "utf-8")

    def registered(self) -> str:
        """Evaluate the agent as it is, and return the version that was registered."""
        words = ["mlflow-adk-eval", "run", "/agent/home_automation_agent", "/agent/home_automation.evalset.json", "--register", MODEL]
        _, text = self.run(words)
        return re.findall(r"^model version: (\d+)", text, re.MULTILINE)[0]

    @property
    def champion(self) -> str | None:
        version = MlflowClient(self.store).get_registered_model(MODEL).aliases.get("champion")
        return None if version is None else str(version)


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Place:
    pytest.importorskip("google.adk", reason="the agent is ADK's")
    shutil.copytree(AGENT, tmp_path / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "policy").mkdir()
    shutil.copy(EXAMPLE / "gate.yaml", tmp_path / "policy")
    return Place(tmp_path, copied(template, tmp_path))


# Kubernetes

MANIFESTS = ("kubernetes/job.yaml", "kubernetes/cronjob.yaml")


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_published_schemas_know_all_fields_of_a_manifest(name: str) -> None:
    schemas, manifest = pytest.importorskip("kubernetes_validate", reason="the matrix has no schemas of Kubernetes"), loaded(name)
    schemas.validate(manifest, schemas.latest_version(), strict=True)
    job_of(manifest)["backofLimit"] = 2
    with pytest.raises(schemas.ValidationError, match="backofLimit"):
        schemas.validate(manifest, schemas.latest_version(), strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_containers_may_do_nothing_but_run_their_command(name: str) -> None:
    pod = job_of(loaded(name))["template"]["spec"]
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"], pod["restartPolicy"]) == (False, False, "Never")
    user = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    context = pod["securityContext"]
    assert [(str(context["runAsUser"]), str(context["runAsGroup"]))] == user
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    for one in containers(loaded(name)).values():
        locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert one["securityContext"] == locked
        assert {"cpu", "memory"} == one["resources"]["requests"].keys() == one["resources"]["limits"].keys()
        assert not one["image"].endswith(":latest")
        (address,) = (variable for variable in one["env"] if variable["name"] == "MLFLOW_TRACKING_URI")
        assert "secretKeyRef" in address["valueFrom"]
        assert one["workingDir"] in {mount["mountPath"] for mount in one["volumeMounts"]}
    (code, disrupted) = job_of(loaded(name))["podFailurePolicy"]["rules"]
    assert (code["action"], code["onExitCodes"]) == ("FailJob", {"operator": "In", "values": FINAL})
    assert disrupted["action"] == "Ignore"


def test_the_gate_shares_neither_image_nor_files_nor_account_with_the_candidate() -> None:
    found = containers(loaded("kubernetes/job.yaml"))
    volumes = {name: {mount["name"] for mount in one["volumeMounts"]} for name, one in found.items()}
    secrets = [variable["valueFrom"] for one in found.values() for variable in one["env"] if "valueFrom" in variable]
    assert found["evaluate"]["image"] != found["gate"]["image"]
    assert volumes["evaluate"] & volumes["gate"] == set()
    assert secrets[0] != secrets[1]
    assert "policy" in volumes["gate"]
    assert all(mount.get("readOnly") for mount in found["gate"]["volumeMounts"] if mount["name"] == "policy")


@needs_adk
@pytest.mark.slow
def test_the_job_passes_a_good_version_refuses_a_bad_one_and_moves_no_alias(place: Place) -> None:
    evaluate, gate = containers(loaded("kubernetes/job.yaml")).values()
    codes: list[tuple[int, int]] = []
    for number in ("1", "2"):
        assert place.registered() == number
        codes.append((place.container(evaluate, VERSION=number)[0], place.container(gate, VERSION=number)[0]))
        place.break_agent()
    assert codes == [(0, 0), (0, 1)], "missed thresholds are for the policy to judge"
    code, text = place.container(evaluate, VERSION="1")
    assert (code, "has a different source" in text) == (64, True), "another try makes no sense, and its code says so"
    assert place.champion is None


@needs_adk
@pytest.mark.slow
def test_the_cron_job_evaluates_the_champion_and_no_other_code(place: Place) -> None:
    (nightly,) = containers(loaded("kubernetes/cronjob.yaml")).values()
    MlflowClient(place.store).set_registered_model_alias(MODEL, "champion", place.registered())
    assert place.container(nightly)[0] == 0
    place.break_agent()
    code, text = place.container(nightly)
    assert (code, "has a different source" in text) == (64, True)


# Databricks


def bundle() -> dict[str, Any]:
    job: dict[str, Any] = loaded("databricks/databricks.yml")["resources"]["jobs"]["gate_agent"]
    return job


def test_databricks_knows_all_fields_of_the_job() -> None:
    from databricks.sdk.service.jobs import JobSettings

    assert JobSettings.from_dict(bundle()).as_dict() == bundle()
    wrong = {**bundle(), "max_runs": 1}
    assert JobSettings.from_dict(wrong).as_dict() != wrong


def test_it_is_a_deployment_job_whose_tasks_stop_those_after_them() -> None:
    assert [parameter["name"] for parameter in bundle()["parameters"]] == ["model_name", "model_version"]
    tasks = {task["task_key"]: task for task in bundle()["tasks"]}
    order = {name: [one["task_key"] for one in task.get("depends_on", [])] for name, task in tasks.items()}
    assert order == {"evaluate": [], "gate": ["evaluate"], "approval": ["gate"], "deploy": ["approval"]}
    assert [name for name, task in tasks.items() if "run_if" in task] == ["gate"], "it judges by the policy, whatever the thresholds say"
    (environment,) = bundle()["environments"]
    assert {(task["environment_key"], task["max_retries"]) for task in tasks.values()} == {(environment["environment_key"], 0)}
    for task in tasks.values():
        if "python_wheel_task" in task:
            check(shlex.join(task["python_wheel_task"]["parameters"]))


@needs_adk
@pytest.mark.slow
def test_the_deployment_job_waits_for_an_approval_and_stops_at_a_bad_version(place: Place) -> None:
    shutil.copy(EXAMPLE / "gate.yaml", place.folder / "agent")
    evaluate, gate, approval, deploy = bundle()["tasks"]
    assert place.registered() == "1"
    assert [place.task(task, "1")[0] for task in (evaluate, gate)] == [0, 0]
    code, text = place.task(approval, "1")
    assert code == 1
    assert "its tag 'approval' is '', wanted 'approved'" in text
    MlflowClient(place.store).set_model_version_tag(MODEL, "1", "approval", "Approved")
    assert [place.task(task, "1")[0] for task in (approval, deploy)] == [0, 0]
    assert place.champion == "1"
    place.break_agent()
    assert place.registered() == "2"
    MlflowClient(place.store).set_model_version_tag(MODEL, "2", "approval", "Approved")
    assert [place.task(task, "2")[0] for task in (evaluate, gate, deploy)] == [1, 1, 1], "an approval replaces no evidence"
    assert place.champion == "1"


# Docker

BASE = re.compile(r"^FROM (\S+) AS (\w+)$", re.MULTILINE)


def stage(name: str) -> str:
    """Return the instructions of a stage."""
    begin = re.search(rf"^FROM \S+ AS {name}$", DOCKERFILE, re.MULTILINE)
    assert begin
    return re.split(r"^FROM ", DOCKERFILE[begin.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = shutil.which("hadolint", path=sysconfig.get_path("scripts"))
    if hadolint is None:
        pytest.skip("needs hadolint")
    done = subprocess.run([hadolint, EXAMPLE / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = DOCKERFILE.replace(" AS gate", "", 1).replace("python:3.12", "python:latest", 1)
    assert subprocess.run([hadolint, "-"], input=wrong, capture_output=True, text=True, check=False).returncode == 1


def test_images_are_pinned_run_as_nobody_and_hold_no_secrets() -> None:
    bases = {name: base for base, name in BASE.findall(DOCKERFILE)}
    assert bases.keys() == {"install", "gate", "evaluate"}
    assert bases["evaluate"] == "gate", "so that it has the same environment and user"
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in (bases["install"], bases["gate"]))
    assert "COPY . " not in stage("gate"), "the candidate's files could replace the gate"
    assert not re.search(r"ARG|SECRET|TOKEN|KEY", DOCKERFILE.split("FROM ", 1)[1])
    assert DOCKERFILE.rindex("USER 10001") < DOCKERFILE.index("COPY . /agent")
    ignored = (EXAMPLE / ".dockerignore").read_text("utf-8").splitlines()
    assert {"**/.git", "**/.env", "**/.env.*", "**/*.pem", "**/.adk_eval", "**/mlflow.db"} <= {*ignored}, (
        "in any folder, not in the first alone"
    )
    (uv,) = re.findall(r"uv==(\S+)", DOCKERFILE)
    assert f'name = "uv"\nversion = "{uv}"' in (PROJECT / "uv.lock").read_text("utf-8")


def install(folder: Path) -> subprocess.CompletedProcess[str]:
    """Do what the stage *install* does after it copied pyproject.toml and uv.lock."""
    (variables,) = re.findall(r"^ENV (.*)$", stage("install"), re.MULTILINE)
    (command,) = re.findall(r"^RUN (uv .*)$", stage("install"), re.MULTILINE)
    given = dict(one.split("=", 1) for one in variables.split())
    environment = {**os.environ, **given, "UV_PROJECT_ENVIRONMENT": f"{folder}/venv", "UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": ""}
    words = [str(UV), *shlex.split(command)[1:], "--python", sys.executable]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@needs_uv
@pytest.mark.slow
def test_the_image_has_what_the_lock_says_or_is_not_built(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "agent"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["cloup==3.0.8"]\n')
    locked = {**os.environ, "UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": ""}
    done = subprocess.run([str(UV), "lock", "--quiet"], cwd=tmp_path, env=locked, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert install(tmp_path).returncode == 0
    assert list(tmp_path.glob("venv/lib/python*/site-packages/cloup-3.0.8.dist-info"))
    lock = (tmp_path / "uv.lock").read_text()
    (tmp_path / "uv.lock").write_text(re.sub(r"sha256:[0-9a-f]{60}", "sha256:" + 60 * "0", lock))
    shutil.rmtree(tmp_path / "venv")
    changed = install(tmp_path)
    assert changed.returncode != 0
    assert "ash mismatch" in changed.stderr
    (tmp_path / "uv.lock").write_text(lock)
    project.write_text(project.read_text().replace("3.0.8", "3.0.7"))
    assert install(tmp_path).returncode != 0, "the lock is not that of the project"


# Vertex AI


@needs_uv
@pytest.mark.slow
def test_kubeflows_compiler_takes_the_pipeline_and_each_step_waits_for_the_one_before(tmp_path: Path) -> None:
    (kfp,) = re.findall(r"--with (kfp==\S+) python", (EXAMPLE / "README.md").read_text("utf-8"))
    command = [str(UV), "run", "--quiet", "--no-project", "--isolated", "--python", sys.executable, "--with", kfp, "python"]
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": ""}
    environment.pop("PYTHONPATH", None)
    words = [*command, str(EXAMPLE / "vertex_pipeline.py"), "pipeline.yaml"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    if "Failed to fetch" in done.stderr or "No solution found" in done.stderr:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    spec = YAML(typ="safe").load((tmp_path / "pipeline.yaml").read_text("utf-8"))
    tasks = spec["root"]["dag"]["tasks"]
    assert {name: task.get("dependentTasks", []) for name, task in tasks.items()} == {
        "evaluate": [],
        "gate": ["evaluate"],
        "promote": ["gate"],
    }
    assert [name for name, task in tasks.items() if task["cachingOptions"].get("enableCache")] == []
    executors = {name: one["container"] for name, one in spec["deploymentSpec"]["executors"].items()}
    assert executors["exec-evaluate"]["image"] != executors["exec-gate"]["image"] == executors["exec-promote"]["image"]
    for one in executors.values():
        line = one["command"][2].partition(" || ")[0] if "-ec" in one["command"] else shlex.join([*one["command"], *one["args"]])
        check(re.sub(r"\{\{\$[^}]*\}\}", "NAME", line).replace("''", "").removeprefix("mlflow-adk-eval "))
