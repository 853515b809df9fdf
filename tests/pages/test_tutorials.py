"""Each tutorial and the quick start, followed in an empty folder from the wheel: what the page shows is typed, and what comes is compared."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from docs.examples import Session, blocks

DOCS = Path(__file__).parents[2] / "docs"
QUICK_START = DOCS / "start" / "quickstart.md"
PAGES = [QUICK_START, *sorted(DOCS.glob("tutorials/*.md"))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def followed(page: Path, folder: Path, scripts: Path) -> Session:
    """Do what a page says, from top to bottom."""
    folder.mkdir()
    session = Session.of(folder, scripts)
    session.environment.pop("PYTHONPATH", None)  # the checkout's package is not what a reader has
    for block in blocks(page.read_text("utf-8")):
        if block.file:
            session.write(block)
        elif block.language == "console":
            session.follow(block.text)
        else:
            assert block.language in {"bash", "json", "mermaid"}, f"{page.name}, line {block.line}: nobody can type this"
    return session


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_who_types_what_the_page_shows_sees_what_it_shows(page: Path, tmp_path: Path, scripts: Path) -> None:
    session = followed(page, tmp_path / "empty", scripts)
    assert len(session.ids) > 0, "no run was logged"
    if page.stem == "gate_pull_request":
        on_github(session, tmp_path / "runner")


def on_github(session: Session, runner: Path) -> None:
    """Do what the workflow of the tutorial does on the pull request that is worse, and on one that changes nothing."""
    runner.mkdir()
    session.type(f"git clone --quiet --bare . {runner}/origin.git && git remote add origin {runner}/origin.git")
    for branch, wanted in (("tidy-rooms", 1), ("main", 0)):
        session.type(f"git switch --quiet {branch}")
        session.environment |= {"GITHUB_BASE_REF": "main", "RUNNER_TEMP": str(runner), "POLICY": f"{runner}/gate.yaml"}
        workflow = YAML(typ="safe").load((session.folder / ".github/workflows/agent-gate.yml").read_text("utf-8"))
        steps = {step["name"]: step for step in workflow["jobs"]["gate"]["steps"] if "run" in step}
        for step in map(steps.__getitem__, ("Policy", "Evaluate", "Gate")):
            printed = session.type("set -eo pipefail\n" + step["run"])
            assert session.status == (wanted if step["name"] == "Gate" else 0), printed


def test_the_installation_page_has_a_row_for_each_extra_and_says_which_one_all_leaves_out() -> None:
    page = (DOCS / "start" / "installation.md").read_text("utf-8")
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(extras)
    left_out = set(extras) - {"all", "rapid"} - set(re.findall(r"[\w-]+", extras["all"][0].partition("[")[2]))  # rapid-server has rapid
    assert sorted(f"`{name}`" for name in left_out) == sorted(re.findall(r"except (`\w+`)", page))


def test_the_quick_start_is_at_most_300_words() -> None:
    prose = FENCE.sub("", QUICK_START.read_text("utf-8"))
    assert len(prose.split()) <= 300


def test_the_quick_start_shows_a_command_its_output_and_a_picture() -> None:
    page = QUICK_START.read_text("utf-8")
    assert next(blocks(page)).language == "console"
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert (QUICK_START.parent / picture).is_file()


def test_no_tutorial_has_blocks_that_only_a_test_needs() -> None:
    for page in PAGES:
        code = "".join(block.text for block in blocks(page.read_text("utf-8")))
        assert not re.search(r"^\s*assert |\bsubprocess\b|\btempfile\b", code, re.MULTILINE), page.name
