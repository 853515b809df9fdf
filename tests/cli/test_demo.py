"""``demo --copy``: the example that the tutorials use, as a user's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_adk_eval.cli import demo
from mlflow_adk_eval.cli.demo import example_folder
from tests.cli.test_cli import invoke

EXAMPLE = Path(__file__).parents[2] / "example_projects" / "home_automation"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_example_is_copied_and_the_next_command_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copied = invoke("demo", "--copy", "my home")
    assert copied.exit_code == 0, copied.stderr
    made = files(tmp_path / "my home")
    assert made["home_automation.evalset.json"] == (EXAMPLE / "home_automation.evalset.json").read_bytes()
    *wrote, following = copied.stdout.splitlines()
    assert wrote == [f"wrote my home/{name}" for name in sorted(made, key=lambda name: Path(name).parts)]
    command = "mlflow-adk-eval run home_automation_agent home_automation.evalset.json"
    assert following == f"next: cd 'my home' && {command}"
    for word in command.split()[2:]:
        assert (tmp_path / "my home" / word).exists()


def test_what_runs_left_in_the_example_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used"
    for name in ("agent.py", "lib/tool.py", "__pycache__/agent.pyc", "lib/__pycache__/tool.pyc", ".adk_eval/ledger.sqlite", "mlflow.db"):
        (used / name).parent.mkdir(parents=True, exist_ok=True)
        (used / name).write_text(name)
    monkeypatch.setattr(demo, "example_folder", lambda: used)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert invoke("demo", "--copy", ".").stdout.splitlines()[-1].startswith("next: mlflow-adk-eval run ")
    assert set(files(Path())) == {"agent.py", "lib/tool.py"}


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_what_is_there_is_left_alone(tmp_path: Path, taken: str) -> None:
    target = tmp_path / "mine"
    kept = target / "notes.txt" if taken == "folder" else target
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    refused = invoke("demo", "--copy", target)
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert refused.stderr == f"error: --copy: {target} is not an empty folder; name a new one\n"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [kept]
    assert kept.read_text() == "mine"


def test_the_example_of_a_checkout_is_its_example_project() -> None:
    assert example_folder() == EXAMPLE
