"""Files of this repository that a page names, and tests and constants in them, are there; and the page on pytest names every option."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from mlflow_adk_eval.testing.pytest_plugin import HELP

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
PAGES = [name for name in LISTED or ("README.md", "CONTRIBUTING.md") if name != "CHANGELOG.md"]
"""The changelog tells of files that were there then."""
NAMED = re.compile(r"(?<![\w./-])((?:tests|benchmarks|docs|mlflow_adk_eval|example_projects)/[\w./-]+\.(?:py|md|json|yaml))(?:::(\w+))?")
YOURS = "your_"
"""Part of the names of files that do not exist yet."""


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    found = [(file, test) for file, test in NAMED.findall((ROOT / page).read_text("utf-8")) if YOURS not in file]
    assert [file for file, _ in found if not (ROOT / file).is_file()] == []
    defined = {(file, name): rf"(?m)\bdef {name}\(|^{name}(?::| =)" for file, name in found if name}
    assert [f"{file}::{name}" for (file, name), line in defined.items() if not re.search(line, (ROOT / file).read_text("utf-8"))] == []


def test_pages_do_name_files() -> None:
    assert sum(len(NAMED.findall((ROOT / page).read_text("utf-8"))) for page in PAGES) > 20


def test_every_option_of_pytest_is_on_its_page_and_no_other() -> None:
    page = (ROOT / "docs" / "how_to" / "pytest.md").read_text("utf-8")
    assert {name.replace("-", "_") for name in re.findall(r"--adk-([a-z-]+)", page)} == set(HELP)
