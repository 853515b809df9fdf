"""The hook for pre-commit: which files it takes, and that a commit with a mistake in one is refused, by pre-commit itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]
(HOOK,) = YAML(typ="safe").load((PROJECT / ".pre-commit-hooks.yaml").read_text("utf-8"))
EXAMPLE = PROJECT / "example_projects" / "home_automation" / "home_automation.evalset.json"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=dev", "-c", "user.email=dev@example.org")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("file", "taken"),
    {
        "evals/my.evalset.json": True,
        "my.evalset.yaml": True,
        "agent/simple.test.json": True,
        "evals/test_config.json": True,
        "gate.yaml": True,
        "evals/policy.yml": True,
        "package.json": False,
        "investigate.yaml": False,
        "my_test_config.json": False,
    }.items(),
)
def test_it_takes_our_files_by_their_names(file: str, *, taken: bool) -> None:
    assert bool(re.search(HOOK["files"], file)) == taken


@pytest.mark.slow
def test_pre_commit_refuses_a_file_with_a_mistake(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit", reason="it runs the hook")
    hooks, repository = tmp_path / "hooks", tmp_path / "repository"
    for folder in (hooks, repository):
        folder.mkdir()
        git(folder, "init", "--initial-branch", "main")
    shutil.copy(PROJECT / ".pre-commit-hooks.yaml", hooks)
    git(hooks, "add", "--all")
    git(hooks, "commit", "--message", "The hook")
    # With this environment's command: the hook's own environment would be downloaded.
    hook: dict[str, Any] = {"id": HOOK["id"], "language": "system"}
    config = {"repos": [{"repo": str(hooks), "rev": git(hooks, "rev-parse", "HEAD"), "hooks": [hook]}]}
    with (repository / ".pre-commit-config.yaml").open("w") as file:
        YAML(typ="safe").dump(config, file)
    shutil.copy(EXAMPLE, repository)
    (repository / "gate.yaml").write_text("rules: {response_match_score: {min: 0.8}}\n")
    (repository / "other.json").write_text("{")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run() -> tuple[int, str]:
        git(repository, "add", "--all")
        done = subprocess.run(
            [sys.executable, "-m", "pre_commit", "run", "--color", "never"],
            cwd=repository,
            env=os.environ | {"PATH": path, "PRE_COMMIT_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, said = run()
    assert (code, "Passed" in said) == (0, True), said
    (repository / "gate.yaml").write_text("rules: {response_match_score: {mim: 0.8}}\n")
    code, said = run()
    assert (code, "exit code: 64" in said, "mim" in said) == (1, True, True), said
