"""The workflow that releases: which job may do what, that a tag must name the version, and that the list of components is one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.examples.test_action import PROJECT

WORKFLOW: dict[str, Any] = YAML(typ="safe").load((PROJECT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
SCRIPTS = {step["name"]: step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step}


def test_only_jobs_without_code_of_the_project_have_an_identity() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert {name: job.get("permissions") for name, job in JOBS.items()} == {
        "build": None,
        "attest": {"id-token": "write", "attestations": "write"},
        "publish": {"id-token": "write"},
        "release": {"contents": "write"},
    }
    for name in ("attest", "publish", "release"):
        used = [step.get("uses", step.get("run")) for step in JOBS[name]["steps"]]
        assert not any(one.startswith(("actions/checkout", "make ", "python ")) for one in used)
    assert JOBS["publish"]["environment"] == "pypi"
    assert [JOBS[name]["needs"] for name in ("attest", "publish", "release")] == ["build", "attest", "publish"]
    assert "secrets." not in str(WORKFLOW)
    assert not any("${{" in script for script in SCRIPTS.values())


def test_a_tag_names_the_version(tmp_path: Path) -> None:
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)

    def code(tag: str) -> int:
        script = SCRIPTS["The tag names the version"].replace("python ", f"{sys.executable} ")
        return subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env={"TAG": tag}, capture_output=True, check=False).returncode

    assert (code(f"v{version}"), code("v0.0.0"), code(f"v{version}$(exit 0)")) == (0, 1, 1)


def test_the_list_of_components_has_what_the_lock_file_has(tmp_path: Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    if not uv.is_file():
        pytest.skip("uv makes the list")
    output = tmp_path / "sbom"
    script = SCRIPTS["SBOM"].replace(".venv/bin/uv", str(uv)).replace("sbom/", f"{output}/").replace("mkdir -p sbom", f"mkdir {output}")
    subprocess.run(["bash", "-e", "-c", script], cwd=PROJECT, check=True)
    listed = json.loads((output / "mlflow-adk-eval.cdx.json").read_text())
    names = {one["name"] for one in listed["components"]}
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "mlflow-adk-eval")
    assert {"mlflow", "google-adk", "google-genai"} <= names
    assert not names & {"pytest", "ruff"}
